//! Two nodes of one API.

use super::race::judge_race;
use crate::verify::{catalogue::Check, exchange::Exchange, finding::Finding, lab::Lab};

/// A retry at another node, and a race between both. Both are addressed by the host name of the first: nodes
/// of one API share one host name, and another host is another request.
pub(super) async fn two(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::TwoNodes;
    let Some(second_node) = &lab.target.second else {
        let why = "name another node of the same API: --second-url";
        return Ok(Finding::not_applicable(check, why));
    };
    let request = lab.fresh()?;
    let mut there = request.clone();
    there.endpoint = second_node.clone();
    there
        .endpoint
        .authority
        .clone_from(&lab.target.endpoint.authority);
    let watch = lab.watch().await?;
    let first = lab.send("at one node", request).await;
    let again = lab.send("at the other node", there).await;
    let executed = lab.executed(&watch, &[&first, &again]).await?;
    let pair: [&Exchange; 2] = [&first, &again];
    if executed.more_than_once() {
        let seen = format!("the retry at the other node: {}", executed.words());
        return Ok(Finding::danger(check, executed.sure, seen).with(&pair));
    }
    if !again.same_as(&first) {
        let seen = format!("the other node answered the retry {}", again.outcome());
        return Ok(Finding::trouble(check, executed.sure, seen).with(&pair));
    }
    if executed.times.is_none() {
        let why = "every answer is the same; name a --count-url";
        return Ok(Finding::cannot_tell(check, why).with(&pair));
    }
    let here = lab.fresh()?;
    let mut there = here.clone();
    there.endpoint = second_node.clone();
    there
        .endpoint
        .authority
        .clone_from(&lab.target.endpoint.authority);
    let both = [here, there.clone()].into_iter().cycle();
    let watch = lab.watch().await?;
    let racers = both.take(lab.target.duplicates - 1).collect();
    let racers = lab.race("duplicate at either node", racers).await;
    let after = lab.send("afterwards", there).await;
    judge_race(lab, check, &watch, &racers, &after).await
}
