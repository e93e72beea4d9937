//! The section `outbox`: where messages go that were left in a transaction.
//!
//! Deliberately absent: secrets. A signing secret's variable is named here; the headers of a target and
//! the URL of a broker may hold a credential, and nothing prints them.

use std::{collections::HashSet, fmt, ops::RangeInclusive, time::Duration};

use http::{HeaderMap, HeaderName};
use onlyonce::outbox::{DEFAULT_AT_ONCE, DEFAULT_TIMEOUT, TargetRules};
use onlyonce_core::fingerprint::Pointer;
use onlyonce_publish::http::Secrets;

use super::{
    auth::{Endpoint, endpoint},
    diagnostics::{Report, quoted},
    fields::{OUTBOX, TARGET},
    lower::env_holding,
    options::{ANY, SOME, pointer},
    reconcile::{headers, require},
    scalar::Found,
    section::Section,
    store::StoreUrl,
    tree::{Node, Value},
};

/// How long delivered messages are kept unless said otherwise.
pub(crate) const DEFAULT_KEEP_DELIVERED: Duration = Duration::from_secs(24 * 3_600);
/// For how long a stream of NATS knows a message again, unless it was told otherwise.
const NATS_WINDOW: Duration = Duration::from_secs(120);
/// The header that carries a message's key unless said otherwise.
const DEFAULT_KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// Where an answer says what the receiver calls a message unless said otherwise.
const DEFAULT_PROVIDER_ID: &str = "/id";
/// The longest name of a target, in characters.
const MAX_NAME_LENGTH: usize = 64;
/// More attempts than these are nobody's plan.
const ATTEMPTS: RangeInclusive<usize> = 1..=1_000;
/// Messages under way at once: each may need a connection.
const AT_ONCE: RangeInclusive<usize> = 1..=10_000;
/// A message that takes longer holds up its place.
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);

/// Where messages go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutboxConfig {
    /// How long messages are kept that were delivered or discarded.
    pub keep_delivered: Duration,
    /// The receivers.
    pub targets: Vec<TargetConfig>,
}

/// A receiver, and what is agreed with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TargetConfig {
    /// Its name, as messages have it.
    pub name: String,
    /// What takes messages there.
    pub way: WayConfig,
    /// What is agreed with it.
    pub rules: TargetRules,
    /// How many messages are under way at once.
    pub at_once: usize,
    /// How long sending one may take.
    pub timeout: Duration,
}

/// What takes messages to a target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WayConfig {
    /// A request for each.
    Http(Box<HttpConfig>),
    /// A broker.
    Broker(BrokerConfig),
}

/// A request for each message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpConfig {
    pub url: Endpoint,
    /// The variable that holds the signing secret.
    pub secret_env: Option<String>,
    /// Headers of every request.
    pub headers: HeaderMap,
    /// The header that carries the key.
    pub key_header: HeaderName,
    /// Where the answer says what the receiver calls the message.
    pub provider_id: Pointer,
}

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broker {
    Nats,
    RabbitMq,
    Kafka,
}

/// A broker, and where messages go there.
#[derive(Clone, PartialEq)]
pub(crate) struct BrokerConfig {
    pub broker: Broker,
    /// May hold a credential.
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

#[derive(Clone, Copy)]
enum Kind {
    Http,
    Broker(Broker),
}

const KINDS: [(&str, Kind); 4] = [
    ("http", Kind::Http),
    ("nats", Kind::Broker(Broker::Nats)),
    ("rabbitmq", Kind::Broker(Broker::RabbitMq)),
    ("kafka", Kind::Broker(Broker::Kafka)),
];
const OF_HTTP: [&str; 5] = [
    "ca_file",
    "secret_env",
    "headers",
    "key_header",
    "provider_id",
];
const OF_BROKERS: [&str; 4] = ["subject", "exchange", "routing_key", "topic"];

impl Broker {
    /// The word for it, which is the name of its feature too.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
            Self::Kafka => "kafka",
        }
    }

    /// Whether this program was built with it.
    fn is_built_in(self) -> bool {
        match self {
            Self::Nats => cfg!(feature = "nats"),
            Self::RabbitMq => cfg!(feature = "rabbitmq"),
            Self::Kafka => cfg!(feature = "kafka"),
        }
    }

    /// The field that says where messages go there, and all fields of its own.
    fn fields(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Nats => ("subject", &["subject"]),
            Self::RabbitMq => ("routing_key", &["exchange", "routing_key"]),
            Self::Kafka => ("topic", &["topic"]),
        }
    }

    /// How its URLs begin; Kafka's have no such beginning.
    fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Nats => &["nats://", "tls://"],
            Self::RabbitMq => &["amqp://", "amqps://"],
            Self::Kafka => &[],
        }
    }
}

pub(super) fn read(top: &Section<'_>, store: &StoreUrl, report: &mut Report<'_>) -> OutboxConfig {
    let section = top.section("outbox", &OUTBOX, report);
    let keep_delivered = section
        .duration("keep_delivered", ANY, report)
        .unwrap_or(DEFAULT_KEEP_DELIVERED);
    let targets = targets(&section, report);
    if !targets.is_empty() && !store.has_outbox() {
        let at = section.place("targets").unwrap_or(section.at);
        let kind = store.scheme();
        report
            .error(
                at,
                format!("`outbox.targets`, and a {kind} store has no outbox"),
            )
            .hint("messages are left in a SQL transaction: `sqlite:FILE` or `postgres://…`");
    }
    OutboxConfig {
        keep_delivered,
        targets,
    }
}

fn targets(section: &Section<'_>, report: &mut Report<'_>) -> Vec<TargetConfig> {
    let Some((node, at)) = section.node("targets") else {
        return Vec::new();
    };
    let Value::List(items) = &node.value else {
        report
            .error(at, "`targets` must be a list")
            .hint("for example `[{ name: receipts, url: \"http://mail.internal/receipts\" }]`");
        return Vec::new();
    };
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
    let kind = section.word("kind", &KINDS, report);
    let rules = rules(&section, kind, report);
    let at_once = section.number("at_once", AT_ONCE, report);
    let timeout = section.duration("timeout", TIMEOUT, report);
    let name = section
        .scalar("name", report)
        .and_then(|found| name(found, report));
    let kind = match (kind, section.says("kind")) {
        (Some(kind), _) => kind,
        (None, false) => Kind::Http,
        // What it should have been is not known, so neither is what belongs to it.
        (None, true) => return None,
    };
    let way = match kind {
        Kind::Http => http(&section, report).map(|http| WayConfig::Http(Box::new(http))),
        Kind::Broker(broker) => self::broker(broker, &section, report).map(WayConfig::Broker),
    };
    Some(TargetConfig {
        name: name?,
        way: way?,
        rules,
        at_once: at_once.unwrap_or(DEFAULT_AT_ONCE),
        timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
    })
}

fn rules(section: &Section<'_>, kind: Option<Kind>, report: &mut Report<'_>) -> TargetRules {
    let mut defaults = TargetRules::default();
    if let Some(Kind::Broker(Broker::Nats)) = kind {
        defaults.key_ttl = NATS_WINDOW;
    }
    let attempts = section.number("max_attempts", ATTEMPTS, report);
    let mut time = |field: &str, default| section.duration(field, SOME, report).unwrap_or(default);
    let first_pause = time("first_pause", defaults.first_pause);
    let said_longest = section.says("longest_pause");
    let longest_pause = time("longest_pause", defaults.longest_pause);
    let key_ttl = time("key_ttl", defaults.key_ttl);
    if said_longest && longest_pause < first_pause {
        let at = section.place("longest_pause").unwrap_or(section.at);
        report.error(at, "`longest_pause` is shorter than `first_pause`");
    }
    TargetRules {
        dedups: section.boolean("dedups", report).unwrap_or(defaults.dedups),
        key_ttl,
        max_attempts: attempts
            .and_then(|attempts| u32::try_from(attempts).ok())
            .unwrap_or(defaults.max_attempts),
        first_pause,
        longest_pause: longest_pause.max(first_pause),
    }
}

fn name(found: Found<'_>, report: &mut Report<'_>) -> Option<String> {
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
    let secret_env = env_holding(section, "secret_env", report, usable, hint);
    let key_header = section.header("key_header", report);
    let provider_id = section
        .scalar("provider_id", report)
        .and_then(|found| pointer(found, report));
    let headers = headers(section, report);
    Some(HttpConfig {
        url: endpoint(section, "url", report)?,
        secret_env,
        headers,
        key_header: key_header.unwrap_or(DEFAULT_KEY_HEADER),
        provider_id: match provider_id {
            Some(pointer) => pointer,
            None => Pointer::parse(DEFAULT_PROVIDER_ID).ok()?,
        },
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
        // What was written may hold a password, and is not said again.
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

/// Fields that belong to another kind of target.
fn foreign(section: &Section<'_>, fields: &[&str], kind: &str, report: &mut Report<'_>) {
    for field in fields {
        if let Some(at) = section.place(field) {
            let message = format!("`{field}` has no meaning for a target of kind `{kind}`");
            report.error(at, message);
        }
    }
}
