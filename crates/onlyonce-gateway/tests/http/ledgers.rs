//! Two ledgers held against each other: the provider's file, and our records.

use std::fmt::Write as _;

use serde_json::Value;

use crate::harness::{
    Gateway, Request, Setup,
    provider::{Part, Provider},
};

/// A route with the rules that say what the words of a ledger mean.
async fn gateway(provider: &Provider) -> Gateway {
    crate::reconcile::gateway(provider, "/payments?key={key}", "").await
}

async fn compare(gateway: &Gateway, file: &str) -> (i32, Value) {
    let args = [
        "--route",
        "r",
        "--provider",
        file,
        "--since",
        "1h",
        "--json",
    ];
    let (code, text) = gateway.reconcile(&args).await;
    let json = serde_json::from_str(&text);
    (code, json.unwrap_or_else(|_| panic!("{text}")))
}

fn found(report: &Value) -> Vec<(String, String)> {
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    let lines = report["differences"].as_array().unwrap().iter();
    lines
        .map(|line| (text(line, "difference"), text(line, "key")))
        .collect()
}

/// Goal: the two sides agree, or it is said where they do not.
///
/// Method: payments and declines through the gateway; the provider's file as it is, then with a row
/// less, one more, one that says something else and one twice.
/// Evidence: exit 0 and no difference; exit 1 and exactly those.
#[tokio::test]
async fn differences_are_found() {
    let provider = Provider::start(|key| match key.starts_with('d') {
        true => Part::Decline,
        false => Part::Pay,
    })
    .await;
    let gateway = gateway(&provider).await;
    let mut rows = String::from("key,status,amount\n");
    for number in 0..20 {
        let (key, status, word) = match number % 5 {
            0 => (format!("d{number}"), 402, "declined"),
            _ => (format!("k{number}"), 201, "succeeded"),
        };
        gateway.send(&Request::pay(&key)).await.expect(status);
        let _ = writeln!(rows, "{key},{word},1000");
    }
    let folder = gateway.folder();
    let file = folder.path().join("ledger.csv");
    let path = file.to_str().unwrap();
    std::fs::write(&file, &rows).unwrap();
    let (code, report) = compare(&gateway, path).await;
    assert_eq!((code, found(&report)), (0, vec![]), "{report}");
    assert_eq!(
        (&report["provider_rows"], &report["records"]),
        (&20.into(), &20.into())
    );

    let changed = rows
        .replace("k3,succeeded,1000\n", "")
        .replace("k4,succeeded", "k4,declined")
        .replace("k6,succeeded", "k6,processing")
        + "\"k,7\",succeeded,1\nk8,succeeded,1000\nd0,declined,1000\n";
    std::fs::write(&file, changed).unwrap();
    let (code, report) = compare(&gateway, path).await;
    assert_eq!(code, 1);
    let expected = [
        ("missing_here", "k,7"),
        ("missing_there", "k3"),
        ("differs", "k4"),
        ("twice", "k8"),
    ];
    let expected = expected.map(|(what, key)| (what.to_owned(), key.to_owned()));
    assert_eq!(found(&report), expected, "{report}");
    for args in [
        &[
            "--route",
            "r",
            "--provider",
            "/nonexistent.csv",
            "--since",
            "1h",
        ][..],
        &["--route", "nowhere", "--provider", path, "--since", "1h"],
    ] {
        assert_eq!(gateway.reconcile(args).await.0, 1, "{args:?}");
    }
    let args = ["--route", "r", "--provider", path, "--since", "soon"];
    assert_eq!(gateway.reconcile(&args).await.0, 2);
}

/// As many copies of the one record in the store at `path`, each with a key of its own.
fn multiply(path: &std::path::Path, rows: usize) {
    let file = rusqlite::Connection::open(path).unwrap();
    let mut columns = file
        .prepare("SELECT name FROM pragma_table_info('keys')")
        .unwrap();
    let names: Vec<String> = columns
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .filter(|name| !["n", "id", "key"].contains(&String::as_str(name)))
        .collect();
    let names = names.join(", ");
    let sql = format!(
        "WITH RECURSIVE numbers (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM numbers WHERE x < {rows} - 1) \
         INSERT INTO keys (id, key, {names}) \
         SELECT randomblob(16), printf('order-%06d', x), {names} FROM numbers, (SELECT * FROM keys)"
    );
    file.execute(&sql, []).unwrap();
}

/// Goal: three differences among a hundred thousand rows, and nothing else.
///
/// Method: 100,000 completed records in a SQLite store, all but one of them copies, and the provider's file of the same payments but
/// for three.
/// Evidence: exactly these three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_among_a_hundred_thousand() {
    const ROWS: usize = 100_000;
    let provider = Provider::start(|_| Part::Pay).await;
    let setup = Setup::with("").route(&format!(
        "idempotency: {{ reconcile: {{ query: {{ url: \"{}/p?key={{key}}\" }}, {} }} }}",
        provider.url(),
        crate::reconcile::OUTCOMES,
    ));
    let mut gateway = setup.start_before(&provider.url()).await;
    gateway
        .send(&Request::pay("order-000000"))
        .await
        .expect(201);
    gateway.sigterm();
    gateway.exited().await;
    let folder = gateway.folder();
    multiply(&folder.path().join("onlyonce.db"), ROWS);
    gateway.restart().await;
    let mut rows = String::from("key,status\n");
    for number in (0..ROWS).filter(|number| *number != 70_001) {
        let word = if number == 31_337 {
            "declined"
        } else {
            "succeeded"
        };
        let _ = writeln!(rows, "order-{number:06},{word}");
    }
    rows.push_str("order-999999,succeeded\n");
    let file = folder.path().join("ledger.csv");
    std::fs::write(&file, rows).unwrap();
    let began = tokio::time::Instant::now();
    let (code, report) = compare(&gateway, file.to_str().unwrap()).await;
    println!("compared {ROWS} rows in {:?}", began.elapsed());
    assert_eq!(code, 1);
    let expected = [
        ("missing_here", "order-999999"),
        ("missing_there", "order-070001"),
        ("differs", "order-031337"),
    ];
    let expected = expected.map(|(what, key)| (what.to_owned(), key.to_owned()));
    assert_eq!(found(&report), expected);
    assert_eq!(report["records"], ROWS);
}
