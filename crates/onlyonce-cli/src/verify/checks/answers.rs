//! Answers that are hard to store: binary, empty, large, without a length.

use super::retry::difference;
use onlyonce_gateway::http_client::Answer;

use crate::verify::{
    case::Kind,
    catalogue::Check,
    finding::{Finding, Sure},
    lab::Lab,
};

/// The minimum size of a large answer, in bytes.
const LARGE: usize = 64 << 10;

/// Checks each kind that the user has said how to get.
pub(super) async fn kinds(lab: &Lab) -> anyhow::Result<Vec<Finding>> {
    Ok(vec![
        kind(lab, Check::Binary, Kind::Binary, "binary").await?,
        kind(lab, Check::Empty, Kind::Empty, "empty").await?,
        kind(lab, Check::Large, Kind::Large, "large").await?,
        kind(lab, Check::Chunked, Kind::Chunked, "chunked").await?,
    ])
}

async fn kind(lab: &Lab, check: Check, kind: Kind, name: &str) -> anyhow::Result<Finding> {
    let Some(request) = lab.fresh_of(kind)? else {
        let why = format!("if the API has such answers, say how: --case {name}=header:…");
        return Ok(Finding::not_applicable(check, why));
    };
    let watch = lab.watch().await?;
    let first = lab.send("first", request.clone()).await;
    let again = lab.send("retry", request).await;
    let executed = lab.executed(&watch, &[&first, &again]).await?;
    let Some(answer) = first.ok().filter(|answer| is_of(kind, answer)) else {
        let why = format!("the answer, {}, is not of this kind", first.outcome());
        return Ok(Finding::cannot_tell(check, why).with(&[&first]));
    };
    let differs = match again.ok() {
        Some(again) if again.status == answer.status => difference(answer, again),
        _ => Some(format!("the retry was answered {}", again.outcome())),
    };
    let size = answer.body.len();
    let finding = if executed.more_than_once() {
        Finding::danger(
            check,
            executed.sure,
            format!("the retry made it: {}", executed.words()),
        )
    } else if differs.is_none() {
        let length = match (kind, answer.chunked) {
            (Kind::Chunked, false) => "; they came with a length",
            _ => "",
        };
        let seen = format!("{size} bytes, the same again{length}");
        Finding::pass(check, Sure::Seen, seen)
    } else if kind == Kind::Large && again.status() == 409 {
        let seen = "too large to keep: the retry is refused, and nothing is executed again";
        Finding::pass(check, executed.sure, seen)
    } else {
        Finding::trouble(check, executed.sure, differs.unwrap_or_default())
    };
    Ok(finding.with(&[&first, &again]))
}

/// Whether the answer is of this kind.
fn is_of(kind: Kind, answer: &Answer) -> bool {
    let status = answer.status.is_success();
    status
        && match kind {
            Kind::Binary => std::str::from_utf8(&answer.body).is_err(),
            Kind::Empty => answer.body.is_empty(),
            Kind::Large => answer.body.len() >= LARGE,
            // A gateway that reads an answer before it passes it on gives it a length.
            Kind::Chunked | Kind::Slow | Kind::ClientError | Kind::ServerError => true,
        }
}
