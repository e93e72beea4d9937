//! Ways around a key: another host, another spelling of the method, an upgrade to another protocol.

use http::{HeaderValue, Method, header};
use onlyonce_gateway::http_client::Outgoing;

use crate::verify::{
    catalogue::Check,
    exchange::Vary as _,
    finding::Finding,
    lab::{Executed, Lab},
};

/// A host that cannot exist (RFC 6761).
const OTHER_HOST: &str = "onlyonce-verify.invalid";

/// Sends the same key and body to another host.
pub(super) async fn other_host(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::OtherHost;
    let request = lab.fresh()?;
    let mut elsewhere = request.clone();
    elsewhere.endpoint.authority = OTHER_HOST.to_owned();
    let watch = lab.watch().await?;
    let first = lab.send("first", request).await;
    let other = lab.send("same key, another host", elsewhere).await;
    let executed = lab.executed(&watch, &[&first, &other]).await?;
    let finding = if executed.more_than_once() {
        Finding::pass(check, executed.sure, "the other host has keys of its own")
    } else if lab.is_done(&other) {
        let seen = "the other host got the answer of the first";
        Finding::trouble(check, executed.sure, seen)
    } else if other.refused() {
        Finding::pass(
            check,
            executed.sure,
            format!("answered {}", other.outcome()),
        )
    } else {
        Finding::cannot_tell(check, format!("answered {}", other.outcome()))
    };
    Ok(finding.with(&[&first, &other]))
}

/// Sends the same request again, with its method in lower case.
pub(super) async fn method_case(lab: &Lab) -> anyhow::Result<Finding> {
    let request = lab.fresh()?;
    let lower = request.method.as_str().to_ascii_lowercase();
    let mut spelled = request.clone();
    spelled.method = Method::from_bytes(lower.as_bytes())?;
    twice(lab, Check::MethodCase, request, spelled).await
}

/// Sends the same request twice, with an upgrade to an unknown protocol.
pub(super) async fn upgrade(lab: &Lab) -> anyhow::Result<Finding> {
    let mut request = lab.fresh()?;
    let upgrade = HeaderValue::from_static("upgrade");
    let protocol = HeaderValue::from_static("onlyonce-verify");
    request.set_headers(&[(header::CONNECTION, upgrade), (header::UPGRADE, protocol)]);
    twice(lab, Check::Upgrade, request.clone(), request).await
}

/// Sends two spellings of one request: whatever the second gets, it must not be executed as well.
async fn twice(
    lab: &Lab,
    check: Check,
    request: Outgoing,
    again: Outgoing,
) -> anyhow::Result<Finding> {
    let watch = lab.watch().await?;
    let first = lab.send("first", request).await;
    let second = lab.send("the same, spelled so", again).await;
    let executed: Executed = lab.executed(&watch, &[&first, &second]).await?;
    let finding = if executed.more_than_once() {
        let seen = "the key was ignored: both were executed";
        Finding::danger(check, executed.sure, seen)
    } else if executed.once() && second.same_as(&first) {
        Finding::pass(check, executed.sure, "replayed")
    } else if second.same_as(&first) {
        Finding::cannot_tell(check, "every answer is the same; name a --count-url")
    } else if second.refused() || first.refused() {
        Finding::pass(
            check,
            executed.sure,
            format!("answered {}", second.outcome()),
        )
    } else {
        Finding::cannot_tell(check, format!("answered {}", second.outcome()))
    };
    Ok(finding.with(&[&first, &second]))
}
