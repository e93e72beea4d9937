//! Starts all parts of a process, announces that it is ready, and shuts down in order.

use std::{
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{FutureExt, future::BoxFuture};
use metrics_exporter_prometheus::PrometheusHandle;
use onlyonce::{Engine, EngineOptions, Spool};
#[cfg(feature = "dynamodb")]
use onlyonce_store::dynamodb::{DynamoDbOptions, DynamoDbStore};
use onlyonce_store::{
    Level, Store,
    at_rest::{self, AtRest, AtRestOptions, Compression, Keyring},
    memory::MemoryStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    redis::{RedisOptions, RedisStore},
    sqlite::{SqliteOptions, SqliteStore},
    tiered::TieredStore,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    admin,
    config::{Config, DEFAULT_TOKEN_ENV, StoreUrl},
    cores::Cores,
    edge,
    outbox::{self, Prepared},
    parent,
    reload::{Reloader, Status},
    telemetry::{self, Telemetry},
};

pub use crate::reload::Source;

/// The name of the store block which says that gateways keep copies of answers in a cache.
pub const CACHED: &str = "cached";

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Takes requests.
    Gateway {
        /// Whether to exit when the parent process exits.
        exit_with_parent: bool,
    },
    /// Runs only the background loops.
    Worker,
}

/// What a process is started with.
pub struct Start {
    /// The configuration.
    pub config: Config,
    /// The file that the configuration was read from; the file is read again when it changes.
    pub source: Option<Source>,
    /// The role of the process.
    pub part: Part,
    /// What the process may choose for itself.
    pub made_up: MadeUp,
}

/// What a process started without a file may choose for itself. With a file, it chooses nothing.
#[derive(Default)]
pub struct MadeUp {
    /// An admin token for this run, if the environment has none. The token is printed once, on standard
    /// output, and never logged.
    token: Option<String>,
    /// Whether the admin API may use another port if the default port is taken.
    any_admin_port: bool,
    /// Whether to print the address of the dashboard.
    shows_dashboard: bool,
}

impl MadeUp {
    /// For a process without a file. `admin` is the admin API's address, if one was given.
    ///
    /// # Errors
    /// When there is no randomness for a token.
    pub fn without_a_file(admin: Option<SocketAddr>) -> anyhow::Result<Self> {
        let is_set = std::env::var(DEFAULT_TOKEN_ENV).is_ok_and(|token| !token.is_empty());
        let token = match is_set {
            true => None,
            false => Some(run_token().context("no randomness for the admin token")?),
        };
        Ok(Self {
            token,
            any_admin_port: admin.is_none(),
            shows_dashboard: true,
        })
    }
}

/// Random bytes in the admin token of a run.
const RUN_TOKEN_BYTES: usize = 24;

/// A random token that needs no escaping in a URL.
fn run_token() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0_u8; RUN_TOKEN_BYTES];
    aws_lc_rs::rand::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Opens the store, and plays the given part until told to stop.
///
/// # Errors
/// If something that the process needs is missing or unusable.
pub fn start(start: Start) -> BoxFuture<'static, anyhow::Result<ExitCode>> {
    // Boxed here, so that the server is compiled in this crate and not once more in each that starts it.
    Box::pin(run(start))
}

async fn run(start: Start) -> anyhow::Result<ExitCode> {
    let config = Arc::new(start.config);
    let telemetry = Telemetry::start()?;
    for warning in &config.warnings {
        telemetry::say(warning);
    }
    if let Some(warning) = telemetry::unheard() {
        telemetry::say(&warning);
    }
    let spool = config.store.spool_dir.as_deref().map(|folder| {
        Spool::open(folder)
            .and_then(|spool| Ok((spool.known_identity()?, spool)))
            .with_context(|| format!("store.spool_dir {} cannot be used", folder.display()))
    });
    let (known, spool) = spool.transpose()?.unzip();
    let knows_a_store = known.flatten().is_some() || config.store.identity.is_some();
    let store = open(&config, start.part, !knows_a_store)
        .await
        .context("the store cannot be opened")?;
    demand_identity(&config, &*store)?;
    demand_level(&config, &*store)?;
    if let Some(warning) = weak_store(&config, store.level()) {
        telemetry::say(&warning);
    }
    let options = EngineOptions {
        store_timeout: config.store.timeout,
        spool,
        held_bytes: config.held_bytes,
        near_bytes: config.store.near_cache,
        ..Default::default()
    };
    let engine = Engine::start(store, options);
    meet_store(&engine).await?;
    let edge = edge::Edge::new(&config, &engine, None).await?;
    let prepared = outbox::prepare(&config, &engine).await?;
    let current = Arc::new(edge::Current::new(edge));
    telemetry.watch(&engine);
    let metrics = telemetry.prometheus();
    let parts = (current, engine.clone(), prepared);
    let ended = serve(parts, start.source, metrics, (start.part, start.made_up)).await;
    // Anything still running ends with the process. An embedded store must close its file cleanly first.
    engine.store().close().await;
    telemetry.end().await;
    ended
}

async fn serve(
    (current, engine, prepared): (Arc<edge::Current>, Engine, Prepared),
    source: Option<Source>,
    metrics: PrometheusHandle,
    (part, made_up): (Part, MadeUp),
) -> anyhow::Result<ExitCode> {
    let config = current.config();
    let listeners = Listeners::bind(&config, part, &made_up).await?;
    let addresses = listeners.addresses()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (stop, stopping) = watch::channel(false);
    let status = Status::new();
    let parts = (current.clone(), engine.clone(), status.clone());
    let admin = admin::Admin::new(parts, metrics, stopping.clone(), made_up.token.clone());
    let has_token = admin.has_token();
    if let Some(listener) = listeners.admin {
        tokio::spawn(admin::serve(admin.clone(), listener).boxed());
    }
    // Kept until the end of this function, since executions outlive their connections.
    let cores = listeners.data.as_ref().map(|_| Arc::new(Cores::start()));
    let serving = listeners.data.zip(cores.clone()).map(|(data, cores)| {
        let served = edge::serve(current.clone(), data, cores, stopping);
        tokio::spawn(served.boxed())
    });
    let parts = (current.clone(), engine.clone(), admin);
    let mut reloader = Reloader::new(source, parts, status, prepared);
    announce(&config, &engine, addresses, has_token, made_up)?;

    let exit_with_parent = part
        == Part::Gateway {
            exit_with_parent: true,
        };
    let told_to_stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = parent::gone(), if exit_with_parent => {}
        }
    };
    let mut told_to_stop = std::pin::pin!(told_to_stop);
    loop {
        tokio::select! {
            () = &mut told_to_stop => break,
            _ = hang_up.recv() => reloader.reload().await,
            () = reloader.changed() => reloader.reload().await,
        }
    }
    tracing::info!("stopping: no new connections after a second; what is running is finished");
    // The receiver lives in the serving task; if that task is gone, nobody needs to be told.
    let _ = stop.send(true);
    let finished = async {
        if let Some(serving) = serving {
            let _ = serving.await;
        }
        engine.idle().await;
    };
    let finished = async { tokio::join!(finished, reloader.stop_delivering()) };
    if tokio::time::timeout(current.config().drain_timeout, finished)
        .await
        .is_err()
    {
        tracing::warn!(
            "drain_timeout is over and something is still running; its key turns unknown"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The listening sockets of a process.
struct Listeners {
    data: Option<TcpListener>,
    admin: Option<TcpListener>,
}

impl Listeners {
    /// A worker takes no requests, and has an admin listener only if its file configures one.
    async fn bind(config: &Config, part: Part, made_up: &MadeUp) -> anyhow::Result<Self> {
        let is_worker = part == Part::Worker;
        let data = match is_worker {
            true => None,
            false => Some(bind(config.listen, "listen").await?),
        };
        let admin = match is_worker && !config.admin.is_said {
            true => None,
            false => Some(bind_admin(config.admin.listen, made_up.any_admin_port).await?),
        };
        Ok(Self { data, admin })
    }

    fn addresses(&self) -> io::Result<Addresses> {
        let address = |listener: &Option<TcpListener>| {
            let listener = listener.as_ref();
            listener.map(TcpListener::local_addr).transpose()
        };
        Ok(Addresses {
            data: address(&self.data)?,
            admin: address(&self.admin)?,
        })
    }
}

/// The addresses that the process listens on.
struct Addresses {
    data: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

async fn bind(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({option}); nothing was started"))
}

/// Binds the admin listener. If nobody chose the port and it is taken, uses any free port.
async fn bind_admin(address: SocketAddr, any_port: bool) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if any_port && error.kind() == io::ErrorKind::AddrInUse => {
            let listener = bind(SocketAddr::new(address.ip(), 0), "admin.listen").await?;
            let taken = listener.local_addr()?;
            telemetry::say(&format!(
                "warning: {address} is taken, so the admin API listens on {taken}; --admin ADDR chooses"
            ));
            Ok(listener)
        }
        Ok(listener) => Ok(listener),
        Err(_) => bind(address, "admin.listen").await,
    }
}

/// Refuses any store but the one that the configuration names.
fn demand_identity(config: &Config, store: &dyn Store) -> anyhow::Result<()> {
    let found = store.identity().to_string();
    match &config.store.identity {
        Some(demanded) if *demanded != found => anyhow::bail!(
            "this is another store than store.identity names: its identity is {found}, and {demanded} is \
             demanded; retries of requests that were executed before would execute again; nothing was started"
        ),
        _ => Ok(()),
    }
}

/// Checks whether the store has lost what an earlier process knew, and refuses a store that does not answer.
async fn meet_store(engine: &Engine) -> anyhow::Result<()> {
    let Err(error) = engine.meet_store().await else {
        return Ok(());
    };
    match error.unfit() {
        Some(why) => anyhow::bail!("{why}; nothing was started"),
        None => Err(error).context("the store does not say whether it is the one that is known"),
    }
}

/// Refuses a store below level sync if a route's profile demands one.
pub(crate) fn demand_level(config: &Config, store: &dyn Store) -> anyhow::Result<()> {
    let strict = config.protected().find(|route| route.policy.demands_sync());
    match strict {
        Some(route) if store.level() < Level::Sync => anyhow::bail!(
            "route {} has profile `payments`, which demands a store of level sync, and this one is \
             {}: see docs/guide/stores.md; nothing was started",
            route.id,
            store.level()
        ),
        _ => Ok(()),
    }
}

/// The warning about a store that may forget acknowledged writes: a forgotten key is executed again.
fn weak_store(config: &Config, level: Level) -> Option<String> {
    let what = match (&config.store.url, level) {
        (_, Level::Sync) => return None,
        (StoreUrl::Memory, _) => "`memory:` forgets every key when this process ends",
        (StoreUrl::Redis(_), Level::Volatile) => {
            "this Redis does not persist its writes: a restart or a failover forgets keys, and their retries are \
             executed again\n  hint: `appendonly yes` and `appendfsync always`"
        }
        #[cfg(feature = "dynamodb")]
        (StoreUrl::DynamoDb(_), Level::Volatile) => {
            "this endpoint is not AWS, and what its writes survive is not known: a key that it loses is executed again"
        }
        #[cfg(feature = "dynamodb")]
        (StoreUrl::DynamoDb(_), _) => {
            "this table has copies in other regions, which follow later: a failover to one of them loses the newest \
             keys, and their retries are executed again"
        }
        (_, Level::Volatile | Level::Async) => {
            "this store may lose its newest writes in a crash or a failover, and their retries are executed again"
        }
    };
    let more = "see docs/guide/stores.md";
    Some(format!("warning: level {level}: {what}; {more}"))
}

/// Opens the store, with its cache in front if one is configured.
async fn open(config: &Config, part: Part, may_create: bool) -> anyhow::Result<Arc<dyn Store>> {
    let truth = open_truth(config, part, may_create).await?;
    let store: Arc<dyn Store> = match &config.store.cache {
        Some(StoreUrl::Redis(url)) => {
            // A process that opens the database without the cache must know that copies exist.
            let noted = truth.keep_block(CACHED, b"1").await;
            noted.context("the database cannot be told that there is a cache")?;
            Arc::new(TieredStore::new(truth, url).context("store.cache")?)
        }
        _ => truth,
    };
    // Compression and encryption are in front of the cache, so the cache holds nothing in plain text.
    let is_memory = matches!(config.store.url, StoreUrl::Memory);
    sealed(
        store,
        (is_memory, config.store.encryption_key_env.as_deref()),
        config.store.compression,
    )
    .await
}

async fn open_truth(
    config: &Config,
    part: Part,
    may_create: bool,
) -> anyhow::Result<Arc<dyn Store>> {
    // A new store knows nothing of earlier executions, so strict routes demand that creating it is explicit.
    let demands_sync = config.protected().any(|route| route.policy.demands_sync());
    let create = may_create && (config.store.create || !demands_sync);
    Ok(match &config.store.url {
        StoreUrl::Memory => Arc::new(MemoryStore::new()),
        StoreUrl::Sqlite(path) => Arc::new(SqliteStore::open_with(
            path,
            &SqliteOptions {
                migrate: config.store.migrate,
                create,
                ..SqliteOptions::default()
            },
        )?),
        StoreUrl::Postgres(url) => {
            let options = PostgresOptions {
                timeout: config.store.timeout,
                pooler: config.store.pooler,
                migrate: config.store.migrate,
                create,
            };
            let store = PostgresStore::open(url, &options).await?;
            let plain = config.store.encryption_key_env.is_none() || config.store.plain_settle;
            // A worker may have no encryption configured, and must not allow what a gateway has refused.
            if !(plain && part == Part::Worker) {
                let said = store.allow_plain_answers(plain).await;
                said.context("the database cannot be told whether plain answers may be settled")?;
            }
            store.into()
        }
        StoreUrl::Mysql(url) => {
            let options = MySqlOptions {
                timeout: config.store.timeout,
                migrate: config.store.migrate,
                create,
            };
            MySqlStore::open(url, &options).await?.into()
        }
        StoreUrl::Redis(url) => {
            let options = RedisOptions {
                timeout: config.store.timeout,
                migrate: config.store.migrate && create,
                allow_eviction: config.store.allow_eviction,
            };
            Arc::new(RedisStore::open(url, &options).await?)
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(url) => {
            let options = DynamoDbOptions {
                timeout: config.store.timeout,
                migrate: config.store.migrate && create,
                credentials: None,
            };
            Arc::new(DynamoDbStore::open(url, &options).await?)
        }
    })
}

/// Wraps `store` in compression and encryption, with the keys from the environment variable `key_env`.
///
/// # Errors
/// If the keys are missing, cannot be read, or do not fit the store.
pub async fn sealed(
    store: Arc<dyn Store>,
    (is_memory, key_env): (bool, Option<&str>),
    compression: Compression,
) -> anyhow::Result<Arc<dyn Store>> {
    let keys = match key_env {
        Some(name) => {
            let text = std::env::var(name).with_context(|| format!("{name} is not set"))?;
            Some(Keyring::parse(&text).with_context(|| format!("{name} holds no usable keys"))?)
        }
        None => None,
    };
    if keys.is_none() && compression == Compression::None && is_memory {
        // A memory store ends with the process, so nothing is encrypted at rest.
        at_rest::declare();
        return Ok(store);
    }
    let options = AtRestOptions { keys, compression };
    let opened = AtRest::open(store, options).await;
    Ok(Arc::new(opened.context("its encryption keys do not fit")?))
}

/// Prints one line, for people and for programs that wait for it. Without a file, prints a second line with
/// the address of the dashboard.
fn announce(
    config: &Config,
    engine: &Engine,
    addresses: Addresses,
    has_token: bool,
    made_up: MadeUp,
) -> io::Result<()> {
    let protected = config.protected().count();
    let mut out = Vec::new();
    match addresses.data {
        Some(data) => write!(out, "ready data={data}")?,
        None => write!(out, "ready worker")?,
    }
    if let Some(admin) = addresses.admin {
        write!(out, " admin={admin}")?;
    }
    write!(out, " store={}", config.store.url.scheme())?;
    // A relative path is relative to the folder that the process was started in.
    if let StoreUrl::Sqlite(file) = &config.store.url {
        write!(out, " file={}", std::path::absolute(file)?.display())?;
    }
    write!(
        out,
        " level={} identity={} protected={protected}/{}",
        engine.store().level(),
        engine.store().identity(),
        config.routes.len(),
    )?;
    if !config.outbox.targets.is_empty() {
        let names = config.outbox.targets.iter().map(|one| one.name.as_str());
        write!(out, " targets={}", names.collect::<Vec<_>>().join(","))?;
    }
    let observed: Vec<&str> = config.observed().map(|route| route.id.as_str()).collect();
    if !observed.is_empty() {
        let names = observed.join(",");
        write!(
            out,
            " SHADOW={names} (observed only: nothing is protected there)"
        )?;
        tracing::warn!(
            routes = names,
            "SHADOW MODE: keys are observed, duplicates are executed"
        );
    }
    if protected == 0 && observed.is_empty() && addresses.data.is_some() {
        write!(out, " (no route is protected: set idempotency.enabled)")?;
    }
    if !has_token && addresses.admin.is_some() {
        write!(
            out,
            " (no admin token: set {}; until then it answers 401)",
            config.admin.token_env
        )?;
    }
    writeln!(out)?;
    if let Some(admin) = addresses.admin.filter(|_| made_up.shows_dashboard) {
        writeln!(out, "{}", dashboard(admin, made_up.token.as_deref()))?;
    }
    // One write: a reader of the first line alone may be gone before a second write.
    let mut standard = io::stdout().lock();
    standard.write_all(&out)?;
    standard.flush()
}

/// The address of the dashboard, as seen from this machine. A token made for this run is in the fragment,
/// which browsers do not send. A token from the environment is already known, and not printed.
fn dashboard(admin: SocketAddr, token: Option<&str>) -> String {
    let ip = match admin.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let address = SocketAddr::new(ip, admin.port());
    match token {
        Some(token) => format!("dashboard http://{address}/#token={token}"),
        None => format!("dashboard http://{address}/ (sign in with {DEFAULT_TOKEN_ENV})"),
    }
}
