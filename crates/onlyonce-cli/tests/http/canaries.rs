//! Keys, bodies, tokens and cookies are secrets: none of them in logs, metrics, errors or the audit, at
//! any level, on any path.

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use crate::harness::{
    Connection, Gateway, Request, Response, Script, Setup, Upstream, client::Http2,
    clients::key_of, eventually, within,
};

const SECRET: &str = "CANARY-shared-secret-of-32-bytes!";

/// A request full of canaries.
fn canary(key: &str, body: &str) -> Request {
    Request::post("/payments?token=CANARYQUERY")
        .key(format!("CANARYKEY-{key}"))
        .header("Cookie", "session=CANARYCOOKIE")
        .header("X-Trace-Note", "CANARYHEADER")
        .json(&format!(r#"{{"card":"CANARYBODY-{body}"}}"#))
}

fn token(client: &str, minutes: i64) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let exp = now.cast_signed() + minutes * 60;
    let claims = json!({"sub": client, "exp": exp, "note": "CANARYCLAIM"});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    format!(
        "Bearer {}",
        encode(&Header::default(), &claims, &key).unwrap()
    )
}

/// What must not appear anywhere: the canaries, and the credentials in whatever form.
fn is_clean(text: &str, what: &str, secrets: &[String]) {
    for line in text.lines() {
        assert!(!line.contains("CANARY"), "{what}: {line}");
        for secret in secrets {
            assert!(!line.contains(secret.as_str()), "{what}: {line}");
        }
    }
}

/// Everything that the gateway shows of itself without being asked for keys by an operator.
async fn everything_shown(gateway: &mut Gateway, errors: Vec<Response>, secrets: &[String]) {
    for path in ["/metrics", "/idempotency", "/audit"] {
        let shown = gateway.admin(Request::get(path)).await.expect(200).text();
        is_clean(&shown, path, secrets);
    }
    // Operators see keys and paths; they see neither bodies nor credentials.
    let listed = gateway
        .admin(Request::get("/idempotency/keys?limit=500"))
        .await;
    for canary in ["CANARYBODY", "CANARYCOOKIE", "CANARYHEADER", "CANARYANSWER"] {
        assert!(!listed.text().contains(canary), "{canary} in {listed}");
    }
    for error in errors {
        // Where a caller can ask about its own key, which names the key.
        let told = error.everything();
        let lines = told.lines();
        let told: Vec<_> = lines
            .filter(|line| !line.starts_with("location: /.onlyonce/keys/"))
            .collect();
        is_clean(&told.join("\n"), "an error", secrets);
    }
    gateway.sigterm();
    gateway.exited().await;
    // They come through a pipe, and may be read later than the process has ended.
    let logs = eventually("the end of the log", async || {
        let logs = gateway.logs();
        logs.contains("stopping").then_some(logs)
    })
    .await;
    is_clean(&logs, "the log", secrets);
}

/// Goal: nothing secret is shown, with clients, limits and every outcome.
///
/// Method: keys, bodies, tokens, cookies and answers full of canaries, through refused and accepted
/// credentials of each kind, every state, limits, look-ups, a full disk and both protocols; logs at
/// trace.
/// Evidence: no canary and no credential in anything that the gateway printed, exposed or answered as
/// an error.
#[tokio::test]
async fn nothing_secret_with_clients_and_limits() {
    let upstream = Upstream::start();
    upstream.always(
        Script::created()
            .header("Set-Cookie", "id=CANARYANSWER")
            .body("CANARYANSWER"),
    );
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key_of("acme").as_bytes());
    let hash: String = hash.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    let mut gateway =
        Setup::with("on_in_flight: reject, max_body_size: 1KiB, max_request_body: 8KiB")
            .top(&format!(
                "auth: {{ api_keys: [{{ client_id: acme, sha256: {hash} }}], \
             jwt: {{ secret_env: OO_SIGNING }}, shared_client_ids: true }}\n\
             limits: {{ new_keys_per_second: 1, burst: 8, live_keys: 50, lookups_per_second: 3 }}\n\
             drain_timeout: 1s"
            ))
            .env("OO_SIGNING", SECRET)
            .can_fill_disk()
            .trace()
            .start(&upstream)
            .await;
    let (good, old) = (token("acme", 5), token("acme", -5));
    let by_key = |key: &str, body: &str| canary(key, body).of_client("acme");
    let by_token = |key: &str, body: &str| canary(key, body).header("Authorization", &good);
    let mut errors = vec![
        gateway.send(&canary("no", "1")).await.expect(401),
        gateway
            .send(&canary("no", "1").header("X-Api-Key", "CANARYWRONG"))
            .await
            .expect(401),
        gateway
            .send(&canary("no", "1").header("Authorization", &old))
            .await
            .expect(401),
        gateway
            .send(&canary("no", "1").header("Authorization", "Bearer CANARY.a.b"))
            .await
            .expect(401),
    ];
    gateway.send(&by_key("a", "1")).await.expect(201);
    gateway.send(&by_token("a", "1")).await.expect(201);
    let mut http2 = Http2::open(gateway.data()).await;
    http2.send(&by_token("a", "1")).await.expect(201);
    errors.push(http2.send(&by_token("a", "2")).await.expect(422));
    upstream.next(Script::reply(500).body("CANARYANSWER"));
    gateway.send(&by_key("b", "1")).await.expect(500);
    upstream.next(Script::truncated(50, b"CANARYANSWER"));
    errors.push(gateway.send(&by_key("c", "1")).await.expect(502));
    errors.push(gateway.send(&by_key("c", "1")).await.expect(409));
    upstream.next(Script::created().body("CANARYANSWER".repeat(200)));
    gateway.send(&by_key("d", "1")).await.expect(201);
    errors.push(gateway.send(&by_key("d", "1")).await.expect(409));
    errors.push(gateway.send(&by_key("with space", "1")).await.expect(400));
    errors.push(
        gateway
            .send(&by_key("e", &"x".repeat(10_000)))
            .await
            .expect(413),
    );
    upstream.next(Script::created().held().body("CANARYANSWER"));
    let held = gateway.send_later(&by_key("f", "1"));
    upstream.begun(5).await;
    errors.push(gateway.send(&by_key("f", "1")).await.expect(409));
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);
    // A client that leaves in the middle of its body.
    let mut leaver = Connection::open(gateway.data()).await.unwrap();
    leaver.write(&by_key("g", "1").head_bytes()).await.unwrap();
    leaver.write(b"{\"card\":\"CANARYBODY").await.unwrap();
    leaver.reset();
    for number in 0..6 {
        let question = format!("/.onlyonce/keys/CANARYKEY-{number}");
        let answer = gateway
            .send(&Request::get(&question).of_client("acme"))
            .await;
        errors.push(answer);
    }
    for number in 0..12 {
        let answer = gateway.send(&by_key(&format!("flood-{number}"), "1")).await;
        if answer.status != 201 {
            errors.push(answer.refused(429, "idempotency_rate_limited"));
        }
    }
    let id = gateway.id("CANARYKEY-c").await;
    let word = json!({"outcome": "failed_retryable", "reason": "looked it up", "force": true});
    gateway
        .admin_post(&format!("/idempotency/keys/{id}/resolve"), &word)
        .await
        .expect(200);
    gateway.fill_disk(true);
    for _ in 0..6 {
        errors.push(gateway.send(&by_key("c", "1")).await.expect(503));
    }
    gateway.fill_disk(false);
    eventually("the store to be back", async || {
        (gateway.metric("onlyonce_store_breaker_open").await == Some(0.0)).then_some(())
    })
    .await;
    assert!(
        errors.iter().any(|error| error.status == 429),
        "some were limited"
    );
    let bare = good.trim_start_matches("Bearer ").to_owned();
    let secrets = [
        key_of("acme"),
        hash,
        bare,
        SECRET.to_owned(),
        "test-token".to_owned(),
    ];
    everything_shown(&mut gateway, errors, &secrets).await;
}

/// Goal: nothing secret is shown by a gateway that only observes, nor by one that asks a service.
///
/// Method: canaries through shadow mode, and through a service that says yes, no and nothing.
/// Evidence: as above.
#[tokio::test]
async fn nothing_secret_in_shadow_mode_and_to_a_service() {
    let upstream = Upstream::start();
    upstream.always(Script::created().body("CANARYANSWER"));
    let service = Upstream::start();
    service.always(
        Script::reply(200)
            .header("X-Who", "acme")
            .body("CANARYANSWER"),
    );
    let mut gateway = Setup::with("shadow: true, enforce: true, max_request_body: 1KiB")
        .top(&format!(
            "auth: {{ external: {{ url: \"{}\", client_id_header: X-Who, timeout: 300ms }} }}",
            service.url()
        ))
        .trace()
        .start(&upstream)
        .await;
    let request =
        |key: &str, body: &str| canary(key, body).header("Authorization", "Basic CANARYCREDENTIAL");
    gateway.send(&request("a", "1")).await.expect(201);
    gateway.send(&request("a", "1")).await.expect(201);
    gateway.send(&request("a", "2")).await.expect(201);
    gateway.send(&request("with space", "1")).await.expect(201);
    gateway
        .send(&request("b", &"x".repeat(5_000)))
        .await
        .expect(201);
    let mut errors = Vec::new();
    upstream.next(Script::hang_up());
    errors.push(gateway.send(&request("c", "1")).await.expect(502));
    service.next(Script::reply(403).body("CANARYANSWER"));
    errors.push(gateway.send(&request("d", "1")).await.expect(401));
    for script in [
        Script::reply(500).body("CANARYANSWER"),
        Script::reply(200).header("X-Who", "CANARY\u{7f}"),
        Script::hang_up(),
        Script::created().held(),
    ] {
        service.next(script);
        errors.push(gateway.send(&request("d", "1")).await.expect(503));
    }
    let secrets = ["test-token".to_owned()];
    everything_shown(&mut gateway, errors, &secrets).await;
}
