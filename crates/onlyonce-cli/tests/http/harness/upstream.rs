//! A counting upstream over raw HTTP/1.1: what it has counted is the evidence of every test.
//!
//! An execution is counted when a request has arrived whole, before its script plays.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::Instant,
};

use super::{
    script::{Script, Step},
    wire::{Framing, Headers, Wire},
    within,
};

/// A request as the upstream saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    /// When its last byte had come.
    pub(crate) at: Instant,
}

struct Book {
    requests: Vec<Seen>,
    by_key: HashMap<String, usize>,
    next: VecDeque<Script>,
    /// Of keys that have a script of their own.
    of_keys: HashMap<String, Script>,
    otherwise: Script,
    close_idle_after: Option<Duration>,
    betray_idle_after: Option<Duration>,
    reads_after: Duration,
    connections: usize,
    slam: usize,
}

struct Shared {
    book: Mutex<Book>,
    begun: watch::Sender<usize>,
    ended: watch::Sender<usize>,
    releases: Semaphore,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book
            .lock()
            .expect("no test panics while it holds the book")
    }
}

/// The upstream; it stops when dropped.
pub(crate) struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A port that refuses connections until it is opened.
pub(crate) struct ClosedPort {
    socket: TcpSocket,
    pub(crate) addr: SocketAddr,
}

impl ClosedPort {
    pub(crate) fn reserve() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .expect("a free port");
        let addr = socket.local_addr().expect("the bound address");
        Self { socket, addr }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn open(self) -> Upstream {
        Upstream::on(
            self.socket
                .listen(1024)
                .expect("a listener on the reserved port"),
        )
    }
}

impl Upstream {
    /// Answers everything with 201 and the number of the execution, until told otherwise.
    pub(crate) fn start() -> Self {
        ClosedPort::reserve().open()
    }

    fn on(listener: TcpListener) -> Self {
        let addr = listener.local_addr().expect("the listener's address");
        let shared = Arc::new(Shared {
            book: Mutex::new(Book {
                requests: Vec::new(),
                by_key: HashMap::new(),
                next: VecDeque::new(),
                of_keys: HashMap::new(),
                otherwise: Script::created(),
                close_idle_after: None,
                betray_idle_after: None,
                reads_after: Duration::ZERO,
                connections: 0,
                slam: 0,
            }),
            begun: watch::Sender::new(0),
            ended: watch::Sender::new(0),
            releases: Semaphore::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            accepting,
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Plays `script` for the next request that has none yet.
    pub(crate) fn next(&self, script: Script) {
        self.shared.book().next.push_back(script);
    }

    /// Plays `script` for every request under this key.
    pub(crate) fn always_for(&self, key: &str, script: Script) {
        self.shared.book().of_keys.insert(key.to_owned(), script);
    }

    /// Plays `script` for every request without one of its own.
    pub(crate) fn always(&self, script: Script) {
        self.shared.book().otherwise = script;
    }

    /// Closes connections that have been idle for this long after an answer.
    pub(crate) fn close_idle_after(&self, idle: Duration) {
        self.shared.book().close_idle_after = Some(idle);
    }

    /// Resets a connection when a request arrives on it after this much idleness, and counts
    /// nothing: the race between an idle close and the next request, always lost.
    pub(crate) fn betray_idle_after(&self, idle: Duration) {
        self.shared.book().betray_idle_after = Some(idle);
    }

    /// Lets a new connection wait this long before anything is read from it, so that no more can be
    /// written to it than the buffers take.
    pub(crate) fn read_after(&self, time: Duration) {
        self.shared.book().reads_after = time;
    }

    /// Closes the next `count` connections as soon as they are there, without reading.
    pub(crate) fn slam(&self, count: usize) {
        self.shared.book().slam = count;
    }

    /// Lets one `Hold` pass, now or when it comes.
    pub(crate) fn release(&self) {
        self.shared.releases.add_permits(1);
    }

    /// Requests that have arrived whole.
    pub(crate) fn executions(&self) -> usize {
        *self.shared.begun.borrow()
    }

    /// Requests with this key, as spelled in the header, that have arrived whole.
    pub(crate) fn executions_of(&self, key: &str) -> usize {
        self.shared.book().by_key.get(key).copied().unwrap_or(0)
    }

    /// Connections that were accepted.
    pub(crate) fn connections(&self) -> usize {
        self.shared.book().connections
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.shared.book().requests.clone()
    }

    pub(crate) fn last(&self) -> Seen {
        self.requests()
            .pop()
            .expect("the upstream has seen a request")
    }

    /// Returns once `count` requests have arrived whole.
    pub(crate) async fn begun(&self, count: usize) {
        let mut begun = self.shared.begun.subscribe();
        let what = format!("execution {count} to begin");
        let _ = within(&what, begun.wait_for(|seen| *seen >= count)).await;
    }

    /// Returns once `count` scripts have been played to their end.
    pub(crate) async fn ended(&self, count: usize) {
        let mut ended = self.shared.ended.subscribe();
        let what = format!("script {count} to end");
        let _ = within(&what, ended.wait_for(|seen| *seen >= count)).await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        {
            let mut book = shared.book();
            book.connections += 1;
            if book.slam > 0 {
                book.slam -= 1;
                continue;
            }
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // A gateway that was killed breaks its connections; that is no fault of the upstream.
            let _ = converse(stream, &shared).await;
        });
    }
}

async fn converse(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let reads_after = shared.book().reads_after;
    if !reads_after.is_zero() {
        tokio::time::sleep(reads_after).await;
    }
    let mut wire = Wire::new(stream);
    let mut idle = None;
    let mut answered: Option<Instant> = None;
    loop {
        let head = match idle {
            None => wire.head().await?,
            Some(limit) => match tokio::time::timeout(limit, wire.head()).await {
                Ok(head) => head?,
                Err(_) => return wire.finish_writing().await,
            },
        };
        let Some(head) = head else { return Ok(()) };
        let limit = shared.book().betray_idle_after;
        if let (Some(limit), Some(answered)) = (limit, answered)
            && answered.elapsed() > limit
        {
            wire.reset_on_drop();
            return Ok(());
        }
        if head
            .headers
            .one("expect")
            .is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
        {
            wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body = wire.body(head.headers.framing(Framing::None)).await?.bytes;
        let closes = head.headers.closes();
        let mut words = head.start.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let seen = Seen {
            method: word(),
            target: word(),
            headers: head.headers,
            body,
            at: Instant::now(),
        };
        let steps = record(shared, seen);
        let open = play(&mut wire, shared, steps).await;
        shared.ended.send_modify(|count| *count += 1);
        if !open? || closes {
            return Ok(());
        }
        idle = shared.book().close_idle_after;
        answered = Some(Instant::now());
    }
}

/// Counts the execution and takes its script.
fn record(shared: &Shared, seen: Seen) -> Vec<Step> {
    let mut book = shared.book();
    let mut own = None;
    if let Some(key) = seen.headers.one("idempotency-key") {
        own = book.of_keys.get(key).cloned();
        *book.by_key.entry(key.to_owned()).or_default() += 1;
    }
    book.requests.push(seen);
    let number = book.requests.len();
    let script = own
        .or_else(|| book.next.pop_front())
        .unwrap_or_else(|| book.otherwise.clone());
    shared.begun.send_replace(number);
    script.play(number)
}

/// Plays the steps; `false` if one of them ended the connection.
async fn play(wire: &mut Wire, shared: &Shared, steps: Vec<Step>) -> io::Result<bool> {
    for step in steps {
        match step {
            Step::Write(bytes) => wire.write(&bytes).await?,
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::MoreComes => wire.more().await?,
            Step::Hold => {
                if let Ok(permit) = shared.releases.acquire().await {
                    permit.forget();
                }
            }
            Step::Close => {
                wire.finish_writing().await?;
                return Ok(false);
            }
            Step::Reset => {
                wire.reset_on_drop();
                return Ok(false);
            }
        }
    }
    Ok(true)
}
