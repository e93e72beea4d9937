//! Messages on their way out, and where they go.

use super::{Kind::*, Schema, field};

pub(in crate::config) const OUTBOX: Schema = Schema {
    name: "`outbox`",
    fields: &[
        field(
            "keep_delivered",
            Duration,
            "`24h`",
            "how long messages are kept that were delivered or discarded",
        ),
        field(
            "targets",
            Sections(&TARGET),
            "none",
            "[where messages go](#a-target); messages of other targets are left alone",
        ),
    ],
};

pub(in crate::config) const TARGET: Schema = Schema {
    name: "a target",
    fields: &[
        field(
            "name",
            Name,
            "required",
            "as messages have it: 1 to 64 letters, digits, `_`, `-` and `.`; unique",
        ),
        field(
            "kind",
            Words(&["http", "nats", "rabbitmq", "kafka"]),
            "`http`",
            "what takes messages there; the brokers need a build with the feature of that name",
        ),
        field(
            "url",
            Url,
            "required",
            "`http://` or `https://`; for brokers `nats://…`, `amqp://…`, or Kafka's `HOST:PORT` \
             with commas between several",
        ),
        field(
            "dedups",
            Boolean,
            "`true`",
            "whether the receiver knows a key again and does nothing twice; with `false`, an attempt \
             whose end nobody saw makes the message `unknown` instead of sending it again",
        ),
        field(
            "key_ttl",
            Duration,
            "`24h`; `2m` for `nats`",
            "for how long the receiver knows a key again: beyond it such a message is `unknown` too; for \
             `nats`, the stream's `duplicate_window`",
        ),
        field(
            "max_attempts",
            Number,
            "`10`",
            "how often a message is sent before it is a dead letter",
        ),
        field(
            "first_pause",
            Duration,
            "`1s`",
            "the pause after the first failure; it doubles with each further one, less up to a half by \
             chance",
        ),
        field("longest_pause", Duration, "`5m`", "the longest pause"),
        field(
            "at_once",
            Number,
            "`64`",
            "how many messages are under way at once, by each process",
        ),
        field(
            "timeout",
            Duration,
            "`10s`",
            "how long sending one may take",
        ),
        field(
            "ca_file",
            File,
            "the public authorities",
            "`http` with `https://`: the authorities that its certificate may come from",
        ),
        field(
            "secret_env",
            Name,
            "none",
            "`http`: the variable with the secret that messages are signed with, as Standard Webhooks \
             has it",
        ),
        field(
            "headers",
            Map,
            "none",
            "`http`: headers of every request, credentials for instance",
        ),
        field(
            "key_header",
            Header,
            "`Idempotency-Key`",
            "`http`: the header that carries the message's key",
        ),
        field(
            "provider_id",
            Text,
            "`/id`",
            "`http`: a JSON pointer into the receiver's answer to what it calls the message",
        ),
        field("subject", Text, "", "`nats`: the subject; required there"),
        field(
            "exchange",
            Text,
            "the default exchange",
            "`rabbitmq`: the exchange",
        ),
        field(
            "routing_key",
            Text,
            "",
            "`rabbitmq`: the routing key; required there",
        ),
        field("topic", Text, "", "`kafka`: the topic; required there"),
    ],
};
