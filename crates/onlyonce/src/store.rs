//! Where keys are kept. Each store is behind the feature of its name; [`MemoryStore`] is always there.
//!
//! | feature | store | for |
//! |---|---|---|
//! | | [`MemoryStore`] | tests and trials: after a restart every key is new |
//! | `sqlite` | `SqliteStore` | one process |
//! | `postgres` | `PostgresStore` | any number of processes |
//! | `mysql` | `MySqlStore` | any number of processes, on MySQL or MariaDB |
//! | `redis` | `RedisStore` | any number of processes; `TieredStore` puts Redis in front of SQL |
//! | `dynamodb` | `DynamoDbStore` | any number of processes, in one table |
//!
//! A store of your own implements [`Store`], and is tested by the conformance suite of
//! [`onlyonce_store`].

pub use onlyonce_store::{
    Filter, Level, Listed, Outbox, Page, Store, StoreError, TransactionalStore, at_rest,
    memory::MemoryStore,
    transactional::{Isolation, TransactionError},
};

#[cfg(feature = "dynamodb")]
pub use onlyonce_store::dynamodb::{self, DynamoDbOptions, DynamoDbStore};
#[cfg(feature = "mysql")]
pub use onlyonce_store::mysql::{self, MySqlOptions, MySqlStore, MySqlTransactions};
#[cfg(feature = "postgres")]
pub use onlyonce_store::postgres::{self, PgTransactions, PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
pub use onlyonce_store::sqlite::{self, SqliteOptions, SqliteStore, SqliteTransactions};
#[cfg(feature = "redis")]
pub use onlyonce_store::{
    redis::{self, RedisOptions, RedisStore},
    tiered::TieredStore,
};
