//! `onlyonce serve`: puts the pieces together, says that it is ready, and ends in good order.

use std::{io::Write, process::ExitCode, sync::Arc};

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use onlyonce::{Engine, EngineOptions, Spool};
use onlyonce_core::policy::Profile;
use onlyonce_store::{
    Level, Store,
    at_rest::{self, AtRest, AtRestOptions, Compression, Keyring},
    memory::MemoryStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{
    admin,
    cli::ServeArgs,
    config::{self, Config, Overrides, StoreUrl},
    demo, edge,
    reload::{Reloader, Source, Status},
    telemetry::{self, Telemetry},
};

/// Runs the gateway until it is told to stop.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let overrides = Overrides {
        listen: args.listen,
        store: args.store,
    };
    // Read before it is loaded: what changes in between is seen as a change.
    let text = args.config.as_deref().map(config::read);
    let read = match (&args.config, &args.upstream) {
        (Some(file), _) => config::load(file, &overrides),
        (None, Some(upstream)) => config::for_upstream(upstream, &overrides),
        (None, None) => anyhow::bail!("one of --config and --upstream is needed"),
    };
    let config = match read {
        Ok(config) => Arc::new(config),
        Err(diagnostics) => {
            eprintln!("{diagnostics}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let telemetry = Telemetry::start()?;
    for warning in &config.warnings {
        telemetry::say(warning);
    }
    let store = open(&config).await.context("the store cannot be opened")?;
    demand_level(&config, &*store)?;
    let spool = config.store.spool_dir.as_deref().map(|folder| {
        Spool::open(folder)
            .with_context(|| format!("store.spool_dir {} cannot be used", folder.display()))
    });
    let options = EngineOptions {
        store_timeout: config.store.timeout,
        spool: spool.transpose()?,
        ..Default::default()
    };
    let engine = Engine::start(store, options);
    let edge = edge::Edge::new(&config, &engine, None).await?;
    let current = Arc::new(edge::Current::new(edge));
    let source = args.config.map(|file| Source {
        file,
        overrides,
        text: text.and_then(Result::ok),
    });
    telemetry.watch(&engine);
    let metrics = telemetry.prometheus();
    let ended = serve((current, engine), source, metrics, args.exit_with_parent).await;
    telemetry.end().await;
    ended
}

async fn serve(
    (current, engine): (Arc<edge::Current>, Engine),
    source: Option<Source>,
    metrics: PrometheusHandle,
    exit_with_parent: bool,
) -> anyhow::Result<ExitCode> {
    let config = current.config();
    let data = bind(config.listen, "listen").await?;
    let admin_listener = bind(config.admin.listen, "admin.listen").await?;
    let addresses = (data.local_addr()?, admin_listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (stop, stopping) = watch::channel(false);
    let status = Status::new();
    let parts = (current.clone(), engine.clone(), status.clone());
    let admin = admin::Admin::new(parts, metrics, stopping.clone());
    let has_token = admin.has_token();
    tokio::spawn(admin::serve(admin.clone(), admin_listener));
    let serving = tokio::spawn(edge::serve(current.clone(), data, stopping));
    let mut reloader = Reloader::new(source, (current.clone(), engine.clone(), admin), status);
    announce(&config, &engine, addresses, has_token)?;

    let told_to_stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = demo::parent_gone(), if exit_with_parent => {}
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
    tracing::info!("stopping: no new connections; what is running is finished");
    // The receiver lives in the serving task; if that is gone there is nobody to tell.
    let _ = stop.send(true);
    let finished = async {
        let _ = serving.await;
        engine.idle().await;
    };
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

async fn bind(address: std::net::SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({option}); nothing was started"))
}

/// Some profiles refuse a store that may lose what it acknowledged.
pub(crate) fn demand_level(config: &Config, store: &dyn Store) -> anyhow::Result<()> {
    let strict = config
        .protected()
        .find(|route| route.policy.profile == Profile::Payments);
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

async fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match &config.store.url {
        StoreUrl::Memory => Arc::new(MemoryStore::new()),
        StoreUrl::Sqlite(path) => Arc::new(SqliteStore::open_with(
            path,
            onlyonce_store::clock::StoreClock::system(),
            config.store.migrate,
        )?),
        StoreUrl::Postgres(url) => {
            let options = PostgresOptions {
                timeout: config.store.timeout,
                pooler: config.store.pooler,
                migrate: config.store.migrate,
            };
            let store = PostgresStore::open(url, &options).await?;
            let plain = config.store.encryption_key_env.is_none() || config.store.plain_settle;
            let said = store.allow_plain_answers(plain).await;
            said.context("the database cannot be told whether plain answers may be settled")?;
            Arc::new(store)
        }
        StoreUrl::Mysql(url) => {
            let options = MySqlOptions {
                timeout: config.store.timeout,
                migrate: config.store.migrate,
            };
            Arc::new(MySqlStore::open(url, &options).await?)
        }
        // `check` refuses these with a place and a hint before it comes to this.
        other => anyhow::bail!(
            "{} stores are not supported by this version yet",
            other.scheme()
        ),
    };
    sealed(
        store,
        config.store.encryption_key_env.as_deref(),
        config.store.compression,
    )
    .await
}

/// `store` behind what compresses and encrypts, with the keys that the variable `key_env` holds.
pub(crate) async fn sealed(
    store: Arc<dyn Store>,
    key_env: Option<&str>,
    compression: Compression,
) -> anyhow::Result<Arc<dyn Store>> {
    let keys = match key_env {
        Some(name) => {
            let text = std::env::var(name).with_context(|| format!("{name} is not set"))?;
            Some(Keyring::parse(&text).with_context(|| format!("{name} holds no usable keys"))?)
        }
        None => None,
    };
    if keys.is_none() && compression == Compression::None && store.level() == Level::Volatile {
        // What is in memory alone is gone with the process, and nobody hid anything there.
        at_rest::declare();
        return Ok(store);
    }
    let options = AtRestOptions { keys, compression };
    let opened = AtRest::open(store, options).await;
    Ok(Arc::new(opened.context("its encryption keys do not fit")?))
}

/// One line, for people and for programs that wait for it.
fn announce(
    config: &Config,
    engine: &Engine,
    (data, admin): (std::net::SocketAddr, std::net::SocketAddr),
    has_token: bool,
) -> std::io::Result<()> {
    let protected = config.protected().count();
    let mut out = std::io::stdout().lock();
    write!(
        out,
        "ready data={data} admin={admin} store={} level={} protected={protected}/{}",
        config.store.url.scheme(),
        engine.store().level(),
        config.routes.len(),
    )?;
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
    if protected == 0 && observed.is_empty() {
        write!(out, " (no route is protected: set idempotency.enabled)")?;
    }
    if !has_token {
        write!(
            out,
            " (no admin token: set {}; until then it answers 401)",
            config.admin.token_env
        )?;
    }
    writeln!(out)?;
    out.flush()
}
