//! The key header: what is a key, what is not, and what must never be a key.

use crate::harness::{Gateway, REPLAYED, Request, Upstream};

fn keyed(key: impl AsRef<[u8]>) -> Request {
    Request::post("/payments").key(key).json("{}")
}

/// Sends each and expects the same refusal, no execution and no word of the key in the answer.
async fn all_invalid(gateway: &Gateway, upstream: &Upstream, requests: Vec<(Request, &str)>) {
    for (request, canary) in requests {
        let refused = gateway
            .send(&request)
            .await
            .refused(400, "idempotency_key_invalid");
        assert!(
            canary.is_empty() || !refused.everything().contains(canary),
            "the key is repeated: {refused}"
        );
        assert_eq!(refused.header("stripe-should-retry"), Some("false"));
    }
    assert_eq!(upstream.executions(), 0);
}

/// Goal: what is no key is refused before anything happens, and never repeated.
///
/// Method: empty, too long, spaces, tab, non-ASCII, broken quotes.
/// Evidence: 400 each; no execution.
#[tokio::test]
async fn malformed_keys_are_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let long = "canary".repeat(43);
    assert_eq!(long.len(), 258);
    let quoted_long = format!("\"{}\"", &long[..257]);
    let values: Vec<(&[u8], &str)> = vec![
        (b"", ""),
        (b"\"\"", ""),
        (long.as_bytes(), "canary"),
        (quoted_long.as_bytes(), "canary"),
        (b"canary with space", "canary"),
        (b"canary\ttab", "canary"),
        ("canary-cl\u{e9}".as_bytes(), "canary"),
        (b"canary\xff", "canary"),
        (b"\"canary", "canary"),
        (b"\"", ""),
        (b"\"canary\" trailing", "canary"),
        (b"\"canary\\x\"", "canary"),
        (b"\"canary\xc3\xa9\"", "canary"),
        (b"\"canary\", \"second\"", "canary"),
    ];
    let requests = values
        .into_iter()
        .map(|(value, canary)| (keyed(value), canary))
        .collect();
    all_invalid(&gateway, &upstream, requests).await;
}

/// Goal: a key that a hop could drop, or that is there twice, is no key.
///
/// Method: two lines, equal and different; the header named in `Connection`.
/// Evidence: 400 each; no execution.
#[tokio::test]
async fn repeated_or_hop_by_hop_keys_are_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let requests = vec![
        (keyed("canary-1").key("canary-2"), "canary"),
        (keyed("canary-1").key("canary-1"), "canary"),
        (
            keyed("canary-1").header("Connection", "Idempotency-Key"),
            "canary",
        ),
        (
            keyed("canary-1").header("Connection", "keep-alive, idempotency-key"),
            "canary",
        ),
    ];
    all_invalid(&gateway, &upstream, requests).await;
}

/// Goal: a quoted key and the same key unquoted are one key.
///
/// Method: opaque, quoted, quoted with parameters, quoted with escapes.
/// Evidence: one execution; the upstream saw the header as the client had spelled it.
#[tokio::test]
async fn quoted_equals_unquoted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&keyed("\"abc\"")).await.expect(201);
    assert_eq!(upstream.last().headers.all("idempotency-key"), ["\"abc\""]);
    for same in ["abc", "\"abc\"", "\"abc\";v=1", "\"abc\"; a; b=?0"] {
        let replay = gateway.send(&keyed(same)).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"), "{same}");
    }
    assert_eq!(upstream.executions(), 1);
    gateway.send(&keyed(r#""a\"b\\c""#)).await.expect(201);
    gateway.send(&keyed(r#"a"b\c"#)).await.expect(201);
    assert_eq!(upstream.executions(), 2, "escapes are undone");
    gateway.send(&keyed("\"with space\"")).await.expect(201);
    assert_eq!(upstream.executions(), 3, "a space is allowed inside quotes");
}

/// Goal: no shape is demanded within the limits.
///
/// Method: one byte, 256 bytes, 256 within quotes, a UUID, every visible ASCII character.
/// Evidence: each executes once and is replayed.
#[tokio::test]
async fn any_visible_ascii_is_a_key() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let visible: String = (0x23..=0x7e_u8).map(char::from).collect();
    let longest = "k".repeat(256);
    let quoted = format!("\"{}\"", "q".repeat(256));
    let keys = [
        "x",
        &longest,
        &quoted,
        "8e03978e-40d5-43e8-bc93-6894a57f9324",
        &visible,
        "a,b;c=d",
    ];
    for (count, key) in keys.into_iter().enumerate() {
        gateway.send(&keyed(key)).await.expect(201);
        let replay = gateway.send(&keyed(key)).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"), "{key}");
        assert_eq!(upstream.executions(), count + 1, "{key}");
    }
}

/// Goal: personal data is refused as a key, with the reason and without the data.
///
/// Method: an e-mail address, card numbers, a phone number, a social security number.
/// Evidence: 400 with a detail; no execution. Near misses are ordinary keys.
#[tokio::test]
async fn sensitive_keys_are_refused() {
    let sensitive = [
        "canary.user@example.com",
        "4242424242424242",
        "4242-4242-4242-4242",
        "\"4242 4242 4242 4242\"",
        "378282246310005",
        "5555555555554444",
        "+14155552671",
        "123-45-6789",
    ];
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let requests = sensitive
        .iter()
        .map(|key| (keyed(key), key.trim_matches('"')))
        .collect();
    all_invalid(&gateway, &upstream, requests).await;
    let plain = [
        "4242424242424241",
        "14155552671",
        "123-456-789",
        "1234567890123",
    ];
    for (count, key) in plain.into_iter().enumerate() {
        let answer = gateway.send(&keyed(key)).await;
        assert_eq!(answer.status, 201, "{key}: {answer}");
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: the rules follow the configuration.
///
/// Method: sensitive keys allowed; a minimum and a maximum length.
/// Evidence: 201 for what is allowed, 400 for what is not; executions to match.
#[tokio::test]
async fn key_rules_are_configurable() {
    let upstream = Upstream::start();
    let options = "reject_sensitive_keys: false, min_key_length: 8, max_key_length: 16";
    let gateway = Gateway::start(&upstream, options).await;
    gateway.send(&keyed("4242424242424242")).await.expect(201);
    gateway.send(&keyed("12345678")).await.expect(201);
    gateway
        .send(&keyed("\"1234567\""))
        .await
        .refused(400, "idempotency_key_invalid");
    gateway
        .send(&keyed("12345678901234567"))
        .await
        .refused(400, "idempotency_key_invalid");
    assert_eq!(upstream.executions(), 2);
}
