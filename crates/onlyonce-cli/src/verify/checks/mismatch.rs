//! One key, two requests: which differences count, and which do not.

use onlyonce_gateway::http_client::Endpoint;

use crate::verify::{
    body,
    catalogue::Check,
    exchange::{Exchange, Inspect as _, Vary as _},
    finding::{Finding, Sure},
    lab::{Executed, Lab, random_key},
};

/// Sends another body under the same key, and then the first request again.
pub(super) async fn other_body(lab: &Lab) -> anyhow::Result<Vec<Finding>> {
    let checks = [Check::Mismatch, Check::MismatchKeeps];
    let request = lab.fresh()?;
    let Some(changed) = lab.changed(&request)? else {
        let why = "there is no body to change; name a --changed-body";
        return Ok(checks.map(|check| Finding::cannot_tell(check, why)).into());
    };
    let own_key = changed.with_key(&random_key()?);
    let control = lab
        .send("the changed body, a key of its own", own_key)
        .await;
    if !control.succeeded() {
        let why = format!(
            "the changed body is answered {} by itself; name a --changed-body that is valid",
            control.outcome()
        );
        let finding = |check| Finding::cannot_tell(check, why.clone()).with(&[&control]);
        return Ok(checks.map(finding).into());
    }
    let watch = lab.watch().await?;
    let first = lab.send("first", request.clone()).await;
    let other = lab.send("same key, other body", changed).await;
    let executed = lab.executed(&watch, &[&first, &other]).await?;
    let wanted = lab.target.rules.mismatch;
    let mismatch = judge(lab, Check::Mismatch, &first, &other, executed, wanted);
    let watch = lab.watch().await?;
    let again = lab.send("the first again", request).await;
    let after = lab.executed(&watch, &[]).await?;
    let marked = again.ok().is_some_and(|answer| answer.marker().is_some());
    let sure = match after.sure {
        Sure::Counted => Sure::Counted,
        _ if lab.tells_apart => Sure::Answers,
        _ if marked => Sure::Word,
        _ => Sure::No,
    };
    let ran_again = match sure {
        Sure::Counted => after.times != Some(0),
        _ => lab.is_done(&again) && !again.same_as(&first),
    };
    let check = Check::MismatchKeeps;
    let keeps = if ran_again {
        Finding::danger(check, sure, "the first request was executed again")
    } else if again.same_as(&first) && sure == Sure::No {
        Finding::cannot_tell(check, "every answer is the same; name a --count-url")
    } else if again.same_as(&first) {
        Finding::pass(check, sure, "it got its answer again")
    } else {
        let seen = format!("its retry was answered {}", again.outcome());
        Finding::trouble(check, after.sure, seen)
    };
    Ok(vec![mismatch, keeps.with(&[&first, &other, &again])])
}

fn judge(
    lab: &Lab,
    check: Check,
    first: &Exchange,
    other: &Exchange,
    executed: Executed,
    wanted: u16,
) -> Finding {
    let finding = if executed.more_than_once() {
        Finding::danger(
            check,
            executed.sure,
            "the key was ignored: both were executed",
        )
    } else if lab.is_done(other) {
        let seen = "the other request was told that it worked, with the first one's answer";
        Finding::danger(check, executed.sure, seen)
    } else if other.status() == wanted {
        Finding::pass(check, executed.sure, format!("refused with {wanted}"))
    } else {
        let seen = format!("answered {} instead of {wanted}", other.outcome());
        Finding::trouble(check, executed.sure, seen)
    };
    finding.with(&[first, other])
}

/// Sends the same JSON in another format.
pub(super) async fn reordered_json(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::ReorderedJson;
    let request = lab.fresh()?;
    let Some(reordered) = body::reordered(&request.body) else {
        return Ok(Finding::not_applicable(check, "the body is not JSON"));
    };
    let watch = lab.watch().await?;
    let first = lab.send("first", request.clone()).await;
    let again = lab
        .send("the same in another order", request.with_body(reordered))
        .await;
    let executed = lab.executed(&watch, &[&first, &again]).await?;
    let finding = if executed.more_than_once() {
        let seen = format!("the same JSON in another order: {}", executed.words());
        Finding::danger(check, executed.sure, seen)
    } else if again.same_as(&first) && executed.once() {
        Finding::pass(check, executed.sure, "replayed")
    } else if again.same_as(&first) {
        Finding::cannot_tell(check, "every answer is the same; name a --count-url")
    } else {
        let seen = format!("the retry was answered {}", again.outcome());
        Finding::trouble(check, executed.sure, seen)
    };
    Ok(finding.with(&[&first, &again]))
}

/// Sends the same key and body to another address.
pub(super) async fn elsewhere(lab: &Lab) -> anyhow::Result<Vec<Finding>> {
    let endpoint = &lab.target.endpoint;
    let query = endpoint.with_parameter("onlyonce_verify=1");
    let path = match &lab.target.other {
        Some(other) => other.clone(),
        None => endpoint.below("onlyonce-verify"),
    };
    Ok(vec![
        at_another(lab, Check::Query, query).await?,
        at_another(lab, Check::Path, path).await?,
    ])
}

async fn at_another(lab: &Lab, check: Check, endpoint: Endpoint) -> anyhow::Result<Finding> {
    let request = lab.fresh()?;
    let mut elsewhere = request.clone();
    elsewhere.endpoint = endpoint;
    let watch = lab.watch().await?;
    let first = lab.send("first", request).await;
    let other = lab.send("same key, another address", elsewhere).await;
    let executed = lab.executed(&watch, &[&first, &other]).await?;
    let wanted = lab.target.rules.mismatch;
    let finding = if executed.more_than_once() {
        Finding::danger(
            check,
            executed.sure,
            "the key was ignored: both were executed",
        )
    } else if lab.is_done(&other) && (other.same_as(&first) || executed.once()) {
        Finding::trouble(
            check,
            executed.sure,
            "it got the answer of the first request",
        )
    } else if other.status() == wanted {
        Finding::pass(check, executed.sure, format!("refused with {wanted}"))
    } else if matches!(other.status(), 404 | 405) {
        let why = "the API has nothing there; name another operation with --other-url";
        Finding::cannot_tell(check, why)
    } else if other.refused() {
        let seen = format!("answered {} instead of {wanted}", other.outcome());
        Finding::trouble(check, Sure::Seen, seen)
    } else {
        Finding::cannot_tell(check, format!("answered {}", other.outcome()))
    };
    Ok(finding.with(&[&first, &other]))
}
