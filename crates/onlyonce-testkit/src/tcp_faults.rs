//! A TCP proxy on the loopback address that misbehaves on demand: between a store and its server it cuts,
//! delays, falls silent, or swallows the reply to a write that the server has carried out.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

const BUFFER: usize = 16 << 10;
/// How long a server must be silent for its reply to be over.
const SILENCE: Duration = Duration::from_millis(100);

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bytes pass.
    Pass,
    /// Bytes pass this much later, in both directions.
    Delay(Duration),
    /// Bytes are accepted and go nowhere, as on a half-open connection.
    Silent,
    /// New connections are closed immediately.
    Refuse,
}

struct Shared {
    target: Mutex<u16>,
    mode: watch::Sender<Mode>,
    /// Rises when all connections are to be cut.
    cuts: watch::Sender<u64>,
    /// What a request must contain for its reply to be swallowed.
    trap: Mutex<Option<Vec<u8>>>,
    sprung: AtomicUsize,
}

/// A proxy in front of a port.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy in front of `port` of the loopback address.
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(port),
            mode: watch::Sender::new(Mode::Pass),
            cuts: watch::Sender::new(0),
            trap: Mutex::new(None),
            sprung: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// The proxy's own port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sets the mode, for existing connections too.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Sends new connections to another server, as after a failover.
    pub fn retarget(&self, port: u16) {
        *self.shared.target.lock() = port;
        self.cut();
    }

    /// Lets the next request that contains `marker` reach the server and be carried out, swallows its reply,
    /// and cuts its connection.
    pub fn swallow_reply_to(&self, marker: &[u8]) {
        *self.shared.trap.lock() = Some(marker.to_vec());
    }

    /// How many replies were swallowed.
    pub fn swallowed(&self) -> usize {
        self.shared.sprung.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        if *shared.mode.borrow() == Mode::Refuse {
            continue;
        }
        tokio::spawn(carry(client, shared.clone()));
    }
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let port = *shared.target.lock();
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else {
        return;
    };
    // Statements are small; waiting to fill a segment would be a fault of its own.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (trapped, mut is_trapped) = watch::channel(false);
    tokio::select! {
        _ = cuts.changed() => {}
        () = requests(from_client, to_server, &shared, &trapped) => {}
        () = replies(from_server, to_client, &shared, &mut is_trapped) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    trapped: &watch::Sender<bool>,
) {
    let mut buffer = vec![0; BUFFER];
    // A marker may be split between two reads.
    let mut tail: Vec<u8> = Vec::new();
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        pass(shared).await;
        tail.extend_from_slice(&buffer[..count]);
        {
            let mut trap = shared.trap.lock();
            let found = trap
                .as_ref()
                .is_some_and(|marker| tail.windows(marker.len()).any(|part| part == marker));
            if found {
                *trap = None;
                trapped.send_replace(true);
            }
        }
        let keep = tail.len().min(BUFFER);
        tail.drain(..tail.len() - keep);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    trapped: &mut watch::Receiver<bool>,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if *trapped.borrow() {
            // A reply to several statements arrives in pieces, and a server that finds its client gone
            // between two of them does not carry out the rest.
            while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, from.read(&mut buffer)).await {}
            shared.sprung.fetch_add(1, Ordering::SeqCst);
            return;
        }
        pass(shared).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Returns when bytes may pass.
async fn pass(shared: &Shared) {
    let mut mode = shared.mode.subscribe();
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Pass | Mode::Refuse => return,
            Mode::Delay(time) => return tokio::time::sleep(time).await,
            Mode::Silent => {
                if mode.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        port
    }

    async fn say(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(text).await?;
        let mut heard = vec![0; text.len()];
        stream.read_exact(&mut heard).await?;
        Ok(heard)
    }

    #[tokio::test]
    async fn it_passes_falls_silent_traps_and_cuts() {
        let proxy = FaultProxy::start(echo().await).await;
        let connect = async || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))
                .await
                .unwrap()
        };
        let mut stream = connect().await;
        assert_eq!(say(&mut stream, b"hello").await.unwrap(), b"hello");
        proxy.set(Mode::Silent);
        let silent = tokio::time::timeout(Duration::from_millis(50), say(&mut stream, b"quiet"));
        assert!(silent.await.is_err());
        proxy.set(Mode::Pass);
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"quiet", "what was held comes through");
        proxy.swallow_reply_to(b"secret");
        assert!(say(&mut stream, b"my secret").await.is_err());
        assert_eq!(proxy.swallowed(), 1);
        let mut stream = connect().await;
        assert_eq!(say(&mut stream, b"again").await.unwrap(), b"again");
        proxy.cut();
        assert!(say(&mut stream, b"gone").await.is_err());
        proxy.set(Mode::Refuse);
        assert!(say(&mut connect().await, b"no").await.is_err());
    }
}
