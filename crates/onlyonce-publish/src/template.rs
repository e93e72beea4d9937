//! Names that are filled in from a message: a subject, a routing key, a topic.

use onlyonce::outbox::Parcel;

/// A name such as `orders.{type}`. `{type}` is the message's type, and `{ordering_key}` its ordering key, or
/// nothing if it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Type,
    OrderingKey,
}

/// Why a text is not a valid template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadTemplate {
    /// It has an unknown placeholder.
    #[error("only {{type}} and {{ordering_key}} can be filled in")]
    Placeholder,
    /// A brace is unbalanced.
    #[error("a brace is not closed, or not opened")]
    Brace,
}

impl Template {
    /// Parses `text`.
    ///
    /// # Errors
    /// [`BadTemplate`] names the rule that `text` breaks.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            let inside = from.strip_prefix('{').ok_or(BadTemplate::Brace)?;
            let (name, after) = inside.split_once('}').ok_or(BadTemplate::Brace)?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(match name {
                "type" => Part::Type,
                "ordering_key" => Part::OrderingKey,
                _ => return Err(BadTemplate::Placeholder),
            });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// The name for `parcel`.
    pub(crate) fn fill(&self, parcel: &Parcel) -> String {
        let filled = self.0.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Type => &parcel.kind,
            Part::OrderingKey => parcel.ordering_key.as_deref().unwrap_or_default(),
        });
        filled.collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use onlyonce_core::{MessageId, Timestamp};

    use super::*;

    #[test]
    fn names_are_filled_in() {
        let mut parcel = Parcel {
            id: MessageId([0; 16]),
            target: "shop".into(),
            kind: "order.paid".to_owned(),
            aggregate: None,
            ordering_key: Some("17".to_owned()),
            key: "k".to_owned(),
            headers: Default::default(),
            payload: Bytes::new(),
            attempt: 1,
            created_at: Timestamp(0),
        };
        for (text, filled) in [
            ("", ""),
            ("orders", "orders"),
            ("orders.{type}", "orders.order.paid"),
            ("{ordering_key}.{type}.x", "17.order.paid.x"),
        ] {
            assert_eq!(Template::parse(text).unwrap().fill(&parcel), filled);
        }
        parcel.ordering_key = None;
        let template = Template::parse("a.{ordering_key}").unwrap();
        assert_eq!(template.fill(&parcel), "a.");
        for (bad, why) in [
            ("{id}", BadTemplate::Placeholder),
            ("a{type", BadTemplate::Brace),
            ("a}", BadTemplate::Brace),
        ] {
            assert_eq!(Template::parse(bad), Err(why), "{bad}");
        }
    }
}
