//! The names that a configuration may contain, section by section.
//!
//! The same tables make the reader's list of names, `onlyonce schema` and the tables of
//! `docs/reference/config.md`.

mod auth;
mod outbox;
mod reconcile;
mod routes;
mod top;
mod traffic;

pub(super) use auth::{API_KEY, AUTH, EXTERNAL, JWT, TRUSTED_HEADER};
pub(super) use outbox::{OUTBOX, TARGET};
pub(super) use reconcile::{COMPLETE, OUTCOME, QUERY, RECONCILE, WEBHOOK, WHEN};
pub(super) use routes::{BACKEND, CORS, FINGERPRINT, IDEMPOTENCY, LIMITS, ROUTE};
pub(super) use top::{ADMIN, REDIS, STORE, TOP, WORKERS};
pub(super) use traffic::{FORWARDED, TLS};

/// A section: how messages name it, and its fields.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
}

/// A field: what it is called, what it takes, and what the reference says of it.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// `required`, a value in backticks, or words.
    pub(super) default: &'static str,
    pub(super) about: &'static str,
}

/// What a field takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Address,
    Boolean,
    Duration,
    File,
    Folder,
    Header,
    Hex,
    Name,
    Number,
    Path,
    Size,
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
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    AnyStatuses,
    Cookies,
    Headers,
    Methods,
    Networks,
    Origins,
    Pointers,
    Statuses,
    Texts,
}

const fn field(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Field {
    Field {
        name,
        kind,
        default,
        about,
    }
}

impl Schema {
    /// Whether it has a field of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    /// The names of its fields.
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.fields.iter().map(|field| field.name).collect()
    }
}

impl Kind {
    /// How the reference names it.
    #[cfg(test)]
    pub(super) fn words(self) -> String {
        match self {
            Self::Address => "address".to_owned(),
            Self::Boolean => "boolean".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::File => "file".to_owned(),
            Self::Folder => "folder".to_owned(),
            Self::Header => "header".to_owned(),
            Self::Hex => "hex".to_owned(),
            Self::Name => "name".to_owned(),
            Self::Number => "number".to_owned(),
            Self::Path => "path".to_owned(),
            Self::Size => "size".to_owned(),
            Self::Text => "text".to_owned(),
            Self::TextOrList => "text or list".to_owned(),
            Self::Url => "URL".to_owned(),
            Self::Words(words) => {
                let ticked: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                ticked.join(", ")
            }
            Self::WordsOrSection(words, _) => format!("`{}` or section", words.join("`, `")),
            Self::Map => "mapping".to_owned(),
            Self::List(item) => item.words().to_owned(),
            Self::WordsOrList(words, item) => {
                format!("`{}` or {}", words.join("`, `"), item.words())
            }
            Self::Section(_) => "section".to_owned(),
            Self::Sections(_) => "list".to_owned(),
        }
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
            Self::Methods => "list of methods",
            Self::Networks => "list of address blocks",
            Self::Origins => "list of origins",
            Self::Pointers => "list of JSON pointers",
            Self::Texts => "list of texts",
        }
    }
}

/// Every section, the likeliest home of a stray field first.
pub(super) const ALL: [&Schema; 26] = [
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
        .find(|schema| schema.has(field))
        .map(|schema| schema.name)
}
