//! The API's own count of executions.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderName, Method};
use onlyonce_gateway::http_client::Outgoing;
use serde_json::Value;

use super::{client::Client, target::CountAt};

/// The interval between two reads of a count that may still change.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How often a changing count is read before it is accepted.
const MOST_LOOKS: usize = 40;

/// Reads the count until it is stable.
pub(super) async fn settled(client: &Client, at: &CountAt) -> anyhow::Result<u64> {
    let mut last = read(client, at).await?;
    for _ in 0..MOST_LOOKS {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = read(client, at).await?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

async fn read(client: &Client, at: &CountAt) -> anyhow::Result<u64> {
    let request = Outgoing {
        method: Method::GET,
        endpoint: at.endpoint.clone(),
        headers: at.headers.clone(),
        key_header: HeaderName::from_static("idempotency-key"),
        keys: Vec::new(),
        body: Bytes::new(),
    };
    let asked = client.send("count", request).await;
    let answer = match asked.answer {
        Ok(answer) => answer,
        Err(why) => bail!("--count-url: {why}"),
    };
    if !answer.status.is_success() {
        bail!("--count-url answered {}", answer.status.as_u16());
    }
    number(&answer.body, at.pointer.as_deref()).context("--count-url")
}

/// The number in `body`.
fn number(body: &[u8], pointer: Option<&str>) -> anyhow::Result<u64> {
    let value: Value =
        serde_json::from_slice(body).context("the answer is neither number nor JSON")?;
    let pointer = pointer.unwrap_or_default();
    let Some(found) = value.pointer(pointer) else {
        bail!("nothing in the answer stands at the pointer {pointer:?}");
    };
    match found {
        Value::Array(items) => Ok(items.len() as u64),
        found => found.as_u64().with_context(|| {
            format!("at the pointer {pointer:?} stands neither a count nor a list")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_number_or_the_length_of_a_list() {
        assert_eq!(number(b"7\n", None).unwrap(), 7);
        assert_eq!(number(br#"{"a":{"n":3}}"#, Some("/a/n")).unwrap(), 3);
        assert_eq!(number(br#"{"all":[1,2]}"#, Some("/all")).unwrap(), 2);
        assert!(number(br#"{"a":1}"#, Some("/b")).is_err());
        assert!(number(br#"{"a":"1"}"#, Some("/a")).is_err());
        assert!(number(b"many", None).is_err());
    }
}
