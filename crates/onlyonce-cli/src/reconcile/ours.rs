//! Our side of the comparison: the records of a route, page by page, newest first.

use std::time::SystemTime;

use anyhow::bail;
use http::Method;
use onlyonce_core::{Key, Spelling};
use serde_json::Value;

use super::compare::{Comparison, Ours};
use crate::keys::{Way, with_query};
use onlyonce_gateway::clock;

/// Records in one page.
const PAGE: &str = "500";

/// Compares every record of `route` that is not older than `since`.
pub(super) async fn walk(
    way: &Way,
    route: &str,
    since: SystemTime,
    comparison: &mut Comparison,
) -> anyhow::Result<()> {
    let mut cursor: Option<String> = None;
    loop {
        let parameters = [
            ("route", Some(route)),
            ("limit", Some(PAGE)),
            ("cursor", cursor.as_deref()),
        ];
        let page = page(way, &parameters).await?;
        let records = page["keys"].as_array().map_or(&[][..], Vec::as_slice);
        // Pages are ordered by creation; a record that was used again may be newer than that.
        let mut all_older = !records.is_empty();
        for record in records {
            let at = created(record);
            let new = at.is_none_or(|at| at >= since);
            all_older &= !new;
            if new {
                let in_time = at.is_none_or(|at| comparison.is_before_the_end(at));
                comparison.meet(&ours(record, in_time))?;
            }
        }
        cursor = page["next"].as_str().map(str::to_owned);
        if cursor.is_none() || all_older {
            return Ok(());
        }
    }
}

/// The record of the key that the provider calls `name`, if there is one: this client's, or one that all
/// clients share.
pub(super) async fn one(
    way: &Way,
    route: &str,
    name: &str,
    client: &str,
) -> anyhow::Result<Option<Ours>> {
    // Nobody sends an empty key, and a query for one would find any record.
    if name.is_empty() {
        return Ok(None);
    }
    let named = Some(client).filter(|client| !client.is_empty());
    for key in Key::meant_by(name) {
        let key = key.header_value();
        let found = match some(way, route, &key, named).await? {
            None if named.is_some() => some(way, route, &key, None)
                .await?
                .filter(|record| record.client.is_empty()),
            found => found,
        };
        if found
            .as_ref()
            .is_some_and(|ours| ours.names.iter().any(|one| one == name))
        {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The newest record of a key, given as a header value, of this client or of any.
async fn some(
    way: &Way,
    route: &str,
    key: &str,
    client: Option<&str>,
) -> anyhow::Result<Option<Ours>> {
    let parameters = [
        ("route", Some(route)),
        ("key", Some(key)),
        ("client", client),
        ("limit", Some("1")),
    ];
    let page = page(way, &parameters).await?;
    let found = page["keys"].as_array().and_then(|keys| keys.first());
    Ok(found.map(|record| ours(record, false)))
}

async fn page(way: &Way, parameters: &[(&str, Option<&str>)]) -> anyhow::Result<Value> {
    let path = with_query("/idempotency/keys", parameters);
    let (status, page) = way.call(Method::GET, &path, None).await?;
    if !status.is_success() {
        let why = page["detail"].as_str().unwrap_or("no reason was given");
        bail!("{} {why}", status.as_u16());
    }
    Ok(page)
}

fn created(record: &Value) -> Option<SystemTime> {
    clock::read_rfc3339(record["created_at"].as_str()?)
}

fn ours(record: &Value, in_time: bool) -> Ours {
    let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
    let scope = onlyonce_core::Scope::from_stored(&text("scope"));
    let status = record["response"]["status"].as_u64();
    let key = Key::from_stored(&text("key"));
    let spelling = record["spelling"].as_str();
    let spelling = spelling.and_then(|value| Spelling::of(&key, value.as_bytes()).ok());
    let names = key.names(spelling.as_ref());
    Ours {
        names: names.into_iter().map(Into::into).collect(),
        key: text("key"),
        client: scope.client_id().unwrap_or_default().to_owned(),
        state: text("state"),
        hundred: status.and_then(|status| u16::try_from(status / 100).ok()),
        in_time,
    }
}
