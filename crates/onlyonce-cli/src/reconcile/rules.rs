//! The rules that interpret the words of a ledger: those of the route's query, from the configuration in
//! effect, with columns instead of pointers.

use serde_json::Value;

/// What a row says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// The operation took effect, with an answer of this status class.
    Complete(u16),
    /// The operation had no effect.
    NotExecuted,
    /// No rule matches.
    Nothing,
}

/// The rules, in order.
pub(super) struct LedgerRules {
    rules: Vec<LedgerRule>,
    /// Whether no two clients have equal keys at the provider.
    pub(super) keys_unique: bool,
}

struct LedgerRule {
    /// The possible names of the column, and the words in it; `None` matches any row.
    column: Option<(Vec<String>, Vec<String>)>,
    says: Says,
}

impl LedgerRules {
    /// The rules of `reconcile`, as `GET /config` shows it. A rule for answers that are not a success
    /// concerns keys that the provider does not know, so it applies to no row.
    pub(super) fn of(reconcile: &Value) -> Self {
        let outcomes = reconcile["outcomes"].as_array();
        let outcomes = outcomes.map_or(&[][..], Vec::as_slice);
        let keys_unique = reconcile["provider_keys_unique"] == true;
        if outcomes.is_empty() {
            return Self {
                keys_unique,
                ..Self::by_words()
            };
        }
        let texts = |value: &Value| -> Vec<String> {
            let items = value.as_array().into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let is_success = |when: &Value| {
            let statuses = when["status"].as_array().map_or(&[][..], Vec::as_slice);
            statuses.is_empty()
                || statuses
                    .iter()
                    .any(|status| status.as_u64().is_some_and(|code| code / 100 == 2))
        };
        let rule = |outcome: &Value| {
            let when = &outcome["when"];
            let column = when["pointer"].as_str().map(|pointer| {
                let tokens: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
                let names = [tokens.join("."), tokens.join("/")];
                let last = tokens.last().map(|last| (*last).to_owned());
                (names.into_iter().chain(last).collect(), texts(&when["in"]))
            });
            let status = outcome["complete"]["status"].as_u64();
            let says = match status.and_then(|status| u16::try_from(status / 100).ok()) {
                Some(hundred) => Says::Complete(hundred),
                None => Says::NotExecuted,
            };
            is_success(when).then_some(LedgerRule { column, says })
        };
        Self {
            rules: outcomes.iter().filter_map(rule).collect(),
            keys_unique,
        }
    }

    /// The rules if none are configured: the words that most providers use in a column `status`.
    pub(super) fn by_words() -> Self {
        let rule = |words: &[&str], says| LedgerRule {
            column: Some((
                vec!["status".to_owned()],
                words.iter().map(|word| (*word).to_owned()).collect(),
            )),
            says,
        };
        let rules = vec![
            rule(
                &[
                    "succeeded",
                    "completed",
                    "paid",
                    "captured",
                    "settled",
                    "200",
                    "201",
                ],
                Says::Complete(2),
            ),
            rule(
                &["declined", "failed", "rejected", "402"],
                Says::Complete(4),
            ),
        ];
        Self {
            rules,
            keys_unique: false,
        }
    }

    /// If no rule reads an existing column, the reason why no row under this header can be interpreted.
    pub(super) fn blind_to(&self, header: &[String]) -> Option<String> {
        let mut wanted: Vec<&str> = Vec::new();
        for rule in &self.rules {
            let (names, _) = rule.column.as_ref()?;
            if place(header, names).is_some() {
                return None;
            }
            let name = names.last().map_or("", String::as_str);
            if !wanted.contains(&name) {
                wanted.push(name);
            }
        }
        let has = format!("it has `{}`", header.join("`, `"));
        Some(match wanted.as_slice() {
            [] => "no rule of the route says what a row of the ledger means".to_owned(),
            [one] => format!("the ledger has no column `{one}`, which the rules read; {has}"),
            several => format!(
                "the ledger has none of the columns that the rules read, `{}`; {has}",
                several.join("`, `")
            ),
        })
    }

    /// What a row with these cells says.
    pub(super) fn judge(&self, header: &[String], cells: &[String]) -> Says {
        let holds = |rule: &&LedgerRule| match &rule.column {
            None => true,
            Some((names, words)) => place(header, names)
                .and_then(|place| cells.get(place))
                .is_some_and(|cell| match words.is_empty() {
                    true => !cell.is_empty(),
                    false => words.contains(cell),
                }),
        };
        self.rules
            .iter()
            .find(holds)
            .map_or(Says::Nothing, |rule| rule.says)
    }
}

/// The index of the column that has one of these names.
fn place(header: &[String], names: &[String]) -> Option<usize> {
    let mut names = names.iter();
    names.find_map(|name| header.iter().position(|column| column == name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_judged_by_the_rules_of_the_query() {
        let rules = LedgerRules::of(&json!({ "outcomes": [
            { "when": { "status": [200], "pointer": "/data/status", "in": ["ok"] },
              "complete": { "status": 201, "body": "" } },
            { "when": { "status": [200], "pointer": "/data/status", "in": ["no"] },
              "complete": { "status": 402, "body": "" } },
            { "when": { "status": [404] }, "not_executed": true },
        ] }));
        let header = ["key".to_owned(), "data.status".to_owned()];
        for (word, expected) in [
            ("ok", Says::Complete(2)),
            ("no", Says::Complete(4)),
            ("processing", Says::Nothing),
        ] {
            let cells = ["k".to_owned(), word.to_owned()];
            assert_eq!(rules.judge(&header, &cells), expected, "{word}");
        }
        let header = ["key".to_owned(), "status".to_owned()];
        let cells = ["k".to_owned(), "ok".to_owned()];
        assert_eq!(
            rules.judge(&header, &cells),
            Says::Complete(2),
            "its last part"
        );
        assert_eq!(rules.blind_to(&header), None);
        let other = ["key".to_owned(), "Status".to_owned()];
        assert_eq!(
            rules.blind_to(&other).unwrap(),
            "the ledger has no column `status`, which the rules read; it has `key`, `Status`"
        );
        let found =
            json!({ "outcomes": [{ "when": { "status": [200] }, "complete": { "status": 201 } }] });
        assert_eq!(LedgerRules::of(&found).blind_to(&other), None, "any row");
        let not_found =
            json!({ "outcomes": [{ "when": { "status": [404] }, "not_executed": true }] });
        assert!(LedgerRules::of(&not_found).blind_to(&header).is_some());
    }
}
