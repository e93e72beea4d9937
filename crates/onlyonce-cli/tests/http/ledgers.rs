//! Two ledgers held against each other: the provider's file, and our records.

use std::{
    fmt::Write as _,
    time::{Duration, UNIX_EPOCH},
};

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
    assert_eq!(report["unclear_rows"], 1, "k6: {report}");
    for [route, provider, since] in [
        ["r", "/nonexistent.csv", "1h"],
        ["nowhere", path, "1h"],
        ["r", path, "soon"],
        ["r", path, "2026-01-31T00:00:00+0200"],
        ["r", "http://127.0.0.1:x/", "1h"],
    ] {
        let args = ["--route", route, "--provider", provider, "--since", since];
        let (code, text) = gateway.reconcile(&args).await;
        assert_eq!(code, 2, "{args:?}: {text}");
    }
}

/// Now and `hours`, written at an offset of so many hours from UTC.
fn at(hours: i64, offset: i64) -> String {
    let millis = onlyonce_store::clock::StoreClock::system().now().0 + (hours + offset) * 3_600_000;
    let time = UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs());
    let text = humantime::format_rfc3339_micros(time).to_string();
    let sign = if offset < 0 { '-' } else { '+' };
    text.replace('Z', &format!("{sign}{:02}:00", offset.abs()))
}

/// Runs the comparison on this text as the ledger.
async fn compare_text(gateway: &Gateway, text: &str) -> (i32, String) {
    let file = gateway.folder().path().join("ledger.csv");
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let args = ["--route", "r", "--provider", path, "--since", "1h"];
    gateway.reconcile(&args).await
}

/// Goal: what cannot be read is never taken for agreement.
///
/// Method: two payments that the ledger has, one of them twice, and one that is not ours; then the same
/// rows under headers that the rules do not know, and times that are none.
/// Evidence: exit 1 and the differences; exit 2 and what is missing.
#[tokio::test]
async fn a_ledger_that_cannot_be_read_does_not_pass() {
    let provider = Provider::start(|_| Part::Pay).await;
    let gateway = gateway(&provider).await;
    gateway.send(&Request::pay("a")).await.expect(201);
    let rows = "a,succeeded\na,succeeded\nzz,succeeded\n";
    let (code, text) = compare_text(&gateway, &format!("key,status\n{rows}")).await;
    assert!(code == 1 && text.contains("2 differences"), "{text}");
    for (header, why) in [
        ("key,state", "no column `status`, which the rules read"),
        ("key,Status", "it has `key`, `Status`"),
        ("id,status", "no column `key`"),
    ] {
        let (code, text) = compare_text(&gateway, &format!("{header}\n{rows}")).await;
        assert!(code == 2 && text.contains(why), "{header}: {code} {text}");
    }
    let (code, text) = compare_text(&gateway, "key\na\na\nzz\n").await;
    assert_eq!(code, 2, "the key alone: {text}");
    for time in ["yesterday", "20261116", "2026-11-16T10:00:00.5+0200", "48h"] {
        let ledger = format!("key,status,at\na,succeeded,{time}\n");
        let (code, text) = compare_text(&gateway, &ledger).await;
        assert!(
            code == 2 && text.contains("is not a time"),
            "{time}: {text}"
        );
    }
}

/// Goal: a ledger is read as spreadsheets and providers write it, and its times are what they say.
///
/// Method: a byte order mark, blanks, quotes; times with an offset, in small letters and in Unix seconds,
/// for a payment that is ours and one that is not.
/// Evidence: no difference; the strange payment counts where its time is within the hour, and not where
/// it is hours ago by its offset.
#[tokio::test]
async fn ledgers_as_others_write_them() {
    let provider = Provider::start(|_| Part::Pay).await;
    let gateway = gateway(&provider).await;
    gateway.send(&Request::pay("a")).await.expect(201);
    for text in [
        "\u{feff}key,status\na,succeeded\n",
        "\u{feff}\"key\",\"status\"\r\n\"a\",\"succeeded\"\r\n",
        "key, status\na, succeeded\n",
    ] {
        let (code, found) = compare_text(&gateway, text).await;
        assert!(
            code == 0 && found.contains("no difference"),
            "{text}{found}"
        );
        assert!(!found.contains("not compared"), "{text}{found}");
    }
    let now = onlyonce_store::clock::StoreClock::system().now().0;
    for (time, code) in [
        (at(0, 0), 1),
        (at(0, -6), 1),
        (at(0, 6), 1),
        (at(-5, 0), 0),
        (at(-5, 6), 0),
        (at(-5, -6), 0),
        (at(0, 2).to_ascii_lowercase(), 1),
        ((now / 1_000).to_string(), 1),
        (now.to_string(), 1),
        ((now / 1_000 - 18_000).to_string(), 0),
    ] {
        let ledger = format!("key,status,at\na,succeeded,{time}\nzz,succeeded,{time}\n");
        let found = compare_text(&gateway, &ledger).await;
        assert_eq!(found.0, code, "{time}: {}", found.1);
    }
}

/// Goal: a column with clients does not hide rows where all clients share their keys.
///
/// Method: a route without clients, and a ledger that names them; then a key under two of them.
/// Evidence: no difference; the key is there twice.
#[tokio::test]
async fn clients_in_the_ledger_alone() {
    let provider = Provider::start(|_| Part::Pay).await;
    let gateway = gateway(&provider).await;
    for key in ["a", "b"] {
        gateway.send(&Request::pay(key)).await.expect(201);
    }
    let rows = "key,client,status\na,acme,succeeded\nb,,succeeded\n";
    let (code, text) = compare_text(&gateway, rows).await;
    assert!(code == 0 && text.contains("no difference"), "{text}");
    let twice = format!("{rows}a,globex,succeeded\nc,acme,succeeded\n");
    let (code, text) = compare_text(&gateway, &twice).await;
    assert!(code == 1 && text.contains("2 differences"), "{text}");
    assert!(text.contains("twice         a (line 4)"), "{text}");
    assert!(text.contains("missing_here  c of acme (line 5)"), "{text}");
}

/// Goal: a row that is nobody's, and keys that several clients have, are not taken for agreement.
///
/// Method: a row with an empty key; the same key of two clients against ledgers with and without a column
/// that tells them apart, and with one that is empty.
/// Evidence: missing here; exit 2 without the column; no difference, and one that names the client.
#[tokio::test]
async fn rows_whose_owner_is_not_known() {
    let provider = Provider::start(|_| Part::Pay).await;
    let url = "/payments?client={client}&key={key}";
    let setup = crate::reconcile::setup(&provider, url, "").clients(&["acme", "bob"]);
    let gateway = setup.start_before(&provider.url()).await;
    for client in ["acme", "bob"] {
        let request = Request::pay("same").of_client(client);
        gateway.send(&request).await.expect(201);
    }
    for rows in ["same,succeeded\n", "same,succeeded\nsame,succeeded\n"] {
        let (code, text) = compare_text(&gateway, &format!("key,status\n{rows}")).await;
        assert!(
            code == 2 && text.contains("--client-column"),
            "{code} {text}"
        );
    }
    let rows = "key,client,status\nsame,acme,succeeded\nsame,bob,succeeded\n";
    let (code, text) = compare_text(&gateway, rows).await;
    assert!(code == 0 && text.contains("no difference"), "{text}");
    for (row, difference) in [
        (",acme,succeeded\n", "missing_here   of acme (line 4)"),
        ("same,,succeeded\n", "missing_here  same (line 4)"),
    ] {
        let (code, text) = compare_text(&gateway, &format!("{rows}{row}")).await;
        assert!(code == 1 && text.contains("1 difference"), "{row}{text}");
        assert!(text.contains(difference), "{row}{text}");
    }
}

/// Goal: tags are not taken for keys.
///
/// Method: a gateway with `mask_keys`, and a ledger that agrees with it.
/// Evidence: exit 2 and the other way, which finds no difference once the gateway has stopped.
#[tokio::test]
async fn masked_keys_are_not_compared() {
    let provider = Provider::start(|_| Part::Pay).await;
    let setup = crate::reconcile::setup(&provider, "/payments?key={key}", "");
    let gateway = setup.admin("mask_keys: true");
    let mut gateway = gateway.start_before(&provider.url()).await;
    gateway.send(&Request::pay("a")).await.expect(201);
    let (code, text) = compare_text(&gateway, "key,status\na,succeeded\n").await;
    assert!(code == 2 && text.contains("mask_keys"), "{code} {text}");
    assert!(text.contains("--store"), "{text}");
    gateway.sigterm();
    gateway.exited().await;
    let folder = gateway.folder();
    let store = format!("sqlite:{}/onlyonce.db", folder.path().display());
    let ledger = folder.path().join("ledger.csv");
    let ledger = ledger.to_str().unwrap();
    let args = [
        "--route",
        "r",
        "--provider",
        ledger,
        "--since",
        "1h",
        "--store",
        &store,
    ];
    let (code, text) = gateway.reconcile(&args).await;
    assert!(code == 0 && text.contains("no difference"), "{text}");
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
