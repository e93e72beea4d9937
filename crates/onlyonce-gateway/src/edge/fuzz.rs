//! Fuzzing of the listener: raw bytes of a client on a real socket, and a backend that reads what arrives
//! with a strict parser of its own.
//!
//! Goal: the backend gets whole requests only, each of them one that the client framed, with the body that
//! it was compared by; never one more.

mod frames;
mod http1;
mod http2;

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use onlyonce::{Engine, EngineOptions};
use onlyonce_store::memory::MemoryStore;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::watch,
};

use super::{Current, Edge};
use crate::{config, cores::Cores};

/// No exchange here takes nearly as long.
const LIMIT: Duration = Duration::from_secs(20);
/// A gateway takes so many inputs before another one, with an empty store, takes its place.
const INPUTS_EACH: u64 = 20_000;
/// Of so many inputs it is still known what they framed: executions outlive their connections.
const KNOWN_INPUTS: usize = 500;
/// What stands for the number of the input, so that keys are new.
const NUMBER: &[u8] = b"@@@@@@@@";

/// A request as somebody framed it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Framed {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Framed {
    fn header(&self, name: &str) -> Option<&[u8]> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        Some(value)
    }
}

/// What a backend got.
type Got = Arc<Mutex<Vec<Result<Framed, Vec<u8>>>>>;

/// A gateway, the backend behind it, and what clients framed.
struct Place {
    runtime: Runtime,
    _cores: Arc<Cores>,
    _stop: watch::Sender<bool>,
    address: SocketAddr,
    got: Got,
    inputs: u64,
    /// Requests that clients framed and the backend has not got, input by input.
    framed: VecDeque<Vec<Framed>>,
}

impl Place {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let got = Got::default();
        let (stop, stopping) = watch::channel(false);
        let cores = Arc::new(Cores::start());
        let (got_there, cores_there) = (got.clone(), cores.clone());
        let address = runtime.block_on(async move {
            let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", backend.local_addr().unwrap());
            tokio::spawn(serve(backend, got_there));
            let text = format!(
                "listen: 127.0.0.1:0\nstore: {{ url: \"memory:\" }}\nroutes: [{{ id: a, path: /, \
                 backends: [{{ url: \"{url}\" }}], idempotency: {{ enabled: true, enforce: true }} }}]\n"
            );
            let config = config::parse("oo.yaml", &text, &|_| None, &Default::default());
            let config = Arc::new(config.unwrap_or_else(|wrong| panic!("{wrong}")));
            let engine = Engine::start(Arc::new(MemoryStore::new()), EngineOptions::default());
            engine.meet_store().await.unwrap();
            let edge = Edge::new(&config, &engine, None).await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let current = Arc::new(Current::new(edge));
            tokio::spawn(super::serve(current, listener, cores_there, stopping));
            address
        });
        Self {
            runtime,
            _cores: cores,
            _stop: stop,
            address,
            got,
            inputs: 0,
            framed: VecDeque::new(),
        }
    }

    /// `input` with the number of this one in its places. Another gateway takes over once in a while.
    fn numbered(&mut self, input: &[u8]) -> Vec<u8> {
        if self.inputs == INPUTS_EACH {
            let next = Self::start();
            std::mem::replace(self, next).runtime.shutdown_background();
        }
        self.inputs += 1;
        let number = format!("{:08}", self.inputs).into_bytes();
        let mut out = input.to_vec();
        for at in 0..out.len().saturating_sub(NUMBER.len() - 1) {
            if out[at..].starts_with(NUMBER) {
                out[at..at + NUMBER.len()].copy_from_slice(&number);
            }
        }
        out
    }

    /// Sends `bytes` and no more, and reads until the gateway has closed.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        self.runtime.block_on(within(async {
            let mut socket = onlyonce_testkit::fuzz::connect(self.address).await.unwrap();
            let mut answers = Vec::new();
            // It may have read enough and closed.
            let _ = socket.write_all(bytes).await;
            let _ = socket.shutdown().await;
            let _ = socket.read_to_end(&mut answers).await;
            answers
        }))
    }

    /// What a client framed, before the gateway has it.
    fn expect(&mut self, framed: Vec<Framed>) {
        if self.framed.len() == KNOWN_INPUTS {
            self.framed.pop_front();
        }
        self.framed.push_back(framed);
    }

    /// What the backend got since, each of it something that a client framed and that it had not got.
    fn arrived(&mut self, is_same: impl Fn(&Framed, &Framed) -> bool) -> Vec<Framed> {
        let got = std::mem::take(&mut *self.got.lock());
        let mut arrived = Vec::new();
        for one in got {
            let one = one.unwrap_or_else(|bytes| {
                panic!(
                    "the backend got what is no request: \"{}\"",
                    bytes.escape_ascii()
                )
            });
            let backed = self.framed.iter_mut().rev().find_map(|framed| {
                let at = framed.iter().position(|framed| is_same(framed, &one))?;
                Some(framed.remove(at))
            });
            assert!(backed.is_some(), "nobody framed {one:?}");
            arrived.push(one);
        }
        arrived
    }
}

/// Turns a hang into a failure.
async fn within<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(LIMIT, work).await;
    done.expect("an end in time")
}

async fn serve(listener: TcpListener, got: Got) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(answer(socket, got.clone()));
    }
}

/// Answers whole requests one by one, and notes them.
async fn answer(mut socket: TcpStream, got: Got) {
    let mut bytes = Vec::new();
    loop {
        match http1::strict(&bytes) {
            Ok(None) => match socket.read_buf(&mut bytes).await {
                Ok(1..) => {}
                // What was cut off is no request.
                _ => return,
            },
            Ok(Some((request, length))) => {
                bytes.drain(..length);
                // Nobody sends a second one before the first is answered.
                let more = (!bytes.is_empty()).then(|| bytes.clone());
                got.lock().push(Ok(request));
                if let Some(more) = more {
                    got.lock().push(Err(more));
                    return;
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                if socket.write_all(answer).await.is_err() {
                    return;
                }
            }
            Err(_) => {
                got.lock().push(Err(bytes));
                return;
            }
        }
    }
}
