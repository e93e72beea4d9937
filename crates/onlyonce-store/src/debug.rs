//! `Debug` for stores: only the name. A store holds connections, and a secret that must not be printed.

use std::fmt;

/// Implements `Debug` with the name only.
macro_rules! named {
    ($($(#[$cfg:meta])* $type:ty => $name:literal,)*) => {
        $(
            $(#[$cfg])*
            impl fmt::Debug for $type {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct($name).finish_non_exhaustive()
                }
            }
        )*
    };
}

named! {
    crate::memory::MemoryStore => "MemoryStore",
    crate::at_rest::AtRest => "AtRest",
    #[cfg(feature = "sqlite")]
    crate::sqlite::SqliteStore => "SqliteStore",
    #[cfg(feature = "sqlite")]
    crate::sqlite::SqliteTransactions => "SqliteTransactions",
    #[cfg(feature = "postgres")]
    crate::postgres::PostgresStore => "PostgresStore",
    #[cfg(feature = "postgres")]
    crate::postgres::PgTransactions => "PgTransactions",
    #[cfg(feature = "mysql")]
    crate::mysql::MySqlStore => "MySqlStore",
    #[cfg(feature = "mysql")]
    crate::mysql::MySqlTransactions => "MySqlTransactions",
    #[cfg(feature = "redis")]
    crate::redis::RedisStore => "RedisStore",
    #[cfg(feature = "redis")]
    crate::tiered::TieredStore => "TieredStore",
}
