//! What is proven about a request that got no answer.

use std::{error::Error, io};

use futures_util::future::join;
use tokio::{io::AsyncReadExt, net::TcpSocket};

use super::*;
use crate::upstream::{
    CONNECT_TIMEOUT, Unreached,
    io::{Verdict, Wire, WireIo},
    transport::Transport,
};
use onlyonce::{DispatchGuard, GuardFailed, NotSent};

/// What the layer asks of every error: is the proof somewhere along its sources?
pub(super) fn proves_not_sent(error: &UpstreamError) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<NotSent>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The reason given with the proof that nothing was sent.
fn reason(error: &UpstreamError) -> &(dyn Error + 'static) {
    assert!(proves_not_sent(error), "{error:?}");
    match error {
        UpstreamError::NotSent(NotSent { source }) => source.as_ref(),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    let upstream = Upstream::new(UpstreamOptions::new(vec![Server::refusing().await]));
    let error = call(&upstream, post("")).await.expect_err("nobody listens");
    match reason(&error).downcast_ref() {
        Some(Unreached::Connect(error)) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_not_sent() {
    let backend = Backend {
        host: "no such name".to_owned(),
        port: 1,
        prefix: String::new(),
        weight: 1,
        tls: None,
        http2: None,
    };
    let upstream = Upstream::new(UpstreamOptions::new(vec![backend]));
    let error = call(&upstream, post(""))
        .await
        .expect_err("there is no such name");
    assert!(
        matches!(reason(&error).downcast_ref(), Some(Unreached::Connect(_))),
        "{error:?}"
    );
}

/// Method: a listener whose queue is full lets further connections hang; the paused clock moves to
/// the limit as soon as nothing else can happen.
#[tokio::test(start_paused = true)]
async fn connecting_too_slowly_is_not_sent() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(([127, 0, 0, 1], 0).into())
        .expect("a free port");
    let server = Server(socket.listen(0).expect("a listener"));
    let address = server.0.local_addr().expect("a bound listener");
    let _queued = TcpStream::connect(address).await.expect("room for one");

    let error = call(&server.upstream(), post(""))
        .await
        .expect_err("the queue is full");
    let reason = reason(&error).downcast_ref::<Unreached>();
    assert!(
        matches!(reason, Some(Unreached::ConnectTimeout(CONNECT_TIMEOUT))),
        "{reason:?}"
    );
}

#[tokio::test]
async fn without_a_backend_nothing_is_sent() {
    let error = call(&Upstream::new(UpstreamOptions::new(Vec::new())), post("")).await;
    let error = error.expect_err("there is no backend");
    assert!(
        matches!(reason(&error).downcast_ref(), Some(Unreached::NoBackend)),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_connection_that_ends_after_the_head_is_lost() {
    for reset in [false, true] {
        let server = Server::start().await;
        let upstream = server.upstream();
        let serve = async {
            let mut socket = server.accept().await;
            read_request(&mut socket).await;
            if reset {
                socket.set_zero_linger().expect("a socket option");
            }
        };
        let (result, ()) = join(call(&upstream, post("body")), serve).await;
        let error = result.expect_err("the connection was cut");
        assert!(matches!(error, UpstreamError::Lost(_)), "{error:?}");
        assert!(!proves_not_sent(&error), "{error:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_lost() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let (result, _socket) = join(
        call(&upstream, post("")),
        answer_once(&server, b"SSH-2.0-x\r\n\r\n"),
    )
    .await;
    let error = result.expect_err("not HTTP");
    assert!(matches!(error, UpstreamError::Lost(_)), "{error:?}");
}

/// Goal: an attempt whose lease has run out writes nothing, over a fresh or a pooled connection.
#[tokio::test]
async fn a_guard_that_says_no_keeps_every_byte_back() {
    let server = Server::start().await;
    let upstream = server.upstream();
    let refused = || {
        let mut request = post("secret");
        request
            .extensions_mut()
            .insert(DispatchGuard::new(|| false));
        call(&upstream, request)
    };

    let (result, fresh) = join(refused(), server.accept()).await;
    assert!(reason(&result.expect_err("refused")).is::<GuardFailed>());
    assert_eq!(read_to_end(fresh).await, "");

    let (_, (pooled, _)) = join(fetch(&upstream, post("")), answer_once(&server, OK)).await;
    assert!(reason(&refused().await.expect_err("refused")).is::<GuardFailed>());
    assert_eq!(read_to_end(pooled).await, "");
}

async fn read_to_end(mut socket: TcpStream) -> String {
    let mut seen = String::new();
    socket
        .read_to_string(&mut seen)
        .await
        .expect("an orderly end");
    seen
}

#[tokio::test]
async fn another_backend_is_tried_when_the_first_refuses() {
    let server = Server::start().await;
    let backends = vec![Server::refusing().await, server.backend()];
    let upstream = Upstream::new(UpstreamOptions::new(backends));
    let serve = async {
        let (mut socket, _) = answer_once(&server, OK).await;
        for _ in 0..3 {
            read_request(&mut socket).await;
            socket.write_all(OK).await.expect("an open connection");
        }
        socket
    };
    let requests = async {
        for _ in 0..4 {
            assert_eq!(fetch(&upstream, post("")).await, "ok");
        }
    };
    join(requests, serve).await;
    assert!(!upstream.0.nodes[0].may_be_tried() && upstream.0.nodes[1].may_be_tried());
    assert_eq!(
        upstream.0.next(0, &[]),
        Some(1),
        "an ejected backend comes last"
    );
    assert_eq!(upstream.0.next(0, &[1]), Some(0), "but it does come");
    assert_eq!(upstream.0.next(0, &[1, 0]), None);
}

#[tokio::test]
async fn a_lost_request_is_not_tried_elsewhere() {
    let (one, two) = (Server::start().await, Server::start().await);
    let backends = vec![one.backend(), two.backend()];
    let upstream = Upstream::new(UpstreamOptions::new(backends));
    let serve = async { drop(answer_once(&one, b"").await) };
    let (result, ()) = join(call(&upstream, post("")), serve).await;
    assert!(matches!(result, Err(UpstreamError::Lost(_))));
    assert!(futures_util::FutureExt::now_or_never(two.0.accept()).is_none());
}

/// Goal: after the verdict "nothing was sent", nothing can be sent, even if hyper still holds the
/// request in its buffer and flushes it while it closes.
#[tokio::test]
async fn the_verdict_unsent_shuts_the_socket() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const REQUEST: &[u8] = &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x82];
    for shuts in [false, true] {
        let server = Server::start().await;
        let address = server.0.local_addr().expect("a bound listener");
        let (client, mut peer) = join(TcpStream::connect(address), server.accept()).await;
        let wire = Wire::open();
        let mut socket = WireIo::new(
            Transport::Plain(client.expect("a connection")),
            wire.clone(),
        );
        let mut write = async |bytes: &[u8]| {
            std::future::poll_fn(|cx| {
                tokio::io::AsyncWrite::poll_write(std::pin::Pin::new(&mut socket), cx, bytes)
            })
            .await
        };
        write(PREFACE).await.expect("no request yet");
        wire.arm(None);
        if shuts {
            assert_eq!(wire.verdict(), Verdict::Unsent);
            write(REQUEST).await.expect_err("the socket is shut");
        } else {
            assert_eq!(write(REQUEST).await.expect("open"), REQUEST.len());
            assert_eq!(wire.verdict(), Verdict::Sent);
        }
        drop(socket);
        let mut seen = Vec::new();
        peer.read_to_end(&mut seen).await.expect("an orderly end");
        assert_eq!(seen.len() > PREFACE.len(), !shuts);
    }
}
