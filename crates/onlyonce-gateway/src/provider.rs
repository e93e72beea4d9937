//! The provider behind a route: how it is asked what became of a key, and how it is known that a word
//! comes from it.

mod query;
mod signature;
mod webhook;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use onlyonce::reconcile::{Answer, Ask, Judged};
use onlyonce_core::Record;

use crate::{config::Route, edge::Current};
use query::Query;
pub(crate) use signature::BadSignature;
pub(crate) use webhook::{Heard, Webhook};

/// The provider behind one route, as far as the configuration knows it.
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
                .map(|query| Query::new(query, &config.outcomes))
                .transpose()?,
            webhook: webhook
                .map(|webhook| Webhook::new(&route.id, webhook))
                .transpose()?,
        }))
    }

    /// What the provider tells of its own accord, where it does.
    pub(crate) fn webhook(&self) -> Option<&Webhook> {
        self.webhook.as_ref()
    }

    /// What became of the key of `record`, as the provider says.
    pub(crate) async fn ask(&self, record: &Record) -> Answer {
        match &self.query {
            Some(query) => query.ask(record).await,
            None => nobody("no `query` is configured, and no webhook has come"),
        }
    }
}

fn nobody(why: &str) -> Answer {
    Answer {
        judged: Judged::Inconclusive(why.to_owned()),
        question: None,
    }
}

/// The reconciler asks by the configuration that is in effect when it does.
impl Ask for Current {
    fn ask<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Answer> {
        let edge = self.edge();
        Box::pin(async move {
            match edge.lane(&record.route) {
                Some(lane) => lane.provider.ask(record).await,
                None => nobody("the route is gone"),
            }
        })
    }
}
