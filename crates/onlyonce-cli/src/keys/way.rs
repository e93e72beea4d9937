//! How keys are reached: through the admin API of a gateway, or in a store that this process opens.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use axum::{Router, body::Body};
use bytes::Bytes;
use clap::Args;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use onlyonce::{Engine, EngineOptions, reconcile::Nobody};
use onlyonce_gateway::{
    admin::Desk,
    config::{DEFAULT_ENCRYPTION_KEY_ENV, DEFAULT_TOKEN_ENV, StoreUrl},
    http_client::{Client, Endpoint, Outgoing, trusting},
    serve,
};
#[cfg(feature = "dynamodb")]
use onlyonce_store::dynamodb::{DynamoDbOptions, DynamoDbStore};
use onlyonce_store::{
    Store,
    at_rest::{self, Compression},
    memory::MemoryStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    redis::{RedisOptions, RedisStore},
    sqlite::{OpenError, SqliteOptions, SqliteStore},
};
use serde_json::{Value, json};
use tower::ServiceExt;

/// The admin API of a gateway with the default options.
pub(crate) const DEFAULT_ADMIN: &str = "http://127.0.0.1:9090";
/// How long a gateway may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a command finds what it is asked for, and how it answers.
#[derive(Args)]
pub(crate) struct Where {
    /// The admin API of a gateway; its token is taken from ONLYONCE_ADMIN_TOKEN
    #[arg(long, global = true, value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: String,
    /// Open this store instead: sqlite:FILE that no gateway uses, or postgres://…, mysql://…, redis://… or dynamodb://… beside its gateways
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
    /// The variable with the store's encryption keys, for --store; used if it is set
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        default_value = DEFAULT_ENCRYPTION_KEY_ENV
    )]
    encryption_key_env: String,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Where {
    /// Opens the way for `wish`. The inner error is a usage error.
    pub(crate) async fn open(&self, wish: Wish) -> anyhow::Result<Result<Way, String>> {
        let store = self.store.as_deref();
        Way::open(&self.admin, store, &self.encryption_key_env, wish).await
    }
}

/// Advice after a 401.
pub(crate) fn token_hint() -> String {
    let is_set = std::env::var(DEFAULT_TOKEN_ENV).is_ok_and(|token| !token.is_empty());
    match is_set {
        true => format!("\nthe token in {DEFAULT_TOKEN_ENV} is not the one of this gateway"),
        false => format!("\nset {DEFAULT_TOKEN_ENV} to the token of this gateway"),
    }
}

/// What a command does with keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Reads only.
    Look,
    /// Settles unknown keys.
    Resolve,
    /// Removes records, or personal data from them.
    Remove,
}

/// A connection to the keys.
pub(crate) enum Way {
    /// A gateway's admin API, its HTTP client, and the value of the `Authorization` header.
    Gateway(Endpoint, Client, Option<HeaderValue>),
    /// The same API on a store that this process has opened.
    Store(Router),
}

impl Way {
    /// Opens the store if one is given, otherwise only parses the URL. The inner error is a usage error.
    pub(crate) async fn open(
        admin: &str,
        store: Option<&str>,
        key_env: &str,
        wish: Wish,
    ) -> anyhow::Result<Result<Self, String>> {
        if let Some(url) = store {
            return open_store(url, key_env, wish).await;
        }
        let endpoint = match Endpoint::parse(admin) {
            Ok(endpoint) => endpoint,
            Err(error) => return Ok(Err(format!("--admin: {error}"))),
        };
        let token = match std::env::var(DEFAULT_TOKEN_ENV) {
            Ok(token) if !token.is_empty() => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|_| anyhow!("the value of {DEFAULT_TOKEN_ENV} is not a token"))?;
                value.set_sensitive(true);
                Some(value)
            }
            _ => None,
        };
        let client = Client::new(PATIENCE, trusting(None)?);
        Ok(Ok(Self::Gateway(endpoint, client, token)))
    }

    /// Sends one request. Returns its status and its JSON body.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let (status, bytes) = match self {
            Self::Gateway(endpoint, client, token) => {
                let (path, query) = match path.split_once('?') {
                    Some((path, query)) => (path, Some(query.to_owned())),
                    None => (path, None),
                };
                let base = endpoint.path.trim_end_matches('/');
                let outgoing = Outgoing {
                    method,
                    endpoint: Endpoint {
                        path: format!("{base}{path}"),
                        query,
                        ..endpoint.clone()
                    },
                    headers: token
                        .iter()
                        .map(|token| (header::AUTHORIZATION, token.clone()))
                        .collect(),
                    key_header: header::HeaderName::from_static("idempotency-key"),
                    keys: Vec::new(),
                    body: bytes,
                };
                let answer = client.send(&outgoing).await;
                let answer = answer.map_err(|error| {
                    anyhow!("{}: {error}; is a gateway running there?", endpoint.shown())
                })?;
                (answer.status, answer.body)
            }
            Self::Store(router) => {
                let request = Request::builder()
                    .method(method)
                    .uri(path)
                    .body(Body::from(bytes))?;
                let response = router.clone().oneshot(request).await?;
                let status = response.status();
                (status, response.into_body().collect().await?.to_bytes())
            }
        };
        let answer = serde_json::from_slice(&bytes).unwrap_or_else(
            |_| json!({ "detail": "the answer is not that of an admin API: is this its address?" }),
        );
        Ok((status, answer))
    }
}

/// Opens a store that others may be using. Gateways may change the same keys concurrently: each write names
/// the revision that it is based on, and the store accepts the first.
async fn open_store(text: &str, key_env: &str, wish: Wish) -> anyhow::Result<Result<Way, String>> {
    let url = match StoreUrl::parse(text) {
        Ok(url) => url,
        Err(error) => return Ok(Err(format!("--store: {error}"))),
    };
    if url == StoreUrl::Memory {
        let why = "--store: a store in memory is seen by its own process only; use --admin URL";
        return Ok(Err(why.to_owned()));
    }
    let (store, kept) = opened(&url).await?;
    if wish == Wish::Remove && store.block(serve::CACHED).await?.is_some() {
        anyhow::bail!(
            "gateways on this store have a cache, which could go on giving an answer that was removed: only \
             they can tell it, --admin URL; nothing was changed"
        );
    }
    let has_keys = std::env::var_os(key_env).is_some();
    let is_encrypted = at_rest::is_encrypted(&*store).await?;
    // For reading, too: a list without the encrypted records would look complete.
    if is_encrypted && !has_keys {
        anyhow::bail!(
            "what this store keeps is encrypted, and the variable {key_env} with its keys is not set; \
             nothing was changed"
        );
    }
    // If the store is not encrypted, nobody could read encrypted writes.
    let key_env = (is_encrypted && has_keys).then_some(key_env);
    let store = serve::sealed(store, (false, key_env), Compression::default()).await?;
    let engine = Engine::start(store, EngineOptions::default());
    let desk = Desk::new(engine, Arc::new(Nobody), false).without_gateway(kept);
    Ok(Ok(Way::Store(desk.router())))
}

/// The store at `url`, and how long its routes keep answers, if the store knows.
async fn opened(url: &StoreUrl) -> anyhow::Result<(Arc<dyn Store>, HashMap<String, Duration>)> {
    let cannot = || format!("{url} cannot be opened");
    let untold = HashMap::new();
    Ok(match url {
        StoreUrl::Sqlite(file) => {
            anyhow::ensure!(file.exists(), "{url}: there is no such file");
            let options = SqliteOptions {
                migrate: false,
                ..SqliteOptions::default()
            };
            match SqliteStore::open_with(file, &options) {
                Err(error @ OpenError::InUse(_)) => {
                    let advice = "ask the gateway that has it: --admin URL";
                    return Err(anyhow::Error::new(error).context(advice));
                }
                opened => (Arc::new(opened.with_context(cannot)?), untold),
            }
        }
        StoreUrl::Postgres(address) => {
            let options = PostgresOptions {
                migrate: false,
                ..Default::default()
            };
            let opened = PostgresStore::open(address, &options).await;
            let opened = opened.with_context(cannot)?;
            let kept = opened.ttls().await.with_context(cannot)?;
            (opened.into(), kept)
        }
        StoreUrl::Mysql(address) => {
            let options = MySqlOptions {
                migrate: false,
                ..Default::default()
            };
            let opened = MySqlStore::open(address, &options).await;
            (opened.with_context(cannot)?.into(), untold)
        }
        StoreUrl::Redis(address) => {
            let options = RedisOptions {
                migrate: false,
                // Its gateways judge whether the server may evict records.
                allow_eviction: true,
                ..Default::default()
            };
            let opened = RedisStore::open(address, &options).await;
            (Arc::new(opened.with_context(cannot)?), untold)
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(address) => {
            let options = DynamoDbOptions {
                migrate: false,
                ..Default::default()
            };
            let opened = DynamoDbStore::open(address, &options).await;
            (Arc::new(opened.with_context(cannot)?), untold)
        }
        StoreUrl::Memory => (Arc::new(MemoryStore::new()), untold),
    })
}
