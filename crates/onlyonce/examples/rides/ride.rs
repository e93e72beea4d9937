//! The operation: a ride is created, its fare is charged at a provider, and a receipt is left in the
//! outbox. The same on PostgreSQL, on MySQL or MariaDB, and on SQLite.

use futures_util::FutureExt as _;
use http::StatusCode;
use onlyonce::{
    Answer, Operation, Phases,
    outbox::Message,
    phases::CallFailed,
    store::{MySqlTransactions, PgTransactions, SqliteTransactions, TransactionError},
};
use serde_json::json;

use crate::provider::{self, Told};

/// What the application's own tables look like.
pub(crate) const TABLES: &str = "CREATE TABLE IF NOT EXISTS rides (
    id VARCHAR(64) PRIMARY KEY, fare INTEGER NOT NULL, charge TEXT)";
pub(crate) const STEPS: &str =
    "CREATE TABLE IF NOT EXISTS steps (ride TEXT NOT NULL, phase TEXT NOT NULL)";

/// The parameters of a request: `RIDE FARE`.
fn parameters(bytes: &[u8]) -> Result<(String, i64), TransactionError> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (ride, fare) = text
        .split_once(' ')
        .ok_or_else(|| TransactionError::given_up("a request is RIDE FARE"))?;
    let fare = fare
        .parse()
        .map_err(|_| TransactionError::given_up("a fare is a number"))?;
    Ok((ride.to_owned(), fare))
}

/// Asks the provider for the charge, under the key that belongs to this phase of this ride.
async fn charge(
    url: String,
    key: String,
    fare: i64,
) -> Result<(String, serde_json::Value), CallFailed> {
    match provider::charge(&url, &key, fare).await {
        Told::Charged(id) => Ok((id.clone(), json!({ "charge": id }))),
        Told::Declined => Err(CallFailed::Refused(Box::new(Answer::json(
            StatusCode::PAYMENT_REQUIRED,
            &json!({ "error": "declined" }),
        )))),
        Told::NotReached(error) => Err(CallFailed::NotSent(error.into())),
        Told::Nothing(error) => Err(CallFailed::Unclear(error.into())),
    }
}

fn answer(situation: &onlyonce::phases::Situation) -> Answer {
    Answer::json(StatusCode::CREATED, &situation.data)
}

/// On PostgreSQL.
pub(crate) fn on_postgres(
    operation: Operation<PgTransactions>,
    provider: String,
) -> Phases<PgTransactions> {
    let transactions = operation.transactions().clone();
    Phases::new(operation, answer)
        .local("ride_created", |tx, situation| {
            async move {
                let (ride, fare) = parameters(&situation.parameters)?;
                sqlx::query("INSERT INTO rides (id, fare) VALUES ($1, $2)")
                    .bind(&ride)
                    .bind(i32::try_from(fare).unwrap_or(i32::MAX))
                    .execute(&mut *tx)
                    .await?;
                step_on_postgres(tx, &ride, "ride_created").await
            }
            .boxed()
        })
        .foreign("charged", true, move |call, situation| {
            let provider = provider.clone();
            async move {
                let (_, fare) = parameters(&situation.parameters)
                    .map_err(|error| CallFailed::NotSent(error.into()))?;
                call.send(|key| charge(provider, key, fare)).await
            }
            .boxed()
        })
        .local("receipt_sent", move |tx, situation| {
            let transactions = transactions.clone();
            async move {
                let (ride, _) = parameters(&situation.parameters)?;
                sqlx::query("UPDATE rides SET charge = $2 WHERE id = $1")
                    .bind(&ride)
                    .bind(&situation.provider_id)
                    .execute(&mut *tx)
                    .await?;
                let receipt = Message::new("receipts", ride.clone().into_bytes());
                transactions.enqueue(tx, &receipt).await?;
                step_on_postgres(tx, &ride, "receipt_sent").await
            }
            .boxed()
        })
}

async fn step_on_postgres(
    tx: &mut sqlx::PgConnection,
    ride: &str,
    phase: &str,
) -> Result<(), TransactionError> {
    sqlx::query("INSERT INTO steps (ride, phase) VALUES ($1, $2)")
        .bind(ride)
        .bind(phase)
        .execute(tx)
        .await?;
    Ok(())
}

/// On MySQL or MariaDB.
pub(crate) fn on_mysql(
    operation: Operation<MySqlTransactions>,
    provider: String,
) -> Phases<MySqlTransactions> {
    let transactions = operation.transactions().clone();
    Phases::new(operation, answer)
        .local("ride_created", |tx, situation| {
            async move {
                let (ride, fare) = parameters(&situation.parameters)?;
                sqlx::query("INSERT INTO rides (id, fare) VALUES (?, ?)")
                    .bind(&ride)
                    .bind(i32::try_from(fare).unwrap_or(i32::MAX))
                    .execute(&mut *tx)
                    .await?;
                step_on_mysql(tx, &ride, "ride_created").await
            }
            .boxed()
        })
        .foreign("charged", true, move |call, situation| {
            let provider = provider.clone();
            async move {
                let (_, fare) = parameters(&situation.parameters)
                    .map_err(|error| CallFailed::NotSent(error.into()))?;
                call.send(|key| charge(provider, key, fare)).await
            }
            .boxed()
        })
        .local("receipt_sent", move |tx, situation| {
            let transactions = transactions.clone();
            async move {
                let (ride, _) = parameters(&situation.parameters)?;
                sqlx::query("UPDATE rides SET charge = ? WHERE id = ?")
                    .bind(&situation.provider_id)
                    .bind(&ride)
                    .execute(&mut *tx)
                    .await?;
                let receipt = Message::new("receipts", ride.clone().into_bytes());
                transactions.enqueue(tx, &receipt).await?;
                step_on_mysql(tx, &ride, "receipt_sent").await
            }
            .boxed()
        })
}

async fn step_on_mysql(
    tx: &mut sqlx::MySqlConnection,
    ride: &str,
    phase: &str,
) -> Result<(), TransactionError> {
    sqlx::query("INSERT INTO steps (ride, phase) VALUES (?, ?)")
        .bind(ride)
        .bind(phase)
        .execute(tx)
        .await?;
    Ok(())
}

/// On SQLite.
pub(crate) fn on_sqlite(
    operation: Operation<SqliteTransactions>,
    provider: String,
) -> Phases<SqliteTransactions> {
    let transactions = operation.transactions().clone();
    Phases::new(operation, answer)
        .local("ride_created", |tx, situation| {
            async move {
                let (ride, fare) = parameters(&situation.parameters)?;
                tx.execute(
                    "INSERT INTO rides (id, fare) VALUES (?1, ?2)",
                    (&ride, fare),
                )?;
                tx.execute("INSERT INTO steps VALUES (?1, 'ride_created')", [&ride])?;
                Ok(())
            }
            .boxed()
        })
        .foreign("charged", true, move |call, situation| {
            let provider = provider.clone();
            async move {
                let (_, fare) = parameters(&situation.parameters)
                    .map_err(|error| CallFailed::NotSent(error.into()))?;
                call.send(|key| charge(provider, key, fare)).await
            }
            .boxed()
        })
        .local("receipt_sent", move |tx, situation| {
            let transactions = transactions.clone();
            async move {
                let (ride, _) = parameters(&situation.parameters)?;
                let charge = &situation.provider_id;
                tx.execute(
                    "UPDATE rides SET charge = ?2 WHERE id = ?1",
                    (&ride, charge),
                )?;
                let receipt = Message::new("receipts", ride.clone().into_bytes());
                transactions.enqueue(tx, &receipt).await?;
                tx.execute("INSERT INTO steps VALUES (?1, 'receipt_sent')", [&ride])?;
                Ok(())
            }
            .boxed()
        })
}
