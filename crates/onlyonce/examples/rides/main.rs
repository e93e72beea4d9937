//! A ride in phases: created, charged, receipt sent; each once, whatever fails in between.
//!
//! ```text
//! cargo run -p onlyonce --example rides -- rides.db ride-1 1200      # twice
//! ```
//!
//! The first argument is a file for SQLite or the URL of a PostgreSQL, MySQL or MariaDB database. The provider is mocked
//! in the same process and fails once: it loses its answer, or what the fourth argument says. So the first
//! run stops half way and the second goes on: the charge stands in its ledger once.

mod provider;
mod ride;

use std::path::Path;

use onlyonce::{
    Key, KeyRules, Policy, Scope, Transactions,
    store::{MySqlOptions, MySqlStore, PostgresOptions, PostgresStore, SqliteStore},
};
use provider::{Fault, Provider};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, ride, fare, rest @ ..] = &arguments[..] else {
        return Err("usage: rides DATABASE RIDE FARE [before|after|error|decline]".into());
    };
    let provider = Provider::start().await?;
    provider.fail_next(match rest.first().map(String::as_str) {
        Some("before") => Fault::BeforeCharge,
        Some("error") => Fault::ServerError,
        Some("decline") => Fault::Decline,
        _ => Fault::AfterCharge,
    });
    let key = Key::parse(ride.as_bytes(), &KeyRules::default())?;
    let request = format!("{ride} {fare}");
    for _ in 0..2 {
        let (scope, key, request) = (Scope::global(), key.clone(), request.clone());
        let outcome = if database.starts_with("postgres") {
            let store = PostgresStore::open(database, &PostgresOptions::default()).await?;
            let pool = sqlx::PgPool::connect(database).await?;
            sqlx::query(ride::TABLES).execute(&pool).await?;
            sqlx::query(ride::STEPS).execute(&pool).await?;
            let transactions = store.transactions(pool);
            let operation = Transactions::new(store, transactions)
                .operation("rides", Policy::default())
                .await?;
            let rides = ride::on_postgres(operation, provider.url.clone());
            rides.run(scope, key, request).await
        } else if database.starts_with("mysql") {
            let store = MySqlStore::open(database, &MySqlOptions::default()).await?;
            let pool = sqlx::MySqlPool::connect(database).await?;
            sqlx::query(ride::TABLES).execute(&pool).await?;
            sqlx::query(ride::STEPS).execute(&pool).await?;
            let transactions = store.transactions(pool);
            let operation = Transactions::new(store, transactions)
                .operation("rides", Policy::default())
                .await?;
            let rides = ride::on_mysql(operation, provider.url.clone());
            rides.run(scope, key, request).await
        } else {
            let store = SqliteStore::open(Path::new(database))?;
            rusqlite::Connection::open(database)?.execute_batch(&format!(
                "{};{}",
                ride::TABLES,
                ride::STEPS
            ))?;
            let transactions = store.transactions()?;
            let operation = Transactions::new(store, transactions)
                .operation("rides", Policy::default())
                .await?;
            let rides = ride::on_sqlite(operation, provider.url.clone());
            rides.run(scope, key, request).await
        };
        println!("{outcome:?}");
    }
    println!("the provider's ledger: {:?}", provider.ledger());
    Ok(())
}
