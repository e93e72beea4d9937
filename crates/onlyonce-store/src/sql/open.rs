//! Opening a database as a store: its errors, and the checks before use.

use onlyonce_core::Secret;

use super::line::Dial;
use crate::{Identity, Unfit};

/// Why a database could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is invalid.
    #[error("the URL of the store cannot be read")]
    Url(#[source] sqlx::Error),
    /// The database cannot be reached.
    #[error("the database cannot be reached; nothing was started")]
    Connect(#[source] sqlx::Error),
    /// A statement failed.
    #[error("the database refused to be prepared; nothing was started")]
    Sql(#[source] sqlx::Error),
    /// There is no store, and none may be created.
    #[error(
        "there is no store in this database: `onlyonce migrate --store URL` makes one, or `store.create: true` lets `serve` do it; a new store knows no key, and retries of earlier requests execute; nothing was changed"
    )]
    Absent,
    /// The schema is missing or older, and must not be changed.
    #[error(
        "the schema is at version {found} (0: there is none), and this program needs a newer one: run `onlyonce migrate`, or start with store.migrate on"
    )]
    Older {
        /// The version found; 0 for none.
        found: i64,
    },
    /// The schema is newer than this program can use.
    #[error(
        "the schema is at version {found}, which takes programs from schema {oldest} on; this one knows {known}: run a newer program"
    )]
    Newer {
        /// The version found.
        found: i64,
        /// The oldest program that can use it.
        oldest: i64,
        /// The version that this program knows.
        known: i64,
    },
    /// The secret is missing or invalid.
    #[error("the database holds no usable secret: it is damaged, or not a store of this program")]
    Damaged,
}

/// The result of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version found; 0 for none.
    pub from: i64,
    /// The version now.
    pub to: i64,
}

/// The version of the schema found, and the oldest program that can use it.
pub(crate) type Found = Option<(i64, i64)>;

/// Checks that a program that knows `known` may use the schema.
fn check(found: Found, known: i64) -> Result<(), OpenError> {
    match found {
        None => Err(OpenError::Older { found: 0 }),
        Some((found, _)) if found < known => Err(OpenError::Older { found }),
        Some((found, oldest)) if oldest > known => Err(OpenError::Newer {
            found,
            oldest,
            known,
        }),
        Some(_) => Ok(()),
    }
}

/// Connects to a store, checks or migrates its schema, and reads its secret and identity.
pub(crate) async fn prepare<D: Dial>(
    dial: &D,
    may_migrate: bool,
    may_create: bool,
) -> Result<(D::Connection, Secret, Identity), OpenError> {
    let mut connection = dial.connect().await.map_err(OpenError::Connect)?;
    let found = dial.found(&mut connection).await.map_err(OpenError::Sql)?;
    if found.is_none() && !may_create {
        return Err(OpenError::Absent);
    }
    if may_migrate && found.is_none_or(|(version, _)| version < D::VERSION) {
        D::migrate(&mut connection).await?;
    } else {
        check(found, D::VERSION)?;
    }
    let secret = dial.secret(&mut connection).await;
    let secret = as_secret(secret.map_err(OpenError::Sql)?)?;
    let own = dial.own_identity(&mut connection).await;
    let (own, place) = own.map_err(OpenError::Sql)?;
    let identity = Identity::found(&secret, own.as_deref()).at(place);
    Ok((connection, secret, identity))
}

/// Checks, by the secret, that the database is still the one that the store was opened on.
pub(crate) fn same(found: Option<&[u8]>, expected: &[u8]) -> Result<(), sqlx::Error> {
    let why = match found {
        Some(found) if found == expected => return Ok(()),
        Some(_) => {
            "this is not the store that the gateway was started on: it was emptied and made anew, or another \
             database is in its place; retries of requests that were executed before would execute again; \
             what to do: bring the store back, or start the gateways again on this one"
        }
        None => {
            "the store's tables are gone: its database was emptied, and retries of requests that were \
             executed before would execute again; what to do: restore the database, or make a new store \
             with `onlyonce migrate --store URL`, and start the gateways again"
        }
    };
    let unfit = std::io::Error::other(Unfit::forgot(why));
    Err(sqlx::Error::Io(unfit))
}

/// Converts the secret.
fn as_secret(bytes: Option<Vec<u8>>) -> Result<Secret, OpenError> {
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map(Secret::from_bytes)
        .ok_or(OpenError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_programs_may_use_what() {
        assert!(matches!(check(None, 3), Err(OpenError::Older { found: 0 })));
        assert!(check(Some((3, 3)), 3).is_ok());
        // A newer schema that still takes this program: a rolling upgrade is under way.
        assert!(check(Some((4, 3)), 3).is_ok());
        assert!(matches!(
            check(Some((4, 4)), 3),
            Err(OpenError::Newer { .. })
        ));
        assert!(matches!(
            check(Some((2, 1)), 3),
            Err(OpenError::Older { found: 2 })
        ));
    }
}
