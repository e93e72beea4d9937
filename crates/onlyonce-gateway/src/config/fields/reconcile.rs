//! How unknown outcomes are looked into.

use std::{ops::RangeInclusive, time::Duration};

use onlyonce::reconcile::Rule;
use onlyonce_core::fingerprint::Pointer;

use super::{Item, Kind::*, SOME};
use crate::config::{
    reconcile::{QueryConfig, Scheme},
    setting::{Word, filled_variable},
};

/// A question that takes longer holds up the others.
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

section! {
    /// How it is found out what became of an unknown key.
    pub(crate) struct ReconcileConfig: RECONCILE = "`reconcile`" {
        pub query: Option<QueryConfig> = Section(&QUERY), (""),
            "[the question](#query) that asks the provider what became of a key";
        pub outcomes: Vec<Rule> = Sections(&OUTCOME), [""],
            "[what its answers mean](#an-outcome): the first that matches decides, and no match \
             is inconclusive";
        pub upstream_max_execution: Option<Duration> = Duration(SOME), ("none"),
            "how long the provider may go on with a request after its connection is gone; without \
             it `not_executed` never releases a key but makes a dead letter";
        pub negative_gap: Duration = Duration(SOME), "1m",
            "how far apart the two negative answers must be that release a key";
        pub after: Duration = Duration(SOME), "5s",
            "the first look after a key became unknown; the pause doubles with each further one";
        pub attempts: u16 = Number(1..=100), "8",
            "looks that find out nothing before a person has to decide";
        pub webhook: Option<WebhookConfig> = Section(&WEBHOOK), (""), "[what the provider tells](#webhook) of its own accord";
        pub provider_keys_unique: bool = Boolean, "false",
            "says that no two clients send the same key to this provider, so that it need not be \
             told the client";
    }
}

schema! {
    QUERY = "`query`" {
        url = Url, required,
            "`http://` or `https://`; `{key}`, `{client}` and `{route}` in its path and query are \
             replaced, percent-encoded";
        ca_file = File, ("the public authorities"),
            "with `https://`: the authorities that its certificate may come from";
        headers = Map, ("none"), "headers of the question, credentials for instance";
        timeout = Duration(TIMEOUT), "10s", "from connecting to the end of the answer";
    }
}

schema! {
    OUTCOME = "an outcome" {
        when = Section(&WHEN), required, "[the condition](#when)";
        complete = Section(&COMPLETE), (""),
            "it took effect, and this is [the answer](#complete) that retries get";
        not_executed = Words(&["true"]), (""), "it left nothing behind, and a retry may execute";
        pending = Words(&["true"]), (""), "it is still under way: the answer counts as no look";
    }
}

schema! {
    WHEN = "`when`" {
        status = List(Item::AnyStatuses), ("any"), "the status of the answer; a webhook has none";
        pointer = Text, (""), "a JSON pointer into the body: there is a value, and it is not null";
        in = List(Item::Values), ("any"), "and that value is one of these";
        empty = Text, (""),
            "a JSON pointer into a body of JSON: there is an empty list, object or text";
        absent = Text, (""), "a JSON pointer into a body of JSON: there is nothing, or null";
        pending = Words(&["true"]), (""), "the same as `pending` beside `when`";
    }
}

schema! {
    COMPLETE = "`complete`" {
        status = Number(200..=599), required, "200 to 599";
        body = Text, ("no body"),
            "a JSON pointer into the provider's body; `\"\"` is all of it, byte for byte";
    }
}

section! {
    /// What the provider tells of its own accord.
    pub(crate) struct WebhookConfig: WEBHOOK = "`webhook`" {
        pub scheme: Scheme = Words(Scheme::NAMES), "standard",
            "how events are signed: Standard Webhooks, or as Stripe does";
        pub secret_env: String = Name(filled_variable), required,
            "the variable with the secret; several, separated by spaces, while one replaces \
             another";
        pub key: Pointer = Text, required, "a JSON pointer to the key in the event";
        pub client: Option<Pointer> = Text, (""), "a JSON pointer to the client's id";
        pub at: Option<Pointer> = Text, ("the signature's time"),
            "a JSON pointer to when it happened, in Unix seconds or RFC 3339; older than the \
             current attempt makes a dead letter. `not_executed` demands it";
        pub outcomes: Vec<Rule> = Sections(&OUTCOME), required,
            "[what events mean](#an-outcome); events that match none are left alone";
        pub tolerance: Duration = Duration(SOME), "5m", "how old, or how far in the future, a signature may be";
    }
}
