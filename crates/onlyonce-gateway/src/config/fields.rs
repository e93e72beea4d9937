//! The fields of a configuration, section by section, each declared once.
//!
//! From a row of these tables follow the reader with its ranges and defaults, the struct that it
//! fills, `onlyonce schema`, the tables of `docs/reference/config.md`, `GET /config`, and whether a
//! reload may change the field. `declare.rs` says how a row is written.
//!
//! A new field is a row. If no field has its type yet, the type says in `setting.rs`, or in the file
//! of its section, how it is read and shown; an enumeration lists its words in `words.rs`. An option
//! for keys is a member of the core's `Options` and `Policy` first. Sections of `schema!` have forms
//! of their own in the program, and their code reads and shows what a row only declares.

#[macro_use]
mod declare;

mod auth;
mod idempotency;
mod outbox;
mod reconcile;
mod routes;
mod top;
mod traffic;

use std::{ops::RangeInclusive, time};

pub(super) use auth::{API_KEY, AUTH, EXTERNAL, JWT, TRUSTED_HEADER};
pub(crate) use auth::{AuthConfig, ExternalConfig, TrustedHeader};
pub(super) use idempotency::{FINGERPRINT, IDEMPOTENCY, LIMITS};
pub(super) use idempotency::{FingerprintTable, LimitTable, OptionTable};
pub(crate) use outbox::OutboxConfig;
pub(super) use outbox::{OUTBOX, TARGET};
pub(super) use reconcile::{COMPLETE, OUTCOME, QUERY, RECONCILE, WEBHOOK, WHEN};
pub(crate) use reconcile::{ReconcileConfig, WebhookConfig};
pub(crate) use routes::CorsConfig;
pub(super) use routes::{BACKEND, CORS, ROUTE, RouteFields};
pub(super) use top::{ADMIN, REDIS, STORE, TOP, WORKERS};
pub use top::{Config, StoreConfig};
pub(crate) use traffic::Forwarded;
pub(super) use traffic::{FORWARDED, TLS};

use super::{diagnostics::Report, scalar::Found, units::MAX_DURATION};

/// What the code that `section!` and `options!` make refers to.
mod generated {
    pub(super) use serde_json::{Map, Value};

    pub(super) use super::{Schema, changed_names};
    pub(super) use crate::config::{
        Route,
        diagnostics::Report,
        section::Section,
        setting::{Group, Table, View},
    };
}

/// Any duration, and none.
const ANY: RangeInclusive<time::Duration> = time::Duration::ZERO..=MAX_DURATION;
/// Any duration that is one.
const SOME: RangeInclusive<time::Duration> = time::Duration::from_millis(1)..=MAX_DURATION;

/// A section: how messages name it, and its fields.
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
}

/// A field: what it is called, what it takes, and what the reference says of it.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// `required`, a value in backticks, or words.
    pub(super) default: &'static str,
    /// The default as a file would say it, where it is a value.
    pub(super) value: Option<&'static str>,
    pub(super) about: &'static str,
    pub(super) reload: Reload,
}

/// What a reload may do to a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reload {
    /// Change it.
    Free,
    /// Nothing: the process holds on to it.
    Restart,
    /// Nothing, unless `allow_scope_change` is said: it makes the scope of keys.
    Scope,
    /// The same, where it is what tells callers apart.
    Callers,
}

/// Reads a text of a form of its own; takes the name of the field for messages.
type Check = fn(Found<'_>, &str, &mut Report<'_>) -> Option<String>;

/// What a field takes.
pub(super) enum Kind {
    Address,
    Boolean,
    CheckedText(Check),
    Duration(RangeInclusive<time::Duration>),
    File,
    Folder,
    Header,
    Hex,
    Name(Check),
    Number(RangeInclusive<u64>),
    Path(Check),
    /// The address of a Redis server, as a URL or without a scheme.
    RedisAddress,
    RedisUrl,
    Size(RangeInclusive<u64>),
    Text,
    TextOrList,
    Url,
    /// One of these.
    Words(&'static [&'static str]),
    List(Item),
    /// One of these words, or a list.
    WordsOrList(&'static [&'static str], Item),
    Section(&'static Schema),
    /// One of these words, or a section.
    WordsOrSection(&'static [&'static str], &'static Schema),
    /// A mapping of any names to text.
    Map,
    /// A list of them.
    Sections(&'static Schema),
}

/// What a list holds.
#[derive(Clone, Copy)]
pub(super) enum Item {
    AnyStatuses,
    Cookies,
    Headers,
    /// Methods on which a key can be honoured.
    KeyedMethods,
    Methods,
    Networks,
    Origins,
    Pointers,
    Statuses,
    /// Names, which are not empty.
    Texts,
    /// Any texts.
    Values,
}

impl Schema {
    /// Its field of this name.
    pub(super) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The names of its fields.
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.fields.iter().map(|field| field.name).collect()
    }
}

impl Kind {
    /// How the reference names it.
    #[cfg(test)]
    pub(super) fn words(&self) -> String {
        let text = match self {
            Self::Address => "address",
            Self::Boolean => "boolean",
            Self::Duration(_) => "duration",
            Self::File => "file",
            Self::Folder => "folder",
            Self::Header => "header",
            Self::Hex => "hex",
            Self::Name(_) => "name",
            Self::Number(_) => "number",
            Self::Path(_) => "path",
            Self::Size(_) => "size",
            Self::Text | Self::CheckedText(_) | Self::RedisAddress => "text",
            Self::TextOrList => "text or list",
            Self::Url | Self::RedisUrl => "URL",
            Self::Words(words) => return format!("`{}`", words.join("`, `")),
            Self::WordsOrSection(words, _) => {
                return format!("`{}` or section", words.join("`, `"));
            }
            Self::Map => "mapping",
            Self::List(item) => item.words(),
            Self::WordsOrList(words, item) => {
                return format!("`{}` or {}", words.join("`, `"), item.words());
            }
            Self::Section(_) => "section",
            Self::Sections(_) => "list",
        };
        text.to_owned()
    }
}

impl Item {
    /// How the reference names a list of them.
    #[cfg(test)]
    fn words(self) -> &'static str {
        match self {
            Self::AnyStatuses | Self::Statuses => "list of statuses",
            Self::Cookies => "list of cookies",
            Self::Headers => "list of headers",
            Self::KeyedMethods | Self::Methods => "list of methods",
            Self::Networks => "list of address blocks",
            Self::Origins => "list of origins",
            Self::Pointers => "list of JSON pointers",
            Self::Texts | Self::Values => "list of texts",
        }
    }
}

/// Every section, the likeliest home of a stray field first.
pub(super) static ALL: [&Schema; 26] = [
    &IDEMPOTENCY,
    &ROUTE,
    &TOP,
    &STORE,
    &REDIS,
    &ADMIN,
    &LIMITS,
    &FINGERPRINT,
    &WORKERS,
    &BACKEND,
    &CORS,
    &AUTH,
    &JWT,
    &TRUSTED_HEADER,
    &EXTERNAL,
    &API_KEY,
    &RECONCILE,
    &QUERY,
    &OUTCOME,
    &WHEN,
    &COMPLETE,
    &WEBHOOK,
    &TLS,
    &FORWARDED,
    &OUTBOX,
    &TARGET,
];

/// The section that `field` belongs to.
pub(super) fn home_of(field: &str) -> Option<&'static str> {
    ALL.iter()
        .find(|schema| schema.field(field).is_some())
        .map(|schema| schema.name)
}

/// The names of the fields that are marked as changed.
fn changed_names(fields: &[(&'static str, bool)]) -> Vec<&'static str> {
    let changed = fields.iter().filter(|(_, changed)| *changed);
    changed.map(|(name, _)| *name).collect()
}
