//! How much one client may hold: each attack against the real binary in a process whose memory is capped,
//! beside clients that go on paying.
//!
//! The cap is strict: a process that wants more is refused it and dies. What others notice is measured beside
//! a gateway that nobody attacks, in the same moments.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, client::SendRequest};
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::harness::{
    Connection, Gateway, Request, Script, Setup, Upstream, client, eventually, within,
};

/// `limits.held_bytes` of these gateways, in bytes.
const HELD_BYTES: u64 = 32 << 20;
/// What the documents allow a process beside it, in bytes, with the few hundred connections of these tests.
const BESIDE: u64 = 256 << 20;
/// The size of what is attacked with, in bytes.
const LARGE: usize = 1 << 20;
/// Payments of others that are timed before one looks at them, to each of two gateways.
const ROUND: usize = 200;
/// Rounds after which others have noticed, unless they have not. A hiccup of the machine counts for less
/// with every round; what the attack costs does not.
const ROUNDS: usize = 6;
/// A round takes a second or two; whoever takes so long over it has noticed.
const ROUND_PATIENCE: Duration = Duration::from_secs(40);
/// Others may wait for so many times as long as without the attack.
const NOTICED: f64 = 2.0;

/// Goal: a body is counted until it has been sent, and no longer; and one that is alone has room, however
/// large it is.
///
/// Method: bodies larger than the whole budget, one after the other, the next as soon as the one before is
/// answered. Evidence: each is executed; while the upstream has all of a body, nothing is counted.
#[tokio::test]
async fn a_body_is_counted_until_it_is_sent() {
    let upstream = Upstream::start();
    let setup = Setup::with("max_request_body: 4MiB");
    let setup = setup.top("limits: { held_bytes: 1MiB }");
    let gateway = setup.start(&upstream).await;
    let pay = |key: &str| {
        let body = format!("\"{}\"", "x".repeat(3 << 20));
        Request::post("/payments").key(key).json(&body)
    };
    for number in 0..4 {
        let key = number.to_string();
        gateway.send(&pay(&key)).await.expect(201);
        gateway
            .send(&Request::pay(&format!("small-{key}")))
            .await
            .expect(201);
    }
    upstream.next(Script::created().held());
    let held = gateway.send_later(&pay("held"));
    upstream.begun(9).await;
    assert_eq!(gauge(&gateway, "onlyonce_held_bytes").await, 0);
    upstream.release();
    within("the answer", held).await.unwrap().expect(201);
}

/// A gateway that may have as much memory as the documents say, and no more.
async fn capped(setup: Setup, upstream: &Upstream) -> Gateway {
    let gateway = setup
        .top(&format!("limits: {{ held_bytes: {HELD_BYTES} }}"))
        // The allocator would otherwise map a gigabyte beforehand and use none of it.
        .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
        .start(upstream)
        .await;
    gateway.cap_memory(HELD_BYTES + BESIDE);
    gateway
}

/// Others who pay, one after the other, and how long that takes them: at the gateway that is attacked, and in
/// turns with it at one beside it that is not, since the machine has other work too.
struct Others {
    attacked: SocketAddr,
    spared: Gateway,
    /// The one behind it.
    _upstream: Upstream,
    /// The p99 at the gateway before it was attacked.
    quiet: Duration,
    sent: usize,
}

/// How long payments took.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn p99(&mut self) -> Duration {
        self.0.sort();
        self.0[self.0.len() * 99 / 100]
    }
}

impl Others {
    async fn in_quiet(gateway: &Gateway) -> Self {
        let upstream = Upstream::start();
        let mut others = Self {
            attacked: gateway.data(),
            spared: Setup::with("").start(&upstream).await,
            _upstream: upstream,
            quiet: Duration::ZERO,
            sent: 0,
        };
        let (mut attacked, mut spared) = Default::default();
        others.pay(&mut attacked, &mut spared).await;
        others.quiet = attacked.p99();
        others
    }

    /// One round of payments.
    async fn pay(&mut self, attacked: &mut Times, spared: &mut Times) {
        for _ in 0..ROUND {
            self.sent += 1;
            let request = Request::pay(&format!("other-{}", self.sent));
            for (gateway, times) in [
                (self.spared.data(), &mut *spared),
                (self.attacked, &mut *attacked),
            ] {
                let began = Instant::now();
                let answer = client::send(gateway, &request).await;
                answer.expect("others are served").expect(201);
                times.0.push(began.elapsed());
            }
        }
    }

    /// Panics unless they hardly notice.
    async fn go_on(&mut self, what: &str) {
        let (mut attacked, mut spared) = Default::default();
        for round in 1..=ROUNDS {
            let paid = timeout(ROUND_PATIENCE, self.pay(&mut attacked, &mut spared)).await;
            paid.unwrap_or_else(|_| panic!("{what}: others wait far too long"));
            let (now, beside) = (attacked.p99(), spared.p99());
            let ratio = now.as_secs_f64() / beside.as_secs_f64();
            println!(
                "{what}: p99 of others {now:?}, {beside:?} at the gateway beside it, {:?} before: \
                 {ratio:.2} times, {} payments",
                self.quiet,
                round * ROUND
            );
            if ratio <= NOTICED {
                return;
            }
        }
        panic!("{what}: others wait too long");
    }
}

/// Panics unless the gateway has stayed within what the documents allow. That it lives says as much.
fn stayed_within(gateway: &Gateway, what: &str) {
    let peak = gateway.peak_rss_kib();
    println!("{what}: at most {peak} KiB");
    assert!(peak << 10 <= HELD_BYTES + BESIDE, "{peak} KiB");
}

/// An HTTP/2 client whose streams have no window unless it gives them one.
async fn http2(gateway: &Gateway) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(gateway.data()).await.unwrap();
    let handshake = h2::client::Builder::new()
        .initial_window_size(0)
        .handshake(stream);
    let (sender, connection) = within("HTTP/2", handshake).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A payment over HTTP/2: what its answer says, and its body, unread.
async fn pay(sender: &SendRequest<Bytes>, key: &str) -> (u16, RecvStream) {
    let mut sender = within("room for a stream", sender.clone().ready())
        .await
        .unwrap();
    let (answer, mut body) = sender.send_request(head(key), false).unwrap();
    body.send_data(Bytes::from_static(b"{}"), true).unwrap();
    let answer = within("an answer", answer).await.expect("an answer");
    (answer.status().as_u16(), answer.into_body())
}

fn head(key: &str) -> http::Request<()> {
    http::Request::post("http://api.test/payments")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(())
        .unwrap()
}

async fn gauge(gateway: &Gateway, name: &str) -> u64 {
    let metrics = gateway.admin(Request::get("/metrics")).await.expect(200);
    let metrics = metrics.text();
    let line = metrics.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.parse::<f64>().ok()
    });
    line.unwrap_or_else(|| panic!("no {name} in {metrics}")) as u64
}

/// Goal: answers that a client asks for and does not take are bounded, first ones and stored ones.
///
/// Method: one stored answer of 1 MiB; over three HTTP/2 connections whose windows stay shut, 240 replays
/// of it each; then first answers of that size over a fourth.
/// Evidence: a capped process lives; most replays are refused as `overloaded`; the upstream counted one
/// execution for each first answer and none for the others; payments of others go on; when the connections
/// are gone nothing is held and the answer is replayed.
#[tokio::test]
async fn replays_into_closed_windows() {
    const FIRSTS: usize = 40;
    let upstream = Upstream::start();
    let gateway = capped(Setup::with(""), &upstream).await;
    let mut others = Others::in_quiet(&gateway).await;
    let stored = Script::reply(200).body(vec![b'a'; LARGE]);
    upstream.always_for("stored", stored.clone());
    let request = |key: &str| Request::post("/payments").key(key).json("{}");
    gateway.send(&request("stored")).await.expect(200);
    let executed = upstream.executions();
    let mut asked = JoinSet::new();
    for _ in 0..3 {
        let sender = http2(&gateway).await;
        for _ in 0..240 {
            let sender = sender.clone();
            asked.spawn(async move { pay(&sender, "stored").await });
        }
    }
    let answers = asked.join_all().await;
    let given = answers.iter().filter(|(status, _)| *status == 200).count();
    let refused = answers.iter().filter(|(status, _)| *status == 503).count();
    println!("{given} replays are held, {refused} were refused");
    assert_eq!(given + refused, answers.len());
    assert!(given > 0 && (given * LARGE) as u64 <= HELD_BYTES);
    assert_eq!(upstream.executions(), executed);
    let held = gauge(&gateway, "onlyonce_held_bytes").await;
    assert!(
        held >= (given * LARGE) as u64 && held <= HELD_BYTES,
        "{held}"
    );
    others.go_on("720 replays").await;

    // What is executed completes its key, whether its client may hold the answer or not.
    let sender = http2(&gateway).await;
    let executed = upstream.executions();
    let mut firsts = JoinSet::new();
    for number in 0..FIRSTS {
        let key = format!("first-{number}");
        upstream.always_for(&key, stored.clone());
        let sender = sender.clone();
        firsts.spawn(async move {
            let mut sender = sender.ready().await.unwrap();
            let (answer, mut body) = sender.send_request(head(&key), false).unwrap();
            body.send_data(Bytes::from_static(b"{}"), true).unwrap();
            answer.await.ok()
        });
    }
    let paid = others.sent;
    let firsts = within("first answers", firsts.join_all()).await;
    assert_eq!(upstream.executions(), executed + FIRSTS);
    others.go_on("first answers").await;
    stayed_within(&gateway, "answers that nobody takes");
    drop((answers, firsts, sender));
    eventually("nothing is held", async || {
        (gauge(&gateway, "onlyonce_held_bytes").await == 0).then_some(())
    })
    .await;
    for key in ["stored", "first-7", "first-39"] {
        let again = gateway.send(&request(key)).await.expect(200);
        assert_eq!(again.body.len(), LARGE);
    }
    assert_eq!(
        upstream.executions(),
        executed + FIRSTS + others.sent - paid
    );
}

/// Goal: bodies that do not end are bounded, of requests with a key and of webhooks that nobody signed.
///
/// Method: 400 connections each send all of a body of 1 MiB but its last byte: payments, and webhooks with
/// the headers of a signature.
/// Evidence: a capped process lives; most are refused as `overloaded`; nothing of it is executed; payments of
/// others go on.
#[tokio::test]
async fn bodies_that_do_not_end() {
    const BODIES: usize = 400;
    let upstream = Upstream::start();
    let setup = Setup::with("")
        .env("PSP_SECRET", "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ=")
        .route(
            "idempotency: { reconcile: { webhook: { scheme: standard, secret_env: PSP_SECRET, \
             key: /key, outcomes: [{ when: { pointer: /type, in: [ok] }, \
             complete: { status: 201, body: \"\" } }] } } }",
        );
    let gateway = capped(setup, &upstream).await;
    let mut others = Others::in_quiet(&gateway).await;
    let payment = Request::post("/payments").key("never");
    let webhook = Request::post("/.onlyonce/reconcile/r")
        .header("webhook-id", "1")
        .header("webhook-timestamp", "1700000000")
        .header("webhook-signature", "v1,AAAA");
    for (what, request) in [("400 bodies", payment), ("400 webhooks", webhook)] {
        let request = request.body("application/json", vec![b'x'; LARGE]);
        let bytes: Bytes = request.bytes().into();
        let mut sending = JoinSet::new();
        for _ in 0..BODIES {
            let (addr, bytes) = (gateway.data(), bytes.clone());
            sending.spawn(async move {
                let mut connection = Connection::open(addr).await.unwrap();
                // Whoever is refused may be so before its last byte.
                let _ = connection.write(&bytes[..bytes.len() - 1]).await;
                connection
            });
        }
        let mut connections = sending.join_all().await;
        others.go_on(what).await;
        let held = gauge(&gateway, "onlyonce_held_bytes").await;
        println!("{what}: {held} bytes are held");
        assert!(held > 0 && held <= HELD_BYTES, "{held}");
        let mut refused = 0;
        for connection in &mut connections {
            let answer = timeout(Duration::from_millis(1), connection.response());
            if let Ok(Ok(answer)) = answer.await {
                answer.refused(503, "overloaded");
                refused += 1;
            }
        }
        assert!(refused > BODIES / 2, "{refused} were refused");
        drop(connections);
        eventually("nothing is held", async || {
            (gauge(&gateway, "onlyonce_held_bytes").await == 0).then_some(())
        })
        .await;
    }
    stayed_within(&gateway, "bodies that do not end");
    assert_eq!(upstream.executions(), others.sent);
}

/// Goal: one connection that resets its streams after their dispatch has a bounded number of executions.
///
/// Method: an upstream that holds every call of the attacker; one HTTP/2 connection pays, and resets each
/// stream once the upstream has it, 300 times.
/// Evidence: the upstream's count is 250, the limit; the next ones get 429 `overloaded` and are not executed;
/// another connection pays as before; when the held calls have ended new keys are executed again.
#[tokio::test]
async fn resets_after_dispatch() {
    const LIMIT: usize = 250;
    let upstream = Upstream::start();
    let gateway = capped(Setup::with(""), &upstream).await;
    let mut others = Others::in_quiet(&gateway).await;
    let executed = upstream.executions();
    let sender = http2(&gateway).await;
    for number in 0..LIMIT {
        let key = format!("gone-{number}");
        upstream.always_for(&key, Script::created().held());
        let mut sender = sender.clone().ready().await.unwrap();
        let (answer, mut body) = sender.send_request(head(&key), false).unwrap();
        body.send_data(Bytes::from_static(b"{}"), true).unwrap();
        let dispatched = eventually("its dispatch", async || {
            (upstream.executions_of(&key) == 1).then_some(())
        });
        dispatched.await;
        body.send_reset(Reason::CANCEL);
        drop(answer);
    }
    eventually("all of them are detached", async || {
        let detached = gauge(&gateway, "onlyonce_detached_executions").await;
        (detached == LIMIT as u64).then_some(())
    })
    .await;
    for number in LIMIT..LIMIT + 50 {
        let (status, _) = pay(&sender, &format!("gone-{number}")).await;
        assert_eq!(status, 429);
    }
    assert_eq!(upstream.executions(), executed + LIMIT);
    // What is known goes on: its retry waits for it.
    let retry = tokio::spawn(async move { pay(&sender, "gone-0").await.0 });
    others.go_on("250 detached executions").await;
    stayed_within(&gateway, "detached executions");
    for _ in 0..LIMIT {
        upstream.release();
    }
    assert_eq!(within("the retry", retry).await.unwrap(), 201);
    eventually("none is detached", async || {
        (gauge(&gateway, "onlyonce_detached_executions").await == 0).then_some(())
    })
    .await;
    let (status, _) = pay(&http2(&gateway).await, "new").await;
    assert_eq!(status, 201);
    assert_eq!(upstream.executions(), LIMIT + others.sent + 1);
}

/// Goal: JSON that is slow to read is read at its senders' expense.
///
/// Method: four connections pay with a MiB of numbers of 17 digits each, one payment after the other.
/// Evidence: each of them is executed once; payments of others go on.
#[tokio::test]
async fn numbers_of_17_digits() {
    const SENDERS: usize = 4;
    let upstream = Upstream::start();
    let gateway = capped(Setup::with(""), &upstream).await;
    let mut others = Others::in_quiet(&gateway).await;
    let numbers = vec!["1.2345678901234567"; LARGE / 19].join(",");
    let numbers: Bytes = format!("[{numbers}]").into();
    let mut sending = JoinSet::new();
    let over = Arc::new(AtomicBool::new(false));
    for sender in 0..SENDERS {
        let (addr, numbers, over) = (gateway.data(), numbers.clone(), Arc::clone(&over));
        sending.spawn(async move {
            let mut connection = Connection::open(addr).await.unwrap();
            let mut paid = 0;
            while !over.load(Ordering::Relaxed) {
                let request = Request::post("/payments").key(format!("slow-{sender}-{paid}"));
                let request = request.body("application/json", &numbers);
                connection.send(&request).await.unwrap().expect(201);
                paid += 1;
            }
            paid
        });
    }
    others.go_on("numbers of 17 digits").await;
    over.store(true, Ordering::Relaxed);
    let paid = within("the senders", sending.join_all()).await;
    println!("payments with numbers: {paid:?}");
    assert!(paid.iter().all(|paid| *paid > 0));
    assert_eq!(
        upstream.executions(),
        others.sent + paid.iter().sum::<usize>()
    );
    stayed_within(&gateway, "numbers of 17 digits");
}

/// Goal: silent connections keep nobody out, at either listener.
///
/// Method: more of them than there are seats, and a `header_timeout` that ends none of them: some say nothing,
/// some half a head, some half the body of a payment; on the admin listener some half the body of a request to
/// sign in.
/// Evidence: `/healthz`, `/readyz` and payments are answered while they are there; a payment that was being
/// executed when they came is answered on its own connection.
#[tokio::test]
async fn silent_connections() {
    const SEATS: usize = 100;
    const SILENT: usize = 300;
    let upstream = Upstream::start();
    let setup = Setup::with("")
        .top(&format!("max_connections: {SEATS}"))
        .top("header_timeout: 10m")
        .top("body_timeout: 10m");
    let gateway = capped(setup, &upstream).await;
    let mut others = Others::in_quiet(&gateway).await;
    upstream.always_for("working", Script::created().held());
    let working = gateway.send_later(&Request::pay("working"));
    eventually("its dispatch", async || {
        (upstream.executions_of("working") == 1).then_some(())
    })
    .await;
    let page = |request: Request| {
        request
            .header("Origin", "http://api.test")
            .header("X-Onlyonce-Page", "1")
    };
    let half = |request: Request| {
        let mut bytes = request.bytes();
        bytes.truncate(bytes.len() - 3);
        bytes
    };
    let sign_in = half(page(Request::post("/session")).json("{\"token\":\"x\"}"));
    let payment = half(Request::pay("half"));
    let mut silent = Vec::new();
    for number in 0..SILENT {
        for (addr, body) in [(gateway.data(), &payment), (gateway.admin_addr(), &sign_in)] {
            let mut connection = Connection::open(addr).await.unwrap();
            let said: &[u8] = match number % 3 {
                0 => b"",
                1 => b"GET / HTTP/1.1\r\nHost: a\r\n",
                _ => body,
            };
            // The ones before may be sent away at any time; this one has just come.
            connection.write(said).await.unwrap();
            silent.push(connection);
        }
    }
    for _ in 0..20 {
        gateway.admin_open("/healthz").await.expect(200);
        gateway.admin_open("/readyz").await.expect(200);
    }
    others.go_on("300 silent connections").await;
    upstream.release();
    within("the payment", working).await.unwrap().expect(201);
    assert_eq!(upstream.executions_of("half"), 0);
    drop(silent);
}

/// Goal: where no token is configured there is nothing to guess, and every try is told so.
#[tokio::test]
async fn without_a_token_every_guess_is_401() {
    let upstream = Upstream::start();
    let setup = Setup::with("").env("ONLYONCE_ADMIN_TOKEN", "");
    let gateway = setup.start(&upstream).await;
    let guess = Request::get("/idempotency").header("Authorization", "Bearer guess");
    for _ in 0..50 {
        let answer = client::send(gateway.admin_addr(), &guess).await.unwrap();
        answer.expect(401);
    }
}

/// Goal: the admin token cannot be guessed at speed, and guessing locks nobody else out.
///
/// Method: wrong tokens from one address, as bearer and as sign-in, until they are refused; then the right one
/// from that address and from another.
/// Evidence: 401, then 429 with `Retry-After`; not even the right token is looked at from there; from another
/// address it gets in; `/healthz` is open to everybody.
#[tokio::test]
async fn guesses_of_the_admin_token() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let guess = |number: usize| {
        Request::get("/idempotency").header("Authorization", format!("Bearer guess-{number}"))
    };
    let mut looked_at = 0;
    let refused = loop {
        let answer = client::send(gateway.admin_addr(), &guess(looked_at)).await;
        let answer = answer.unwrap();
        if answer.status != 401 {
            break answer.refused(429, "too_many_attempts");
        }
        looked_at += 1;
        assert!(looked_at < 100, "still looked at");
    };
    assert!(refused.retry_after().is_some_and(|wait| wait >= 1));
    println!("{looked_at} guesses were looked at");
    let sign_in = Request::post("/session")
        .header("Origin", "http://api.test")
        .header("X-Onlyonce-Page", "1")
        .json("{\"token\":\"guess\"}");
    let signed_in = client::send(gateway.admin_addr(), &sign_in).await.unwrap();
    signed_in.refused(429, "too_many_attempts");
    let right = gateway.admin(Request::get("/idempotency")).await;
    right.refused(429, "too_many_attempts");
    gateway.admin_open("/healthz").await.expect(200);
    let elsewhere = std::net::Ipv4Addr::new(127, 0, 0, 2).into();
    let mut connection = Connection::open_from(elsewhere, gateway.admin_addr())
        .await
        .unwrap();
    let right = Request::get("/idempotency").header("Authorization", "Bearer test-token");
    connection.send(&right).await.unwrap().expect(200);
}
