//! Which connection a request goes over.

use futures_util::future::join;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test]
async fn a_connection_is_used_again_after_its_answer_was_read() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let both = async {
        assert_eq!(fetch(&upstream, post("1")).await, "ok");
        assert_eq!(fetch(&upstream, post("2")).await, "ok");
    };
    let serve = async {
        let (mut socket, first) = answer_once(&server, OK).await;
        let second = read_request(&mut socket).await;
        socket.write_all(OK).await.expect("an open connection");
        assert!(first.ends_with("\r\n\r\n1") && second.ends_with("\r\n\r\n2"));
        socket
    };
    join(both, serve).await;
    assert_eq!(upstream.0.nodes[0].pool.len(), 1);
}

#[tokio::test]
async fn an_answer_without_a_body_frees_its_connection_at_the_head() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let serve = answer_once(&server, b"HTTP/1.1 204 No Content\r\n\r\n");
    let (response, _socket) = join(call(&upstream, post("")), serve).await;
    assert_eq!(response.expect("an answer").status(), 204);
    assert_eq!(upstream.0.nodes[0].pool.len(), 1);
}

#[tokio::test]
async fn a_connection_whose_answer_was_not_read_to_its_end_is_closed() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha";
    let (response, (mut socket, _)) =
        join(call(&upstream, post("")), answer_once(&server, half)).await;
    drop(response.expect("an answer"));
    assert_eq!(socket.read(&mut [0; 8]).await.expect("an orderly end"), 0);
    assert_eq!(upstream.0.nodes[0].pool.len(), 0);
}

#[tokio::test]
async fn a_connection_that_is_to_be_closed_is_not_kept() {
    let answers: [&[u8]; 2] = [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    ];
    for answer in answers {
        let server = Server::start().await;
        let upstream = server.upstream();
        let (body, _socket) = join(fetch(&upstream, post("")), answer_once(&server, answer)).await;
        assert_eq!(body, "ok");
        assert_eq!(upstream.0.nodes[0].pool.len(), 0);
    }
}

#[tokio::test]
async fn two_requests_at_once_use_two_connections() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let serve = async {
        // Both requests are in before either is answered.
        let (mut one, mut two) = (server.accept().await, server.accept().await);
        let seen = [read_request(&mut one).await, read_request(&mut two).await];
        one.write_all(OK).await.expect("an open connection");
        two.write_all(OK).await.expect("an open connection");
        assert_eq!(
            seen.iter()
                .filter(|seen| seen.ends_with("\r\n\r\na"))
                .count(),
            1
        );
        (one, two)
    };
    join(
        join(fetch(&upstream, post("a")), fetch(&upstream, post("b"))),
        serve,
    )
    .await;
    assert_eq!(upstream.0.nodes[0].pool.len(), 2);
}

#[tokio::test]
async fn no_more_connections_are_kept_than_allowed() {
    let server = Server::start().await;
    let upstream = Upstream::new(UpstreamOptions {
        max_idle_per_backend: 1,
        ..server.options()
    });
    let serve = async {
        let (mut one, mut two) = (server.accept().await, server.accept().await);
        join(read_request(&mut one), read_request(&mut two)).await;
        one.write_all(OK).await.expect("an open connection");
        two.write_all(OK).await.expect("an open connection");
        (one, two)
    };
    join(
        join(fetch(&upstream, post("a")), fetch(&upstream, post("b"))),
        serve,
    )
    .await;
    assert_eq!(upstream.0.nodes[0].pool.len(), 1);
}

#[tokio::test]
async fn a_connection_idle_for_too_long_is_closed_and_not_used() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let (_, (mut first, _)) = join(fetch(&upstream, post("1")), answer_once(&server, OK)).await;

    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(1_001)).await;
    tokio::time::resume();

    let (_, (_second, seen)) = join(fetch(&upstream, post("2")), answer_once(&server, OK)).await;
    assert!(seen.ends_with("\r\n\r\n2"), "{seen:?}");
    assert_eq!(first.read(&mut [0; 8]).await.expect("an orderly end"), 0);
}

/// Goal: a connection that the server closed while it was idle costs no outcome.
///
/// Method: the server's end is gone before the request is made, and the event loop has had no
/// chance to notice. Evidence: the second request arrives whole over a second connection.
#[tokio::test]
async fn a_connection_closed_by_the_server_is_replaced_unnoticed() {
    for reset in [false, true] {
        let server = Server::start().await;
        let upstream = server.upstream();
        let (_, (first, _)) = join(fetch(&upstream, post("1")), answer_once(&server, OK)).await;
        if reset {
            first.set_zero_linger().expect("a socket option");
        }
        drop(first);

        assert_eq!(
            upstream.0.nodes[0].pool.len(),
            1,
            "the pool must not know yet"
        );
        let (body, (_second, seen)) =
            join(fetch(&upstream, post("2")), answer_once(&server, OK)).await;
        assert_eq!(body, "ok", "reset: {reset}");
        assert!(seen.ends_with("\r\n\r\n2"), "{seen:?}");
    }
}

/// As above, but the server spoke before it left: a 408 to nobody must not answer the next request.
#[tokio::test]
async fn an_answer_to_no_request_is_not_taken_for_the_next_one() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let (_, (mut first, _)) = join(fetch(&upstream, post("1")), answer_once(&server, OK)).await;
    let stray = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(
        first.try_write(stray).expect("room in the socket"),
        stray.len()
    );

    let (body, (_second, _)) = join(fetch(&upstream, post("2")), answer_once(&server, OK)).await;
    assert_eq!(body, "ok");
    first.shutdown().await.ok();
}

/// Goal: an idle connection that its server closes is closed here too, though no request comes.
#[tokio::test]
async fn an_idle_connection_that_ends_is_closed_without_a_request() {
    let server = Server::start().await;
    let upstream = Upstream::new(UpstreamOptions {
        upstream_idle: Duration::from_secs(3_600),
        ..server.options()
    });
    let (_, (mut first, _)) = join(fetch(&upstream, post("1")), answer_once(&server, OK)).await;
    let pool = &upstream.0.nodes[0].pool;
    assert_eq!(pool.len(), 1);
    first.shutdown().await.expect("an open connection");
    // What is waited for is our own end of it.
    assert_eq!(within(first.read(&mut [0; 8])).await.expect("an end"), 0);
    assert_eq!(pool.len(), 0);
}
