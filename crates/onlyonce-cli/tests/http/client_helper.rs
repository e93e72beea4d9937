//! The client helper against the real gateway: one execution and an answer, whatever happens to the
//! connection, the client's process or the outcome.

use std::{
    net::SocketAddr,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_client::{Answer, Call, Client, Error, FileJournal, Journal, Patience};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinHandle,
};

use crate::harness::{Gateway, REPLAYED, Script, Setup, Upstream, ms, within};

/// What tells a process of this test that it is the client that dies.
const CHILD: &str = "ONLYONCE_TEST_CLIENT";

/// A wire to the gateway that cuts the first connections, or holds them, once the gateway has answered.
struct Wire {
    addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

#[derive(Clone, Copy)]
enum Fault {
    Cut,
    Hold,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Wire {
    async fn to(gateway: SocketAddr, faults: usize, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let faulty = count.fetch_add(1, Ordering::SeqCst) < faults;
                tokio::spawn(pass(client, gateway, faulty.then_some(fault)));
            }
        });
        Self {
            addr,
            connections,
            serving,
        }
    }
}

async fn pass(mut client: TcpStream, gateway: SocketAddr, fault: Option<Fault>) {
    let mut server = TcpStream::connect(gateway).await.unwrap();
    let Some(fault) = fault else {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        return;
    };
    let (mut from_client, _to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut answer = [0; 1];
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = from_server.read(&mut answer) => {}
    }
    if matches!(fault, Fault::Hold) {
        std::future::pending::<()>().await;
    }
    let _ = to_server.shutdown().await;
}

/// The wire has another port than the gateway, and to a request that is another host.
const ANY_PORT: &str = "fingerprint: { host: false }";

fn call() -> Call {
    Call::post("/payments").json(r#"{"amount":1000}"#)
}

fn client(addr: SocketAddr) -> Client {
    let patience = Patience {
        attempt: Duration::from_secs(20),
        whole: Duration::from_secs(30),
        pause: ms(20),
        longest_pause: ms(200),
    };
    let client = Client::new(&format!("http://{addr}")).unwrap();
    client.patience(patience)
}

async fn pay(client: &Client, journal: &FileJournal) -> Result<Answer, Error> {
    let call = call();
    let paid = client.send(journal, "order-1/payment", &call);
    tokio::time::timeout(Duration::from_secs(40), paid)
        .await
        .expect("an end")
}

/// Goal: connections that are cut after the upstream has acted cost attempts, never a second payment.
///
/// Method: the first three connections are cut when the gateway has answered.
/// Evidence: the upstream's count; the caller has the first answer, by the fourth attempt.
#[tokio::test]
async fn connections_that_are_cut() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ANY_PORT).await;
    let wire = Wire::to(gateway.data(), 3, Fault::Cut).await;
    let folder = TempDir::new().unwrap();
    let journal = FileJournal::open(folder.path()).unwrap();
    let answer = pay(&client(wire.addr), &journal).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (201, 4));
    assert_eq!(&answer.body[..], b"{\"execution\":1}");
    assert!(answer.is_replay());
    assert_eq!(upstream.executions_of(&answer.key), 1);
    assert_eq!(upstream.executions(), 1);
    // Until it is forgotten, the same name is the same operation.
    let again = pay(&client(gateway.data()), &journal).await.unwrap();
    assert_eq!((&again.key, &again.body), (&answer.key, &answer.body));
    let other = Call::post("/payments").json(r#"{"amount":2000}"#);
    let refused = client(gateway.data())
        .send(&journal, "order-1/payment", &other)
        .await;
    assert!(matches!(refused, Err(Error::OtherRequest)), "{refused:?}");
    journal.forget("order-1/payment").unwrap();
    let next = pay(&client(gateway.data()), &journal).await.unwrap();
    assert_ne!(next.key, answer.key);
    assert_eq!(upstream.executions(), 2);
}

/// The client that dies: what the test below starts as a process of its own. By itself it does nothing.
#[tokio::test]
async fn child() {
    let Ok(told) = std::env::var(CHILD) else {
        return;
    };
    let (addr, folder) = told.split_once(' ').unwrap();
    let journal = FileJournal::open(folder).unwrap();
    let paid = pay(&client(addr.parse().unwrap()), &journal).await;
    panic!("the answer is held, and still there is {paid:?}");
}

/// Goal: a client that dies between two attempts goes on with its key.
///
/// Method: a process sends, its answer is held; once the upstream has acted it is killed with -9; another
/// process, this one, sends the same operation with the same journal.
/// Evidence: the upstream's count; the answer is a replay.
#[tokio::test]
async fn a_client_that_dies() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ANY_PORT).await;
    let wire = Wire::to(gateway.data(), usize::MAX, Fault::Hold).await;
    let folder = TempDir::new().unwrap();
    let told = format!("{} {}", wire.addr, folder.path().display());
    let mut dying = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_helper::child", "--nocapture"])
        .env(CHILD, told)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    upstream.ended(1).await;
    dying.kill().await.unwrap();
    assert!(wire.connections.load(Ordering::SeqCst) >= 1);
    let journal = FileJournal::open(folder.path()).unwrap();
    let answer = pay(&client(gateway.data()), &journal).await.unwrap();
    assert_eq!(answer.status.as_u16(), 201);
    assert!(answer.is_replay());
    assert_eq!(upstream.executions(), 1);
}

/// Goal: an unknown outcome is asked about, never given a new key.
///
/// Method: the upstream hangs up after it has acted. First nobody knows; then an operator says what
/// happened while the client is asking.
/// Evidence: one execution; the error names the key; then the answer that the operator gave.
#[tokio::test]
async fn an_unknown_outcome() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    upstream.next(Script::hang_up());
    let folder = TempDir::new().unwrap();
    let journal = FileJournal::open(folder.path()).unwrap();
    let hasty = client(gateway.data()).patience(Patience {
        whole: ms(1_500),
        pause: ms(50),
        longest_pause: ms(200),
        ..Patience::default()
    });
    let key = match pay(&hasty, &journal).await {
        Err(Error::Unknown { key }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(gateway.state(&key).await, "unknown");
    let asking = tokio::spawn({
        let (client, folder) = (client(gateway.data()), folder.path().to_owned());
        async move {
            let journal = FileJournal::open(folder).unwrap();
            pay(&client, &journal).await
        }
    });
    let resolve = format!("/idempotency/keys/{}/resolve", gateway.id(&key).await);
    tokio::time::sleep(ms(300)).await;
    let said = json!({
        "outcome": "completed",
        "response": { "status": 201, "headers": {}, "body": "found in the ledger" },
        "reason": "test",
    });
    gateway.admin_post(&resolve, &said).await.expect(200);
    let answer = within("the answer", asking).await.unwrap().unwrap();
    assert_eq!(&answer.body[..], b"found in the ledger");
    assert_eq!(answer.key, key);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: hints and `Retry-After` are heard; what is settled is not sent again.
///
/// Method: a second client meets the first in flight and is told to come back; an upstream that refuses
/// with 503 and then works; a 402 that is final; a gateway that is not there yet.
/// Evidence: the upstream's count and the attempts.
#[tokio::test]
async fn hints() {
    let upstream = Upstream::start();
    let gateway = Setup::with("on_in_flight: reject").start(&upstream).await;
    let folder = Arc::new(TempDir::new().unwrap());
    upstream.next(Script::created().held());
    let both: Vec<_> = (0..2)
        .map(|_| {
            let (client, folder) = (client(gateway.data()), folder.clone());
            tokio::spawn(async move {
                let journal = FileJournal::open(folder.path()).unwrap();
                pay(&client, &journal).await.unwrap()
            })
        })
        .collect();
    gateway.until_met_in_flight(1).await;
    upstream.release();
    for answer in both {
        let answer = answer.await.unwrap();
        assert_eq!(&answer.body[..], b"{\"execution\":1}");
    }
    assert_eq!(upstream.executions(), 1);
    let journal = FileJournal::open(folder.path()).unwrap();
    let client = client(gateway.data());
    upstream.next(Script::reply(503).header("Retry-After", "0"));
    let answer = client.send(&journal, "busy", &call()).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (201, 2));
    upstream.next(Script::reply(402));
    let answer = client.send(&journal, "declined", &call()).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (402, 1));
    let again = client.send(&journal, "declined", &call()).await.unwrap();
    assert_eq!(again.headers.get(REPLAYED).unwrap(), "true");
    assert_eq!(upstream.executions_of(&answer.key), 1);
}
