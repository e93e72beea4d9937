//! What a provider's answer means for a key with an unknown outcome: rules, of which the first match decides,
//! and the trait through which a program asks its provider.
//!
//! Deliberately absent: HTTP. The implementation of [`Ask`] transports the question; the machine decides what
//! follows from the answer.

mod rules;

use std::time::Duration;

use futures_util::future::BoxFuture;
use onlyonce_core::{Record, Timestamp, record::Evidence};

pub use rules::{Judged, Rule, Then, When, judge, text_at};

/// A provider's answer to a query about a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The meaning of the answer.
    pub judged: Judged,
    /// The identity of the query: a negative answer counts only once the same query has found something.
    /// `None` if nobody was asked.
    pub question: Option<String>,
}

/// Combines the answers of a provider that was asked under each name it may know a key by. An effect under
/// any name counts; a denial counts only if all names are denied. Different effects prove nothing.
pub fn under_all_names(answers: Vec<Judged>) -> Judged {
    use Evidence::{Completed, Contradictory, NotExecuted};
    // Several operations under one name stay several, whatever the other answers are.
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

/// Asks the provider of a route.
pub trait Ask: Send + Sync + 'static {
    /// The provider's answer about the key of `record`, asked under each of [`Record::names`]; see
    /// [`under_all_names`]. Must end in bounded time.
    fn ask<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Answer>;
}

/// No provider: unknown keys wait for a webhook or for a person.
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

/// A webhook event whose signature has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The provider's id of this event: a repeated id is the same event.
    pub event: String,
    /// The route of the provider.
    pub route: String,
    /// The evidence in the event.
    pub evidence: Evidence,
    /// The latest time at which it happened, by the provider's clock.
    pub at: Timestamp,
    /// How much earlier it may have happened: a provider with a resolution of one second leaves one second.
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
