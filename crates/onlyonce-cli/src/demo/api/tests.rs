//! Tests of the API over a real socket, read byte by byte: what is booked and what is sent.

use std::net::SocketAddr;
use std::time::UNIX_EPOCH;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const ORDER: &str = r#"{"amount":1000,"currency":"EUR","customer":"ada"}"#;

struct Running {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    _folder: TempDir,
}

async fn start() -> Running {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::open(&folder.path().join("ledger.jsonl")).unwrap());
    let without = Arc::new(Ledger::open(&folder.path().join("without.jsonl")).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let api = Api {
        ledger: Arc::clone(&ledger),
        without,
        now: || UNIX_EPOCH,
    };
    tokio::spawn(serve(listener, api));
    Running {
        address,
        ledger,
        _folder: folder,
    }
}

impl Running {
    /// Sends one request and returns every byte received before the connection closes.
    async fn raw(&self, method: &str, path: &str, fault: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream
            .write_all(request(method, path, fault, body).as_bytes())
            .await
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    async fn pay(&self, fault: &str) -> String {
        self.raw("POST", "/payments", fault, ORDER).await
    }
}

fn request(method: &str, path: &str, fault: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\nIdempotency-Key: k-1\r\n\
         Idempotency-Attempt: t-1\r\nDemo-Fault: {fault}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("no answer")
}

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn a_payment_is_answered_after_it_is_booked() {
    let api = start().await;
    let answer = api.pay("").await;
    assert_eq!(status(&answer), "201");
    assert!(
        answer
            .to_ascii_lowercase()
            .contains("location: /payments/pay_000001\r\n")
    );
    assert!(answer.ends_with(
        r#"{"id":"pay_000001","amount":1000,"currency":"eur","customer":"ada","status":"succeeded","created_at":"1970-01-01T00:00:00.000Z"}"#
    ));
    let entry = serde_json::to_value(&api.ledger.summary().entries[0]).unwrap();
    assert_eq!(entry["kind"], "payment");
    assert_eq!(
        (&entry["idempotency_key"], &entry["idempotency_attempt"]),
        (&"k-1".into(), &"t-1".into())
    );

    // The naive API: the same key again makes another payment.
    assert_eq!(body(&api.pay("").await)["id"], "pay_000002");
    assert!(
        api.raw("GET", "/ledger/count", "", "")
            .await
            .ends_with("\r\n\r\n2\n")
    );
    assert!(
        api.raw("GET", "/ledger/count?key=k-1", "", "")
            .await
            .ends_with("\r\n\r\n2\n")
    );
    assert!(
        api.raw("GET", "/ledger/count?key=k-2", "", "")
            .await
            .ends_with("\r\n\r\n0\n")
    );
    assert_eq!(
        body(&api.raw("GET", "/ledger", "", "").await)["total_by_currency"]["eur"],
        2000
    );
    assert_eq!(status(&api.raw("GET", "/healthz", "", "").await), "200");
}

#[tokio::test]
async fn invalid_orders_book_nothing() {
    let api = start().await;
    for order in [
        "",
        "[]",
        r#"{"amount":0,"currency":"eur"}"#,
        r#"{"amount":-5,"currency":"eur"}"#,
        r#"{"amount":10.5,"currency":"eur"}"#,
        r#"{"amount":10,"currency":"euro"}"#,
        r#"{"amount":10,"currency":"eur","customer":""}"#,
    ] {
        let answer = api.raw("POST", "/payments", "", order).await;
        assert_eq!(status(&answer), "400", "{order}");
        assert_eq!(body(&answer)["error"]["code"], "invalid_payment");
    }
    assert_eq!(status(&api.pay("no-such-fault").await), "400");
    assert_eq!(api.ledger.count(None), 0);
}

#[tokio::test]
async fn faults_before_the_booking_book_nothing() {
    let api = start().await;
    for (fault, expected) in [
        ("fail", "500"),
        ("status=418", "418"),
        ("status=204", "204"),
        ("not-executed", "503"),
        ("decline", "402"),
        ("slow=1, fail", "500"),
    ] {
        assert_eq!(status(&api.pay(fault).await), expected, "{fault}");
    }
    let answer = api.pay("not-executed").await.to_ascii_lowercase();
    assert!(answer.contains("idempotency-outcome: not-executed\r\n"));
    assert_eq!(api.pay("hang-up-before").await, "", "not one byte");
    assert_eq!(api.ledger.count(None), 0);
}

#[tokio::test]
async fn faults_after_the_booking_leave_it_booked() {
    let api = start().await;
    assert_eq!(status(&api.pay("fail-after").await), "500");
    assert_eq!(api.pay("hang-up").await, "", "not one byte");
    let big = api.pay("big=100000,slow-after=1").await;
    assert_eq!(body(&big)["padding"].as_str().unwrap().len(), 100_000);
    assert_eq!(api.ledger.count(None), 3);
}

#[tokio::test]
async fn refunds_are_booked_once_by_their_rules() {
    let api = start().await;
    api.pay("").await;
    let path = "/payments/pay_000001/refunds";
    let refund = api.raw("POST", path, "", r#"{"amount":400}"#).await;
    assert_eq!(
        (status(&refund), body(&refund)["amount"].as_u64()),
        ("201", Some(400))
    );
    assert_eq!(
        status(&api.raw("POST", path, "", r#"{"amount":700}"#).await),
        "400"
    );
    assert_eq!(
        status(&api.raw("POST", path, "", r#"{"amount":0}"#).await),
        "400"
    );
    let shown = body(&api.raw("GET", "/payments/pay_000001", "", "").await);
    assert_eq!(
        (&shown["status"], &shown["refunded"]),
        (&"partially_refunded".into(), &400.into())
    );
    assert_eq!(api.raw("POST", path, "hang-up", "").await, "");
    assert_eq!(status(&api.raw("POST", path, "", "").await), "409");
    assert_eq!(
        status(&api.raw("POST", "/payments/pay_7/refunds", "", "").await),
        "404"
    );
    assert_eq!(
        status(&api.raw("GET", "/payments/pay_7", "", "").await),
        "404"
    );
    let list = body(&api.raw("GET", "/payments", "", "").await);
    assert_eq!(list["payments"][0]["status"], "refunded");
    assert_eq!(api.ledger.summary().refunds, 2);
}

/// Goal: a caller that dies in the middle does not undo the payment.
///
/// Method: send an order that is slow to book and close the connection immediately.
/// Evidence: the ledger, polled until it counts the payment.
#[tokio::test]
async fn a_caller_that_leaves_does_not_stop_the_booking() {
    let api = start().await;
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream
        .write_all(request("POST", "/payments", "slow=200", ORDER).as_bytes())
        .await
        .unwrap();
    drop(stream);
    let booked = async {
        while api.ledger.count(None) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), booked)
        .await
        .expect("the payment is booked");
}

/// Goal: a client that lost an answer can query its key, and gets the content of that answer.
#[tokio::test]
async fn a_key_can_be_asked_for() {
    let api = start().await;
    let paid = api.pay("").await;
    for key in ["k-1", "%22k-1%22"] {
        let path = format!("/ledger/entry?key={key}");
        let found = api.raw("GET", &path, "", "").await;
        assert_eq!((status(&found), body(&found)), ("200", body(&paid)));
    }
    let other = api.raw("GET", "/ledger/entry?key=other", "", "").await;
    assert_eq!(status(&other), "404");
}
