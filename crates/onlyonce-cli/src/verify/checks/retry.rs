//! The same request again: immediately, after a hang-up, and after a partial body.

use std::time::Duration;

use http::header;
use onlyonce_gateway::{clock, http_client::Answer};

use crate::verify::{
    case::Kind,
    catalogue::Check,
    exchange::{Exchange, Inspect as _},
    finding::{Finding, Sure},
    lab::{Executed, Lab},
};

/// How often a retry is repeated after it was told that the first is still running.
pub(super) const MOST_RETRIES: usize = 12;
/// The pause before it is repeated.
const COME_BACK_AFTER: Duration = Duration::from_millis(500);
/// How long a slow request runs before its client hangs up.
const HANG_UP_AFTER: Duration = Duration::from_millis(100);

/// Headers that belong to the answer and not to its transport.
const KEPT: [header::HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_DISPOSITION,
    header::LOCATION,
    header::ETAG,
    header::LINK,
    header::LAST_MODIFIED,
];

/// Sends the same request three times, for replay, bytes, marker and expiry.
pub(super) async fn same_request(lab: &Lab) -> anyhow::Result<Vec<Finding>> {
    let request = lab.fresh()?;
    let watch = lab.watch().await?;
    let first = lab.send("first", request.clone()).await;
    let second = lab.send("retry", request.clone()).await;
    let third = lab.send("second retry", request).await;
    let all = [&first, &second, &third];
    let executed = lab.executed(&watch, &all).await?;
    Ok(vec![
        replay(all, executed),
        bytes(all, executed),
        marker(lab, all, executed),
        expiry(all, executed),
    ])
}

fn replay(all: [&Exchange; 3], executed: Executed) -> Finding {
    let [first, second, third] = all;
    let check = Check::Replay;
    let finding = if executed.more_than_once() {
        let seen = format!("the same request three times was {}", executed.words());
        Finding::danger(check, executed.sure, seen)
    } else if executed.times.is_none() {
        Finding::cannot_tell(
            check,
            "every answer is the same, also for different requests; name a --count-url",
        )
    } else if !second.succeeded() || !third.succeeded() {
        let seen = format!(
            "{}, but the retries were answered {} and {}",
            executed.words(),
            second.outcome(),
            third.outcome()
        );
        Finding::trouble(check, executed.sure, seen)
    } else if second.status() != first.status() || third.status() != first.status() {
        let seen = format!(
            "answered {}, then {}, then {}",
            first.outcome(),
            second.outcome(),
            third.outcome()
        );
        Finding::trouble(check, executed.sure, seen)
    } else {
        let seen = format!("three requests, {}", executed.words());
        Finding::pass(check, executed.sure, seen)
    };
    finding.with(&all)
}

fn bytes(all: [&Exchange; 3], executed: Executed) -> Finding {
    let check = Check::Bytes;
    let [Some(first), Some(second), Some(third)] = all.map(Exchange::ok) else {
        return Finding::not_applicable(check, "there was no replay to compare").with(&all);
    };
    if executed.more_than_once() || !all.iter().all(|exchange| exchange.succeeded()) {
        return Finding::not_applicable(check, "there was no replay to compare").with(&all);
    }
    let differs = difference(first, second).or_else(|| difference(first, third));
    match differs {
        Some(what) => Finding::trouble(check, Sure::Seen, what),
        None => Finding::pass(
            check,
            Sure::Seen,
            format!(
                "{} bytes and their headers, the same each time",
                first.body.len()
            ),
        ),
    }
    .with(&all)
}

/// The difference that a client would notice.
pub(super) fn difference(first: &Answer, again: &Answer) -> Option<String> {
    if first.body != again.body {
        return Some(format!(
            "the body differs: {} bytes first, {} bytes again",
            first.body.len(),
            again.body.len()
        ));
    }
    KEPT.into_iter().find_map(|name| {
        let values = |answer: &Answer| -> Vec<Vec<u8>> {
            let lines = answer.headers.get_all(&name).iter();
            lines.map(|value| value.as_bytes().to_vec()).collect()
        };
        (values(first) != values(again)).then(|| format!("the header {name} differs"))
    })
}

fn marker(lab: &Lab, all: [&Exchange; 3], executed: Executed) -> Finding {
    let check = Check::Marker;
    let (first, second) = (all[0], all[1]);
    let markers = (
        first.ok().and_then(Answer::marker),
        second.ok().and_then(Answer::marker),
    );
    if executed.more_than_once() || !second.succeeded() {
        return match markers.1 {
            Some(name) => {
                let seen = format!("the retry was executed again and yet says {name}");
                Finding::danger(check, executed.sure, seen).with(&all)
            }
            None => Finding::not_applicable(check, "there was no replay to mark").with(&all),
        };
    }
    let finding = match (markers, lab.target.rules.marker) {
        ((Some(name), _), _) => {
            let seen = format!("{name} is on the first answer too");
            Finding::trouble(check, Sure::Seen, seen)
        }
        ((None, Some(name)), None) => {
            Finding::pass(check, Sure::Seen, format!("{name} on the retry"))
        }
        ((None, None), None) => {
            Finding::not_applicable(check, "no marker, and this profile demands none")
        }
        ((None, Some(name)), Some(wanted)) if name == wanted => {
            Finding::pass(check, Sure::Seen, format!("{name} on the retry"))
        }
        ((None, found), Some(wanted)) => {
            let found = found.unwrap_or("nothing");
            let seen = format!("the retry is marked by {found} instead of {wanted}");
            Finding::trouble(check, Sure::Seen, seen)
        }
    };
    finding.with(&all)
}

fn expiry(all: [&Exchange; 3], executed: Executed) -> Finding {
    let check = Check::Expiry;
    let told = all
        .iter()
        .find_map(|exchange| exchange.ok().and_then(Answer::expiry));
    let Some((name, date)) = told else {
        let why = "no answer says it; nobody demands a header for it";
        return Finding::not_applicable(check, why).with(&all);
    };
    let at = httpdate::parse_http_date(date).ok();
    let at = at.or_else(|| clock::read_rfc3339(date));
    let finding = match at {
        None => Finding::trouble(check, Sure::Seen, format!("{name} is not a date: {date}")),
        Some(at) if at <= clock::now() => {
            let seen = format!("{name} lies in the past: {date}");
            Finding::trouble(check, Sure::Seen, seen)
        }
        Some(_) if executed.more_than_once() => {
            let seen = format!("{name}: {date}, and yet the retry was executed");
            Finding::danger(check, executed.sure, seen)
        }
        Some(_) => Finding::pass(check, Sure::Seen, format!("{name}: {date}")),
    };
    finding.with(&all)
}

/// The client disconnects in the middle and retries.
pub(super) async fn hang_up(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::HangUp;
    let (request, after) = match lab.fresh_of(Kind::Slow)? {
        Some(request) => (request, HANG_UP_AFTER),
        None => (lab.fresh()?, Duration::ZERO),
    };
    let watch = lab.watch().await?;
    let left = lab.hang_up(request.clone(), after).await;
    let mut retry = lab.send("retry", request.clone()).await;
    for _ in 1..MOST_RETRIES {
        if lab.is_done(&retry) || !retry.says_busy() {
            break;
        }
        tokio::time::sleep(COME_BACK_AFTER).await;
        retry = lab.send("retry", request.clone()).await;
    }
    let executed = lab.executed(&watch, &[&retry]).await?;
    let marked = retry.ok().is_some_and(|answer| answer.marker().is_some());
    let finding = if executed.more_than_once() {
        let seen = format!("the request and its retry were {}", executed.words());
        Finding::danger(check, executed.sure, seen)
    } else if !lab.is_done(&retry) {
        let seen = format!("the retry was answered {}", retry.outcome());
        Finding::trouble(check, Sure::Word, seen)
    } else if executed.sure == Sure::Counted {
        let seen = format!("{}, and the retry got the answer", executed.words());
        Finding::pass(check, executed.sure, seen)
    } else if marked {
        Finding::pass(
            check,
            Sure::Word,
            "the retry got a replay of the answer nobody read",
        )
    } else {
        let why = "the retry succeeded, but only a --count-url tells whether it was a second time";
        Finding::cannot_tell(check, why)
    };
    Ok(finding
        .with(&[&left, &retry])
        .race(&[left.clone(), retry.clone()]))
}

/// The body breaks off one byte before its declared end; then all of it is sent under the same key.
pub(super) async fn part_of_a_body(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::PartOfABody;
    let request = lab.fresh()?;
    let watch = lab.watch().await?;
    let part = lab.break_off(request.clone()).await;
    let whole = lab.send("all of it", request).await;
    let executed = lab.executed(&watch, &[&whole]).await?;
    let marked = whole.ok().is_some_and(|answer| answer.marker().is_some());
    let finding = if executed.more_than_once() {
        let seen = format!("the part and the whole were {}", executed.words());
        Finding::danger(check, executed.sure, seen)
    } else if marked {
        let seen = "the whole request got a replay: the part was executed";
        Finding::danger(check, Sure::Word, seen)
    } else if !lab.is_done(&whole) {
        let seen = format!("the whole request was answered {}", whole.outcome());
        Finding::trouble(check, Sure::Word, seen)
    } else if executed.sure == Sure::Counted {
        let seen = format!("the part was not executed, the whole {}", executed.words());
        Finding::pass(check, executed.sure, seen)
    } else {
        let why = "the whole request succeeded, but only a --count-url tells whether the part did";
        Finding::cannot_tell(check, why)
    };
    Ok(finding.with(&[&part, &whole]))
}
