//! Upgraded connections: once a backend has agreed to another protocol, bytes flow both ways until one side
//! ends, or both have been idle for too long.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use onlyonce::{Body, layer::strip_hop_by_hop};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    time::Instant,
};

use super::{
    response::{self, Coming, UpstreamBody},
    transport::Transport,
};
use crate::edge::{KeptSeat, Upgrade};

/// Buffer for bytes read from one side and not yet written to the other.
const BUFFER_BYTES: usize = 16 << 10;

/// The client's half of a possible tunnel.
pub(super) struct Tunnel {
    protocol: HeaderValue,
    client: OnUpgrade,
    seat: Option<KeptSeat>,
}

impl Tunnel {
    /// The tunnel that `request` asks for.
    pub(super) fn asked_for(request: &mut Request<Body>) -> Option<Self> {
        let Upgrade(protocol) = request.extensions_mut().remove()?;
        Some(Self {
            protocol,
            client: hyper::upgrade::on(&mut *request),
            seat: request.extensions_mut().remove(),
        })
    }

    /// Requests the upgrade from the backend, after the client's own hop-by-hop headers were removed.
    pub(super) fn ask(&self, request: &mut Request<Body>) {
        let upgrade = HeaderValue::from_static("upgrade");
        request.headers_mut().insert(header::CONNECTION, upgrade);
        request
            .headers_mut()
            .insert(header::UPGRADE, self.protocol.clone());
    }

    /// Opens the tunnel after the backend has agreed, and returns the client's response.
    pub(super) fn open(
        self,
        mut response: Response<Coming>,
        idle: Duration,
    ) -> Response<UpstreamBody> {
        let protocol = response.headers_mut().remove(header::UPGRADE);
        let (head, coming) = response.into_parts();
        let backend = coming.into_tunnel();
        let mut told = response::receive(
            Response::from_parts(head, Coming::Nothing),
            &Method::GET,
            None,
        );
        let headers = told.headers_mut();
        strip_hop_by_hop(headers);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.unwrap_or(self.protocol));
        let (client, seat) = (self.client, self.seat);
        tokio::spawn(async move {
            let _seat = seat;
            let (Some(backend), Ok(client)) = (backend, client.await) else {
                return;
            };
            if let Err(error) = join(client, backend, idle).await {
                tracing::debug!(%error, "a tunnel ended");
            }
        });
        told
    }
}

/// When bytes last went either way, in milliseconds since `began`.
struct Alive {
    began: Instant,
    last: AtomicU64,
}

impl Alive {
    fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Resolves when no byte has gone either way for `idle`.
    async fn silent(&self, idle: Duration) {
        loop {
            let end = Duration::from_millis(self.last.load(Ordering::Relaxed)) + idle;
            if self.began.elapsed() >= end {
                return;
            }
            tokio::time::sleep_until(self.began + end).await;
        }
    }
}

async fn join(
    client: Upgraded,
    (backend, said): (Transport, Bytes),
    idle: Duration,
) -> io::Result<()> {
    let alive = Arc::new(Alive {
        began: Instant::now(),
        last: AtomicU64::new(0),
    });
    let (from_client, to_client) = split(TokioIo::new(client));
    let (from_backend, to_backend) = split(backend);
    let from_backend = io::Cursor::new(said).chain(from_backend);
    let both = async {
        tokio::try_join!(
            copy(from_client, to_backend, &alive),
            copy(from_backend, to_client, &alive)
        )
    };
    tokio::select! {
        ended = both => ended.map(|_| ()),
        () = alive.silent(idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn copy<R, W>(mut from: R, mut to: W, alive: &Alive) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        alive.note();
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
        alive.note();
    }
}
