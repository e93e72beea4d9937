//! The checks by name: what each asks, who expects it, and what a failure costs.

use clap::ValueEnum;

use super::finding::Severity;

/// A question to the API. The order is that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Check {
    Replay,
    Bytes,
    Marker,
    Expiry,
    Concurrent,
    InFlight,
    HangUp,
    PartOfABody,
    Mismatch,
    MismatchKeeps,
    MismatchInFlight,
    ReorderedJson,
    Query,
    Path,
    MissingKey,
    QuotedKey,
    BadKeys,
    OtherCaller,
    OtherHost,
    MethodCase,
    Upgrade,
    #[value(name = "4xx")]
    ClientError,
    #[value(name = "5xx")]
    ServerError,
    Binary,
    Empty,
    Large,
    Chunked,
    TwoNodes,
}

const DRAFT: &str =
    "draft-ietf-httpapi-idempotency-key-header-07, Idempotency Enforcement Scenarios";
const STRIPE: &str = "Stripe API reference, Idempotent requests";
const SDKS: &str = "SDKs that retry by themselves (stripe-node, stripe-python, AWS)";
const CHECKLIST: &str = "the usual review checklist for idempotent endpoints";

impl Check {
    pub(super) const ALL: [Self; 28] = [
        Self::Replay,
        Self::Bytes,
        Self::Marker,
        Self::Expiry,
        Self::Concurrent,
        Self::InFlight,
        Self::HangUp,
        Self::PartOfABody,
        Self::Mismatch,
        Self::MismatchKeeps,
        Self::MismatchInFlight,
        Self::ReorderedJson,
        Self::Query,
        Self::Path,
        Self::MissingKey,
        Self::QuotedKey,
        Self::BadKeys,
        Self::OtherCaller,
        Self::OtherHost,
        Self::MethodCase,
        Self::Upgrade,
        Self::ClientError,
        Self::ServerError,
        Self::Binary,
        Self::Empty,
        Self::Large,
        Self::Chunked,
        Self::TwoNodes,
    ];

    /// The name on the command line and in JSON.
    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Bytes => "bytes",
            Self::Marker => "marker",
            Self::Expiry => "expiry",
            Self::Concurrent => "concurrent",
            Self::InFlight => "in-flight",
            Self::HangUp => "hang-up",
            Self::PartOfABody => "part-of-a-body",
            Self::Mismatch => "mismatch",
            Self::MismatchKeeps => "mismatch-keeps",
            Self::MismatchInFlight => "mismatch-in-flight",
            Self::ReorderedJson => "reordered-json",
            Self::Query => "query",
            Self::Path => "path",
            Self::MissingKey => "missing-key",
            Self::QuotedKey => "quoted-key",
            Self::BadKeys => "bad-keys",
            Self::OtherCaller => "other-caller",
            Self::OtherHost => "other-host",
            Self::MethodCase => "method-case",
            Self::Upgrade => "upgrade",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::Binary => "binary",
            Self::Empty => "empty",
            Self::Large => "large",
            Self::Chunked => "chunked",
            Self::TwoNodes => "two-nodes",
        }
    }

    /// The property that is checked.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Replay => "A retry is not executed again and gets the first answer",
            Self::Bytes => "The retry's answer is the same, byte for byte, headers included",
            Self::Marker => "A replay is marked as one, a first answer is not",
            Self::Expiry => "The API says how long a key is good, and the date makes sense",
            Self::Concurrent => "Duplicates at the same moment are executed once",
            Self::InFlight => {
                "A duplicate of a running request waits, or is told when to come back"
            }
            Self::HangUp => "A client that hung up gets its answer on the retry",
            Self::PartOfABody => {
                "A body that broke off is not executed, and its key is not used up"
            }
            Self::Mismatch => "A key that is used for another request is refused",
            Self::MismatchKeeps => "The first request still has its answer after that",
            Self::MismatchInFlight => "A reused key is refused while the first request still runs",
            Self::ReorderedJson => "The same JSON in another order is the same request",
            Self::Query => "Another query under the same key is another request",
            Self::Path => "Another path under the same key is another request",
            Self::MissingKey => "A request without a key is refused",
            Self::QuotedKey => "\"abc\" and abc never make two executions",
            Self::BadKeys => "A key that cannot be used is refused, never ignored",
            Self::OtherCaller => "Nobody gets another caller's answer",
            Self::OtherHost => "Nobody gets the answer of another host",
            Self::MethodCase => "A method in lower case is no way around the key",
            Self::Upgrade => "A wish for another protocol is no way around the key",
            Self::ClientError => "A refusal is remembered like any answer",
            Self::ServerError => "A server error and its retry do the work once at most",
            Self::Binary => "A binary answer is replayed byte for byte",
            Self::Empty => "An empty answer is replayed",
            Self::Large => "A large answer is replayed, or refused without executing again",
            Self::Chunked => "An answer without a length is replayed",
            Self::TwoNodes => "Two nodes agree about one key",
        }
    }

    /// Who expects it.
    pub(super) fn expected_by(self) -> &'static [&'static str] {
        match self {
            Self::Replay | Self::Bytes => &[DRAFT, STRIPE, SDKS],
            Self::Marker => &[STRIPE, "gateways that send X-Idempotent-Replayed"],
            Self::Expiry => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Idempotency Key Validity and Expiry",
            ],
            Self::Concurrent => &[DRAFT, STRIPE, CHECKLIST],
            Self::InFlight => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Error Scenarios (409)",
                "RFC 9110, section 10.2.3 (Retry-After)",
                CHECKLIST,
            ],
            Self::HangUp => &[DRAFT, SDKS],
            Self::PartOfABody => &["RFC 9112, section 8 (incomplete messages)", CHECKLIST],
            Self::Mismatch | Self::MismatchKeeps | Self::MismatchInFlight => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Error Scenarios (422)",
                STRIPE,
                CHECKLIST,
            ],
            Self::ReorderedJson => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Idempotency Fingerprint",
                "clients whose maps have no order (Go, Ruby, Python before 3.7)",
            ],
            Self::Query | Self::Path => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Idempotency Fingerprint",
                STRIPE,
            ],
            Self::MissingKey => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Error Scenarios (400)",
                CHECKLIST,
            ],
            Self::QuotedKey => {
                &["RFC 9651, Strings, as the draft demands them; and what SDKs send"]
            }
            Self::BadKeys => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Uniqueness of Idempotency Key",
                STRIPE,
            ],
            Self::OtherCaller => &[
                "draft-ietf-httpapi-idempotency-key-header-07, Security Considerations",
                CHECKLIST,
            ],
            Self::OtherHost => &[
                "RFC 9110, section 7.2: the host is part of what is asked for",
                "draft-ietf-httpapi-idempotency-key-header-07, Security Considerations",
            ],
            Self::MethodCase => &["servers that take `post` for POST (PHP, WSGI)", CHECKLIST],
            Self::Upgrade => &[
                "RFC 9110, section 7.8: a server may ignore Upgrade",
                CHECKLIST,
            ],
            Self::ClientError => &[
                STRIPE,
                "draft-ietf-httpapi-idempotency-key-header-07, Idempotency Enforcement Scenarios",
            ],
            Self::ServerError => &[STRIPE, CHECKLIST],
            Self::Binary | Self::Empty | Self::Large | Self::Chunked => &[DRAFT],
            Self::TwoNodes => &[CHECKLIST],
        }
    }

    /// What a failure costs, for readers who do not know HTTP.
    pub(super) fn cost(self, severity: Severity) -> &'static str {
        match severity {
            Severity::Danger => self.danger(),
            Severity::Trouble => self.trouble(),
        }
    }

    fn danger(self) -> &'static str {
        match self {
            Self::Replay => {
                "A customer on a bad connection pays twice: the first try worked, its answer got lost, \
                 and the automatic retry is a second payment."
            }
            Self::Concurrent => {
                "A double click, or an app that retries too early, is charged several times at once."
            }
            Self::InFlight => "An impatient client repeats a slow payment, and both go through.",
            Self::HangUp => {
                "A phone that loses its signal in the middle of a payment pays again when it is back."
            }
            Self::PartOfABody => {
                "An order that was cut short on its way is carried out as it arrived: a part of the \
                 goods, or another amount; and its complete retry is a second order."
            }
            Self::Mismatch | Self::MismatchInFlight => {
                "A second order under an old key is taken for the first: the customer is told that it \
                 worked although nothing was done, or the key protects nothing."
            }
            Self::MismatchKeeps => {
                "One wrong request destroys the protection of an earlier one; its next retry is a \
                 second payment."
            }
            Self::ReorderedJson => {
                "A retry by a client that writes its JSON in another order is a second payment."
            }
            Self::Query | Self::Path => {
                "A key protects one address only by chance: the same key runs again elsewhere."
            }
            Self::MissingKey => {
                "A client that forgets the header is not protected, and nobody tells it. The first \
                 sign is a customer who was charged twice."
            }
            Self::QuotedKey => {
                "Two libraries that write the same key differently make two payments of one."
            }
            Self::BadKeys => {
                "A client with a faulty key believes that it is protected. It is not, and each retry \
                 is another payment."
            }
            Self::OtherCaller => {
                "One customer sees what another one bought. That is a data breach, to be reported."
            }
            Self::OtherHost => {
                "One tenant sees what another one bought. That is a data breach, to be reported."
            }
            Self::MethodCase | Self::Upgrade => {
                "Whoever spells a request differently goes around the key, and each retry is another \
                 payment."
            }
            Self::ClientError => {
                "A customer who was told that the payment was declined is charged after all."
            }
            Self::ServerError => {
                "After an outage every retry of a half-finished payment is a second payment."
            }
            Self::TwoNodes => {
                "The protection ends at one machine. Behind a load balancer half of all retries are \
                 second payments."
            }
            Self::Bytes
            | Self::Marker
            | Self::Expiry
            | Self::Binary
            | Self::Empty
            | Self::Large
            | Self::Chunked => "A retry runs the operation again, and the customer pays for both.",
        }
    }

    fn trouble(self) -> &'static str {
        match self {
            Self::Replay | Self::HangUp | Self::Concurrent => {
                "The payment was made, but the retry does not learn of it: the shop shows an error for \
                 an order that it has to deliver."
            }
            Self::Bytes | Self::Binary | Self::Empty | Self::Chunked => {
                "The retry gets another answer than the first try: a receipt, a link or a signature \
                 does not fit, and the client fails on something that worked."
            }
            Self::Large => "The retry neither gets the answer nor is told what became of it.",
            Self::Marker => {
                "Nobody can tell a replay from an execution, so figures and alarms are guesses."
            }
            Self::Expiry => {
                "A client cannot know how long it may retry, and one that believes the date retries \
                 too late: as a new payment."
            }
            Self::PartOfABody => {
                "An order that was cut short on its way uses up its key: the complete one is refused, \
                 and nobody executes it."
            }
            Self::InFlight => {
                "Clients do not know whether and when to come back: they give up on a payment that is \
                 about to work, or hammer the API."
            }
            Self::Mismatch | Self::MismatchInFlight | Self::Query | Self::Path => {
                "A mistake in a client stays hidden: it gets an answer that is not about its request, \
                 or an error that libraries read as something else."
            }
            Self::MismatchKeeps => {
                "One wrong request takes away the answer of an earlier one, which worked."
            }
            Self::ReorderedJson => {
                "An honest retry is refused because its members came in another order: the customer \
                 sees an error for a payment that worked."
            }
            Self::MissingKey => {
                "The request is refused, but not in the way that clients understand."
            }
            Self::QuotedKey | Self::BadKeys => {
                "A client with a faulty key gets an answer that does not say so."
            }
            Self::OtherCaller => {
                "Customers get in each other's way: a key that somebody else used cannot be used."
            }
            Self::OtherHost => {
                "Where hosts are tenants or environments, a test's answer is shown as the real one's."
            }
            Self::MethodCase | Self::Upgrade => {
                "A request in another spelling gets an answer that does not say so."
            }
            Self::ClientError => {
                "The retry of a refused request gets another answer than the first."
            }
            Self::ServerError => {
                "A passing error sticks to the key, or the retry is not answered in a way that \
                 clients understand."
            }
            Self::TwoNodes => "A retry that reaches another machine does not get its answer.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_command_line_are_those_of_the_report() {
        for check in Check::ALL {
            let name = check.to_possible_value().unwrap();
            assert_eq!(name.get_name(), check.id());
        }
        assert_eq!(Check::value_variants().len(), Check::ALL.len());
    }
}
