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

/// Asks the provider behind a route.
pub trait Ask: Send + Sync + 'static {
    /// What became of the key of `record`, as its provider says. Must end in bounded time.
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
