//! Another caller with the same key.

use crate::verify::{
    catalogue::Check,
    exchange::{Inspect as _, Vary as _},
    finding::{Finding, Sure},
    lab::Lab,
};

/// Sends the same request as another caller.
pub(super) async fn other_caller(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::OtherCaller;
    if lab.target.second_caller.is_empty() {
        let why = "name another caller: --second-caller-header 'Authorization: …'";
        return Ok(Finding::cannot_tell(check, why));
    }
    let request = lab.fresh()?;
    let mut theirs = request.clone();
    theirs.set_headers(&lab.target.second_caller);
    let watch = lab.watch().await?;
    let first = lab.send("the first caller", request.clone()).await;
    let other = lab.send("another caller, same key", theirs).await;
    let executed = lab.executed(&watch, &[&first, &other]).await?;
    let again = lab.send("the first caller again", request).await;
    let leaked = "another caller got the first one's answer";
    let marked = other.ok().is_some_and(|answer| answer.marker().is_some());
    let finding = if marked {
        Finding::danger(check, Sure::Word, leaked)
    } else if lab.is_done(&other) && executed.once() {
        Finding::danger(check, executed.sure, leaked)
    } else if matches!(other.status(), 401 | 403) {
        let why = format!("the second caller is not let in: {}", other.outcome());
        Finding::cannot_tell(check, why)
    } else if !again.same_as(&first) {
        let seen = format!(
            "after that the first caller's retry was answered {}",
            again.outcome()
        );
        Finding::trouble(check, executed.sure, seen)
    } else if executed.more_than_once() {
        Finding::pass(
            check,
            executed.sure,
            "each caller has an execution of their own",
        )
    } else if other.refused() {
        Finding::pass(
            check,
            executed.sure,
            format!("refused with {}", other.outcome()),
        )
    } else if executed.times.is_none() {
        Finding::cannot_tell(check, "every answer is the same; name a --count-url")
    } else {
        let seen = format!("the other caller was answered {}", other.outcome());
        Finding::trouble(check, executed.sure, seen)
    };
    Ok(finding.with(&[&first, &other, &again]))
}
