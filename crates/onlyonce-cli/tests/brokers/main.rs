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
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use onlyonce_testkit::servers::{Nats, RabbitMq, free_port};
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

/// A SQLite file with one message to the target `shop`, of the type `paid`.
fn one_message(folder: &Path) -> (PathBuf, String) {
    let file = folder.join("oo.db");
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
    (file, store)
}

/// A worker whose target `shop` is described so.
async fn worker(folder: &Path, store: &str, target: &str) -> Worker {
    let yaml = format!(
        "store: {{ url: \"{store}\" }}\noutbox: {{ targets: [{{ name: shop, {target}, \
         first_pause: 100ms, longest_pause: 200ms, max_attempts: 1000 }}] }}\n"
    );
    Worker::with_config(folder, &yaml).await
}

/// What the file says of the message.
fn column(file: &Path, name: &str) -> String {
    let file = rusqlite::Connection::open(file).unwrap();
    let read = format!("SELECT coalesce({name}, '') FROM outbox");
    file.query_row(&read, [], |row| row.get(0)).unwrap()
}

/// Waits until this is why the message was not delivered.
async fn until_said(file: &Path, why: &str) {
    eventually(why, async || {
        tokio::time::sleep(ms(50)).await;
        column(file, "last_error").contains(why).then_some(())
    })
    .await;
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
    let (_file, store) = one_message(folder.path());
    let target = format!(
        "kind: nats, url: \"{}\", subject: \"orders.{{type}}\"",
        server.url()
    );
    let _worker = worker(folder.path(), &store, &target).await;
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

/// Goal: a target of kind `rabbitmq` gets its messages.
///
/// Method: a message in a SQLite file; a worker whose configuration names a private server; the queue is
/// made only when the server has given the message back.
/// Evidence: the server's own count of messages in the queue, and the file.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_on_rabbitmq() {
    let server = tokio::task::block_in_place(RabbitMq::start);
    let folder = TempDir::new().unwrap();
    let (file, store) = one_message(folder.path());
    let target = format!(
        "kind: rabbitmq, url: \"{}\", routing_key: \"{{type}}\"",
        server.url()
    );
    let _worker = worker(folder.path(), &store, &target).await;
    until_said(&file, "no queue takes it").await;
    let declare = "rabbit_amqqueue:declare({resource, <<\"/\">>, queue, <<\"paid\">>}, true, false, [], \
                   none, <<\"guest\">>).";
    tokio::task::block_in_place(|| server.control(&["eval", declare]));
    eventually("the message in the queue", async || {
        let said = tokio::task::block_in_place(|| {
            server.control(&["list_queues", "--no-table-headers", "name", "messages"])
        });
        (said.split_whitespace().eq(["paid", "1"])).then_some(())
    })
    .await;
    eventually("the message to be delivered", async || {
        (column(&file, "state") == "delivered").then_some(())
    })
    .await;
}

/// Goal: a target of kind `kafka` is sent to, and a cluster that is not there is no reason to wait longer
/// than the target's timeout.
///
/// Evidence: why the message was not delivered, in the file. What brokers do with messages is tested where
/// the publisher is.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_on_kafka() {
    let folder = TempDir::new().unwrap();
    let (file, store) = one_message(folder.path());
    let nobody = format!("127.0.0.1:{}", free_port());
    let target = format!("kind: kafka, url: \"{nobody}\", topic: \"{{type}}\", timeout: 1s");
    let _worker = worker(folder.path(), &store, &target).await;
    until_said(&file, "Message timed out").await;
}
