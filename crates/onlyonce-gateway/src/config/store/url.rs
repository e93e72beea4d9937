//! The URL of a store.

use std::{error::Error, fmt, iter, path::PathBuf};

#[cfg(feature = "dynamodb")]
use onlyonce_store::dynamodb;
use onlyonce_store::{
    mysql, postgres,
    redis::{self, AddressError},
};
use serde_json::Value;

use crate::config::{
    diagnostics::{Report, quoted},
    fields::{Field, Kind},
    scalar::Found,
    setting::{Scalar, View},
};

/// A store, by its URL. Its `Debug` form omits everything that could be a password.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// A local file.
    Sqlite(PathBuf),
    /// A PostgreSQL server.
    Postgres(String),
    /// A MySQL or MariaDB server.
    Mysql(String),
    /// A Redis or Valkey server.
    Redis(String),
    /// A DynamoDB table.
    #[cfg(feature = "dynamodb")]
    DynamoDb(String),
}

/// Why a text is not the URL of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// No scheme, or not a store's scheme.
    #[error("this is not the URL of a store")]
    Scheme,
    /// `sqlite:` alone.
    #[error("`sqlite:` needs a file")]
    NoFile,
    /// SQLite's name for a database that is not persistent.
    #[error("this SQLite database would not be kept")]
    NotKept,
    /// Parameters after a question mark.
    #[error("the URL of a SQLite store takes no parameters")]
    Parameters,
    /// Another store, or none, where a Redis server is required.
    #[error("this is not the address of a Redis server")]
    NotRedis,
    /// Something after `memory:`.
    #[error("`memory:` takes nothing after it")]
    NotMemory,
    /// An invalid port.
    #[error("the port of this store is no number up to 65535")]
    Port,
    /// Any other error of the database's URL parser.
    #[error("the URL of this store cannot be read")]
    Unreadable,
    /// An error of the Redis address parser.
    #[error("the URL of this Redis store cannot be read: {0}")]
    Redis(AddressError),
    /// A store that this program was built without.
    #[error("this program was built without DynamoDB")]
    NoDynamoDb,
    /// An error of the DynamoDB address parser.
    #[cfg(feature = "dynamodb")]
    #[error("the URL of this DynamoDB store cannot be read: {0}")]
    DynamoDb(dynamodb::AddressError),
}

impl StoreUrlError {
    pub(in crate::config) fn hint(self) -> &'static str {
        match self {
            Self::Scheme => "for example `sqlite:onlyonce.db` or `memory:`",
            Self::NoFile | Self::Parameters => "for example `sqlite:onlyonce.db`",
            Self::NotRedis => "for example `localhost:6379` or `redis://localhost:6379/0`",
            Self::NotKept | Self::NotMemory => "write `memory:` for a store that is not kept",
            Self::Port | Self::Unreadable => {
                "for example `postgres://user@host:5432/database`; in a password, write `@`, `/`, `:`, `?` \
                 and `#` as `%40`, `%2F`, `%3A`, `%3F` and `%23`"
            }
            Self::Redis(_) => "for example `redis://localhost:6379/0`",
            Self::NoDynamoDb => {
                "the packaged programs have it; build this one with `--features dynamodb`"
            }
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => "for example `dynamodb://onlyonce?region=eu-central-1`",
        }
    }
}

impl StoreUrl {
    /// Parses `memory:`, `sqlite:FILE`, `postgres://…`, `mysql://…`, `redis://…` or `dynamodb://…`.
    pub fn parse(text: &str) -> Result<Self, StoreUrlError> {
        let (scheme, rest) = text.split_once(':').ok_or(StoreUrlError::Scheme)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(StoreUrlError::NotMemory),
            "sqlite" => sqlite_file(rest).map(Self::Sqlite),
            "postgres" | "postgresql" if rest.starts_with("//") => {
                postgres::check_url(text).map_err(|error| unreadable(&error))?;
                Ok(Self::Postgres(text.to_owned()))
            }
            "mysql" | "mariadb" if rest.starts_with("//") => {
                mysql::check_url(text).map_err(|error| unreadable(&error))?;
                Ok(Self::Mysql(text.to_owned()))
            }
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster"
                if rest.starts_with("//") =>
            {
                redis::check_url(text).map_err(StoreUrlError::Redis)?;
                Ok(Self::Redis(text.to_owned()))
            }
            #[cfg(feature = "dynamodb")]
            "dynamodb" => {
                dynamodb::check_url(text).map_err(StoreUrlError::DynamoDb)?;
                Ok(Self::DynamoDb(text.to_owned()))
            }
            #[cfg(not(feature = "dynamodb"))]
            "dynamodb" => Err(StoreUrlError::NoDynamoDb),
            _ => Err(StoreUrlError::Scheme),
        }
    }

    /// Parses `redis.address`: a URL, or `HOST:PORT` alone.
    pub(crate) fn parse_redis(text: &str) -> Result<Self, StoreUrlError> {
        if text.contains("://") {
            return match Self::parse(text) {
                Ok(url @ Self::Redis(_)) => Ok(url),
                Err(error @ StoreUrlError::Redis(_)) => Err(error),
                _ => Err(StoreUrlError::NotRedis),
            };
        }
        // Anything else is a host, with an optional port after a colon.
        let (host, port) = text.split_once(':').unwrap_or((text, "6379"));
        match port.parse::<u16>() {
            Ok(_) if !host.is_empty() => Ok(Self::Redis(format!("redis://{text}"))),
            _ => Err(StoreUrlError::NotRedis),
        }
    }

    /// The word for this kind of store.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
            Self::Mysql(_) => "mysql",
            Self::Redis(_) => "redis",
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => "dynamodb",
        }
    }

    /// `local` for an embedded store, `distributed` for one that several gateways can share.
    pub(crate) fn mode_name(&self) -> &'static str {
        match self {
            Self::Memory | Self::Sqlite(_) => "local",
            Self::Postgres(_) | Self::Mysql(_) | Self::Redis(_) => "distributed",
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => "distributed",
        }
    }

    /// Whether messages can be left there in a transaction.
    pub(crate) fn has_outbox(&self) -> bool {
        self.is_sql()
    }

    /// Whether the store is an SQL database, as caches and messages require.
    pub(in crate::config) fn is_sql(&self) -> bool {
        matches!(self, Self::Sqlite(_) | Self::Postgres(_) | Self::Mysql(_))
    }

    /// Whether an acknowledged write can survive the end of this process.
    pub(crate) fn survives_a_restart(&self) -> bool {
        !matches!(self, Self::Memory)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The URL without credentials, parameters and database name.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            Self::Postgres(url) | Self::Mysql(url) | Self::Redis(url) => {
                let after = url.split_once("//").map_or("", |(_, after)| after);
                let host = after.split(['/', '?']).next().unwrap_or("");
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                write!(f, "{}://{host}", self.scheme())
            }
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(url) => f.write_str(url.split(['?']).next().unwrap_or("")),
        }
    }
}

impl Scalar for StoreUrl {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let url = match field.kind {
            Kind::RedisAddress | Kind::RedisUrl => Self::parse_redis(found.text),
            _ => Self::parse(found.text),
        };
        if let Err(error) = url {
            let message = format!("{error}: {}", quoted(found.written));
            report.error(found.at, message).hint(error.hint());
        }
        url.ok()
    }
}

impl View for StoreUrl {
    fn view(&self) -> Value {
        self.to_string().into()
    }
}

/// Classifies the error of a URL parser without repeating any of the URL.
fn unreadable(error: &(dyn Error + 'static)) -> StoreUrlError {
    let mut causes = iter::successors(Some(error), |error| (*error).source());
    match causes.any(|cause| cause.to_string().contains("invalid port")) {
        true => StoreUrlError::Port,
        false => StoreUrlError::Unreadable,
    }
}

fn sqlite_file(rest: &str) -> Result<PathBuf, StoreUrlError> {
    // `sqlite://FILE` is how other tools write it.
    let file = rest.strip_prefix("//").unwrap_or(rest);
    match file {
        "" => Err(StoreUrlError::NoFile),
        file if file.starts_with(':') => Err(StoreUrlError::NotKept),
        file if file.contains('?') => Err(StoreUrlError::Parameters),
        file => Ok(PathBuf::from(file)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let file = |name: &str| Ok(StoreUrl::Sqlite(PathBuf::from(name)));
        for (text, expected) in [
            ("memory:", Ok(StoreUrl::Memory)),
            ("sqlite:onlyonce.db", file("onlyonce.db")),
            ("sqlite:/var/lib/oo.db", file("/var/lib/oo.db")),
            ("sqlite://oo.db", file("oo.db")),
            ("sqlite:///var/oo.db", file("/var/oo.db")),
            ("sqlite:", Err(StoreUrlError::NoFile)),
            ("sqlite::memory:", Err(StoreUrlError::NotKept)),
            ("sqlite:a.db?mode=rwc", Err(StoreUrlError::Parameters)),
            ("memory", Err(StoreUrlError::Scheme)),
            ("memory://x", Err(StoreUrlError::NotMemory)),
            ("postgres:db", Err(StoreUrlError::Scheme)),
            ("oracle://db", Err(StoreUrlError::Scheme)),
            ("postgres://u:p@h:badport/d", Err(StoreUrlError::Port)),
            ("postgres://a,b:99999/d", Err(StoreUrlError::Port)),
            ("mysql://u@h:x/d", Err(StoreUrlError::Port)),
            ("mariadb://u@h:-1/d", Err(StoreUrlError::Port)),
            ("postgres://[::1/d", Err(StoreUrlError::Unreadable)),
            (
                "redis://h:bad",
                Err(StoreUrlError::Redis(AddressError::Host)),
            ),
            (
                "redis://h:6379/notanumber",
                Err(StoreUrlError::Redis(AddressError::Database)),
            ),
        ] {
            assert_eq!(StoreUrl::parse(text), expected, "{text}");
        }
        let redis = |url: &str| Ok(StoreUrl::Redis(url.to_owned()));
        for (text, expected) in [
            ("localhost:6379", redis("redis://localhost:6379")),
            ("rediss://db/1", redis("rediss://db/1")),
            ("redis+cluster://a,b", redis("redis+cluster://a,b")),
            ("cache", redis("redis://cache")),
            ("redis://", Err(StoreUrlError::Redis(AddressError::Host))),
            ("memory:", Err(StoreUrlError::NotRedis)),
            ("postgres://db/x", Err(StoreUrlError::NotRedis)),
            ("", Err(StoreUrlError::NotRedis)),
        ] {
            assert_eq!(StoreUrl::parse_redis(text), expected, "{text}");
        }
    }

    /// A program built without the feature says so, instead of not knowing the scheme.
    #[test]
    fn a_table_needs_the_feature() {
        let parsed = StoreUrl::parse("dynamodb://keys?region=eu-central-1");
        #[cfg(not(feature = "dynamodb"))]
        assert_eq!(parsed, Err(StoreUrlError::NoDynamoDb));
        #[cfg(feature = "dynamodb")]
        {
            let url = parsed.unwrap();
            assert_eq!(url.to_string(), "dynamodb://keys");
            assert_eq!((url.mode_name(), url.has_outbox()), ("distributed", false));
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = StoreUrl::parse("postgres://app:s3cr@t@db:5432/x?password=s3cret").unwrap();
        assert_eq!(
            format!("{url} {url:?}"),
            "postgres://db:5432 postgres://db:5432"
        );
    }
}
