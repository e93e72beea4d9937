//! A worker that delivers to a broker by its configuration. What brokers do to messages when they die is
//! tested where the publishers are.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../http"]
mod black_box {
    #[allow(dead_code, unused_imports, reason = "shared with the tests over HTTP")]
    pub(crate) mod harness;
}

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use onlyonce_store::private::Nats;
use serde_json::{Value, json};
use tempfile::TempDir;

use black_box::harness::{self, eventually, ms, worker::Worker};

/// Asks the server itself, in its own protocol.
fn asked(server: &Nats, subject: &str, body: &Value) -> Value {
    let url = server.url();
    let mut stream = TcpStream::connect(url.trim_start_matches("nats://")).unwrap();
    stream.set_read_timeout(Some(harness::DEADLINE)).unwrap();
    let body = body.to_string();
    let ask = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {}\r\n{body}\r\n",
        body.len()
    );
    stream.write_all(ask.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("MSG answer")).unwrap();
    serde_json::from_str(&lines.next().unwrap()).unwrap()
}

/// Goal: a target of kind `nats` gets its messages, under their keys.
///
/// Method: a message in a SQLite file; a worker whose configuration names a private server; a stream that
/// takes the subject is made only then.
/// Evidence: the stream's own message, its subject and its headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_on_nats() {
    let server = Nats::start();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("oo.db");
    let store = format!("sqlite:{}", file.display());
    let made = std::process::Command::new(harness::process::binary())
        .args(["migrate", "--store", &store])
        .status();
    assert!(made.unwrap().success());
    rusqlite::Connection::open(&file)
        .unwrap()
        .execute(
            "INSERT INTO outbox (id, created_at, due_at, target, type, downstream_key, payload) \
             VALUES (randomblob(16), 0, 0, 'shop', 'paid', 'order-17', CAST('of 17' AS BLOB))",
            [],
        )
        .unwrap();
    let yaml = format!(
        "store: {{ url: \"{store}\" }}\noutbox: {{ targets: [{{ name: shop, kind: nats, url: \"{}\", \
         subject: \"orders.{{type}}\", first_pause: 100ms, longest_pause: 200ms, max_attempts: 1000 }}] }}\n",
        server.url()
    );
    let _worker = Worker::with_config(folder.path(), &yaml).await;
    let stream = json!({ "name": "ORDERS", "subjects": ["orders.>"] });
    let created = asked(&server, "$JS.API.STREAM.CREATE.ORDERS", &stream);
    assert_eq!(created["error"], Value::Null, "{created}");
    let stored = eventually("the message in the stream", async || {
        tokio::time::sleep(ms(100)).await;
        let first = json!({ "seq": 1 });
        let found = asked(&server, "$JS.API.STREAM.MSG.GET.ORDERS", &first);
        found["message"]
            .is_object()
            .then(|| found["message"].clone())
    })
    .await;
    let decoded = |name: &str| {
        let bytes = STANDARD.decode(stored[name].as_str().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(stored["subject"], "orders.paid");
    assert_eq!(decoded("data"), "of 17");
    assert!(
        decoded("hdrs").contains("Nats-Msg-Id: order-17"),
        "{}",
        decoded("hdrs")
    );
}
