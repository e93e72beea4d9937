//! One attempt, one effect: many sessions of an application with one token, at every isolation level,
//! whatever has happened to the key meanwhile.

use std::sync::Arc;

use onlyonce_testkit::{servers::Postgres, tcp_faults::FaultProxy};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use tokio::sync::Barrier;

use crate::{
    harness::{Gateway, Request, Script, Setup, Upstream},
    sql::{database, effects},
};

const SESSIONS: usize = 8;
const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
/// How often a session runs its transaction again after a conflict, with the same token.
const TRIES: usize = 50;

/// What has become of the key when the sessions come with its token.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Past {
    /// The attempt is at it.
    Running,
    /// Nobody showed a sign of life.
    Lapsed,
    /// An operator said that the attempt took effect.
    Resolved,
    /// Another session of the attempt gave up, and said that it left nothing behind.
    Released,
    /// The attempt completed it.
    Completed,
    /// The same, in a transaction whose COMMIT was carried out and never acknowledged.
    Unanswered,
    /// The same, and its answer is past its time.
    Overdue,
    /// The same, and reaped.
    Expired,
}

const PASTS: [Past; 8] = [
    Past::Running,
    Past::Lapsed,
    Past::Resolved,
    Past::Released,
    Past::Completed,
    Past::Unanswered,
    Past::Overdue,
    Past::Expired,
];

impl Past {
    /// Whether the attempt's effect is committed before the sessions come.
    fn is_committed(self) -> bool {
        !matches!(
            self,
            Self::Running | Self::Lapsed | Self::Resolved | Self::Released
        )
    }

    /// How a session is told that it must not commit.
    fn refusal(self) -> &'static str {
        match self {
            Self::Expired => "OO001",
            _ => "OO004",
        }
    }
}

/// How one session's transaction ended.
#[derive(Debug, PartialEq)]
enum End {
    Committed(String),
    Refused(String),
}

/// The application's transaction: the effect and the completion, in either order.
async fn transaction(
    db: &mut PgConnection,
    level: &str,
    key: &str,
    call: &str,
    settles_first: bool,
    everybody: Option<&Barrier>,
) -> Result<String, sqlx::Error> {
    // The first statement takes the snapshot of the two levels that have one.
    let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM payments");
    db.execute(AssertSqlSafe(begin)).await?;
    if let Some(everybody) = everybody {
        everybody.wait().await;
    }
    let effect = format!("INSERT INTO payments (key) VALUES ('{key}')");
    if !settles_first {
        db.execute(AssertSqlSafe(effect.clone())).await?;
    }
    let said = db.fetch_one(AssertSqlSafe(call.to_owned())).await?;
    if settles_first {
        db.execute(AssertSqlSafe(effect)).await?;
    }
    db.execute("COMMIT").await?;
    Ok(said.get(0))
}

/// One session: runs its transaction again after a conflict, as the guide says.
async fn session(
    url: String,
    level: &'static str,
    key: String,
    call: String,
    settles_first: bool,
    everybody: Arc<Barrier>,
) -> End {
    let mut db = PgConnection::connect(&url).await.unwrap();
    let mut everybody = Some(&*everybody);
    for _ in 0..TRIES {
        let tried = transaction(&mut db, level, &key, &call, settles_first, everybody.take());
        let error = match tried.await {
            Ok(said) => return End::Committed(said),
            Err(sqlx::Error::Database(error)) => error,
            Err(error) => panic!("{error}"),
        };
        db.execute("ROLLBACK").await.unwrap();
        match error.code().as_deref() {
            Some("40001" | "40P01") => {}
            Some(code) => return End::Refused(code.to_owned()),
            None => panic!("{error}"),
        }
    }
    panic!("{key} met another transaction {TRIES} times");
}

/// Eight of them at once.
async fn sessions(url: &str, level: &'static str, key: &str, call: &str) -> Vec<End> {
    let everybody = Arc::new(Barrier::new(SESSIONS));
    let running: Vec<_> = (0..SESSIONS)
        .map(|number| {
            tokio::spawn(session(
                url.to_owned(),
                level,
                key.to_owned(),
                call.to_owned(),
                number % 2 == 0,
                everybody.clone(),
            ))
        })
        .collect();
    let mut ends = Vec::new();
    for one in running {
        ends.push(one.await.unwrap());
    }
    ends
}

/// Makes the lease of `key` lapse, and sweeps it.
fn lapse(server: &Postgres, key: &str) {
    server.sql(&format!(
        "BEGIN; UPDATE onlyonce.live SET lease_until = 0, revision = revision + 1 WHERE key = '{key}'; \
         SELECT onlyonce.sweep(); COMMIT"
    ));
    assert_eq!(
        server.sql(&format!(
            "SELECT state FROM onlyonce.live WHERE key = '{key}'"
        )),
        "unknown"
    );
}

/// A place where keys are made in both ways, and what becomes of them.
struct Place {
    server: Postgres,
    upstream: Upstream,
    gateway: Gateway,
    proxy: FaultProxy,
}

impl Place {
    async fn new() -> Self {
        let server = database();
        let upstream = Upstream::start();
        upstream.always(Script::created().held());
        let gateway = Setup::with("lease: 60s")
            .store(&server.url())
            .workers("reap_every: 1h")
            .start(&upstream)
            .await;
        let proxy = FaultProxy::start(server.port()).await;
        Self {
            server,
            upstream,
            gateway,
            proxy,
        }
    }

    /// The token of an attempt that the gateway has sent upstream, where it is held.
    async fn sent(&self, key: &str) -> String {
        let before = self.upstream.requests().len();
        let client = self.gateway.send_later(&Request::pay(key));
        self.upstream.begun(before + 1).await;
        // The execution goes on without its client.
        client.abort();
        let last = self.upstream.last();
        last.headers.one("idempotency-attempt").unwrap().to_owned()
    }

    /// The token of an attempt that a program has reserved.
    fn reserved(&self, key: &str) -> String {
        self.server.sql(&format!(
            "SELECT attempt_token FROM onlyonce.reserve('app:payments', '{key}')"
        ))
    }

    async fn resolve(&self, key: &str) {
        lapse(&self.server, key);
        let response = json!({ "status": 200, "headers": {}, "body": "said so" });
        let body = json!({ "outcome": "completed", "reason": "seen to", "response": response });
        let path = format!("/idempotency/keys/{}/resolve", self.gateway.id(key).await);
        self.gateway.admin_post(&path, &body).await.expect(200);
    }

    async fn bring_about(&self, past: Past, level: &str, key: &str, call: &str) {
        match past {
            Past::Running => return,
            Past::Lapsed => return lapse(&self.server, key),
            Past::Resolved => return self.resolve(key).await,
            Past::Released => {
                let token = call.split('\'').nth(1).unwrap();
                let fail = format!("SELECT onlyonce.fail('{token}')");
                assert_eq!(self.server.sql(&fail), "failed_retryable");
                return;
            }
            Past::Unanswered => {
                let url = self.server.url_at(self.proxy.port());
                let mut db = PgConnection::connect(&url).await.unwrap();
                self.proxy.swallow_reply_to(b"COMMIT\0");
                let lost = transaction(&mut db, level, key, call, false, None).await;
                assert!(matches!(lost, Err(sqlx::Error::Io(_))), "{lost:?}");
            }
            Past::Completed | Past::Overdue | Past::Expired => {
                let mut db = PgConnection::connect(&self.server.url()).await.unwrap();
                let said = transaction(&mut db, level, key, call, true, None).await;
                assert_eq!(said.unwrap(), "completed");
            }
        }
        if matches!(past, Past::Overdue | Past::Expired) {
            let expire = format!(
                "UPDATE onlyonce.keys SET expires_at = 0, tombstone_ttl = 9000000000000 WHERE key = '{key}'"
            );
            self.server.sql(&expire);
        }
        if past == Past::Expired {
            self.server.sql("SELECT onlyonce.reap(), onlyonce.reap()");
            let state = format!("SELECT state FROM onlyonce.keys WHERE key = '{key}'");
            assert_eq!(self.server.sql(&state), "expired");
        }
    }
}

/// Goal: an attempt commits at most one effect, whoever holds its token, however often it is tried.
///
/// Method: eight sessions at once, each with its effect and the completion in one transaction, in either
/// order, and each with a snapshot from before all of them; at three isolation levels; through `settle` for
/// a key that the gateway has sent and `complete` for one that a program has reserved; while the attempt
/// runs, after its lease lapsed, after an operator resolved it or a session released it, after it was completed, after a
/// COMMIT whose reply was swallowed on the way, past its expiry, reaped. Then all eight again.
/// Evidence: the application's own table has one row for the key; every other session was told to roll back.
#[tokio::test(flavor = "multi_thread")]
async fn one_token_one_effect() {
    let place = Place::new().await;
    for (number, level) in LEVELS.into_iter().enumerate() {
        for past in PASTS {
            for function in ["settle", "complete"] {
                let key = format!("{function}-{past:?}-{number}").to_lowercase();
                let token = match function {
                    "settle" => place.sent(&key).await,
                    _ => place.reserved(&key),
                };
                let call = format!("SELECT onlyonce.{function}('{token}', 201, '{{}}', 'done')");
                place.bring_about(past, level, &key, &call).await;
                let ends = sessions(&place.server.url(), level, &key, &call).await;
                let again = sessions(&place.server.url(), level, &key, &call).await;
                let case = format!("{key} under {level}: {ends:?}, then {again:?}");
                assert_eq!(effects(&place.server, &key), "1", "{case}");
                let committed: Vec<_> = ends
                    .iter()
                    .filter(|end| matches!(end, End::Committed(_)))
                    .collect();
                let word = if past == Past::Resolved {
                    "kept"
                } else {
                    "completed"
                };
                let expected = match past.is_committed() {
                    true => vec![],
                    false => vec![End::Committed(word.to_owned())],
                };
                assert_eq!(committed, expected.iter().collect::<Vec<_>>(), "{case}");
                let refused = End::Refused(past.refusal().to_owned());
                assert!(again.iter().all(|end| *end == refused), "{case}");
            }
        }
    }
}

/// Goal: an ingress that sends a request again, past the gateway, does not pay twice; and the client gets what
/// the first transaction settled.
///
/// Method: the upstream is held with the request of an attempt; two copies of it reach the application, one
/// after the other; then the gateway's own is answered with an error.
/// Evidence: one row; the second copy was told to roll back; the client's answer, and its replay.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_sent_again() {
    let server = database();
    let upstream = Upstream::start();
    let gateway = Setup::with("").store(&server.url()).start(&upstream).await;
    upstream.next(Script::reply(500).held());
    let running = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let seen = upstream.last();
    let token = seen.headers.one("idempotency-attempt").unwrap();
    let call = format!("SELECT onlyonce.settle('{token}', 201, '{{}}', 'paid')");
    let mut db = PgConnection::connect(&server.url()).await.unwrap();
    let first = transaction(&mut db, LEVELS[0], "k", &call, false, None).await;
    assert_eq!(first.unwrap(), "completed");
    let second = transaction(&mut db, LEVELS[0], "k", &call, false, None).await;
    let Err(sqlx::Error::Database(error)) = second else {
        panic!("it committed: {second:?}");
    };
    assert_eq!(error.code().as_deref(), Some("OO004"));
    db.execute("ROLLBACK").await.unwrap();
    upstream.release();
    for answer in [
        running.await.unwrap(),
        gateway.send(&Request::pay("k")).await,
    ] {
        assert_eq!(answer.expect(201).text(), "paid");
    }
    assert_eq!(effects(&server, "k"), "1");
}
