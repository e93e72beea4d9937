//! Requests that run at the same time.

use onlyonce_gateway::http_client::Answer;

use crate::verify::{
    case::Kind,
    catalogue::Check,
    exchange::{Exchange, Inspect as _},
    finding::{Finding, Sure},
    lab::{Lab, Watch},
};

const SAY_HOW: &str = "say how to make the API slow: --case slow=header:…, or body: or url:";
const TOO_FAST: &str = "the first request was finished before the second came: --case slow=… needs \
                        half a second";

/// Sends many duplicates at the same moment.
pub(super) async fn concurrent(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::Concurrent;
    let request = lab.fresh()?;
    let watch = lab.watch().await?;
    let duplicates = vec![request.clone(); lab.target.duplicates];
    let racers = lab.race("duplicate", duplicates).await;
    let after = lab.send("afterwards", request).await;
    judge_race(lab, check, &watch, &racers, &after).await
}

/// Judges duplicates, and a retry after them.
pub(super) async fn judge_race(
    lab: &Lab,
    check: Check,
    watch: &Watch,
    racers: &[Exchange],
    after: &Exchange,
) -> anyhow::Result<Finding> {
    let mut all: Vec<&Exchange> = racers.iter().collect();
    all.push(after);
    let executed = lab.executed(watch, &all).await?;
    let done = racers.iter().filter(|racer| lab.is_done(racer)).count();
    let busy = racers.iter().filter(|r| !lab.is_done(r) && r.says_busy());
    let busy = busy.count();
    let tally = tally(racers);
    let finding = if executed.more_than_once() {
        let seen = format!(
            "{} duplicates and a retry were {}: {tally}",
            racers.len(),
            executed.words()
        );
        Finding::danger(check, executed.sure, seen)
    } else if executed.times == Some(0) {
        let seen = format!("none of {} duplicates was executed: {tally}", racers.len());
        Finding::trouble(check, executed.sure, seen)
    } else if done + busy < racers.len() {
        let seen = format!("{}, but the answers were {tally}", executed.words());
        Finding::trouble(check, executed.sure, seen)
    } else if !lab.is_done(after) {
        let seen = format!("afterwards the retry was answered {}", after.outcome());
        Finding::trouble(check, executed.sure, seen)
    } else if executed.times.is_none() {
        let why = "every answer is the same, also for different requests; name a --count-url";
        Finding::cannot_tell(check, why)
    } else {
        let seen = format!("{} duplicates, {}: {tally}", racers.len(), executed.words());
        Finding::pass(check, executed.sure, seen)
    };
    // The chart shows all of them; two and the retry are evidence enough.
    let mut shown: Vec<&Exchange> = racers.iter().take(2).collect();
    shown.push(after);
    Ok(finding.with(&shown).race(racers))
}

/// `49 x 409, 1 x 201`.
fn tally(racers: &[Exchange]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for racer in racers {
        let outcome = racer.outcome();
        match counts.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => counts.push((outcome, 1)),
        }
    }
    let counts = counts
        .iter()
        .map(|(outcome, count)| format!("{count} x {outcome}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Sends a duplicate of a request that is still running.
pub(super) async fn in_flight(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::InFlight;
    let Some(request) = lab.fresh_of(Kind::Slow)? else {
        return Ok(Finding::cannot_tell(check, SAY_HOW));
    };
    let watch = lab.watch().await?;
    let (first, second) = lab.overlap(request.clone(), request.clone()).await;
    let after = lab.send("afterwards", request).await;
    let executed = lab.executed(&watch, &[&first, &second, &after]).await?;
    let finding = if executed.more_than_once() {
        let seen = format!(
            "a running request, its duplicate and a later retry were {}",
            executed.words()
        );
        Finding::danger(check, executed.sure, seen)
    } else if second.sent >= first.ended {
        Finding::cannot_tell(check, TOO_FAST)
    } else if lab.is_done(&second) && executed.times.is_none() {
        Finding::cannot_tell(check, "every answer is the same; name a --count-url")
    } else if lab.is_done(&second) && second.same_as(&first) {
        Finding::pass(
            check,
            executed.sure,
            "the duplicate waited and got the same answer",
        )
    } else if second.says_busy() && !lab.is_done(&second) {
        match second.ok().map(|answer| comes_back(lab, answer)) {
            Some(Ok(words)) if lab.is_done(&after) => {
                Finding::pass(check, executed.sure, format!("{}{words}", second.outcome()))
            }
            Some(Ok(_)) => {
                let seen = format!("afterwards the retry was answered {}", after.outcome());
                Finding::trouble(check, executed.sure, seen)
            }
            Some(Err(why)) => {
                Finding::trouble(check, Sure::Seen, format!("{} {why}", second.outcome()))
            }
            None => Finding::cannot_tell(check, "no answer"),
        }
    } else {
        let seen = format!("the duplicate was answered {}", second.outcome());
        Finding::trouble(check, executed.sure, seen)
    };
    let race = [first.clone(), second.clone()];
    Ok(finding.with(&[&first, &second, &after]).race(&race))
}

/// Whether a busy answer says when to retry, in words.
fn comes_back(lab: &Lab, answer: &Answer) -> Result<String, &'static str> {
    let date = |value: &str| httpdate::parse_http_date(value).is_ok();
    match answer.header("retry-after") {
        Some(value) if value.parse::<u32>().is_ok_and(|seconds| seconds > 0) || date(value) => {
            Ok(format!(" with Retry-After: {value}"))
        }
        Some(_) => Err("with a Retry-After that says nothing"),
        None if lab.target.rules.retry_after => Err("without Retry-After"),
        None => Ok(", Retry-After is not demanded here".to_owned()),
    }
}

/// Sends another request under the key of one that is still running.
pub(super) async fn mismatch_in_flight(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::MismatchInFlight;
    let Some(request) = lab.fresh_of(Kind::Slow)? else {
        return Ok(Finding::cannot_tell(check, SAY_HOW));
    };
    let Some(changed) = lab.changed(&request)? else {
        let why = "there is no body to change; name a --changed-body";
        return Ok(Finding::cannot_tell(check, why));
    };
    let watch = lab.watch().await?;
    let (first, second) = lab.overlap(request, changed).await;
    let executed = lab.executed(&watch, &[&first, &second]).await?;
    let wanted = lab.target.rules.mismatch;
    let finding = if executed.more_than_once() {
        let seen = format!(
            "both were executed: {} and {}",
            first.outcome(),
            second.outcome()
        );
        Finding::danger(check, executed.sure, seen)
    } else if second.sent >= first.ended {
        Finding::cannot_tell(check, TOO_FAST)
    } else if lab.is_done(&second) {
        let seen = "the other request was told that it worked, with the first one's answer";
        Finding::danger(check, executed.sure, seen)
    } else if second.status() == wanted {
        Finding::pass(check, executed.sure, format!("refused with {wanted}"))
    } else if second.says_busy() {
        let seen = format!("{}: told to come back; refused then", second.outcome());
        Finding::pass(check, executed.sure, seen)
    } else {
        let seen = format!("answered {} instead of {wanted}", second.outcome());
        Finding::trouble(check, Sure::Seen, seen)
    };
    let race = [first.clone(), second.clone()];
    Ok(finding.with(&[&first, &second]).race(&race))
}
