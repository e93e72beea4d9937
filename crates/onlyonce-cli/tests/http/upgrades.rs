//! Connections that become something else than HTTP, a WebSocket for instance.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::harness::{Connection, Gateway, Request, Setup, ms, secure, within};

const ASKS: &str = "GET /socket?x=1 HTTP/1.1\r\nHost: api.test\r\nConnection: keep-alive, Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

/// A backend that agrees to `Upgrade: websocket` and then sends back what it is sent.
struct Echo {
    addr: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = heads.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(echo(stream, seen.clone()));
            }
        });
        Self {
            addr,
            heads,
            serving,
        }
    }

    fn last(&self) -> String {
        self.heads.lock().unwrap().last().unwrap().to_lowercase()
    }

    async fn gateway(&self, top: &str) -> Gateway {
        let setup = Setup::with("").top(top);
        setup.start_before(&format!("http://{}", self.addr)).await
    }
}

async fn echo(mut stream: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let lower = head.to_lowercase();
        seen.lock().unwrap().push(head);
        let length = lower.split("content-length: ").nth(1);
        let length = length.map_or(0, |rest| {
            rest.split('\r').next().unwrap().parse::<usize>().unwrap()
        });
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        if lower.contains("upgrade: websocket") {
            let agrees = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            stream.write_all(agrees.as_bytes()).await.unwrap();
            let (mut input, mut output) = stream.split();
            let _ = tokio::io::copy(&mut input, &mut output).await;
            return;
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer).await.unwrap();
    }
}

/// Reads the head of the gateway's answer.
async fn head<T: tokio::io::AsyncRead + Unpin>(stream: &mut T) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("a head", stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// A text frame of RFC 6455 as clients send it.
fn masked(text: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap()];
    frame.extend(mask);
    frame.extend(
        text.iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

async fn converse<T>(stream: &mut T)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    converse_after(stream, ASKS).await;
}

async fn converse_after<T>(stream: &mut T, asks: &str)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    stream.write_all(asks.as_bytes()).await.unwrap();
    let agreed = head(stream).await.to_lowercase();
    assert!(agreed.starts_with("http/1.1 101 "), "{agreed}");
    assert!(agreed.contains("upgrade: websocket"), "{agreed}");
    assert!(agreed.contains("connection: upgrade"), "{agreed}");
    let accepted = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=";
    assert!(agreed.contains(accepted), "{agreed}");
    for text in [&b"hello"[..], b"", b"again, after a while"] {
        let frame = masked(text);
        stream.write_all(&frame).await.unwrap();
        stream.flush().await.unwrap();
        let mut back = vec![0; frame.len()];
        within("an echo", stream.read_exact(&mut back))
            .await
            .unwrap();
        assert_eq!(back, frame);
    }
}

/// Goal: a WebSocket works through the gateway, in plain text and over TLS, to its end.
///
/// Method: the handshake of RFC 6455, masked frames, 4 MiB in one go, then one side ends.
/// Evidence: every byte comes back; the end arrives on the other side; the backend saw the handshake.
#[tokio::test]
async fn a_websocket() {
    let backend = Echo::start().await;
    let gateway = backend.gateway("").await;
    let mut stream = TcpStream::connect(gateway.data()).await.unwrap();
    converse(&mut stream).await;
    assert!(
        backend
            .last()
            .contains("sec-websocket-key: dghlihnhbxbszsbub25jzq==")
    );
    assert!(backend.last().starts_with("get /socket?x=1 http/1.1"));
    let (mut input, mut output) = stream.into_split();
    let large: Vec<u8> = (0..4 << 20).map(|index: u32| (index % 251) as u8).collect();
    let sent = large.clone();
    let writing = tokio::spawn(async move {
        output.write_all(&sent).await.unwrap();
        output.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    within("all of it and the end", input.read_to_end(&mut back))
        .await
        .unwrap();
    writing.await.unwrap();
    assert!(back == large, "{} of {} bytes", back.len(), large.len());

    let (cert, key) = (secure::file("server.pem"), secure::file("server.key"));
    let tls = format!(
        "tls: {{ cert: \"{}\", key: \"{}\" }}",
        cert.display(),
        key.display()
    );
    let gateway = backend.gateway(&tls).await;
    let mut stream = secure::handshake(gateway.data(), &["http/1.1"])
        .await
        .unwrap();
    converse(&mut stream).await;
}

/// Goal: what is protected stays protected, and what is no WebSocket opens no way around the gateway.
///
/// Method: `h2c` on a keyed POST, as some clients send it with each; `h2c`, alone and beside `websocket`;
/// `Upgrade` that `Connection` does not name; HTTP/1.0.
/// Evidence: the backend never sees `Upgrade`, the answer is its plain one, and the key is recorded.
#[tokio::test]
async fn what_is_not_upgraded() {
    let backend = Echo::start().await;
    let gateway = backend.gateway("").await;
    let keyed = Request::pay("upgraded")
        .header("Connection", "Upgrade, HTTP2-Settings")
        .header("Upgrade", "h2c");
    gateway.send(&keyed).await.expect(200);
    assert!(!backend.last().contains("upgrade:"), "{}", backend.last());
    assert_eq!(gateway.state("upgraded").await, "completed");
    for (connection, upgrade) in [
        ("Upgrade, HTTP2-Settings", "h2c"),
        ("Upgrade", "websocket, h2c"),
        ("keep-alive", "websocket"),
        ("Upgrade", "TLS/1.0"),
    ] {
        let request = Request::new("GET", "/x")
            .header("Connection", connection)
            .header("Upgrade", upgrade);
        gateway.send(&request).await.expect(200);
        assert!(!backend.last().contains("upgrade"), "{}", backend.last());
    }
    let old = ASKS.replace("HTTP/1.1", "HTTP/1.0");
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(old.as_bytes()).await.unwrap();
    connection.response().await.unwrap().expect(200);
    let connect = "CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n";
    let before = backend.heads.lock().unwrap().len();
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(connect.as_bytes()).await.unwrap();
    connection
        .response()
        .await
        .unwrap()
        .refused(404, "no_route");
    assert_eq!(backend.heads.lock().unwrap().len(), before, "no tunnel");
}

/// Goal: on a protected route only GET gets another protocol; any other request is what it is without the
/// wish.
///
/// Method: POST for a WebSocket on a route where a key is demanded, without a key and with one that is none;
/// DELETE, on which keys are ignored; the same POST on a route without keys.
/// Evidence: refused before the backend sees anything; a plain answer; the backend agrees, and bytes go both
/// ways.
#[tokio::test]
async fn only_get_is_upgraded_where_keys_are_honoured() {
    let backend = Echo::start().await;
    let backend_url = format!("http://{}", backend.addr);
    let gateway = Setup::with("enforce: true")
        .start_before(&backend_url)
        .await;
    let upgraded = |method: &str| {
        Request::new(method, "/socket")
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
    };
    let refused = gateway.send(&upgraded("POST")).await;
    refused.refused(400, "idempotency_key_missing");
    let invalid = gateway.send(&upgraded("POST").key("a b")).await;
    invalid.refused(400, "idempotency_key_invalid");
    assert!(backend.heads.lock().unwrap().is_empty());
    gateway.send(&upgraded("DELETE")).await.expect(200);
    assert!(!backend.last().contains("upgrade"), "{}", backend.last());
    let mut stream = TcpStream::connect(gateway.data()).await.unwrap();
    converse(&mut stream).await;

    let open = Setup::with("")
        .route("idempotency: { enabled: false }")
        .start_before(&backend_url)
        .await;
    let asks = ASKS.replace("GET ", "POST ");
    let asks = asks.replace("Host:", "Idempotency-Key: a b\r\nHost:");
    let mut stream = TcpStream::connect(open.data()).await.unwrap();
    converse_after(&mut stream, &asks).await;
}

/// Goal: tunnels are bounded: in number with all connections, and in silence.
///
/// Method: room for two connections, two tunnels in it; a third client asks; the tunnels fall silent.
/// Evidence: the third is served only once they are closed for their silence.
#[tokio::test]
async fn bounded() {
    let backend = Echo::start().await;
    let gateway = backend
        .gateway("max_connections: 2\ntunnel_idle: 1500ms")
        .await;
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(gateway.data()).await.unwrap();
        converse(&mut stream).await;
        tunnels.push(stream);
    }
    let third = gateway.send_later(&Request::new("GET", "/x"));
    tokio::time::sleep(ms(300)).await;
    assert!(!third.is_finished(), "a third connection beside two");
    for mut tunnel in tunnels {
        let mut rest = Vec::new();
        let _ = within("the end of a silent tunnel", tunnel.read_to_end(&mut rest)).await;
    }
    third.await.unwrap().expect(200);
}

/// Goal: asking for another protocol takes nobody past the door.
///
/// Method: a route on which requests without a key may come without a credential; a payment with a key, and
/// the same that also asks for an upgrade.
/// Evidence: 401 for both, and the backend sees neither.
#[tokio::test]
async fn an_upgrade_with_a_key_needs_its_credential() {
    let echo = Echo::start().await;
    let gateway = Setup::with("")
        .clients(&["acme"])
        .route("auth: optional")
        .start_before(&format!("http://{}", echo.addr))
        .await;
    let keyed = Request::pay("k");
    gateway.send(&keyed).await.refused(401, "unauthenticated");
    let asks = keyed
        .header("Connection", "upgrade")
        .header("Upgrade", "foo");
    gateway.send(&asks).await.refused(401, "unauthenticated");
    assert!(echo.heads.lock().unwrap().is_empty());
}
