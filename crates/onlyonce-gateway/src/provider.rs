//! The provider behind a route: how it is queried about a key, and how its webhooks are verified.

mod query;
mod signature;
mod webhook;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use onlyonce::{
    Engine,
    reconcile::{Answer, Ask, Judged, under_all_names},
};
use onlyonce_core::{Key, Record, record::Evidence};
use onlyonce_store::StoreError;

use crate::{
    config::{Route, Scheme},
    edge::Current,
};
use query::Query;
pub(crate) use signature::BadSignature;
pub(crate) use webhook::{Heard, Webhook};

/// The provider behind one route, as far as it is configured.
#[derive(Default)]
pub(crate) struct Provider {
    query: Option<Query>,
    webhook: Option<Webhook>,
}

impl Provider {
    /// The provider of `route`; a webhook's secret comes from the environment.
    pub(crate) fn new(route: &Route) -> anyhow::Result<Arc<Self>> {
        let Some(config) = &route.reconcile else {
            return Ok(Arc::default());
        };
        let query = config.query.as_ref();
        let webhook = config.webhook.as_ref();
        Ok(Arc::new(Self {
            query: query
                .map(|query| Query::new(query, &config.outcomes, route.policy.profile))
                .transpose()?,
            webhook: webhook
                .map(|webhook| Webhook::new(&route.id, webhook))
                .transpose()?,
        }))
    }

    /// The provider's webhook, if one is configured.
    pub(crate) fn webhook(&self) -> Option<&Webhook> {
        self.webhook.as_ref()
    }

    /// Queries the provider about the key of `record`, under every name by which the provider may know the
    /// key.
    async fn ask(&self, engine: &Engine, record: &Record) -> Answer {
        let Some(query) = &self.query else {
            return nobody("no `query` is configured, and no webhook has come");
        };
        if record.notes.erased {
            return nobody("the key was erased, so nobody can be asked about it");
        }
        let mut answers = Vec::new();
        for name in record.names() {
            answers.push(match is_shared(engine, record, &name).await {
                Ok(false) => query.ask(record, &name).await,
                // Absence is conclusive; presence is not, since it may be the other key's.
                Ok(true) => match query.ask(record, &name).await {
                    Judged::Says(Evidence::NotExecuted) => Judged::Says(Evidence::NotExecuted),
                    _ => Judged::Inconclusive(SHARED.to_owned()),
                },
                Err(_) => Judged::Inconclusive("the store could not be asked".to_owned()),
            });
        }
        Answer {
            judged: under_all_names(answers),
            question: Some(query.question().to_owned()),
        }
    }
}

const SHARED: &str = "the provider may know another key by the same name";

/// Whether `name` also means another key that this caller has used on the route.
async fn is_shared(engine: &Engine, record: &Record, name: &str) -> Result<bool, StoreError> {
    let others = Key::meant_by(name);
    for other in others.iter().filter(|other| **other != record.key) {
        let id = engine.secret().record_id(record.scope.as_str(), other);
        let found = engine.store().lookup(id).await?.value;
        if found.is_some_and(|found| found.route == record.route) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn nobody(why: &str) -> Answer {
    Answer {
        judged: Judged::Inconclusive(why.to_owned()),
        question: None,
    }
}

/// The reconciler queries with the configuration that is current at that moment.
impl Ask for Current {
    fn ask<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Answer> {
        let edge = self.edge();
        Box::pin(async move {
            match edge.lane(&record.route) {
                Some(lane) => lane.provider.ask(&edge.engine, record).await,
                None => nobody("the route is gone"),
            }
        })
    }
}

/// Whether `secret` contains a key for webhooks of this scheme.
pub(crate) fn is_webhook_secret(scheme: Scheme, secret: &str) -> bool {
    !signature::keys(scheme, secret).is_empty()
}
