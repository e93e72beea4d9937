//! Duplicates while the first is running: one execution, and each gets what the route promises.

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Upstream, client::Http2, eventually, ms, within,
};

/// Goal: any number of duplicates at once are one operation.
///
/// Method: hold the execution, send 49 duplicates, let go once all have met the key in flight.
/// Evidence: one execution; 50 identical bodies, 49 of them marked.
#[tokio::test]
async fn fifty_duplicates_one_execution() {
    let upstream = Upstream::start();
    upstream.always(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let requests = gateway.send_many(50, &Request::pay("same"));
    upstream.begun(1).await;
    let met = "api_idempotency_reserve_in_progress_total";
    eventually("49 duplicates to meet the first in flight", async || {
        assert_eq!(upstream.executions(), 1, "a duplicate was executed");
        (gateway.metric(met).await == Some(49.0)).then_some(())
    })
    .await;
    upstream.release();

    let mut marked = 0;
    for request in requests {
        let answer = within("a duplicate's answer", request)
            .await
            .unwrap()
            .expect(201);
        assert_eq!(answer.text(), r#"{"execution":1}"#);
        marked += usize::from(answer.header(REPLAYED) == Some("true"));
    }
    assert_eq!((upstream.executions(), marked), (1, 49));
}

/// Goal: the same without any help from timing: no hold, no order.
///
/// Method: 50 duplicates, half of them over one HTTP/2 connection, of each of four keys.
/// Evidence: four executions; each key's bodies identical.
#[tokio::test]
async fn a_stampede_over_both_protocols() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(20)));
    let gateway = Gateway::start(&upstream, "").await;
    let http2 = Http2::open(gateway.data()).await;
    for round in 1..=4 {
        let request = Request::pay(&format!("stampede-{round}"));
        let mut answers = gateway.send_many(25, &request);
        for _ in 0..25 {
            let (mut http2, request) = (http2.clone(), request.clone());
            answers.push(tokio::spawn(async move { http2.send(&request).await }));
        }
        for answer in answers {
            let answer = within("an answer", answer).await.unwrap().expect(201);
            assert_eq!(answer.text(), format!("{{\"execution\":{round}}}"));
        }
        assert_eq!(upstream.executions(), round);
    }
}

/// Goal: `reject` says 409 at once and when to come back.
///
/// Method: hold the first, send a duplicate, let go, send it again.
/// Evidence: 409 while held, with Retry-After of 1 to 60 s; then the replay; one execution.
#[tokio::test]
async fn reject_answers_409_at_once() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "on_in_flight: reject").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let refused = gateway.send(&Request::pay("k")).await;
    let refused = refused.refused(409, "idempotency_key_in_progress");
    assert!(matches!(refused.retry_after(), Some(1..=60)), "{refused}");
    assert!(!first.is_finished());

    upstream.release();
    let first = within("the first answer", first).await.unwrap().expect(201);
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.body, first.body);
    assert_eq!(upstream.executions(), 1);
    let counted = gateway
        .admin(Request::get("/idempotency"))
        .await
        .expect(200)
        .json();
    let counted = counted.as_object().unwrap().values().next().unwrap();
    assert_eq!(counted["refused_in_progress"], 1, "{counted}");
}

/// Goal: `accept` says 202 and where to look.
///
/// Method: hold the first, send a duplicate, follow its Location before and after the release.
/// Evidence: 202 with Retry-After and Location; in_progress, then completed; one execution.
#[tokio::test]
async fn accept_answers_202_with_a_place_to_ask() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "on_in_flight: accept").await;
    let first = gateway.send_later(&Request::pay("order-9"));
    upstream.begun(1).await;
    let accepted = gateway.send(&Request::pay("order-9")).await;
    let accepted = accepted.refused(202, "idempotency_key_in_progress");
    assert!(matches!(accepted.retry_after(), Some(1..=60)), "{accepted}");
    let place = accepted.header("location").expect("a Location").to_owned();
    assert_eq!(place, "/.onlyonce/keys/order-9");

    let asked = gateway.send(&Request::get(&place)).await.expect(200).json();
    assert_eq!(asked["state"], "in_progress");
    upstream.release();
    within("the first answer", first).await.unwrap().expect(201);
    let asked = gateway.send(&Request::get(&place)).await.expect(200).json();
    assert_eq!(
        (&asked["state"], &asked["response"]["status"]),
        (&"completed".into(), &201.into())
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a wait ends.
///
/// Method: `wait_timeout: 300ms`, the first held for longer.
/// Evidence: as `reject` at its end; the first is unharmed and replayed later; one execution.
#[tokio::test]
async fn a_wait_that_times_out_ends_as_reject() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "wait_timeout: 300ms").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let began = tokio::time::Instant::now();
    let refused = gateway.send(&Request::pay("k")).await;
    let refused = refused.refused(409, "idempotency_key_in_progress");
    assert!(
        began.elapsed() >= ms(290),
        "it waited only {:?}",
        began.elapsed()
    );
    assert!(matches!(refused.retry_after(), Some(1..=60)), "{refused}");

    upstream.release();
    within("the first answer", first).await.unwrap().expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a client may shorten the wait.
///
/// Method: `Prefer: wait=0` and `Prefer: wait=1` against a held execution under the default 30 s.
/// Evidence: 409 at once, 409 after a second; one execution.
#[tokio::test]
async fn prefer_wait_caps_the_wait() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    for (seconds, least, most) in [(0, ms(0), ms(900)), (1, ms(900), ms(5_000))] {
        let began = tokio::time::Instant::now();
        let hurried = Request::pay("k").header("Prefer", format!("wait={seconds}"));
        gateway
            .send(&hurried)
            .await
            .refused(409, "idempotency_key_in_progress");
        let took = began.elapsed();
        assert!(
            (least..most).contains(&took),
            "wait={seconds} took {took:?}"
        );
    }
    upstream.release();
    within("the first answer", first).await.unwrap().expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: when the original fails, one waiter executes and the others go on waiting.
///
/// Method: hold an execution that ends in 500 with ten waiters; hold the second one too.
/// Evidence: two executions in all; the first client has the 500, the ten the second's answer.
#[tokio::test]
async fn after_a_failed_original_one_waiter_executes() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500).held());
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let waiters = gateway.send_many(10, &Request::pay("k"));
    gateway.until_met_in_flight(10).await;
    upstream.release();
    within("the failed answer", first)
        .await
        .unwrap()
        .expect(500);

    upstream.begun(2).await;
    assert!(
        waiters.iter().all(|waiter| !waiter.is_finished()),
        "none is answered by the 500"
    );
    upstream.release();
    for waiter in waiters {
        let answer = within("a waiter's answer", waiter)
            .await
            .unwrap()
            .expect(201);
        assert_eq!(answer.text(), r#"{"execution":2}"#);
    }
    assert_eq!(upstream.executions(), 2);
}

/// Goal: waiters are told when nobody knows the outcome.
///
/// Method: five waiters on an execution whose upstream hangs up.
/// Evidence: 502 for the first, 409 unknown for the waiters; one execution.
#[tokio::test]
async fn waiters_of_an_unknown_outcome_are_refused() {
    let upstream = Upstream::start();
    let steps = vec![
        crate::harness::script::Step::Hold,
        crate::harness::script::Step::Close,
    ];
    upstream.next(Script::steps(steps));
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let waiters = gateway.send_many(5, &Request::pay("k"));
    gateway.until_met_in_flight(5).await;
    upstream.release();
    let first = within("the first answer", first).await.unwrap();
    first.refused(502, "idempotency_outcome_unknown");
    for waiter in waiters {
        let answer = within("a waiter's answer", waiter).await.unwrap();
        answer.refused(409, "idempotency_outcome_unknown");
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: other keys go on while one waits.
///
/// Method: hold one key with a waiter, send twenty others.
/// Evidence: their answers come before the release; 21 executions.
#[tokio::test]
async fn a_held_key_holds_nobody_else() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let held = gateway.send_many(2, &Request::pay("held"));
    upstream.begun(1).await;
    for number in 0..20 {
        gateway
            .send(&Request::pay(&format!("other-{number}")))
            .await
            .expect(201);
    }
    assert!(held.iter().all(|request| !request.is_finished()));
    upstream.release();
    for request in held {
        within("a held answer", request).await.unwrap().expect(201);
    }
    eventually("the count", async || {
        (upstream.executions() == 21).then_some(())
    })
    .await;
}
