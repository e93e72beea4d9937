//! Parses the URL of a Redis store.
//!
//! `redis://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/DB][?…]`, with `rediss` for TLS, and
//! `redis+sentinel://…/MASTER` and `redis+cluster://…` where the servers do not tell what they are.

use std::{fmt, path::PathBuf};

use percent_encoding::percent_decode_str;

/// The default port of a server.
const DEFAULT_PORT: u16 = 6379;
/// The default port of a Sentinel.
const DEFAULT_SENTINEL_PORT: u16 = 26379;
/// The default prefix of all key names.
pub(super) const DEFAULT_PREFIX: &str = "oo";
/// The longest prefix, in bytes.
const MAX_PREFIX: usize = 64;

/// Why a URL cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Another scheme, or none.
    #[error("it begins with none of redis://, rediss://, redis+sentinel://, redis+cluster://")]
    Scheme,
    /// An empty host, or an invalid port.
    #[error("a host or port in it cannot be read")]
    Host,
    /// The path is not a database number.
    #[error("its path is the number of a database, from 0 on")]
    Database,
    /// A cluster has only one database.
    #[error("a cluster has the database 0 only")]
    ClusterDatabase,
    /// The name of the Sentinels' master is missing.
    #[error("the path of a redis+sentinel:// URL is the name of the master: …/mymaster")]
    Master,
    /// An unknown parameter.
    #[error("it takes the parameters prefix, db, ca, sentinel_user and sentinel_password")]
    Parameter,
    /// A prefix that would change the slot of keys.
    #[error("a prefix is 1 to 64 letters, digits and . _ -")]
    Prefix,
}

/// How servers are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One server, or a cluster if it says that it is one.
    Server,
    /// The master of this name, as told by Sentinels.
    Sentinel(String),
    /// A cluster.
    Cluster,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

impl Host {
    /// `HOST:PORT`, `HOST`, `[V6]:PORT`.
    pub(super) fn parse(text: &str, default_port: u16) -> Result<Self, AddressError> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => {
                (name, port.parse().map_err(|_| AddressError::Host)?)
            }
            _ => (text, default_port),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if name.is_empty() {
            return Err(AddressError::Host);
        }
        let name = name.to_owned();
        Ok(Self { name, port })
    }
}

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) kind: Kind,
    pub(super) hosts: Vec<Host>,
    pub(super) tls: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) sentinel_user: Option<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) database: i64,
    pub(super) prefix: String,
    /// Certificates to trust instead of the system's.
    pub(super) ca: Option<PathBuf>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or(AddressError::Scheme)?;
        let (tls, kind) = match scheme {
            "redis" | "valkey" => (false, Kind::Server),
            "rediss" | "valkeys" => (true, Kind::Server),
            "redis+cluster" => (false, Kind::Cluster),
            "rediss+cluster" => (true, Kind::Cluster),
            "redis+sentinel" => (false, Kind::Sentinel(String::new())),
            "rediss+sentinel" => (true, Kind::Sentinel(String::new())),
            _ => return Err(AddressError::Scheme),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may contain anything but an unencoded slash.
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (credentials, hosts),
            None => ("", authority),
        };
        let default_port = match kind {
            Kind::Sentinel(_) => DEFAULT_SENTINEL_PORT,
            Kind::Server | Kind::Cluster => DEFAULT_PORT,
        };
        let hosts = hosts.split(',').map(|host| Host::parse(host, default_port));
        let (user, password) = match credentials.split_once(':') {
            Some((user, password)) => (decoded(user), decoded(password)),
            None => (decoded(credentials), None),
        };
        let mut address = Self {
            kind,
            hosts: hosts.collect::<Result<_, _>>()?,
            tls,
            user,
            password,
            sentinel_user: None,
            sentinel_password: None,
            database: 0,
            prefix: DEFAULT_PREFIX.to_owned(),
            ca: None,
        };
        address.take_path(path.trim_end_matches('/'))?;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            address.take_parameter(pair)?;
        }
        if address.kind == Kind::Cluster && address.database != 0 {
            return Err(AddressError::ClusterDatabase);
        }
        Ok(address)
    }

    fn take_path(&mut self, path: &str) -> Result<(), AddressError> {
        match &mut self.kind {
            Kind::Sentinel(name) => {
                *name = decoded(path).ok_or(AddressError::Master)?;
            }
            Kind::Server | Kind::Cluster if path.is_empty() => {}
            Kind::Server | Kind::Cluster => self.database = database(path)?,
        }
        Ok(())
    }

    fn take_parameter(&mut self, pair: &str) -> Result<(), AddressError> {
        let (name, value) = pair.split_once('=').ok_or(AddressError::Parameter)?;
        match name {
            "prefix" => self.prefix = prefix(value)?,
            "db" => self.database = database(value)?,
            "ca" => self.ca = decoded(value).map(PathBuf::from),
            "sentinel_user" => self.sentinel_user = decoded(value),
            "sentinel_password" => self.sentinel_password = decoded(value),
            _ => return Err(AddressError::Parameter),
        }
        Ok(())
    }
}

fn decoded(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some(text).filter(|text| !text.is_empty())
}

fn database(text: &str) -> Result<i64, AddressError> {
    let number = text.parse().map_err(|_| AddressError::Database)?;
    if number < 0 {
        return Err(AddressError::Database);
    }
    Ok(number)
}

fn prefix(text: &str) -> Result<String, AddressError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if text.is_empty() || text.len() > MAX_PREFIX || !text.bytes().all(plain) {
        return Err(AddressError::Prefix);
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(address: &Address) -> Vec<String> {
        address.hosts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_server() {
        let address = Address::parse("redis://app:p%40ss@cache:6380/3?prefix=pay").unwrap();
        assert_eq!(hosts(&address), ["cache:6380"]);
        assert_eq!(address.user.as_deref(), Some("app"));
        assert_eq!(address.password.as_deref(), Some("p@ss"));
        assert_eq!((address.database, address.prefix.as_str()), (3, "pay"));
        assert_eq!((address.kind, address.tls), (Kind::Server, false));
        let address = Address::parse("rediss://:secret@[::1]/").unwrap();
        assert_eq!(hosts(&address), ["::1:6379"]);
        assert_eq!((address.user, address.tls), (None, true));
        assert_eq!(address.password.as_deref(), Some("secret"));
    }

    #[test]
    fn several_servers() {
        let address = Address::parse("redis+sentinel://a,b:7/mymaster?db=2").unwrap();
        assert_eq!(address.kind, Kind::Sentinel("mymaster".to_owned()));
        assert_eq!(hosts(&address), ["a:26379", "b:7"]);
        assert_eq!(address.database, 2);
        let address = Address::parse("redis+cluster://a:1,b:2").unwrap();
        assert_eq!(address.kind, Kind::Cluster);
        assert_eq!(hosts(&address), ["a:1", "b:2"]);
    }

    #[test]
    fn what_is_refused() {
        for (url, why) in [
            ("http://a", AddressError::Scheme),
            ("redis://", AddressError::Host),
            ("redis://a:x", AddressError::Host),
            ("redis://a/x", AddressError::Database),
            ("redis://a/-1", AddressError::Database),
            ("redis+cluster://a/1", AddressError::ClusterDatabase),
            ("redis+sentinel://a", AddressError::Master),
            ("redis://a?x=1", AddressError::Parameter),
            ("redis://a?prefix={b}", AddressError::Prefix),
        ] {
            assert_eq!(Address::parse(url).err(), Some(why), "{url}");
        }
    }
}
