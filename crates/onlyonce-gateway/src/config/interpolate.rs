//! `${NAME}` in a value: an environment variable.
//!
//! Only `${` is special; any other dollar sign is literal. A variable's value is not expanded again, and
//! never printed.

use super::diagnostics::quoted;

/// Why a value could not be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// The variable is not set, or is not text.
    #[error("the environment variable {} is not set", quoted(.0))]
    Missing(String),
    /// `${` has no end, or contains something other than a name.
    #[error("`${{` must be followed by a variable's name and `}}`")]
    Malformed,
}

impl Problem {
    pub(super) fn hint(&self) -> String {
        match self {
            Self::Missing(name) => format!("set {name} before starting, or write the value here"),
            Self::Malformed => "for example `${STORE_URL}`".to_owned(),
        }
    }
}

/// `text` with every `${NAME}` replaced.
pub(super) fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, Problem> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, tail) = after.split_once('}').ok_or(Problem::Malformed)?;
        if !is_name(name) {
            return Err(Problem::Malformed);
        }
        expanded.push_str(before);
        expanded.push_str(&env(name).ok_or_else(|| Problem::Missing(name.to_owned()))?);
        rest = tail;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Whether `name` is valid for an environment variable on every system.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("db".to_owned()),
            "SLY" => Some("${HOST}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_put_in_once() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a${HOST}b${HOST}", "adbbdb"),
            ("${SLY}", "${HOST}"),
            ("$HOST costs $5 $$", "$HOST costs $5 $$"),
        ] {
            assert_eq!(expand(text, &env), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_variable_is_refused() {
        assert_eq!(
            expand("${NOPE}", &env),
            Err(Problem::Missing("NOPE".to_owned()))
        );
        for text in ["${", "${HOST", "${}", "${a b}", "${1X}", "${HOST:-x}"] {
            assert_eq!(expand(text, &env), Err(Problem::Malformed), "{text}");
        }
    }
}
