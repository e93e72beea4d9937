//! Routing: which server has which slot, and one connection to each.
//!
//! A single server, a master named by Sentinels, and a cluster differ only in how the slot map is made. Calls
//! are routed here rather than by the driver's cluster connection, because the driver resends a command after
//! a broken connection, and then nobody can tell whether a write happened once, twice or not at all.

mod deciders;
mod fence;
mod map;
mod view;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, TlsCertificates, Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use self::{deciders::Decider, fence::Heard, map::Map, view::View};
use super::{
    address::{Address, Host, Kind},
    failure::{Failure, Then, then},
    script::Call,
    server::Server,
};
use crate::{BoxError, Level, Unfit};

/// How much earlier than the engine a call gives up, so that its error says what is known.
const MARGIN: Duration = Duration::from_millis(50);
/// The pause before a server that said "not now" is asked again.
const PAUSE: Duration = Duration::from_millis(25);
/// The share of a call's time (one part in this many) for a new connection, if other servers may help.
const DIAL_SHARE: u32 = 4;
/// The most times a call is forwarded.
const MAX_HOPS: usize = 64;

/// Whether a call may be repeated if the outcome of the first is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// Only reads.
    Read,
    /// Writes.
    Write,
    /// Notifies others of something that nobody relies on.
    Tell,
}

/// What a net is used for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// The timeout of one call.
    pub(super) timeout: Duration,
    /// Whether to use a server that evicts keys when its memory is full.
    pub(super) allow_eviction: bool,
    /// Whether an answer counts only from a master that others confirm.
    pub(super) is_fenced: bool,
}

/// The servers behind one URL.
pub(super) struct Net {
    address: Address,
    timeout: Duration,
    allow_eviction: bool,
    is_fenced: bool,
    is_cluster: AtomicBool,
    can_fail_over: AtomicBool,
    /// Whether a server ever had a replica, which may be promoted in its place.
    had_replica: AtomicBool,
    nodes: Mutex<HashMap<Host, Arc<Node>>>,
    deciders: Mutex<HashMap<Host, Arc<Decider>>>,
    view: RwLock<Arc<View>>,
    /// When the slot map was last requested.
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// The last level seen.
    level: Mutex<Option<Level>>,
    /// Notified when a connection was lost: there may be another master.
    doubt: Notify,
    /// Notified on every new connection: the server's content may have changed.
    pub(super) connected: Notify,
}

/// One server.
struct Node {
    host: Host,
    client: Client,
    link: Mutex<Option<Link>>,
    dialing: tokio::sync::Mutex<()>,
    links: AtomicU64,
    /// Whether the server has no slots any more.
    gone: watch::Sender<bool>,
}

#[derive(Clone)]
struct Link {
    number: u64,
    connection: MultiplexedConnection,
    server: Arc<Server>,
    heard: Arc<Heard>,
}

impl Net {
    /// Finds the servers, and connects to those with slots.
    pub(super) async fn open(address: Address, r#use: Use) -> Result<Arc<Self>, Failure> {
        let net = Arc::new(Self::new(address, r#use));
        let deadline = net.deadline();
        net.refresh(deadline).await?;
        for host in net.owners() {
            net.node(&host)?.link(&net, deadline).await?;
        }
        Ok(net)
    }

    /// The servers behind a URL. Connects on the first call.
    pub(super) fn new(address: Address, r#use: Use) -> Self {
        Self {
            is_cluster: (address.kind == Kind::Cluster).into(),
            can_fail_over: matches!(address.kind, Kind::Sentinel(_)).into(),
            had_replica: AtomicBool::new(false),
            address,
            timeout: r#use.timeout,
            allow_eviction: r#use.allow_eviction,
            is_fenced: r#use.is_fenced,
            nodes: Mutex::default(),
            deciders: Mutex::default(),
            view: RwLock::default(),
            level: Mutex::default(),
            doubt: Notify::new(),
            refreshing: tokio::sync::Mutex::default(),
            connected: Notify::new(),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout - MARGIN.min(self.timeout / 10)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn database(&self) -> i64 {
        self.address.database
    }

    /// The server that has a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<Host> {
        self.view.read().map.owner(slot).cloned()
    }

    fn owners(&self) -> Vec<Host> {
        let view = self.view.read().clone();
        let mut hosts: Vec<Host> = view.map.0.iter().map(|(_, _, host)| host.clone()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// The lowest level of any server with slots. If a replica may take over, the level is never `sync`, not
    /// even while no replica is attached: the newest writes are then where nobody will look.
    pub(super) fn level(&self) -> Level {
        let owners = self.owners();
        let nodes = self.nodes.lock();
        let levels = owners.iter().map(|host| {
            let link = nodes.get(host).map(|node| node.link.lock().clone());
            link.flatten().map(|link| link.server.level)
        });
        // Only connected servers count. If none is connected, the last seen level holds: an unreachable
        // server has not changed its settings.
        let mut seen = self.level.lock();
        if let Some(least) = levels.flatten().min() {
            let had_replica = self.had_replica.load(Ordering::Relaxed);
            *seen = Some(match self.can_fail_over() || had_replica {
                true => least.min(Level::Async),
                false => least,
            });
        }
        seen.unwrap_or(Level::Volatile)
    }

    /// Reads again from every connected server what its acknowledged writes survive, and whether it may be
    /// used.
    pub(super) async fn read_levels(&self) {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        let deadline = self.deadline();
        join_all(nodes.iter().map(|node| node.read_again(self, deadline))).await;
    }

    /// Reads a server's state. A replica, once seen, is remembered: it may come back without the writes made
    /// meanwhile, and be promoted. A client that only fetches a snapshot is not a replica.
    async fn read(&self, link: &mut MultiplexedConnection) -> redis::RedisResult<Server> {
        let server = Server::read(link).await?;
        self.had_replica
            .fetch_or(server.replicas > 0, Ordering::Relaxed);
        Ok(server)
    }

    /// Why a server must not be used, if so.
    fn unfit(&self, server: &Server) -> Option<Unfit> {
        if !server.evicts() || self.allow_eviction {
            return None;
        }
        let policy = server.policy.as_deref().unwrap_or_default();
        Some(Unfit::new(format!(
            "the server's maxmemory-policy is {policy}: when its memory is full it throws away records, \
             and their retries would execute again. Set it to noeviction, or say store.allow_eviction: true"
        )))
    }

    fn fit(&self, link: Link) -> Result<Link, Failure> {
        match self.unfit(&link.server) {
            Some(why) => Err(Failure::refused(why)),
            None => Ok(link),
        }
    }

    fn node(&self, host: &Host) -> Result<Arc<Node>, Failure> {
        if let Some(node) = self.nodes.lock().get(host) {
            return Ok(node.clone());
        }
        let credentials = (
            self.address.user.as_deref(),
            self.address.password.as_deref(),
        );
        let client = self.client(host, credentials, self.address.database)?;
        let node = Arc::new(Node {
            host: host.clone(),
            client,
            link: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            links: AtomicU64::new(0),
            gone: watch::Sender::new(false),
        });
        Ok(self
            .nodes
            .lock()
            .entry(host.clone())
            .or_insert(node)
            .clone())
    }

    fn client(
        &self,
        host: &Host,
        (user, password): (Option<&str>, Option<&str>),
        database: i64,
    ) -> Result<Client, Failure> {
        let refused = |error: redis::RedisError| Failure::refused(error);
        let mut settings = RedisConnectionInfo::default().set_db(database);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let (name, port) = (host.name.clone(), host.port);
        let addr = match self.address.tls {
            false => ConnectionAddr::Tcp(name, port),
            true => ConnectionAddr::TcpTls {
                host: name,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let info: ConnectionInfo = addr.into_connection_info().map_err(refused)?;
        let info = info.set_redis_settings(settings);
        match &self.address.ca {
            Some(file) if self.address.tls => {
                let root_cert = Some(std::fs::read(file).map_err(Failure::refused)?);
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert,
                };
                Client::build_with_tls(info, certificates).map_err(refused)
            }
            _ => Client::open(info).map_err(refused),
        }
    }

    /// A client for some server with slots, for subscriptions.
    pub(super) fn any_client(&self) -> Option<Client> {
        let host = self.owners().into_iter().next()?;
        Some(self.node(&host).ok()?.client.clone())
    }

    /// Sends a call to the server that has `slot`.
    pub(super) async fn call(&self, slot: u16, call: &Call, does: Does) -> Result<Value, Failure> {
        let deadline = self.deadline();
        let mut asked: Option<Host> = None;
        let mut last: BoxError = "no server has this slot".into();
        let mut lost_once = false;
        for _ in 0..MAX_HOPS {
            let ask = asked.take();
            let owner = match &ask {
                Some(host) => Some(host.clone()),
                None => self.owner(slot),
            };
            let Some(host) = owner else {
                if self.is_unread() {
                    self.refresh(deadline).await?;
                    continue;
                }
                self.wait(deadline, last).await?;
                last = "no server has this slot".into();
                continue;
            };
            let node = self.node(&host)?;
            let link = match node.link(self, self.dial_until(deadline)).await {
                Ok(link) => link,
                Err(failure) if self.is_alone() || failure.is_unfit() => return Err(failure),
                Err(Failure::Refused(error) | Failure::Lost(error)) => {
                    self.wait(deadline, error).await?;
                    last = "a server cannot be reached".into();
                    continue;
                }
            };
            let sent = node.send(link.clone(), call, ask.is_some(), deadline).await;
            let of = (&host, ask.is_none().then_some(slot));
            let outcome = match sent {
                Ok(value) => match self.confirm(of, link, does, deadline).await {
                    Ok(()) => Ok(value),
                    Err(error) => Err((Then::Lost, error)),
                },
                failed => failed,
            };
            match outcome {
                Ok(value) => return Ok(value),
                Err((Then::Moved(to), error)) => {
                    self.learn(slot, &to, &host);
                    last = error;
                }
                Err((Then::Ask(to), error)) => {
                    asked = self.host(&to, &host);
                    last = error;
                }
                Err((Then::Wait, error)) => {
                    self.wait(deadline, error).await?;
                    last = "the server said: not now".into();
                }
                Err((Then::Lost, error)) if does == Does::Read && !lost_once => {
                    lost_once = true;
                    last = error;
                    if !self.is_alone() {
                        // An old map is better than none.
                        let _ = self.refresh(deadline).await;
                    }
                }
                Err((Then::Lost, error)) => {
                    self.doubt.notify_one();
                    return Err(Failure::Lost(error));
                }
                Err((Then::Refused | Then::SendSource, error)) => {
                    return Err(Failure::Refused(error));
                }
            }
        }
        Err(Failure::Refused(last))
    }

    /// Whether the slot map was never read.
    fn is_unread(&self) -> bool {
        self.view.read().map.0.is_empty()
    }

    /// Whether all slots are on one server.
    pub(super) fn is_one_server(&self) -> bool {
        !self.is_cluster.load(Ordering::Relaxed)
    }

    /// Whether there is a single server, which nothing will replace while a call waits.
    pub(super) fn is_alone(&self) -> bool {
        self.address.kind == Kind::Server && !self.is_cluster.load(Ordering::Relaxed)
    }

    /// How long connecting may take: a frozen server must leave time to find out which server has taken its
    /// place.
    fn dial_until(&self, deadline: Instant) -> Instant {
        match self.is_alone() {
            true => deadline,
            false => deadline.min(Instant::now() + self.timeout / DIAL_SHARE),
        }
    }

    /// Pauses and requests the map again; fails once there is no time for that.
    async fn wait(&self, deadline: Instant, why: BoxError) -> Result<(), Failure> {
        if Instant::now() + PAUSE >= deadline {
            return Err(Failure::Refused(why));
        }
        tokio::time::sleep(PAUSE).await;
        // An old map is better than none.
        let _ = self.refresh(deadline).await;
        Ok(())
    }

    /// The host `to` of a redirection; without a name it is the host that answered.
    fn host(&self, to: &str, from: &Host) -> Option<Host> {
        let mut host = match to.strip_prefix(':') {
            Some(port) => Host::parse(&format!("{}:{port}", from.name), 0).ok()?,
            None => Host::parse(to, 0).ok()?,
        };
        if host.name == "?" {
            host.name.clone_from(&from.name);
        }
        Some(host)
    }

    /// Records the new owner of a slot, without waiting for the whole map.
    fn learn(&self, slot: u16, to: &str, from: &Host) {
        let Some(host) = self.host(to, from) else {
            return;
        };
        let mut view = self.view.write();
        let others = view.map.0.iter();
        let others = others.filter(|range| (range.0, range.1) != (slot, slot));
        let ranges = std::iter::once((slot, slot, host)).chain(others.cloned());
        *view = Arc::new(View {
            map: Map(ranges.collect()),
            masters: view.masters.clone(),
            asked_at: view.asked_at,
        });
    }
}

/// Disables the driver's timeouts; our own deadlines apply.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

impl Node {
    /// The open connection, or a new one. If this fails, nothing has been sent.
    async fn link(&self, net: &Net, deadline: Instant) -> Result<Link, Failure> {
        if let Some(link) = self.link.lock().clone() {
            return net.fit(link);
        }
        let late = |_| Failure::refused(format!("{} did not answer in time", self.host));
        let _dialing = timeout_at(deadline, self.dialing.lock())
            .await
            .map_err(late)?;
        if let Some(link) = self.link.lock().clone() {
            return net.fit(link);
        }
        let dial = async {
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&patient())
                .await?;
            let server = net.read(&mut connection).await?;
            Ok::<_, redis::RedisError>((connection, server))
        };
        let (connection, server) = timeout_at(deadline, dial)
            .await
            .map_err(late)?
            .map_err(Failure::refused)?;
        if server.is_sentinel {
            let why = "this is a Sentinel: use redis+sentinel://HOST/MASTER";
            return Err(Failure::refused(why));
        }
        let link = net.fit(Link {
            number: self.links.fetch_add(1, Ordering::Relaxed),
            connection,
            server: Arc::new(server),
            heard: Arc::default(),
        })?;
        *self.link.lock() = Some(link.clone());
        net.connected.notify_one();
        Ok(link)
    }

    /// Reads the server's state again, if it is connected.
    async fn read_again(&self, net: &Net, deadline: Instant) {
        let Some(mut link) = self.link.lock().clone() else {
            return;
        };
        let read = timeout_at(deadline, net.read(&mut link.connection));
        let Some(Ok(Ok(server))) = self.unless_gone(read).await else {
            return;
        };
        let (was_fit, server) = (net.unfit(&link.server).is_none(), Arc::new(server));
        match net.unfit(&server) {
            Some(why) if was_fit => {
                tracing::error!(host = %self.host, %why, "the store refuses to work");
            }
            None if !was_fit => tracing::warn!(host = %self.host, "the store works again"),
            _ => {}
        }
        if let Some(open) = &mut *self.link.lock()
            && open.number == link.number
        {
            open.server = server;
        }
    }

    /// The result of `work`, or `None` as soon as the server has no slots any more.
    async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut gone = self.gone.subscribe();
        tokio::select! {
            done = work => Some(done),
            _ = gone.wait_for(|gone| *gone) => None,
        }
    }

    fn drop_link(&self, number: u64) {
        let mut link = self.link.lock();
        if link.as_ref().is_some_and(|link| link.number == number) {
            *link = None;
        }
    }

    async fn send(
        &self,
        mut link: Link,
        call: &Call,
        asking: bool,
        deadline: Instant,
    ) -> Result<Value, (Then, BoxError)> {
        let exchange = async {
            let first = send_one(&mut link.connection, &call.command, asking).await;
            match (first, call.with_source()) {
                (Err(error), Some(whole)) if then(&error) == Then::SendSource => {
                    send_one(&mut link.connection, &whole, asking).await
                }
                (first, _) => first,
            }
        };
        let outcome = match self.unless_gone(timeout_at(deadline, exchange)).await {
            Some(Ok(outcome)) => outcome.map_err(|error| (then(&error), BoxError::from(error))),
            None => {
                let deposed = format!("{} was replaced before it answered", self.host);
                Err((Then::Lost, deposed.into()))
            }
            Some(Err(_)) => {
                let late = format!("{} did not answer in time", self.host);
                Err((Then::Lost, late.into()))
            }
        };
        if let Err((Then::Lost, _)) = &outcome {
            self.drop_link(link.number);
        }
        outcome
    }
}

async fn send_one(
    connection: &mut MultiplexedConnection,
    command: &redis::Cmd,
    asking: bool,
) -> Result<Value, redis::RedisError> {
    if !asking {
        return connection
            .send_packed_command(command)
            .await?
            .extract_error();
    }
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING");
    pipeline.add_command(command.clone());
    let values = connection.send_packed_commands(&pipeline, 1, 1).await?;
    let value = values.into_iter().next().unwrap_or(Value::Nil);
    value.extract_error()
}
