//! Classifies the driver's errors by what they say about a write.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{BoxError, StoreError, Unfit};

/// Errors of a server that refuses before it does anything. A script that has written continues, so none of
/// these comes from the middle of a script.
const REFUSALS: [&str; 11] = [
    "OOM",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "BUSY",
    "NOREPLICAS",
    "CROSSSLOT",
    "NOSCRIPT",
    "EXECABORT",
    "UNBLOCKED",
];

/// How a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was done.
    Refused(BoxError),
    /// The outcome is not known.
    Lost(BoxError),
}

impl Failure {
    pub(super) fn refused(why: impl Into<BoxError>) -> Self {
        Self::Refused(why.into())
    }

    /// Whether the server was reached and must not be used: waiting for another one does not help.
    pub(super) fn is_unfit(&self) -> bool {
        matches!(self, Self::Refused(error) if error.is::<Unfit>())
    }

    /// The error for a write.
    pub(super) fn of_a_write(self) -> StoreError {
        match self {
            Self::Refused(error) => StoreError::Unavailable(error),
            Self::Lost(error) => StoreError::Ambiguous(error),
        }
    }

    /// The error for a read.
    pub(super) fn of_a_read(self) -> StoreError {
        match self {
            Self::Refused(error) | Self::Lost(error) => StoreError::Unavailable(error),
        }
    }
}

/// How to handle an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Send the source: the server does not know the script.
    SendSource,
    /// Another server has this slot now.
    Moved(String),
    /// Another server already has these keys.
    Ask(String),
    /// Retry later: the slot is being moved, or a master is being elected or loads its data.
    Wait,
    /// Refused for a reason that waiting does not change.
    Refused,
    /// The connection is unusable, and the outcome is not known.
    Lost,
}

pub(super) fn then(error: &RedisError) -> Then {
    let to = || error.redirect_node().map(|(host, _)| host.to_owned());
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoScript) => Then::SendSource,
        ErrorKind::Server(ServerErrorKind::Moved) => to().map_or(Then::Wait, Then::Moved),
        ErrorKind::Server(ServerErrorKind::Ask) => to().map_or(Then::Wait, Then::Ask),
        ErrorKind::Server(
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly,
        ) => Then::Wait,
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Then::Refused,
        _ => match error.code() {
            Some(code) if REFUSALS.contains(&code) => Then::Refused,
            _ => Then::Lost,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> Then {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let error = value.and_then(redis::Value::extract_error).unwrap_err();
        then(&error)
    }

    #[test]
    fn what_servers_say() {
        assert_eq!(told("NOSCRIPT No matching script"), Then::SendSource);
        assert_eq!(
            told("MOVED 3999 127.0.0.1:6381"),
            Then::Moved("127.0.0.1:6381".into())
        );
        assert_eq!(
            told("ASK 3999 127.0.0.1:6381"),
            Then::Ask("127.0.0.1:6381".into())
        );
        for line in [
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CLUSTERDOWN The cluster is down",
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(told(line), Then::Wait, "{line}");
        }
        for line in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Errors writing to the AOF file",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions",
            "BUSY Redis is busy running a script.",
        ] {
            assert_eq!(told(line), Then::Refused, "{line}");
        }
        // A script that broke off may have written before.
        assert_eq!(told("ERR user_script:7: no"), Then::Lost);
        let io = RedisError::from(std::io::Error::other("gone"));
        assert_eq!(then(&io), Then::Lost);
    }
}
