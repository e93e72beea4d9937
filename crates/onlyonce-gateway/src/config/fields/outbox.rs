//! Messages on their way out, and where they go.

use std::{ops::RangeInclusive, time::Duration};

use super::{ANY, Kind::*, SOME};
use crate::config::{
    outbox::{Carrier, TargetConfig, name},
    setting::{Word, filled_variable},
};

/// A message that takes longer holds up its place.
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);

section! {
    /// Where messages go.
    pub(crate) struct OutboxConfig: OUTBOX = "`outbox`" {
        pub keep_delivered: Duration = Duration(ANY), "24h",
            "how long messages are kept that were delivered or discarded";
        pub targets: Vec<TargetConfig> = Sections(&TARGET), ["none"],
            "[where messages go](#a-target); messages of other targets are left alone";
    }
}

schema! {
    TARGET = "a target" {
        name = Name(name), required,
            "as messages have it: 1 to 64 letters, digits, `_`, `-` and `.`; unique";
        kind = Words(Carrier::NAMES), "http",
            "what takes messages there; the brokers need a build with the feature of that name";
        url = Url, required,
            "`http://` or `https://`; for brokers `nats://…`, `amqp://…`, or Kafka's `HOST:PORT` \
             with commas between several";
        dedups = Boolean, "true",
            "whether the receiver knows a key again and does nothing twice; with `false`, an \
             attempt whose end nobody saw makes the message `unknown` instead of sending it \
             again";
        key_ttl = Duration(SOME), ("`24h`; `2m` for `nats`"),
            "for how long the receiver knows a key again: beyond it such a message is `unknown` \
             too; for `nats`, the stream's `duplicate_window`";
        max_attempts = Number(1..=1_000), "10",
            "how often a message is sent before it is a dead letter";
        first_pause = Duration(SOME), "1s",
            "the pause after the first failure; it doubles with each further one, less up to a \
             half by chance";
        longest_pause = Duration(SOME), "5m", "the longest pause";
        at_once = Number(1..=10_000), "64",
            "how many messages are under way at once, by each process";
        timeout = Duration(TIMEOUT), "10s", "how long sending one may take";
        ca_file = File, ("the public authorities"),
            "`http` with `https://`: the authorities that its certificate may come from";
        secret_env = Name(filled_variable), ("none"),
            "`http`: the variable with the secret that messages are signed with, as Standard \
             Webhooks has it";
        headers = Map, ("none"), "`http`: headers of every request, credentials for instance";
        key_header = Header, "Idempotency-Key", "`http`: the header that carries the message's key";
        provider_id = Text, "/id",
            "`http`: a JSON pointer into the receiver's answer to what it calls the message";
        subject = Text, (""), "`nats`: the subject; required there";
        exchange = Text, ("the default exchange"), "`rabbitmq`: the exchange";
        routing_key = Text, (""), "`rabbitmq`: the routing key; required there";
        topic = Text, (""), "`kafka`: the topic; required there";
    }
}
