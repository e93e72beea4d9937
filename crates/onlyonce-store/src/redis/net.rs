//! Which server has which slot, one connection to each, and how a call finds its way.
//!
//! A single server, a master that Sentinels name, and a cluster differ only in how the map of slots
//! is made. Calls are routed here rather than by the driver's cluster connection because that one
//! sends a command again when its connection broke, and then nobody can tell whether a write happened
//! once, twice or not at all.

mod map;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, TlsCertificates, Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use self::map::Map;
use super::{
    address::{Address, Host, Kind},
    failure::{Failure, Then, then},
    script::Call,
    server::Server,
};
use crate::{BoxError, Level};

/// How much sooner than the engine a call gives up, so that its error says what is known.
const MARGIN: Duration = Duration::from_millis(50);
/// The pause before a server is asked again that said "not now".
const PAUSE: Duration = Duration::from_millis(25);
/// How often the map of slots is asked for at most.
const REFRESH_EVERY: Duration = Duration::from_millis(50);
/// How often a call is sent on at most.
const MAX_HOPS: usize = 64;

/// Whether a call may be sent a second time when nobody said how the first one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// It only reads.
    Read,
    /// It writes.
    Write,
}

/// The servers behind one URL.
pub(super) struct Net {
    address: Address,
    timeout: Duration,
    allow_eviction: bool,
    is_cluster: std::sync::atomic::AtomicBool,
    nodes: Mutex<HashMap<Host, Arc<Node>>>,
    map: RwLock<Arc<Map>>,
    refreshing: tokio::sync::Mutex<Option<Instant>>,
    /// Told on every new connection: what lies on the server may have changed.
    pub(super) connected: Notify,
}

/// One server.
struct Node {
    host: Host,
    client: Client,
    link: Mutex<Option<Link>>,
    dialing: tokio::sync::Mutex<()>,
    links: AtomicU64,
}

#[derive(Clone)]
struct Link {
    number: u64,
    connection: MultiplexedConnection,
    server: Arc<Server>,
}

impl Net {
    /// Finds the servers, and connects to those that have slots.
    pub(super) async fn open(
        address: Address,
        timeout: Duration,
        allow_eviction: bool,
    ) -> Result<Arc<Self>, Failure> {
        let net = Arc::new(Self::new(address, timeout, allow_eviction));
        let deadline = net.deadline();
        net.refresh(deadline).await?;
        for host in net.owners() {
            net.node(&host)?.link(&net, deadline).await?;
        }
        Ok(net)
    }

    /// The servers behind a URL. None is connected to before the first call.
    pub(super) fn new(address: Address, timeout: Duration, allow_eviction: bool) -> Self {
        Self {
            is_cluster: (address.kind == Kind::Cluster).into(),
            address,
            timeout,
            allow_eviction,
            nodes: Mutex::default(),
            map: RwLock::default(),
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

    fn owners(&self) -> Vec<Host> {
        let map = self.map.read().clone();
        let mut hosts: Vec<Host> = map.0.iter().map(|(_, _, host)| host.clone()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// The least that any server with slots promises.
    pub(super) fn level(&self) -> Level {
        let owners = self.owners();
        let nodes = self.nodes.lock();
        let levels = owners.iter().map(|host| {
            let link = nodes.get(host).map(|node| node.link.lock().clone());
            link.flatten().map(|link| link.server.level)
        });
        // Servers that are not connected to now do not count; the others speak for all.
        levels.flatten().min().unwrap_or(Level::Volatile)
    }

    /// Reads from every connected server again what its acknowledged writes survive.
    pub(super) async fn read_levels(&self) {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        for node in nodes {
            let Some(mut link) = node.link.lock().clone() else {
                continue;
            };
            let read = timeout_at(self.deadline(), Server::read(&mut link.connection)).await;
            if let Ok(Ok(server)) = read
                && let Some(open) = &mut *node.link.lock()
                && open.number == link.number
            {
                open.server = Arc::new(server);
            }
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

    /// A connection of its own to some server that has slots, for subscriptions.
    pub(super) fn any_client(&self) -> Option<Client> {
        let host = self.owners().into_iter().next()?;
        Some(self.node(&host).ok()?.client.clone())
    }

    /// Calls, wherever `slot` is.
    pub(super) async fn call(&self, slot: u16, call: &Call, does: Does) -> Result<Value, Failure> {
        let deadline = self.deadline();
        let mut asked: Option<Host> = None;
        let mut last: BoxError = "no server has this slot".into();
        let mut lost_once = false;
        for _ in 0..MAX_HOPS {
            let ask = asked.take();
            let owner = match &ask {
                Some(host) => Some(host.clone()),
                None => self.map.read().owner(slot).cloned(),
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
            let link = match node.link(self, deadline).await {
                Ok(link) => link,
                Err(failure) if self.is_alone() => return Err(failure),
                Err(Failure::Refused(error) | Failure::Lost(error)) => {
                    self.wait(deadline, error).await?;
                    last = "a server cannot be reached".into();
                    continue;
                }
            };
            match node.send(link, call, ask.is_some(), deadline).await {
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
                }
                Err((Then::Lost, error)) => return Err(Failure::Lost(error)),
                Err((Then::Refused | Then::SendSource, error)) => {
                    return Err(Failure::Refused(error));
                }
            }
        }
        Err(Failure::Refused(last))
    }

    /// Whether nobody has asked yet who has which slots.
    fn is_unread(&self) -> bool {
        self.map.read().0.is_empty()
    }

    /// Whether all slots are on one server.
    pub(super) fn is_one_server(&self) -> bool {
        !self.is_cluster.load(Ordering::Relaxed)
    }

    /// Whether there is one server, which nobody will replace while a call waits.
    fn is_alone(&self) -> bool {
        self.address.kind == Kind::Server && !self.is_cluster.load(Ordering::Relaxed)
    }

    /// Pauses and asks for the map again; refuses once there is no time for that.
    async fn wait(&self, deadline: Instant, why: BoxError) -> Result<(), Failure> {
        if Instant::now() + PAUSE >= deadline {
            return Err(Failure::Refused(why));
        }
        tokio::time::sleep(PAUSE).await;
        // An old map is better than none.
        let _ = self.refresh(deadline).await;
        Ok(())
    }

    /// Where `to` of a redirection is; without a name it is where the answer came from.
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

    /// Notes who has a slot now, without waiting for the whole map.
    fn learn(&self, slot: u16, to: &str, from: &Host) {
        let Some(host) = self.host(to, from) else {
            return;
        };
        let mut map = self.map.write();
        let others = map
            .0
            .iter()
            .filter(|range| (range.0, range.1) != (slot, slot));
        let ranges = std::iter::once((slot, slot, host)).chain(others.cloned());
        *map = Arc::new(Map(ranges.collect()));
    }
}

/// Our own deadlines count, not the driver's.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

impl Node {
    /// The open connection, or a new one. Nothing has been sent if this fails.
    async fn link(&self, net: &Net, deadline: Instant) -> Result<Link, Failure> {
        if let Some(link) = self.link.lock().clone() {
            return Ok(link);
        }
        let late = |_| Failure::refused(format!("{} did not answer in time", self.host));
        let _dialing = timeout_at(deadline, self.dialing.lock())
            .await
            .map_err(late)?;
        if let Some(link) = self.link.lock().clone() {
            return Ok(link);
        }
        let dial = async {
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&patient())
                .await?;
            let server = Server::read(&mut connection).await?;
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
        if server.evicts() && !net.allow_eviction {
            return Err(Failure::Refused(Box::new(Evicts(
                server.policy.unwrap_or_default(),
            ))));
        }
        let link = Link {
            number: self.links.fetch_add(1, Ordering::Relaxed),
            connection,
            server: Arc::new(server),
        };
        *self.link.lock() = Some(link.clone());
        net.connected.notify_one();
        Ok(link)
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
        let outcome = match timeout_at(deadline, exchange).await {
            Ok(outcome) => outcome.map_err(|error| (then(&error), BoxError::from(error))),
            Err(_) => {
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

/// A server that throws records away when its memory is full.
#[derive(Debug, thiserror::Error)]
#[error(
    "the server's maxmemory-policy is {0}: when its memory is full it throws away records, and their \
     retries would execute again. Set it to noeviction, or say store.allow_eviction: true"
)]
pub(super) struct Evicts(String);
