//! The stores. Each database is behind the feature of its name; [`MemoryStore`] is always available.
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
//! To write a store of your own, implement [`Store`]. Its contract is in [`onlyonce_store`], and as tests in
//! `onlyonce_testkit::conformance`.

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
