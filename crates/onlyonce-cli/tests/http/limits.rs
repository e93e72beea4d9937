//! What one client may take, seen from outside: refusals leave nothing behind, and nobody else notices.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::harness::{
    Connection, Gateway, Request, Script, Setup, Upstream, admin::percent_encoded, eventually, ms,
    soak, within,
};

fn pay(client: &str, key: &str) -> Request {
    Request::pay(key).of_client(client)
}

fn ask(client: &str, key: &str) -> Request {
    let path = format!("/.onlyonce/keys/{}", percent_encoded(key));
    Request::get(&path).of_client(client)
}

/// How many keys the store holds in all.
async fn rows(gateway: &Gateway) -> usize {
    let mut rows = 0;
    for state in [
        "in_progress",
        "completed",
        "failed_retryable",
        "unknown",
        "expired",
    ] {
        let name = format!("onlyonce_keys{{state=\"{state}\"}}");
        let text = gateway.admin(Request::get("/metrics")).await.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        let count = line.and_then(|count| count.trim().parse::<f64>().ok());
        rows += count.unwrap_or(0.0) as usize;
    }
    rows
}

/// What the store takes on disk.
fn bytes_of_store(gateway: &Gateway) -> u64 {
    let folder = gateway.folder();
    let files = std::fs::read_dir(folder.path()).unwrap();
    let of_store = files.filter_map(|file| {
        let file = file.ok()?;
        let is_store = file
            .file_name()
            .to_string_lossy()
            .starts_with("onlyonce.db");
        is_store.then(|| file.metadata().map_or(0, |data| data.len()))
    });
    of_store.sum()
}

/// Times of `count` new keys of `client`, one after the other over one connection.
async fn times(gateway: &Gateway, client: &str, name: &str, count: usize) -> Vec<Duration> {
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let request = pay(client, &format!("{name}-{number}"));
        let began = Instant::now();
        connection.send(&request).await.unwrap().expect(201);
        times.push(began.elapsed());
    }
    times.sort();
    times
}

/// New keys of acme over one connection, one after the other, while it is told to, and replays in
/// between. Returns what was made and what was refused.
async fn flood(gateway: &Gateway, worker: usize, told: &Told) -> (Vec<String>, Vec<String>) {
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let (mut made, mut refused) = (Vec::new(), Vec::new());
    for number in 0.. {
        while !told.flood.load(Ordering::SeqCst) {
            if told.stop.load(Ordering::SeqCst) {
                return (made, refused);
            }
            tokio::time::sleep(ms(5)).await;
        }
        tokio::time::sleep(told.pause).await;
        let key = format!("flood-{worker}-{number}");
        let answer = connection.send(&pay("acme", &key)).await.unwrap();
        if answer.status == 201 {
            made.push(key);
        } else {
            let answer = answer.refused(429, "idempotency_rate_limited");
            let wait = answer.retry_after().unwrap();
            assert!((1..=60).contains(&wait), "{answer}");
            assert_eq!(answer.header("x-should-retry"), Some("true"));
            refused.push(key);
        }
        if number % 10 == 0 {
            let replay = connection.send(&pay("acme", "known")).await.unwrap();
            let replay = replay.expect(201);
            assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
        }
    }
    unreachable!("it ends when it is told to")
}

/// What those who flood are told.
struct Told {
    flood: AtomicBool,
    stop: AtomicBool,
    /// Between two requests of one connection.
    pause: Duration,
}

/// Goal: a client that floods the gateway with new keys is stopped, and only it.
///
/// Method: acme is allowed 20 new keys a second and 20 at once, globex has the same and stays below it.
/// Globex works in rounds; in every second one acme sends new keys over four connections, as fast as it
/// can (in the long form about 400 a second), and replays in between.
/// Evidence: acme gets 429 with Retry-After and the code; the store holds a row for each 201 and for
/// nothing else; the upstream has seen nothing of a refused key; every replay is a replay. Globex's
/// times with and without the flood are printed.
#[tokio::test]
async fn a_flood_of_new_keys_is_stopped() {
    const IN_A_ROUND: usize = 15;
    let rounds = if soak() { 132 } else { 2 };
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .clients(&["acme", "globex"])
        .top("limits: { new_keys_per_second: 20, burst: 20 }")
        .start(&upstream)
        .await;
    let gateway = Arc::new(gateway);
    let told = Arc::new(Told {
        flood: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        pause: if soak() { ms(10) } else { Duration::ZERO },
    });
    gateway.send(&pay("acme", "known")).await.expect(201);
    let began = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (gateway, told) = (gateway.clone(), told.clone());
        clients.spawn(async move { flood(&gateway, worker, &told).await });
    }
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let is_busy = round % 2 == 1;
        told.flood.store(is_busy, Ordering::SeqCst);
        // Until globex's own bucket is full again.
        tokio::time::sleep(ms(800)).await;
        let times = times(&gateway, "globex", &format!("round-{round}"), IN_A_ROUND).await;
        if is_busy { &mut busy } else { &mut quiet }.extend(times);
    }
    told.flood.store(false, Ordering::SeqCst);
    told.stop.store(true, Ordering::SeqCst);
    let results = within("the flood to end", clients.join_all()).await;
    let took = began.elapsed();
    let made: usize = results.iter().map(|(made, _)| made.len()).sum();
    let refused: Vec<&String> = results.iter().flat_map(|(_, refused)| refused).collect();
    let allowed = 20.0 + 20.0 * took.as_secs_f64();
    assert!(made as f64 <= allowed + 1.0, "{made} new keys in {took:?}");
    assert!(!refused.is_empty() && made >= 19, "{made} made");
    assert!(refused.iter().all(|key| upstream.executions_of(key) == 0));
    let others = rounds * IN_A_ROUND + 1;
    assert_eq!(rows(&gateway).await, made + others);
    assert_eq!(upstream.executions(), made + others);
    let counted = gateway.admin(Request::get("/idempotency")).await.json();
    assert_eq!(counted["r"]["rate_limited"], refused.len());
    assert_eq!(
        gateway.metric("onlyonce_rate_limited_total").await,
        Some(refused.len() as f64)
    );
    let at = |times: &mut Vec<Duration>, per_cent: usize| {
        times.sort();
        times[(times.len() * per_cent / 100).min(times.len() - 1)]
    };
    let (p50, p99) = (
        (at(&mut quiet, 50), at(&mut busy, 50)),
        (at(&mut quiet, 99), at(&mut busy, 99)),
    );
    println!(
        "{made} made and {} refused in {took:?}; another client's median {:?} quiet and {:?} in the \
         flood, p99 {:?} and {:?}, ratio {:.2} ({} samples each); the store's files have {} bytes",
        refused.len(),
        p50.0,
        p50.1,
        p99.0,
        p99.1,
        p99.1.as_secs_f64() / p99.0.as_secs_f64(),
        quiet.len(),
        bytes_of_store(&gateway),
    );
}

/// Goal: a client has as many live keys as it may, and no more.
///
/// Method: `live_keys: 2`; two held, one lost, which does not count; a fourth, another client's, a retry of a known one; then
/// the held ones end.
/// Evidence: 429 with its code and no row; the others are untouched; then there is room.
#[tokio::test]
async fn live_keys_have_a_limit() {
    let upstream = Upstream::start();
    let gateway = Setup::with("on_in_flight: reject, limits: { live_keys: 2 }")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    upstream.next(Script::hang_up());
    gateway.send(&pay("acme", "lost")).await.expect(502);
    upstream.next(Script::created().held());
    upstream.next(Script::created().held());
    let first = gateway.send_later(&pay("acme", "one"));
    let second = gateway.send_later(&pay("acme", "two"));
    upstream.begun(3).await;
    let refused = gateway.send(&pay("acme", "more")).await;
    let refused = refused.refused(429, "idempotency_key_quota");
    assert!(refused.retry_after().is_some(), "{refused}");
    assert_eq!(gateway.state("more").await, "absent");
    gateway.send(&pay("globex", "more")).await.expect(201);
    gateway
        .send(&pay("acme", "one"))
        .await
        .refused(409, "idempotency_key_in_progress");
    gateway
        .send(&pay("acme", "lost"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 4);
    upstream.release();
    upstream.release();
    within("the first", first).await.unwrap().expect(201);
    within("the second", second).await.unwrap().expect(201);
    eventually("room for one more", async || {
        let answer = gateway.send(&pay("acme", "later")).await;
        (answer.status == 201).then_some(())
    })
    .await;
    let counted = gateway.admin(Request::get("/idempotency")).await.json();
    assert!(counted["r"]["key_quota"].as_u64().unwrap() >= 1);
}

/// Goal: the waiters of one client are limited, and beyond that it is as `reject`.
///
/// Method: `waiters: 2`; two duplicates wait for a held request, a third comes, and one of another
/// client.
/// Evidence: 409 at once for the third; the others get their answers; one execution for each client; the three
/// that waited are counted as waiters, and the one that was turned away is not.
#[tokio::test]
async fn waiters_of_one_client_have_a_limit() {
    let upstream = Upstream::start();
    let gateway = Setup::with("limits: { waiters: 2 }")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    upstream.next(Script::created().held());
    upstream.next(Script::created().held());
    let mut waiting = vec![gateway.send_later(&pay("acme", "k"))];
    upstream.begun(1).await;
    waiting.push(gateway.send_later(&pay("globex", "k")));
    upstream.begun(2).await;
    waiting.push(gateway.send_later(&pay("acme", "k")));
    waiting.push(gateway.send_later(&pay("acme", "k")));
    eventually("two to wait", async || {
        (gateway.metric("onlyonce_waiters").await == Some(2.0)).then_some(())
    })
    .await;
    gateway
        .send(&pay("acme", "k"))
        .await
        .refused(409, "idempotency_key_in_progress");
    waiting.push(gateway.send_later(&pay("globex", "k")));
    eventually("another client's to wait", async || {
        (gateway.metric("onlyonce_waiters").await == Some(3.0)).then_some(())
    })
    .await;
    upstream.release();
    upstream.release();
    for one in waiting {
        within("an answer", one).await.unwrap().expect(201);
    }
    assert_eq!(upstream.executions(), 2);
    let counted = gateway.admin(Request::get("/idempotency")).await.json();
    let count = |field: &str| counted["r"][field].as_u64();
    let counts = [count("in_flight_waits"), count("cache_hits")];
    assert_eq!(counts, [Some(3), Some(3)], "{counted:#}");
}

fn seconds_ago(seconds: i64) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    (now.cast_signed() - seconds).to_string()
}

/// Goal: an old request makes no new key, and still finds a known one.
///
/// Method: `max_request_age: 5m`; times in both forms, old, new, in the future, none.
/// Evidence: 400 with its code and nothing upstream; replays for the known key whatever the time.
#[tokio::test]
async fn old_requests_make_no_new_keys() {
    let upstream = Upstream::start();
    let options = "max_request_age: 5m, request_time_header: X-Made-At";
    let gateway = Gateway::start(&upstream, options).await;
    let made = |key: &str, at: &str| Request::pay(key).header("X-Made-At", at);
    gateway
        .send(&made("known", &seconds_ago(0)))
        .await
        .expect(201);
    for at in [
        seconds_ago(400),
        seconds_ago(-400),
        "2020-01-01T00:00:00Z".to_owned(),
        "2020-01-01T02:00:00+02:00".to_owned(),
        "yesterday".to_owned(),
    ] {
        let refused = gateway.send(&made("new", &at)).await;
        let refused = refused.refused(400, "request_too_old");
        assert_eq!(refused.header("x-should-retry"), None, "{refused}");
        let replay = gateway.send(&made("known", &at)).await.expect(201);
        assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    }
    gateway
        .send(&Request::pay("new"))
        .await
        .refused(400, "request_too_old");
    assert_eq!(gateway.state("new").await, "absent");
    assert_eq!(upstream.executions(), 1);
    gateway
        .send(&made("young", &seconds_ago(200)))
        .await
        .expect(201);
    // A request without a key is not asked how old it is.
    gateway
        .send(&Request::post("/payments").json("{}"))
        .await
        .expect(201);
    assert_eq!(upstream.executions(), 3);
    let counted = gateway.admin(Request::get("/idempotency")).await.json();
    assert_eq!(counted["r"]["request_too_old"], 6);
}

/// Goal: nobody can find out about keys by asking fast.
///
/// Method: `lookups_per_second: 5`; questions about keys, then uses of a key for another request.
/// Evidence: 429 after five at once, for that client alone; its own replays go on; the first request is
/// untouched.
#[tokio::test]
async fn questions_and_misuses_have_a_limit() {
    let upstream = Upstream::start();
    let gateway = Setup::with("limits: { lookups_per_second: 5 }")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    gateway.send(&pay("acme", "k")).await.expect(201);
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let began = Instant::now();
    let mut statuses = Vec::new();
    for number in 0..40 {
        let question = ask("acme", &format!("guess-{number}"));
        statuses.push(connection.send(&question).await.unwrap());
    }
    let allowed = 5 + (began.elapsed().as_secs_f64() * 5.0).ceil() as usize;
    let answered = statuses
        .iter()
        .filter(|answer| answer.status == 404)
        .count();
    assert!((5..=allowed).contains(&answered), "{answered} of {allowed}");
    let refused = statuses.into_iter().find(|answer| answer.status != 404);
    let refused = refused.unwrap().refused(429, "idempotency_rate_limited");
    assert!(refused.retry_after().is_some(), "{refused}");
    gateway.send(&ask("globex", "k")).await.expect(404);
    gateway.send(&pay("acme", "k")).await.expect(201);

    let other = |number: usize| {
        Request::post("/payments")
            .key("k")
            .json(&format!("{{\"n\":{number}}}"))
            .of_client("acme")
    };
    let mut limited = 0;
    for number in 0..40 {
        let answer = connection.send(&other(number)).await.unwrap();
        match answer.status {
            422 => {}
            _ => {
                answer.refused(429, "idempotency_rate_limited");
                limited += 1;
            }
        }
    }
    assert!(limited > 0);
    let replay = gateway.send(&pay("acme", "k")).await.expect(201);
    assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a store that fails is not asked by everybody; what needs no store goes on.
///
/// Method: a disk that takes no writes; new keys until the breaker opens; GET and replays meanwhile; then
/// the disk takes writes again.
/// Evidence: 503 with Retry-After and no execution; the breaker in `/readyz` and in the metrics; GET
/// passes through; 201 again without a restart.
#[tokio::test]
async fn a_store_that_fails_opens_the_breaker() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").can_fill_disk().start(&upstream).await;
    gateway.send(&Request::pay("before")).await.expect(201);
    let open = async || {
        let ready = gateway.admin_open("/readyz").await;
        (ready.status, ready.json()["store"]["breaker"].clone())
    };
    assert_eq!(open().await, (200, "closed".into()));
    assert_eq!(
        gateway.metric("onlyonce_store_breaker_open").await,
        Some(0.0)
    );
    gateway.fill_disk(true);
    for number in 0..10 {
        let refused = gateway.send(&Request::pay(&format!("k{number}"))).await;
        let refused = refused.refused(503, "idempotency_store_unavailable");
        assert!(refused.retry_after().is_some(), "{refused}");
    }
    assert_eq!(open().await, (503, "open".into()));
    assert_eq!(
        gateway.metric("onlyonce_store_breaker_open").await,
        Some(1.0)
    );
    assert_eq!(
        gateway.metric("onlyonce_store_breaker_opened_total").await,
        Some(1.0)
    );
    gateway.send(&Request::get("/payments")).await.expect(201);
    let replay = gateway.send(&Request::pay("before")).await.expect(201);
    assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(upstream.executions(), 2, "the first and the GET");
    gateway.fill_disk(false);
    eventually("the breaker to close", async || {
        (gateway.metric("onlyonce_store_breaker_open").await == Some(0.0)).then_some(())
    })
    .await;
    gateway.send(&Request::pay("k0")).await.expect(201);
    assert_eq!(open().await, (200, "closed".into()));
    assert_eq!(upstream.executions(), 3);
}

/// Goal: a client that repeats itself for ever does not fill the journal.
///
/// Method: an upstream that always fails, and 300 requests with one key, each of which is executed again.
/// Evidence: the last attempt's number, and how many rows tell of it.
#[tokio::test]
async fn one_key_does_not_fill_the_journal() {
    let upstream = Upstream::start();
    upstream.always(Script::reply(500));
    let gateway = Setup::with("").start(&upstream).await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    for _ in 0..300 {
        let answer = connection.send(&Request::pay("k")).await.unwrap();
        answer.expect(500);
    }
    let record = gateway.full_record("k").await;
    assert_eq!(record["attempt"], 300);
    let rows = record["history"].as_array().unwrap().len();
    assert!((100..150).contains(&rows), "{rows} rows");
}

/// Goal: executions whose clients hang up over HTTP/1.1 count, although each may still listen.
///
/// Method: a client may leave three behind. Two requests are sent, and the client leaves by FIN, then by a
/// reset, and a third half-closes and stays; the upstream holds all of them. Each comes over a connection of
/// its own, once with `auth`, and once from callers whom only their credentials tell apart.
/// Evidence: the next new key is 429 `overloaded` and is not executed; another client's is; who stayed gets
/// its answer; afterwards new keys are executed again.
#[tokio::test]
async fn hang_ups_over_http1_have_a_limit() {
    let setup = || Setup::with("limits: { detached: 3 }");
    leave_three_behind(setup().clients(&["acme", "globex"])).await;
    leave_three_behind(setup()).await;
}

async fn leave_three_behind(setup: Setup) {
    let upstream = Upstream::start();
    let gateway = setup.start(&upstream).await;
    let mut begun = Vec::new();
    for key in ["fin", "reset", "half"] {
        upstream.always_for(key, Script::created().held());
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection.write(&pay("acme", key).bytes()).await.unwrap();
        begun.push(connection);
    }
    upstream.begun(3).await;
    gateway.send(&pay("acme", "before")).await.expect(201);
    let mut stays = begun.pop().expect("three were begun");
    begun.pop().expect("two were left").reset();
    begun.pop().expect("one was left").leave();
    stays.finish_writing().await.unwrap();
    eventually("all of them to count", async || {
        let detached = gateway.metric("onlyonce_detached_executions").await;
        detached.filter(|count| *count == 3.0)
    })
    .await;
    let refused = gateway.send(&pay("acme", "after")).await;
    refused.refused(429, "overloaded");
    gateway.send(&pay("globex", "others")).await.expect(201);
    assert_eq!(upstream.executions(), 5);
    (0..3).for_each(|_| upstream.release());
    let answer = within("the answer", stays.response()).await.unwrap();
    answer.expect(201);
    eventually("none to count", async || {
        let detached = gateway.metric("onlyonce_detached_executions").await;
        detached.filter(|count| *count == 0.0)
    })
    .await;
    gateway.send(&pay("acme", "after")).await.expect(201);
    for key in ["fin", "reset", "half"] {
        gateway.send(&pay("acme", key)).await.expect(201);
    }
    assert_eq!(upstream.executions(), 6);
}
