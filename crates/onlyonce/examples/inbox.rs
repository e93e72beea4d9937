//! A message that a broker delivers twice, processed once, on SQLite.
//!
//! ```text
//! cargo run --example inbox
//! ```

use std::path::Path;

use onlyonce::{
    Transactions,
    store::{Isolation, SqliteStore, TransactionalStore},
};

/// What a broker delivers.
struct Delivered {
    id: String,
    amount: i64,
}

/// Tells the broker that it may forget the message.
async fn acknowledge(message: Delivered) {
    println!("acknowledged {}", message.id);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = Path::new("inbox-example.db");
    let opened = SqliteStore::open(file)?;
    rusqlite::Connection::open(file)?
        .execute_batch("CREATE TABLE IF NOT EXISTS bills (amount INTEGER NOT NULL)")?;
    let store = opened.transactions()?;
    let transactions = Transactions::new(opened, store.clone());

    for _ in 0..2 {
        let message = Delivered {
            id: "m-1".to_owned(),
            amount: 1_200,
        };
        let amount = message.amount;
        let mut tx = store.begin(Isolation::ReadCommitted).await?;
        let processed = transactions
            .process_once(&mut tx, "billing", &message.id, |tx| {
                Box::pin(async move {
                    // The effect, on `tx`.
                    tx.execute("INSERT INTO bills (amount) VALUES (?1)", [amount])?;
                    Ok(())
                })
            })
            .await?;
        store.commit(tx).await?;
        println!("{processed:?}");
        acknowledge(message).await;
    }

    let mut tx = store.begin(Isolation::default()).await?;
    let bills: i64 = transactions
        .with_natural_key(&mut tx, "order:17", |tx| {
            Box::pin(async move {
                // Look whether it is done; if not, do it.
                Ok(tx.query_row("SELECT count(*) FROM bills", [], |row| row.get(0))?)
            })
        })
        .await?;
    store.commit(tx).await?;
    println!("{bills} bills");
    Ok(())
}
