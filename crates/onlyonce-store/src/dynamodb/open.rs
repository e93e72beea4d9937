//! Opening or creating the table, its definition, and what its acknowledged writes survive.

use std::{sync::Arc, time::Duration};

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::{
    Client,
    config::{
        Credentials, Region, StalledStreamProtectionConfig, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
    error::BuildError,
    operation::{
        create_table::CreateTableError, describe_table::DescribeTableError, put_item::PutItemError,
    },
    types::{
        AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
        MultiRegionConsistency, Projection, ProjectionType, ScalarAttributeType, TableDescription,
        TableStatus, TimeToLiveSpecification,
    },
};
use onlyonce_core::Secret;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Address, AddressError, DynamoDbOptions, DynamoDbStore, Inner, ServerTime, VERSION,
    layout::{
        LANE, LANES, META, META_IDENTITY, META_SECRET, META_VERSION, NATIVE_TTL, NUMBER, ORDER,
        ORDER_LANE, PK, SK, TIME, blob, bytes_of, key, number, number_of,
    },
    net::{Came, Refusal as _, refused, said},
    scan::Position,
    server_time::Dates,
};
use crate::{BoxError, Boxed, Identity, Level, StoreError, random_secret, wake::Wake};

/// How long a new table may take to become usable.
const CREATED_WITHIN: Duration = Duration::from_secs(120);
/// The timeout of a call while a store is opened, if `timeout` is less: nobody waits for a key then.
const OPENED_WITHIN: Duration = Duration::from_secs(10);
/// The polling interval for a table that is being created.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often the level is read: the settings of a table are changed by hand.
const LEVEL_EVERY: Duration = Duration::from_secs(60);

/// Why a table could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is invalid.
    #[error("the URL of the store cannot be used: {0}")]
    Url(AddressError),
    /// The table cannot be reached, or must not be used.
    #[error("the table cannot be used; nothing was started")]
    Connect(#[source] BoxError),
    /// There is no store, and none may be created.
    #[error(
        "there is no store under this URL: `onlyonce migrate --store URL` makes one; `serve` does so with store.migrate on and, where a route has profile `payments`, with `store.create: true`; a new store knows no key, and retries of earlier requests execute; nothing was changed"
    )]
    Empty,
    /// The table was created by something else.
    #[error(
        "the table has other keys or indexes than a store: name another one, or make it with `onlyonce migrate --store URL` or with what that prints with `--print`; nothing was changed"
    )]
    Foreign,
    /// The layout is newer than this program.
    #[error(
        "the store has the layout {found}, and this program knows {VERSION}: run a newer program"
    )]
    Newer {
        /// The version found.
        found: u32,
    },
    /// The secret is missing or invalid.
    #[error("the store holds no usable secret: it is damaged, or not a store of this program")]
    Damaged,
    /// The server's answers have no date.
    #[error("the server does not say what time it is: its answers have no Date")]
    NoTime,
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Connect(error.into())
    }
}

impl From<BuildError> for OpenError {
    fn from(error: BuildError) -> Self {
        Self::Connect(error.into())
    }
}

impl DynamoDbStore {
    /// Opens or creates the table and the store in it.
    ///
    /// # Errors
    /// [`OpenError`] says why it cannot be used.
    pub fn open<'a>(
        url: &'a str,
        options: &'a DynamoDbOptions,
    ) -> Boxed<'a, Result<Self, OpenError>> {
        Box::pin(Self::opened(url, options))
    }

    async fn opened(url: &str, options: &DynamoDbOptions) -> Result<Self, OpenError> {
        let address = Address::parse(url).map_err(OpenError::Url)?;
        let time = Arc::new(ServerTime::new());
        let client = Box::pin(client(&address, options, time.clone())).await;
        let mut inner = Inner {
            client,
            is_aws: address.is_aws(),
            table: address.table,
            timeout: options.timeout.max(OPENED_WITHIN),
            time,
            level: Mutex::new(Level::Volatile),
            secret: Vec::new(),
            wake: Wake::new(None),
        };
        let table = match inner.table().await? {
            Some(table) => inner.active(table).await?,
            None if options.migrate => inner.make_table().await?,
            None => return Err(OpenError::Empty),
        };
        if !is_a_store(&table) {
            return Err(OpenError::Foreign);
        }
        if !inner.time.is_known() {
            return Err(OpenError::NoTime);
        }
        let found = inner.item(META, META).await?;
        let meta = match found {
            Some(meta) => meta,
            None if options.migrate => inner.make_meta().await?,
            None => return Err(OpenError::Empty),
        };
        match number_of(&meta, META_VERSION)? {
            Some(found) if found > VERSION => return Err(OpenError::Newer { found }),
            Some(_) => {}
            None => return Err(OpenError::Damaged),
        }
        let secret = bytes_of(&meta, META_SECRET).and_then(|secret| secret.try_into().ok());
        let secret = Secret::from_bytes(secret.ok_or(OpenError::Damaged)?);
        inner.secret = secret.as_bytes().to_vec();
        let identity = Identity::found(&secret, bytes_of(&meta, META_IDENTITY));
        *inner.level.lock() = inner.level_of(&table);
        inner.timeout = options.timeout;
        let inner = Arc::new(inner);
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_level(inner.clone()));
        Ok(Self {
            secret,
            identity,
            inner,
            walked: Mutex::new(Position::default()),
            counted: tokio::sync::Mutex::default(),
            _tasks: tasks,
        })
    }
}

async fn client(address: &Address, options: &DynamoDbOptions, time: Arc<ServerTime>) -> Client {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(region) = &address.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(key) = &options.credentials {
        let key = Credentials::new(&key.id, &key.secret, None, None, "options");
        loader = loader.credentials_provider(key);
    }
    let shared = loader.load().await;
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(options.timeout / 2)
        .build();
    let mut config = aws_sdk_dynamodb::config::Builder::from(&shared)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        // Every call here has its own timeout.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .interceptor(Dates(time));
    if let Some(endpoint) = &address.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Client::from_conf(config.build())
}

/// Reads the table's settings periodically.
async fn keep_level(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(LEVEL_EVERY).await;
        inner.read_level().await;
    }
}

impl Inner {
    /// The service's description of the table; `None` if there is none.
    async fn table(&self) -> Result<Option<TableDescription>, StoreError> {
        let call = self.client.describe_table().table_name(&self.table);
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(done) => Ok(done.table),
            Came::Refused {
                error: DescribeTableError::ResourceNotFoundException(_),
                ..
            } => Ok(None),
            Came::Refused { error, .. } => Err(refused(&error, false)),
        }
    }

    /// Waits until the table is usable.
    async fn active(&self, mut table: TableDescription) -> Result<TableDescription, OpenError> {
        let end = Instant::now() + CREATED_WITHIN;
        loop {
            let is_making = matches!(table.table_status, Some(TableStatus::Creating));
            if !is_making {
                return Ok(table);
            }
            if Instant::now() >= end {
                return Err(OpenError::Connect("the table is still being made".into()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
            if let Some(found) = self.table().await? {
                table = found;
            }
        }
    }

    async fn make_table(&self) -> Result<TableDescription, OpenError> {
        let attribute = |name: &str, kind| {
            AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(kind)
                .build()
        };
        let mut call = self
            .client
            .create_table()
            .table_name(&self.table)
            .billing_mode(BillingMode::PayPerRequest)
            .set_key_schema(Some(keys(PK, SK)?));
        for (name, kind) in ATTRIBUTES {
            call = call.attribute_definitions(attribute(name, kind)?);
        }
        for (name, lane, sort) in INDEXES {
            let projection = Projection::builder().projection_type(ProjectionType::KeysOnly);
            call = call.global_secondary_indexes(
                GlobalSecondaryIndex::builder()
                    .index_name(name)
                    .set_key_schema(Some(keys(lane, sort)?))
                    .projection(projection.build())
                    .build()?,
            );
        }
        match self.call(|| Box::pin(call.clone().send())).await? {
            // Another process, or an earlier try of this very call, has created it.
            Came::Done(_)
            | Came::Refused {
                error: CreateTableError::ResourceInUseException(_),
                ..
            } => {}
            Came::Refused { error, in_doubt } => return Err(refused(&error, in_doubt).into()),
        }
        let lost = || OpenError::Connect("the table that was made is not there".into());
        let table = self.table().await?.ok_or_else(lost)?;
        let table = self.active(table).await?;
        self.let_tombstones_expire().await;
        Ok(table)
    }

    /// Lets the service delete tombstones that no worker has deleted. The store does not depend on it.
    async fn let_tombstones_expire(&self) {
        let wanted = TimeToLiveSpecification::builder()
            .enabled(true)
            .attribute_name(NATIVE_TTL)
            .build();
        let Ok(wanted) = wanted else { return };
        let call = self
            .client
            .update_time_to_live()
            .table_name(&self.table)
            .time_to_live_specification(wanted);
        let error = match self.call(|| Box::pin(call.clone().send())).await {
            Ok(Came::Done(_)) => return,
            Ok(Came::Refused { error, .. }) => said(&error),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            error,
            "the table has no TTL for tombstones; workers delete them all the same"
        );
    }

    /// Creates a store in an empty table, or returns the one that another process has created.
    async fn make_meta(&self) -> Result<super::Item, StoreError> {
        let mut item = key(META, META);
        item.insert(
            META_SECRET.to_owned(),
            blob(&random_secret().as_bytes()[..]),
        );
        item.insert(META_VERSION.to_owned(), number(VERSION));
        let call = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression(format!("attribute_not_exists({PK})"));
        match self.call(|| Box::pin(call.clone().send())).await? {
            Came::Done(_)
            | Came::Refused {
                error: PutItemError::ConditionalCheckFailedException(_),
                ..
            } => {}
            Came::Refused { error, in_doubt } => return Err(refused(&error, in_doubt)),
        }
        let lost = || StoreError::Unavailable("what was written is not there".into());
        self.item(META, META).await?.ok_or_else(lost)
    }

    /// What an acknowledged write survives. AWS stores it in three places before it acknowledges. A replica
    /// in another region lags behind, unless the table is strongly consistent, and a failover to it loses the
    /// newest writes. Of any other server it is not known.
    fn level_of(&self, table: &TableDescription) -> Level {
        let copies = table.replicas();
        let agree = table.multi_region_consistency == Some(MultiRegionConsistency::Strong);
        match self.is_aws {
            false => Level::Volatile,
            true if copies.is_empty() || agree => Level::Sync,
            true => Level::Async,
        }
    }

    /// Reads the level. If the service does not answer now, the level stays; if it refuses to tell, the level
    /// is `Volatile`.
    pub(super) async fn read_level(&self) {
        let call = self.client.describe_table().table_name(&self.table);
        let level = match self.call(|| Box::pin(call.clone().send())).await {
            Ok(Came::Done(done)) => match done.table {
                Some(table) => self.level_of(&table),
                None => Level::Volatile,
            },
            Ok(Came::Refused { error, .. }) if error.passes() => return,
            Ok(Came::Refused { .. }) => Level::Volatile,
            Err(_) => return,
        };
        *self.level.lock() = level;
    }
}

/// The attributes that are parts of keys.
const ATTRIBUTES: [(&str, ScalarAttributeType); 6] = [
    (PK, ScalarAttributeType::S),
    (SK, ScalarAttributeType::S),
    (LANE, ScalarAttributeType::S),
    (TIME, ScalarAttributeType::N),
    (ORDER_LANE, ScalarAttributeType::S),
    (NUMBER, ScalarAttributeType::N),
];
/// The indexes and their keys.
const INDEXES: [(&str, &str, &str); 2] = [(LANES, LANE, TIME), (ORDER, ORDER_LANE, NUMBER)];

fn keys(hash: &str, range: &str) -> Result<Vec<KeySchemaElement>, BuildError> {
    let keys = [(hash, KeyType::Hash), (range, KeyType::Range)];
    keys.into_iter()
        .map(|(name, kind)| {
            KeySchemaElement::builder()
                .attribute_name(name)
                .key_type(kind)
                .build()
        })
        .collect()
}

/// Whether a table has the keys and the indexes of this layout.
fn is_a_store(table: &TableDescription) -> bool {
    let has = |found: &[KeySchemaElement], hash: &str, range: &str| {
        let mut wanted = [(hash, KeyType::Hash), (range, KeyType::Range)].into_iter();
        wanted.all(|(name, kind)| {
            let mut found = found.iter();
            found.any(|key| key.attribute_name == name && key.key_type == kind)
        })
    };
    let indexes = table.global_secondary_indexes();
    has(table.key_schema(), PK, SK)
        && INDEXES.iter().all(|(name, lane, sort)| {
            let mut indexes = indexes.iter();
            indexes.any(|index| {
                index.index_name() == Some(name) && has(index.key_schema(), lane, sort)
            })
        })
}

/// The table of `url` as a CloudFormation template, for those who create tables with it.
///
/// # Errors
/// [`AddressError`] if the URL is invalid.
pub fn cloudformation(url: &str) -> Result<String, AddressError> {
    let table = Address::parse(url)?.table;
    let attributes: String = ATTRIBUTES
        .iter()
        .map(|(name, kind)| {
            format!("        - {{ AttributeName: {name}, AttributeType: {kind} }}\n")
        })
        .collect();
    let keys = |indent: &str, hash: &str, range: &str| {
        format!(
            "{indent}KeySchema:\n{indent}  - {{ AttributeName: {hash}, KeyType: HASH }}\n\
             {indent}  - {{ AttributeName: {range}, KeyType: RANGE }}\n"
        )
    };
    let indexes: String = INDEXES
        .iter()
        .map(|(name, lane, sort)| {
            let keys = keys("          ", lane, sort);
            format!("        - IndexName: {name}\n{keys}          Projection: {{ ProjectionType: KEYS_ONLY }}\n")
        })
        .collect();
    let own = keys("      ", PK, SK);
    Ok(format!(
        "AWSTemplateFormatVersion: \"2010-09-09\"\n\
         Description: The table of an OnlyOnce store\n\
         Resources:\n\
         \x20 Store:\n\
         \x20   Type: AWS::DynamoDB::Table\n\
         \x20   DeletionPolicy: Retain\n\
         \x20   UpdateReplacePolicy: Retain\n\
         \x20   Properties:\n\
         \x20     TableName: \"{table}\"\n\
         \x20     BillingMode: PAY_PER_REQUEST\n\
         \x20     DeletionProtectionEnabled: true\n\
         \x20     AttributeDefinitions:\n{attributes}{own}\
         \x20     GlobalSecondaryIndexes:\n{indexes}\
         \x20     TimeToLiveSpecification: {{ AttributeName: {NATIVE_TTL}, Enabled: true }}\n"
    ))
}
