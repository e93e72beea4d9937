//! What the upstream reads.

use futures_util::{future::join, stream};
use http::Uri;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::io::AsyncReadExt;

use super::{super::turns, *};
use onlyonce::DispatchGuard;

/// What arrives for `request` at a backend with this path prefix, byte for byte.
async fn arrives_under(prefix: &str, request: Request<Body>) -> String {
    let server = Server::start().await;
    let backend = Backend {
        prefix: prefix.to_owned(),
        ..server.backend()
    };
    let upstream = Upstream::new(UpstreamOptions::new(vec![backend]));
    let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
    let serve = async {
        let (mut socket, mut seen) = answer_once(&server, answer).await;
        socket
            .read_to_string(&mut seen)
            .await
            .expect("an orderly end");
        seen
    };
    let (result, seen) = join(call(&upstream, request), serve).await;
    result.expect("an answer");
    seen
}

async fn arrives(request: Request<Body>) -> String {
    arrives_under("", request).await
}

#[tokio::test]
async fn the_target_and_the_host_are_the_clients() {
    let seen = arrives(post("body")).await;
    assert_eq!(
        seen,
        "POST /charge?x=%2F&y HTTP/1.1\r\nhost: shop.example\r\ncontent-length: 4\r\n\r\nbody"
    );
}

#[tokio::test]
async fn http2_authority_becomes_the_host() {
    let mut request = post("");
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = Uri::from_static("https://user:secret@shop.test:8443/a?");
    let seen = arrives(request).await;
    assert_eq!(
        seen,
        "POST /a? HTTP/1.1\r\nhost: shop.test:8443\r\ncontent-length: 0\r\n\r\n"
    );
}

#[tokio::test]
async fn a_request_without_any_host_names_the_backend() {
    let mut request = post("");
    request.headers_mut().clear();
    let seen = arrives(request).await;
    assert!(seen.contains("\r\nhost: 127.0.0.1:"), "{seen:?}");
}

#[tokio::test]
async fn a_path_prefix_comes_first() {
    let seen = arrives_under("/v1", post("")).await;
    assert!(
        seen.starts_with("POST /v1/charge?x=%2F&y HTTP/1.1\r\n"),
        "{seen:?}"
    );
}

#[tokio::test]
async fn headers_of_the_hop_stay_behind() {
    let mut request = post("");
    for (name, value) in [
        ("connection", "upgrade, x-hop"),
        ("upgrade", "websocket"),
        ("x-hop", "1"),
        ("te", "trailers, deflate"),
        ("expect", "100-continue"),
        ("x-end", "2"),
    ] {
        request
            .headers_mut()
            .insert(name, http::HeaderValue::from_static(value));
    }
    let seen = arrives(request).await;
    let head = "POST /charge?x=%2F&y HTTP/1.1\r\nhost: shop.example\r\n";
    let rest = seen
        .strip_prefix(head)
        .expect("the target and the host first");
    let mut lines: Vec<_> = rest.trim_end().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["content-length: 0", "te: trailers", "x-end: 2"]);
}

#[tokio::test]
async fn an_empty_post_says_so_and_an_empty_get_says_nothing() {
    let seen = arrives(post("")).await;
    assert!(seen.contains("\r\ncontent-length: 0\r\n"), "{seen:?}");
    let mut get = post("");
    *get.method_mut() = Method::GET;
    let seen = arrives(get).await;
    assert!(!seen.contains("content-length"), "{seen:?}");
}

/// A length that is not the body's would let the rest of the connection be read as another request.
#[tokio::test]
async fn a_length_that_is_not_the_bodys_is_corrected() {
    for lie in ["3", "99", "+4", "4, 4"] {
        let mut request = post("body");
        request
            .headers_mut()
            .insert("content-length", lie.parse().expect("a value"));
        let seen = arrives(request).await;
        assert!(
            seen.ends_with("\r\ncontent-length: 4\r\n\r\nbody"),
            "{lie}: {seen:?}"
        );
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_goes_in_chunks_even_on_get() {
    for method in [Method::POST, Method::GET] {
        let frames =
            ["ab", "c"].map(|data| Ok::<_, std::io::Error>(Frame::data(Bytes::from(data))));
        let body = Body::stream(StreamBody::new(stream::iter(frames)));
        let mut request = post("").map(|_| body);
        *request.method_mut() = method;
        request.extensions_mut().insert(DispatchGuard::new(|| true));
        let seen = arrives(request).await;
        assert!(
            seen.contains("\r\ntransfer-encoding: chunked\r\n"),
            "{seen:?}"
        );
        assert!(
            seen.ends_with("\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
            "{seen:?}"
        );
    }
}

/// Goal: turns follow the weights. Evidence: the order of turns itself.
#[test]
fn turns_follow_the_weights() {
    let backend = |weight| Backend {
        host: "127.0.0.1".to_owned(),
        port: 1,
        prefix: String::new(),
        weight,
        tls: None,
        http2: None,
    };
    assert_eq!(*turns(&[backend(3), backend(1)]), [0, 1, 0, 0]);
    assert_eq!(*turns(&[backend(1), backend(1)]), [0, 1]);
    assert!(turns(&[]).is_empty());
}
