//! How unknown outcomes are looked into.

use super::{Item, Kind::*, Schema, field};

pub(in crate::config) const RECONCILE: Schema = Schema {
    name: "`reconcile`",
    fields: &[
        field(
            "query",
            Section(&QUERY),
            "",
            "[the question](#query) that asks the provider what became of a key",
        ),
        field(
            "outcomes",
            Sections(&OUTCOME),
            "",
            "[what its answers mean](#an-outcome): the first that matches decides, and no match is \
             inconclusive",
        ),
        field(
            "upstream_max_execution",
            Duration,
            "none",
            "how long the provider may go on with a request after its connection is gone; without it \
             `not_executed` never releases a key but makes a dead letter",
        ),
        field(
            "negative_gap",
            Duration,
            "`1m`",
            "how far apart the two negative answers must be that release a key",
        ),
        field(
            "after",
            Duration,
            "`5s`",
            "the first look after a key became unknown; the pause doubles with each further one",
        ),
        field(
            "attempts",
            Number,
            "`8`",
            "looks that find out nothing before a person has to decide",
        ),
        field(
            "webhook",
            Section(&WEBHOOK),
            "",
            "[what the provider tells](#webhook) of its own accord",
        ),
        field(
            "provider_keys_unique",
            Boolean,
            "`false`",
            "says that no two clients send the same key to this provider, so that it need not be told \
             the client",
        ),
    ],
};

pub(in crate::config) const QUERY: Schema = Schema {
    name: "`query`",
    fields: &[
        field(
            "url",
            Url,
            "required",
            "`http://` or `https://`; `{key}`, `{client}` and `{route}` in its path and query are \
             replaced, percent-encoded",
        ),
        field(
            "ca_file",
            File,
            "the public authorities",
            "with `https://`: the authorities that its certificate may come from",
        ),
        field(
            "headers",
            Map,
            "none",
            "headers of the question, credentials for instance",
        ),
        field(
            "timeout",
            Duration,
            "`10s`",
            "from connecting to the end of the answer",
        ),
    ],
};

pub(in crate::config) const OUTCOME: Schema = Schema {
    name: "an outcome",
    fields: &[
        field("when", Section(&WHEN), "required", "[the condition](#when)"),
        field(
            "complete",
            Section(&COMPLETE),
            "",
            "it took effect, and this is [the answer](#complete) that retries get",
        ),
        field(
            "not_executed",
            Words(&["true"]),
            "",
            "it left nothing behind, and a retry may execute",
        ),
        field(
            "pending",
            Words(&["true"]),
            "",
            "it is still under way: the answer counts as no look",
        ),
    ],
};

pub(in crate::config) const WHEN: Schema = Schema {
    name: "`when`",
    fields: &[
        field(
            "status",
            List(Item::AnyStatuses),
            "any",
            "the status of the answer; a webhook has none",
        ),
        field(
            "pointer",
            Text,
            "",
            "a JSON pointer into the body: there is a value, and it is not null",
        ),
        field(
            "in",
            List(Item::Texts),
            "any",
            "and that value is one of these",
        ),
        field(
            "empty",
            Text,
            "",
            "a JSON pointer into a body of JSON: there is an empty list, object or text",
        ),
        field(
            "absent",
            Text,
            "",
            "a JSON pointer into a body of JSON: there is nothing, or null",
        ),
        field(
            "pending",
            Words(&["true"]),
            "",
            "the same as `pending` beside `when`",
        ),
    ],
};

pub(in crate::config) const COMPLETE: Schema = Schema {
    name: "`complete`",
    fields: &[
        field("status", Number, "required", "200 to 599"),
        field(
            "body",
            Text,
            "no body",
            "a JSON pointer into the provider's body; `\"\"` is all of it, byte for byte",
        ),
    ],
};

pub(in crate::config) const WEBHOOK: Schema = Schema {
    name: "`webhook`",
    fields: &[
        field(
            "scheme",
            Words(&["standard", "stripe"]),
            "`standard`",
            "how events are signed: Standard Webhooks, or as Stripe does",
        ),
        field(
            "secret_env",
            Name,
            "required",
            "the variable with the secret; several, separated by spaces, while one replaces another",
        ),
        field(
            "key",
            Text,
            "required",
            "a JSON pointer to the key in the event",
        ),
        field("client", Text, "", "a JSON pointer to the client's id"),
        field(
            "at",
            Text,
            "the signature's time",
            "a JSON pointer to when it happened, in Unix seconds or RFC 3339; older than the current \
             attempt makes a dead letter. `not_executed` demands it",
        ),
        field(
            "outcomes",
            Sections(&OUTCOME),
            "required",
            "[what events mean](#an-outcome); events that match none are left alone",
        ),
        field(
            "tolerance",
            Duration,
            "`5m`",
            "how old, or how far in the future, a signature may be",
        ),
    ],
};
