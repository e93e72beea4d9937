//! Delivery of outbox messages by this process.

mod targets;

use std::time::Duration;

use onlyonce::{
    Engine,
    outbox::{Deliveries, Running},
};
use tokio::task::JoinSet;

use crate::config::Config;

/// The running deliveries, whose configuration can be replaced.
pub(crate) struct Delivering {
    now: Option<Running>,
    /// Replaced deliveries, which finish the messages they have under way.
    before: JoinSet<()>,
}

/// Deliveries that are ready to start, and their polling interval.
pub(crate) struct Prepared(Option<Deliveries>, Duration);

/// Builds the deliveries of `config`; nothing is claimed yet.
///
/// # Errors
/// If there are targets and the store has no outbox, or something that a target needs is missing.
pub(crate) async fn prepare(config: &Config, engine: &Engine) -> anyhow::Result<Prepared> {
    let outbox = &config.outbox;
    let every = config.workers.deliver_every;
    if outbox.targets.is_empty() {
        return Ok(Prepared(None, every));
    }
    let Some(deliveries) = Deliveries::new(engine) else {
        let kind = config.store.url.scheme();
        anyhow::bail!("there are `outbox.targets`, and a {kind} store has no outbox");
    };
    let mut deliveries = deliveries.keep_delivered(outbox.keep_delivered);
    for target in &outbox.targets {
        // The futures of broker clients are large while they connect.
        let target = Box::pin(targets::target(target)).await?;
        deliveries = deliveries.target(target);
    }
    Ok(Prepared(Some(deliveries), every))
}

impl Prepared {
    fn start(self) -> Option<Running> {
        let Self(deliveries, every) = self;
        deliveries.map(|deliveries| deliveries.start(every))
    }
}

impl Delivering {
    pub(crate) fn start(prepared: Prepared) -> Self {
        Self {
            now: prepared.start(),
            before: JoinSet::new(),
        }
    }

    /// Switches to another configuration. The old one finishes the messages it has under way: a message is
    /// claimed by one of the two only.
    pub(crate) fn replace(&mut self, prepared: Prepared) {
        if let Some(running) = self.now.take() {
            self.before.spawn(running.stop());
        }
        self.now = prepared.start();
    }

    /// Stops claiming, and waits for messages under way.
    pub(crate) async fn stop(&mut self) {
        if let Some(running) = self.now.take() {
            running.stop().await;
        }
        while self.before.join_next().await.is_some() {}
    }
}
