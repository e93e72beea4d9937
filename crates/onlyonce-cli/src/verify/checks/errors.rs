//! Refusals and failures of the API itself, and their retries.
//!
//! If headers alone cause the error, the retry is sent without them, as after a repair. Then a stored answer
//! can be distinguished from a new one.

use onlyonce_gateway::http_client::Outgoing;

use crate::verify::{
    body,
    case::Kind,
    catalogue::Check,
    exchange::{Exchange, Vary as _},
    finding::{Finding, Sure},
    lab::{Executed, Lab},
};

/// A client error, then a server error, each with its retry.
pub(super) async fn both(lab: &Lab) -> anyhow::Result<Vec<Finding>> {
    Ok(vec![client_error(lab).await?, server_error(lab).await?])
}

/// The request that fails, and its retry.
fn pair(lab: &Lab, kind: Kind) -> anyhow::Result<Option<(Outgoing, Outgoing)>> {
    let fresh = lab.fresh()?;
    Ok(lab.target.case(kind).map(|case| {
        let failing = case.apply(&fresh);
        let retry = if case.by_headers_alone() {
            fresh
        } else {
            failing.clone()
        };
        (failing, retry)
    }))
}

async fn client_error(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::ClientError;
    let (failing, retry) = match pair(lab, Kind::ClientError)? {
        Some(pair) => pair,
        None => {
            let fresh = lab.fresh()?;
            let Some(half) = body::broken(&fresh.body) else {
                let why = "say how to be refused: --case 4xx=header:…, or body: or url:";
                return Ok(Finding::cannot_tell(check, why));
            };
            let broken = fresh.with_body(half);
            (broken.clone(), broken)
        }
    };
    let watch = lab.watch().await?;
    let first = lab.send("refused", failing).await;
    let again = lab.send("retry", retry).await;
    let executed = lab.executed(&watch, &[&first, &again]).await?;
    let finding = if !first.refused() {
        let why = format!("the request was answered {} and not 4xx", first.outcome());
        Finding::cannot_tell(check, why)
    } else if again.same_as(&first) {
        let seen = format!("{}, and the same again", first.outcome());
        Finding::pass(check, executed.sure, seen)
    } else if again.succeeded() {
        let seen = format!(
            "refused with {}, then {}",
            first.outcome(),
            executed.words()
        );
        Finding::danger(check, executed.sure, seen)
    } else {
        let seen = match again.status() == first.status() {
            true => "the same status with another body".to_owned(),
            false => format!("first {}, then {}", first.outcome(), again.outcome()),
        };
        Finding::trouble(check, executed.sure, seen)
    };
    Ok(finding.with(&[&first, &again]))
}

async fn server_error(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::ServerError;
    let Some((failing, retry)) = pair(lab, Kind::ServerError)? else {
        let why = "say how to make it fail: --case 5xx=header:…, or body: or url:";
        return Ok(Finding::cannot_tell(check, why));
    };
    let watch = lab.watch().await?;
    let first = lab.send("fails", failing).await;
    let again = lab.send("retry", retry).await;
    let executed = lab.executed(&watch, &[&first, &again]).await?;
    let failed = first.ok().is_some_and(|a| a.status.is_server_error());
    let finding = if executed.more_than_once() {
        let seen = format!(
            "{} and its retry were {}",
            first.outcome(),
            executed.words()
        );
        Finding::danger(check, executed.sure, seen)
    } else if !failed {
        let why = format!("the request was answered {} and not 5xx", first.outcome());
        Finding::cannot_tell(check, why)
    } else {
        after_failure(lab, &first, &again, executed)
    };
    Ok(finding.with(&[&first, &again]))
}

fn after_failure(lab: &Lab, first: &Exchange, again: &Exchange, executed: Executed) -> Finding {
    let check = Check::ServerError;
    let replayed = again.same_as(first);
    if lab.target.rules.replays_5xx {
        return match replayed {
            true => Finding::pass(
                check,
                executed.sure,
                format!("{} replayed", first.outcome()),
            ),
            false => {
                let seen = format!("{} was not replayed: {}", first.outcome(), again.outcome());
                Finding::trouble(check, executed.sure, seen)
            }
        };
    }
    if again.succeeded() && executed.sure != Sure::Counted {
        let why = "the retry worked; only a --count-url tells whether that was the second time";
        return Finding::cannot_tell(check, why);
    }
    if again.succeeded() || again.refused() || replayed {
        let seen = format!(
            "{}, then {}; {} in all",
            first.outcome(),
            again.outcome(),
            executed.words()
        );
        Finding::pass(check, executed.sure, seen)
    } else {
        let seen = format!("{}, then {}", first.outcome(), again.outcome());
        Finding::trouble(check, executed.sure, seen)
    }
}
