//! The section `outbox`: the targets of messages.
//!
//! Deliberately absent: secrets. A signing secret is given as the name of its variable. The headers of a
//! target and the URL of a broker may hold a credential, and are never printed.

use std::{collections::HashSet, fmt, time::Duration};

use http::{HeaderMap, HeaderName};
use onlyonce::outbox::TargetRules;
use onlyonce_core::fingerprint::Pointer;
use onlyonce_publish::http::Secrets;
use serde_json::{Value as Json, json};

use super::{
    Config,
    auth::Endpoint,
    diagnostics::{Report, quoted},
    fields::{Field, OUTBOX, TARGET},
    reconcile::require,
    scalar::{Found, check_secret},
    section::Section,
    setting::{Setting, View, Word},
    tree::{Node, Value},
    view::MASKED,
};

/// How long a NATS stream recognises duplicates by default.
const NATS_WINDOW: Duration = Duration::from_secs(120);
/// The longest name of a target, in characters.
const MAX_NAME_LENGTH: usize = 64;

/// A receiver of messages, and the rules for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TargetConfig {
    /// The target's name, as used in messages.
    pub name: String,
    /// How messages are sent.
    pub way: WayConfig,
    /// The delivery rules.
    pub rules: TargetRules,
    /// The most messages under way at the same time.
    pub at_once: usize,
    /// The timeout of one delivery.
    pub timeout: Duration,
}

/// How messages are sent to a target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WayConfig {
    /// One HTTP request per message.
    Http(Box<HttpConfig>),
    /// Through a broker.
    Broker(BrokerConfig),
}

/// HTTP delivery: one request per message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpConfig {
    pub url: Endpoint,
    /// The variable that holds the signing secret.
    pub secret_env: Option<String>,
    /// Headers of every request.
    pub headers: HeaderMap,
    /// The header that carries the key.
    pub key_header: HeaderName,
    /// Where in the answer the receiver's id of the message is.
    pub provider_id: Pointer,
}

/// The kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broker {
    Nats,
    RabbitMq,
    Kafka,
}

/// A broker, and the destination there.
#[derive(Clone, PartialEq)]
pub(crate) struct BrokerConfig {
    pub broker: Broker,
    /// The broker's URL, which may hold a credential.
    pub url: String,
    /// RabbitMQ's exchange.
    pub exchange: String,
    /// The subject, the routing key or the topic.
    pub place: String,
}

impl fmt::Debug for BrokerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.broker, self.place)
    }
}

/// How messages are sent to a target, by its configuration word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    Http,
    Broker(Broker),
}

const OF_HTTP: [&str; 5] = [
    "ca_file",
    "secret_env",
    "headers",
    "key_header",
    "provider_id",
];
const OF_BROKERS: [&str; 4] = ["subject", "exchange", "routing_key", "topic"];

impl Broker {
    /// The configuration word, which is also the name of the cargo feature.
    pub(crate) fn word(self) -> &'static str {
        Carrier::Broker(self).name()
    }

    /// Whether this program was built with support for the broker.
    fn is_built_in(self) -> bool {
        match self {
            Self::Nats => cfg!(feature = "nats"),
            Self::RabbitMq => cfg!(feature = "rabbitmq"),
            Self::Kafka => cfg!(feature = "kafka"),
        }
    }

    /// The field with the destination, and all fields specific to this broker.
    fn fields(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Nats => ("subject", &["subject"]),
            Self::RabbitMq => ("routing_key", &["exchange", "routing_key"]),
            Self::Kafka => ("topic", &["topic"]),
        }
    }

    /// The schemes of its URLs; Kafka's have none.
    fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Nats => &["nats://", "tls://"],
            Self::RabbitMq => &["amqp://", "amqps://"],
            Self::Kafka => &[],
        }
    }
}

/// Checks that the store has an outbox if there are targets.
pub(super) fn rules(top: &Section<'_>, config: &Config, report: &mut Report<'_>) {
    let store = &config.store.url;
    if !config.outbox.targets.is_empty() && !store.has_outbox() {
        let section = top.section("outbox", &OUTBOX, &mut Report::quiet());
        let at = section.place("targets").unwrap_or(section.at);
        let kind = store.scheme();
        report
            .error(
                at,
                format!("`outbox.targets`, and a {kind} store has no outbox"),
            )
            .hint("messages are left in a SQL transaction: `sqlite:FILE` or `postgres://…`");
    }
}

impl Setting for Vec<TargetConfig> {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, at) = section.node(field.name)?;
        let Value::List(items) = &node.value else {
            report
                .error(at, "`targets` must be a list")
                .hint("for example `[{ name: receipts, url: \"http://mail.internal/receipts\" }]`");
            return None;
        };
        Some(targets(items, report))
    }
}

fn targets(items: &[Node], report: &mut Report<'_>) -> Vec<TargetConfig> {
    let mut names = HashSet::new();
    let mut found = Vec::new();
    for item in items {
        let Some(target) = target(item, report) else {
            continue;
        };
        if !names.insert(target.name.clone()) {
            let message = format!("two targets are called {}", quoted(&target.name));
            report.error(item.at, message);
        }
        found.push(target);
    }
    found
}

pub(super) fn target(node: &Node, report: &mut Report<'_>) -> Option<TargetConfig> {
    let section = Section::open(&TARGET, node, node.at, report);
    require(&section, &["name", "url"], node.at, report);
    let kind = section.get("kind", report);
    let rules = target_rules(&section, kind, report);
    let at_once = section.get_or_default("at_once", report);
    let timeout = section.get_or_default("timeout", report);
    let name = section.get("name", report);
    let kind = match (kind, section.says("kind")) {
        (Some(kind), _) => kind,
        (None, false) => Carrier::Http,
        // Without a valid kind it is unknown which other fields are valid.
        (None, true) => return None,
    };
    let way = match kind {
        Carrier::Http => http(&section, report).map(|http| WayConfig::Http(Box::new(http))),
        Carrier::Broker(broker) => self::broker(broker, &section, report).map(WayConfig::Broker),
    };
    Some(TargetConfig {
        name: name?,
        way: way?,
        rules,
        at_once,
        timeout,
    })
}

fn target_rules(
    section: &Section<'_>,
    kind: Option<Carrier>,
    report: &mut Report<'_>,
) -> TargetRules {
    let first_pause = section.get_or_default("first_pause", report);
    let longest_pause: Duration = section.get_or_default("longest_pause", report);
    if let Some(at) = section.place("longest_pause")
        && longest_pause < first_pause
    {
        report.error(at, "`longest_pause` is shorter than `first_pause`");
    }
    let key_ttl = match kind {
        Some(Carrier::Broker(Broker::Nats)) => NATS_WINDOW,
        _ => TargetRules::default().key_ttl,
    };
    TargetRules {
        dedups: section.get_or_default("dedups", report),
        key_ttl: section.get("key_ttl", report).unwrap_or(key_ttl),
        max_attempts: section.get_or_default("max_attempts", report),
        first_pause,
        longest_pause: longest_pause.max(first_pause),
    }
}

pub(super) fn name(found: Found<'_>, _: &str, report: &mut Report<'_>) -> Option<String> {
    let valid = (1..=MAX_NAME_LENGTH).contains(&found.text.len())
        && found
            .text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    if !valid {
        report
            .error(
                found.at,
                format!("{} cannot be a target's name", quoted(found.written)),
            )
            .hint("1 to 64 letters, digits, `_`, `-` and `.`");
    }
    valid.then(|| found.text.to_owned())
}

fn http(section: &Section<'_>, report: &mut Report<'_>) -> Option<HttpConfig> {
    foreign(section, &OF_BROKERS, "http", report);
    let usable = |secret: &str| Secrets::parse(secret).is_ok();
    let hint = "it is `whsec_` and base64, as Standard Webhooks have it";
    check_secret(section, "secret_env", report, usable, hint);
    let secret_env = section.get("secret_env", report);
    let key_header = section.get_or_default("key_header", report);
    let provider_id = section.get_or_default("provider_id", report);
    let headers = section.get("headers", report).unwrap_or_default();
    Some(HttpConfig {
        url: section.get("url", report)?,
        secret_env,
        headers,
        key_header,
        provider_id,
    })
}

fn broker(broker: Broker, section: &Section<'_>, report: &mut Report<'_>) -> Option<BrokerConfig> {
    let word = broker.word();
    let (place, own) = broker.fields();
    if !broker.is_built_in() {
        let at = section.place("kind").unwrap_or(section.at);
        report
            .error(at, format!("this program was built without `{word}`"))
            .hint(format!("build it with `--features {word}`"));
    }
    foreign(section, &OF_HTTP, word, report);
    let others: Vec<&str> = OF_BROKERS
        .into_iter()
        .filter(|field| !own.contains(field))
        .collect();
    foreign(section, &others, word, report);
    require(section, &[place], section.at, report);
    let exchange = match own.contains(&"exchange") {
        true => section.scalar("exchange", report).map(|found| found.text),
        false => None,
    };
    let place = section.scalar(place, report);
    let url = section.scalar("url", report)?;
    let schemes = broker.schemes();
    let fits = match schemes {
        [] => !url.text.contains("://"),
        schemes => schemes.iter().any(|scheme| url.text.starts_with(scheme)),
    };
    if !fits {
        // The value may hold a password, so the message does not repeat it.
        let form = schemes.first().copied().unwrap_or("HOST:PORT");
        report
            .error(url.at, format!("this is not an address of `{word}`"))
            .hint(format!("it begins with `{form}`"));
        return None;
    }
    Some(BrokerConfig {
        broker,
        url: url.text.to_owned(),
        exchange: exchange.unwrap_or_default().to_owned(),
        place: place?.text.to_owned(),
    })
}

/// Reports fields that belong to another kind of target.
fn foreign(section: &Section<'_>, fields: &[&str], kind: &str, report: &mut Report<'_>) {
    for field in fields {
        if let Some(at) = section.place(field) {
            let message = format!("`{field}` has no meaning for a target of kind `{kind}`");
            report.error(at, message);
        }
    }
}

impl View for TargetConfig {
    fn view(&self) -> Json {
        let rules = &self.rules;
        let mut shown = json!({
            "name": self.name,
            "dedups": rules.dedups,
            "key_ttl": rules.key_ttl.view(),
            "max_attempts": rules.max_attempts,
            "first_pause": rules.first_pause.view(),
            "longest_pause": rules.longest_pause.view(),
            "at_once": self.at_once,
            "timeout": self.timeout.view(),
        });
        let own = match &self.way {
            WayConfig::Http(http) => json!({
                "kind": Carrier::Http.name(),
                "url": http.url.view(),
                "ca_file": http.url.backend.tls.as_ref().and_then(|trust| trust.path()),
                "secret_env": http.secret_env,
                "headers": http.headers.view(),
                "key_header": http.key_header.view(),
                "provider_id": http.provider_id.view(),
            }),
            WayConfig::Broker(broker) => {
                let (place, fields) = broker.broker.fields();
                // The URL may hold a password.
                let mut own = json!({
                    "kind": broker.broker.word(),
                    "url": MASKED,
                    place: broker.place,
                });
                if fields.contains(&"exchange") {
                    own["exchange"] = broker.exchange.view();
                }
                own
            }
        };
        if let (Some(shown), Json::Object(own)) = (shown.as_object_mut(), own) {
            shown.extend(own);
        }
        shown
    }
}
