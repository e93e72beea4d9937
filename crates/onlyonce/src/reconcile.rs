//! What a provider's answer means for a key whose outcome nobody saw: rules, of which the first that
//! matches decides, and the seam through which a program asks its provider.
//!
//! Deliberately absent: HTTP. How the question travels is the business of whoever implements [`Ask`];
//! what may follow from the answer is the machine's.

mod rules;

use std::time::Duration;

use futures_util::future::BoxFuture;
use onlyonce_core::{Record, Timestamp, record::Evidence};

pub use rules::{Judged, Rule, Then, When, judge, text_at};

/// A provider's answer to the question what became of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What it means.
    pub judged: Judged,
    /// Everything that makes the question what it is, so that a negative answer counts only once the
    /// same question has been seen to find something. `None` where nobody was asked.
    pub question: Option<String>,
}

/// The one answer of a provider that was asked under each name it may know a key by: an effect under any
/// of them is one, and a denial counts only if all are denied. Effects that differ prove nothing.
pub fn under_all_names(answers: Vec<Judged>) -> Judged {
    use Evidence::{Completed, Contradictory, NotExecuted};
    // Several under one name are several, whatever the other brought.
    let several = |answer: &&Judged| matches!(answer, Judged::Several(_));
    if let Some(several) = answers.iter().find(several) {
        return several.clone();
    }
    let of_effect = |answer: &&Judged| matches!(answer, Judged::Says(Completed(_) | Contradictory));
    let mut effects = answers.iter().filter(of_effect);
    if let Some(first) = effects.next() {
        return match effects.all(|other| other == first) {
            true => first.clone(),
            false => Judged::Says(Contradictory),
        };
    }
    let denial = Judged::Says(NotExecuted);
    let undecided = answers.into_iter().find(|answer| *answer != denial);
    undecided.unwrap_or(denial)
}

/// Asks the provider behind a route.
pub trait Ask: Send + Sync + 'static {
    /// What became of the key of `record`, as its provider says, asked under each of
    /// [`Record::names`]: see [`under_all_names`]. Must end in bounded time.
    fn ask<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Answer>;
}

/// Nobody to ask: what is unknown waits for a webhook or for a person.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Ask for Nobody {
    fn ask<'a>(&'a self, _record: &'a Record) -> BoxFuture<'a, Answer> {
        let why = "there is nobody to ask".to_owned();
        let answer = Answer {
            judged: Judged::Inconclusive(why),
            question: None,
        };
        Box::pin(std::future::ready(answer))
    }
}

/// What a provider tells of its own accord, its signature checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The provider's id of this event: what comes again under it is the same event.
    pub event: String,
    /// The route that the provider stands behind.
    pub route: String,
    /// What it says.
    pub evidence: Evidence,
    /// When that happened at the latest, by the provider's clock.
    pub at: Timestamp,
    /// How much earlier it may have been: a provider that tells whole seconds leaves one open.
    pub coarse: Duration,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use onlyonce_core::StoredResponse;

    use super::*;

    #[test]
    fn a_denial_counts_under_all_names_and_an_effect_under_any() {
        let effect = |body: &'static str| {
            let answer = StoredResponse::plain(StatusCode::CREATED, Bytes::from(body));
            Judged::Says(Evidence::Completed(answer.into()))
        };
        let denial = || Judged::Says(Evidence::NotExecuted);
        let torn = || Judged::Says(Evidence::Contradictory);
        let undecided = || Judged::Inconclusive("?".to_owned());
        for (answers, expected) in [
            ([denial(), denial()], denial()),
            ([denial(), undecided()], undecided()),
            ([denial(), effect("1")], effect("1")),
            ([undecided(), undecided()], undecided()),
            ([undecided(), effect("1")], effect("1")),
            ([effect("1"), effect("1")], effect("1")),
            ([effect("1"), effect("2")], torn()),
            ([torn(), effect("1")], torn()),
            ([torn(), denial()], torn()),
        ] {
            let [first, second] = answers.clone();
            for order in [answers.to_vec(), vec![second, first]] {
                assert_eq!(under_all_names(order.clone()), expected, "{order:?}");
            }
        }
    }
}
