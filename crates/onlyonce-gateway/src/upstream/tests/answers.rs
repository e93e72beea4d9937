//! How answers come through, whole and cut short.

use futures_util::future::join;
use http::header::CONTENT_LENGTH;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::pass_on;
use super::{proof::proves_not_sent, *};

/// The answer to a request whose server sends these bytes and closes.
async fn answer(bytes: &[u8]) -> Response<UpstreamBody> {
    let server = Server::start().await;
    let upstream = server.upstream();
    let serve = async { drop(answer_once(&server, bytes).await) };
    join(call(&upstream, post("")), serve)
        .await
        .0
        .expect("the head of an answer")
}

#[tokio::test]
async fn a_body_shorter_than_announced_is_an_error() {
    let response = answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await;
    assert_eq!(response.headers()[CONTENT_LENGTH], "9");
    response
        .into_body()
        .collect()
        .await
        .expect_err("five bytes are missing");
}

#[tokio::test]
async fn a_chunked_body_without_its_last_chunk_is_an_error() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for body in ["4\r\nhalf\r\n", "9\r\nhalf", "4\r\nhalf\r\n0\r\n"] {
        let response = answer(format!("{head}{body}").as_bytes()).await;
        response.into_body().collect().await.expect_err(body);
    }
}

/// Its bytes would be passed on without the name of their coding.
#[tokio::test]
async fn an_answer_in_another_transfer_coding_is_an_error() {
    for coding in [
        "gzip, chunked",
        "gzip\r\ntransfer-encoding: chunked",
        "deflate",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n0\r\n\r\n");
        let server = Server::start().await;
        let upstream = server.upstream();
        let (response, _socket) = join(
            call(&upstream, post("")),
            answer_once(&server, head.as_bytes()),
        )
        .await;
        let error = response.expect_err(coding);
        assert!(matches!(error, UpstreamError::Coded), "{error:?}");
        assert!(!proves_not_sent(&error), "it may well have been executed");
    }
}

#[tokio::test]
async fn a_body_that_announced_no_end_ends_with_the_connection() {
    let response = answer(b"HTTP/1.0 200 OK\r\n\r\nall of it").await;
    assert_eq!(response.version(), http::Version::HTTP_11);
    let body = response.into_body().collect().await.expect("a whole body");
    assert_eq!(body.to_bytes(), "all of it");
}

#[tokio::test]
async fn trailers_come_through_and_free_the_connection() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
        2\r\nok\r\n0\r\nx-sum: 42\r\n\r\n";
    let (response, _socket) = join(call(&upstream, post("")), answer_once(&server, chunked)).await;
    let body = response
        .expect("an answer")
        .into_body()
        .collect()
        .await
        .expect("a whole body");
    assert_eq!(body.trailers().expect("trailers")["x-sum"], "42");
    assert_eq!(body.to_bytes(), "ok");
    assert_eq!(upstream.0.nodes[0].pool.len(), 1);
}

#[tokio::test]
async fn headers_of_the_hop_stay_behind_and_repeated_ones_keep_their_order() {
    let response = answer(
        b"HTTP/1.1 201 Made\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
        Keep-Alive: timeout=5\r\n\
        Link: <a>\r\nLink: <b>\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    )
    .await;
    assert_eq!(response.status(), 201);
    // Until the layer has read it, `Connection` has removed nothing.
    assert!(response.headers().contains_key("x-hop"));
    let mut response = response.map(onlyonce::Body::stream);
    pass_on(&mut response);
    let names: Vec<_> = response.headers().keys().collect();
    assert_eq!(names, ["link"]);
    let links: Vec<_> = response.headers().get_all("link").iter().collect();
    assert_eq!(links, ["<a>", "<b>"]);
}

/// As many lines as any server sends, and not any number of them.
#[tokio::test]
async fn a_head_of_many_lines_comes_through() {
    let head = |lines: usize| {
        let lines: String = (0..lines).map(|n| format!("x-{n}: v\r\n")).collect();
        format!("HTTP/1.1 201 Made\r\n{lines}content-length: 2\r\n\r\nok")
    };
    let response = answer(head(511).as_bytes()).await;
    assert_eq!(response.headers().len(), 512);
    let body = response.into_body().collect().await.expect("a whole body");
    assert_eq!(body.to_bytes(), "ok");
    let server = Server::start().await;
    let upstream = server.upstream();
    let large = head(5_000);
    let serve = async { drop(answer_once(&server, large.as_bytes()).await) };
    let (refused, ()) = join(call(&upstream, post("")), serve).await;
    assert!(refused.is_err(), "a head without an end");
}

/// A Content-Length beside chunks would become the framing of our own answer.
#[tokio::test]
async fn a_length_that_contradicts_the_chunks_is_not_passed_on() {
    let response = answer(
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n\
        2\r\nok\r\n0\r\n\r\n",
    )
    .await;
    assert!(!response.headers().contains_key(CONTENT_LENGTH));
    assert_eq!(
        response
            .into_body()
            .collect()
            .await
            .expect("a whole body")
            .to_bytes(),
        "ok"
    );
}

#[tokio::test]
async fn informational_answers_are_skipped() {
    let response = answer(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response
            .into_body()
            .collect()
            .await
            .expect("a whole body")
            .to_bytes(),
        "ok"
    );
}

/// An early answer does not wait for the rest of the request, nor is its connection used again
/// while the rest is still owed.
#[tokio::test]
async fn an_answer_before_the_end_of_the_request_comes_through() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let endless = Body::stream(http_body_util::StreamBody::new(
        futures_util::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>(),
    ));
    let (body, _first) = join(
        fetch(&upstream, post("").map(|_| endless)),
        answer_once(&server, OK),
    )
    .await;
    assert_eq!(body, "ok");
    let (body, (mut second, _)) = join(fetch(&upstream, post("")), answer_once(&server, OK)).await;
    assert_eq!(body, "ok");
    second.shutdown().await.expect("an open connection");
}

/// Goal: a backend that answers early still gets the whole request, also after its answer was read.
///
/// Method: far more than any socket buffer, of which the backend reads only the head before it answers, with
/// a length and in chunks with trailers; for a body in memory, and for one that comes in pieces. The backend
/// keeps the connection open. Evidence: what it reads afterwards.
#[tokio::test]
async fn the_rest_of_a_request_follows_an_early_answer() {
    const LENGTH: usize = 32 << 20;
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n";
    for (in_pieces, early) in [(false, OK), (true, OK), (false, CHUNKED), (true, CHUNKED)] {
        let body = if in_pieces {
            let pieces = (0..32).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b'a'; 1 << 20])));
            let pieces = pieces.map(|piece| piece.map(http_body::Frame::data));
            Body::stream(http_body_util::StreamBody::new(futures_util::stream::iter(
                pieces,
            )))
        } else {
            Body::from(Bytes::from(vec![b'a'; LENGTH]))
        };
        let server = Server::start().await;
        let upstream = server.upstream();
        let serve = async {
            let mut socket = server.accept().await;
            let mut seen = Vec::new();
            while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
                socket.read_buf(&mut seen).await.expect("a request");
            }
            socket.write_all(early).await.expect("an open connection");
            (socket, seen)
        };
        let fetched = fetch(&upstream, post("").map(|_| body));
        let (answer, (mut socket, mut seen)) = join(fetched, serve).await;
        assert_eq!(answer, "ok");
        within(socket.read_to_end(&mut seen)).await.expect("an end");
        let count = seen.iter().filter(|byte| **byte == b'a').count();
        // The head has a few letters of its own, and the sizes of chunks have none.
        assert!((LENGTH..LENGTH + 16).contains(&count), "{count}");
        assert_eq!(upstream.0.nodes[0].pool.len(), 0, "it is not used again");
    }
}

/// Goal: an early answer that nobody wants any more costs the backend's connection, not a task for ever.
///
/// Method: half of an answer, early; the backend then neither reads nor speaks, and the reader goes.
/// Evidence: the backend sees the end of the connection.
#[tokio::test]
async fn an_early_answer_without_a_reader_ends() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let body = Body::from(Bytes::from(vec![b'a'; 32 << 20]));
    let serve = async {
        let mut socket = server.accept().await;
        let mut seen = vec![0; 64];
        socket.read_exact(&mut seen).await.expect("a request");
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha";
        socket.write_all(half).await.expect("an open connection");
        socket
    };
    let (response, mut socket) = join(call(&upstream, post("").map(|_| body)), serve).await;
    drop(response.expect("the head of an answer"));
    // What had left before is read to its end; a reset is an end as well.
    let _ = within(socket.read_to_end(&mut Vec::new())).await;
}
