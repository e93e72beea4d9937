//! One case: to the point, over it, and what stands afterwards.

use std::{os::unix::process::ExitStatusExt, path::Path, rc::Rc, sync::Arc};

use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    cases::{Action, Case, Ends, Scenario},
    harness::{Gateway, REPLAYED, Response, Setup, Upstream, eventually, ms},
    place::Place,
    scenario::{Back, KEY, STORE_TIMEOUT},
};

/// How long a stopped gateway stays stopped: longer than its lease.
const PAUSE: std::time::Duration = ms(1_000 + 400);
/// Lease, sweep, and what ten gateways at once cost on two cores. The promised second is held by
/// the tests over HTTP, where one gateway runs.
const STUCK_AT_MOST: std::time::Duration = ms(1_000 + 200 + 3_000);

/// What a retry may take beyond that, which is the machine's affair.
const SLACK: std::time::Duration = ms(5_000);
/// How long a gateway may take to the point.
const REACHED_WITHIN: std::time::Duration = ms(10_000);
/// How many gateways may miss the point, one after the other, but for the last.
const GATEWAYS_A_CASE: usize = 10;
/// The environment of a gateway that nothing is to happen to.
const UNARMED: (&str, &str) = (STORE_TIMEOUT, "2s");

/// How a case ended.
pub(crate) struct Ended {
    pub(crate) how: Ends,
    /// Executions but those that are known to have left nothing behind.
    executions: usize,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {}", self.how, self.executions)
    }
}

/// Brings a gateway to the point and sees how it ends. Some points lie behind a store that gets a
/// few milliseconds; a slow machine may take another path, which says nothing about the point. So a
/// gateway that did not come by it is replaced, and only the last one's miss is the verdict.
pub(crate) async fn run(case: Case, action: Action, place: Rc<Place>) -> Ended {
    for _ in 1..GATEWAYS_A_CASE {
        if let Some(ended) = try_once(case, action, &place).await {
            return ended;
        }
    }
    let ended = try_once(case, action, &place).await;
    ended.unwrap_or_else(|| panic!("{GATEWAYS_A_CASE} gateways never came by {}", case.point))
}

/// `None` if the gateway did not come by the point, or on another way.
async fn try_once(case: Case, action: Action, place: &Rc<Place>) -> Option<Ended> {
    let scenario = case.scenario;
    let back = scenario.back();
    let folder = TempDir::new().expect("a folder for the sign");
    let sign = folder.path().join("hit");
    let mut gateway = start(&case, action, place, &back, &sign).await;

    let (seen, over) = tokio::join!(
        scenario.drive(&gateway, place, &back),
        over_the_point(&gateway, action, &sign)
    );
    let Over { woken } = over?;
    assert_eq!(
        std::fs::read_to_string(&sign).expect("the sign of the hit"),
        case.point
    );
    if action != Action::Stop {
        let died = gateway.exited().await.signal();
        let signal = if action == Action::Kill { 9 } else { 6 };
        assert_eq!(died, Some(signal), "it died of the failpoint");
        gateway.set_env(&[UNARMED]);
        gateway.restart().await;
    }
    let began = woken.unwrap_or_else(Instant::now);
    let upstream = back.open();
    if scenario.answers_late() {
        upstream.release();
    }
    if action == Action::Stop
        && let Some(state) = scenario.comes_to()
    {
        gateway.until_state(KEY, state).await;
    }
    // A sweep may come before the woken gateway has said what it knows.
    let passes = action == Action::Stop && case.after(action) != Ends::Unknown;
    let ended = settle(scenario, &gateway, &upstream, &seen, began, passes).await;
    assert_eq!(gateway.count_in_state("in_progress").await, 0);
    // On a machine that took longer than the lease before the first byte, the point was one of a release.
    let is_late = ended.how != case.after(action) && was_too_late(&gateway).await;
    (!is_late).then_some(ended)
}

/// Whether an attempt found no time left in its lease when it was to be sent.
async fn was_too_late(gateway: &Gateway) -> bool {
    let record = gateway.full_record(KEY).await;
    record["history"].to_string().contains("guard_failed")
}

/// A gateway that will come by the point.
async fn start(case: &Case, action: Action, place: &Place, back: &Back, sign: &Path) -> Gateway {
    let wish = format!("{}:{}={}", case.point, case.nth, action.word());
    let env = [
        (STORE_TIMEOUT, case.scenario.store_timeout()),
        ("ONLYONCE_FAILPOINT", wish.as_str()),
        (
            "ONLYONCE_FAILPOINT_FILE",
            sign.to_str().expect("a plain path"),
        ),
    ];
    let mut setup = place.of(case.scenario.setup());
    if !case.scenario.begins_with_a_crash() {
        for (name, value) in env {
            setup = setup.env(name, value);
        }
        return start_at_last(setup, &back.url()).await;
    }
    let setup = setup.env(UNARMED.0, UNARMED.1);
    let mut gateway = setup.start_before(&back.url()).await;
    let request = case.scenario.request();
    let upstream = back.upstream().expect("an open upstream");
    tokio::select! {
        answer = gateway.try_send(&request) => panic!("the upstream holds: {answer:?}"),
        () = upstream.begun(1) => {}
    }
    gateway.kill9().await;
    gateway.set_env(&env);
    gateway.restart().await;
    gateway
}

/// Starts it. A store that gets little time may be too slow for the start on a busy machine.
async fn start_at_last(setup: Setup, url: &str) -> Gateway {
    let folder = Arc::new(TempDir::new().expect("a folder for the gateway"));
    eventually("the gateway to start", async || {
        let started = setup.clone().start_in(Arc::clone(&folder), url).await;
        started.ok()
    })
    .await
}

/// The point lies behind the gateway.
struct Over {
    /// After a stop: since when it runs again.
    woken: Option<Instant>,
}

/// Returns when the point was hit, after a stop when the gateway has been woken; `None` when the
/// point was not reached.
async fn over_the_point(gateway: &Gateway, action: Action, sign: &Path) -> Option<Over> {
    let hit = async {
        while std::fs::read(sign).map_or(true, |name| name.is_empty()) {
            tokio::time::sleep(ms(10)).await;
        }
    };
    tokio::time::timeout(REACHED_WITHIN, hit).await.ok()?;
    if action != Action::Stop {
        return Some(Over { woken: None });
    }
    eventually("the gateway to stop", async || {
        (gateway.process_state() == Some('T')).then_some(())
    })
    .await;
    tokio::time::sleep(PAUSE).await;
    gateway.wake();
    let woken = Some(Instant::now());
    Some(Over { woken })
}

/// Retries until the key says something final, and holds that against what was seen before. The
/// gateway runs since `began`. An unknown outcome is final unless it `passes`.
async fn settle(
    scenario: Scenario,
    gateway: &Gateway,
    upstream: &Upstream,
    seen: &[Response],
    began: Instant,
    passes: bool,
) -> Ended {
    // Where only a retry notices the lapsed lease, there is nothing to see without one.
    if scenario != Scenario::LapsedRetry {
        eventually("the key to leave in_progress", async || {
            (gateway.state(KEY).await != "in_progress").then_some(())
        })
        .await;
    }
    let stuck = began.elapsed();
    assert!(stuck <= STUCK_AT_MOST, "in progress for {stuck:?}");

    let request = scenario.request();
    let last = eventually("a final answer", async || {
        let answer = gateway.try_send(&request).await.ok()?;
        let retry = answer.header("stripe-should-retry") == Some("true");
        let unknown = answer.status == 409 && answer.code() == "idempotency_outcome_unknown";
        let open = retry || (unknown && passes);
        (!open).then_some(answer)
    })
    .await;
    let took = began.elapsed();
    assert!(took <= STUCK_AT_MOST + SLACK, "settled only after {took:?}");
    let how = match (last.status, last.header(REPLAYED)) {
        (201, Some("true")) => Ends::Replayed,
        (201, None) => Ends::Executed,
        (409, _) if last.code() == "idempotency_response_not_stored" => Ends::NotStored,
        _ => {
            last.clone().refused(409, "idempotency_outcome_unknown");
            Ends::Unknown
        }
    };
    let again = gateway.send(&request).await;
    assert_eq!(
        (again.status, &again.body),
        (last.status, &last.body),
        "the next retry is told the same"
    );
    // 201 is what the upstream says when it has acted; everything else promised nothing. What was
    // not kept is still known to have been executed.
    let kept = how != Ends::NotStored;
    for answer in seen.iter().filter(|answer| kept && answer.status == 201) {
        assert_eq!(
            (answer.status, &answer.body),
            (again.status, &again.body),
            "an answer that a client saw is lost"
        );
        assert_eq!(again.header(REPLAYED), Some("true"));
    }
    let executions = upstream
        .executions_of(KEY)
        .saturating_sub(scenario.harmless());
    match how {
        Ends::Executed | Ends::Replayed | Ends::NotStored => {
            assert_eq!(executions, 1, "executions")
        }
        Ends::Unknown => assert!(executions <= 1, "{executions} executions"),
    }
    Ended { how, executions }
}
