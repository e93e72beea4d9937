//! A recipe: a route's choice of what makes two requests the same, with an id of its own.
//!
//! A record stores the id of the recipe it was made under, and a retry is compared under that recipe. Recipes
//! are therefore stored by id, and their encoding is a format: it may gain versions, never change.

use std::fmt;

use aws_lc_rs::digest;
use http::HeaderName;

use super::frame::{write_framed, write_length};
use super::pointer::{Pointer, PointerError};
use super::target::normal_host;
use crate::secret::write_hex;

/// The version of both the encoding and the fingerprint computed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Method and target as sent, no host, bodies as received. Used by records of the first releases and by
    /// requests of the SQL functions.
    One = 1,
    /// With host and override headers, and with decompressed bodies.
    Two = 2,
}

/// The headers that count by default: those that describe the body and the conditions under which it is
/// accepted, and those by which APIs name a tenant, an account, a merchant, the party somebody acts for, or
/// the API version.
pub(crate) const DEFAULT_HEADERS: [&str; 26] = [
    "content-type",
    "if-match",
    "if-none-match",
    "tenant-id",
    "x-tenant",
    "x-tenant-id",
    "account-id",
    "x-account",
    "x-account-id",
    "merchant-id",
    "x-merchant",
    "x-merchant-id",
    "x-merchant-account",
    "organization-id",
    "x-organization",
    "x-organization-id",
    "x-organisation-id",
    "x-org-id",
    "x-workspace-id",
    "on-behalf-of",
    "x-on-behalf-of",
    "x-act-as",
    "api-version",
    "x-api-version",
    "accept-version",
    "x-version",
];

/// How a body enters the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyMode {
    /// By its Content-Type: JSON and forms by their content, anything else byte by byte.
    Json,
    /// Always byte by byte.
    Raw,
}

/// The identity of a recipe: equal recipes have equal ids on every node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeId(pub [u8; 8]);

impl fmt::Display for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// The parts of a request that count, in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    id: RecipeId,
    version: Version,
    mode: BodyMode,
    fields: Vec<Pointer>,
    ignore: Vec<Pointer>,
    headers: Vec<String>,
    /// The same as parsed names. A text that is not a header name occurs in no request.
    names: Vec<Option<HeaderName>>,
    host: bool,
    /// Hosts that count as one.
    host_aliases: Vec<String>,
    /// Parameters of the query that do not count.
    ignore_query: Vec<String>,
}

/// Why stored bytes are not a recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// Written by a later release.
    #[error("recipe version {0} is not known")]
    Version(u8),
    /// Cut short, followed by other bytes, or not in normal form.
    #[error("the recipe is damaged")]
    Damaged,
    /// A pointer in it does not parse.
    #[error("a pointer of the recipe does not parse")]
    Pointer(#[from] PointerError),
}

impl Recipe {
    /// A recipe in normal form: order, repetition and the case of header names make no difference. The host
    /// counts.
    pub fn new(
        mode: BodyMode,
        fields: Vec<Pointer>,
        ignore: Vec<Pointer>,
        headers: Vec<String>,
    ) -> Recipe {
        Recipe::of(Version::Two, mode, fields, ignore, headers)
    }

    /// A recipe of version 1, as used by records of the first releases and by requests of the SQL functions.
    pub fn version_1(
        mode: BodyMode,
        fields: Vec<Pointer>,
        ignore: Vec<Pointer>,
        headers: Vec<String>,
    ) -> Recipe {
        Recipe::of(Version::One, mode, fields, ignore, headers)
    }

    fn of(
        version: Version,
        mode: BodyMode,
        mut fields: Vec<Pointer>,
        mut ignore: Vec<Pointer>,
        mut headers: Vec<String>,
    ) -> Recipe {
        headers
            .iter_mut()
            .for_each(|name| name.make_ascii_lowercase());
        sort_and_deduplicate(&mut fields);
        sort_and_deduplicate(&mut ignore);
        sort_and_deduplicate(&mut headers);
        let names = headers.iter().map(|name| HeaderName::try_from(name).ok());
        let recipe = Recipe {
            id: RecipeId([0; 8]),
            version,
            mode,
            fields,
            ignore,
            names: names.collect(),
            headers,
            host: version != Version::One,
            host_aliases: Vec::new(),
            ignore_query: Vec::new(),
        };
        recipe.named()
    }

    /// The same recipe, with these choices about the target: whether the host counts, which hosts are
    /// equivalent, and which query parameters do not count.
    #[must_use]
    pub fn with_target(
        self,
        host: bool,
        host_aliases: &[String],
        mut ignore_query: Vec<String>,
    ) -> Recipe {
        let normal = |name: &String| {
            let normal = normal_host(name.as_bytes());
            String::from_utf8_lossy(&normal).into_owned()
        };
        let mut host_aliases: Vec<String> = host_aliases.iter().map(normal).collect();
        sort_and_deduplicate(&mut host_aliases);
        sort_and_deduplicate(&mut ignore_query);
        let recipe = Recipe {
            host,
            host_aliases,
            ignore_query,
            ..self
        };
        recipe.named()
    }

    /// Sets the id that belongs to the recipe.
    fn named(mut self) -> Recipe {
        let hash = digest::digest(&digest::SHA256, &self.encode());
        let id = hash
            .as_ref()
            .first_chunk()
            .expect("a SHA-256 digest has 32 bytes");
        self.id = RecipeId(*id);
        self
    }

    /// The id under which the recipe is stored.
    pub fn id(&self) -> RecipeId {
        self.id
    }

    /// How bodies enter the fingerprint.
    pub fn mode(&self) -> BodyMode {
        self.mode
    }

    /// The only values of a canonical body that count; all of them if empty.
    pub fn fields(&self) -> &[Pointer] {
        &self.fields
    }

    /// The values of a canonical body that do not count.
    pub fn ignore(&self) -> &[Pointer] {
        &self.ignore
    }

    /// The headers that count, in lower case.
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Whether the host counts.
    pub fn host(&self) -> bool {
        self.host
    }

    /// The hosts that count as one.
    pub fn host_aliases(&self) -> &[String] {
        &self.host_aliases
    }

    /// The parameters of the query that do not count.
    pub fn ignore_query(&self) -> &[String] {
        &self.ignore_query
    }

    /// The headers that count, each with its parsed name if it has one.
    pub(super) fn named_headers(&self) -> impl Iterator<Item = (&str, Option<&HeaderName>)> {
        let names = self.names.iter().map(Option::as_ref);
        self.headers.iter().map(String::as_str).zip(names)
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mode = match self.mode {
            BodyMode::Json => 0,
            BodyMode::Raw => 1,
        };
        let mut out = vec![self.version as u8, mode];
        for pointers in [&self.fields, &self.ignore] {
            write_length(pointers.len(), &mut out);
            pointers
                .iter()
                .for_each(|p| write_framed(p.to_string().as_bytes(), &mut out));
        }
        write_length(self.headers.len(), &mut out);
        self.headers
            .iter()
            .for_each(|name| write_framed(name.as_bytes(), &mut out));
        if self.version != Version::One {
            out.push(u8::from(self.host));
            for names in [&self.host_aliases, &self.ignore_query] {
                write_length(names.len(), &mut out);
                let each = names.iter();
                each.for_each(|name| write_framed(name.as_bytes(), &mut out));
            }
        }
        out
    }

    /// Parses the stored form.
    ///
    /// # Errors
    /// Anything but the exact output of [`Recipe::encode`] is refused, because a guessed recipe would turn
    /// retries into mismatches.
    pub fn decode(bytes: &[u8]) -> Result<Recipe, RecipeError> {
        let [version, mode, rest @ ..] = bytes else {
            return Err(RecipeError::Damaged);
        };
        let version = match version {
            1 => Version::One,
            2 => Version::Two,
            later => return Err(RecipeError::Version(*later)),
        };
        let mode = match mode {
            0 => BodyMode::Json,
            1 => BodyMode::Raw,
            _ => return Err(RecipeError::Damaged),
        };
        let mut rest = rest;
        let fields = pointers(&read_list(&mut rest)?)?;
        let ignore = pointers(&read_list(&mut rest)?)?;
        let headers = read_list(&mut rest)?
            .into_iter()
            .map(str::to_owned)
            .collect();
        let mut recipe = Recipe::of(version, mode, fields, ignore, headers);
        if version != Version::One {
            let (host, tail) = rest.split_first().ok_or(RecipeError::Damaged)?;
            rest = tail;
            let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
            let host_aliases: Vec<String> = owned(read_list(&mut rest)?);
            let ignore_query = owned(read_list(&mut rest)?);
            recipe = recipe.with_target(*host == 1, &host_aliases, ignore_query);
        }
        if recipe.encode() == bytes {
            Ok(recipe)
        } else {
            Err(RecipeError::Damaged)
        }
    }
}

impl Default for Recipe {
    fn default() -> Self {
        let headers = DEFAULT_HEADERS.map(str::to_owned).to_vec();
        Recipe::new(BodyMode::Json, Vec::new(), Vec::new(), headers)
    }
}

fn sort_and_deduplicate<T: Ord>(items: &mut Vec<T>) {
    items.sort();
    items.dedup();
}

fn pointers(texts: &[&str]) -> Result<Vec<Pointer>, PointerError> {
    texts.iter().map(|text| Pointer::parse(text)).collect()
}

fn read_list<'a>(rest: &mut &'a [u8]) -> Result<Vec<&'a str>, RecipeError> {
    let count = read_length(rest)?;
    // Each entry takes at least eight bytes for its length, which bounds what a damaged count can demand.
    if count > rest.len() / 8 {
        return Err(RecipeError::Damaged);
    }
    (0..count).map(|_| read_text(rest)).collect()
}

fn read_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, RecipeError> {
    let length = read_length(rest)?;
    let (text, tail) = rest.split_at_checked(length).ok_or(RecipeError::Damaged)?;
    *rest = tail;
    str::from_utf8(text).map_err(|_| RecipeError::Damaged)
}

fn read_length(rest: &mut &[u8]) -> Result<usize, RecipeError> {
    let (length, tail) = rest.split_first_chunk().ok_or(RecipeError::Damaged)?;
    *rest = tail;
    usize::try_from(u64::from_be_bytes(*length)).map_err(|_| RecipeError::Damaged)
}
