//! Reloads the configuration while the gateway runs: on SIGHUP, and when the file's content changes.
//!
//! A file that is invalid, or that changes what must not change, is refused as a whole, and the gateway goes
//! on as before. A valid file takes effect for later requests: requests under way finish with the
//! configuration they began with, and no connection is closed.

use std::{path::PathBuf, sync::Arc, time::Duration};

use metrics::{counter, gauge};
use onlyonce::{Engine, Pace, Workers};
use onlyonce_core::Timestamp;
use onlyonce_store::clock::StoreClock;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use crate::{
    admin::Admin,
    config::{self, Config, Diagnostics, Overrides, change},
    edge::{Current, Edge},
    outbox::{self, Delivering, Prepared},
    serve, telemetry, tls,
};

/// Polling interval. A change is read once it has been seen twice, so that a file is not read while it is
/// being written.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Delay before a valid file that could not be put into effect is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// The gauge of the current configuration: 1 at startup, one more with each reload.
const GENERATION: &str = "onlyonce_config_generation";
/// The counter of reloads, by result.
const RELOADS: &str = "onlyonce_config_reloads_total";

/// The generation of the current configuration, and the error of the last attempt to change it.
#[derive(Clone)]
pub(crate) struct Status(Arc<Mutex<Told>>);

/// The published status: names and positions, never values.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) generation: u64,
    pub(crate) loaded_at: Timestamp,
    pub(crate) last_error: Option<String>,
}

impl Status {
    pub(crate) fn new() -> Self {
        gauge!(GENERATION).set(1.0);
        for result in ["applied", "refused"] {
            counter!(RELOADS, "result" => result).increment(0);
        }
        Self(Arc::new(Mutex::new(Told {
            generation: 1,
            loaded_at: StoreClock::system().now(),
            last_error: None,
        })))
    }

    pub(crate) fn told(&self) -> Told {
        self.0.lock().clone()
    }

    fn applied(&self) -> u64 {
        let mut told = self.0.lock();
        told.generation += 1;
        told.loaded_at = StoreClock::system().now();
        told.last_error = None;
        gauge!(GENERATION).set(told.generation as f64);
        counter!(RELOADS, "result" => "applied").increment(1);
        told.generation
    }

    fn refused(&self, why: String) {
        self.0.lock().last_error = Some(why);
        counter!(RELOADS, "result" => "refused").increment(1);
    }
}

/// The file that the configuration comes from.
pub struct Source {
    file: PathBuf,
    overrides: Overrides,
    /// The file's text, read just before the configuration was first loaded.
    text: Option<String>,
}

impl Source {
    /// Loads the configuration in `file`. The command line's `overrides` take precedence.
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn load(file: PathBuf, overrides: Overrides) -> Result<(Config, Self), Diagnostics> {
        // Read before loading, so that a change in between is noticed.
        let text = config::read(&file).ok();
        let config = config::load(&file, &overrides)?;
        let source = Self {
            file,
            overrides,
            text,
        };
        Ok((config, source))
    }
}

/// What a configuration is made from: the text of its file, and a fingerprint of the files that it names,
/// such as certificates.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    text: String,
    named: [u8; 32],
}

/// Puts new configurations into effect.
pub(crate) struct Reloader {
    /// `None` where there is no file to read.
    source: Option<Source>,
    current: Arc<Current>,
    admin: Admin,
    engine: Engine,
    workers: Workers,
    delivering: Delivering,
    status: Status,
    /// The content that was last applied or refused; `seen` is the content at the last poll.
    decided: Option<Content>,
    seen: Option<Content>,
    not_before: Instant,
}

enum Refusal {
    /// The file is not a configuration.
    Bad(Diagnostics),
    /// The file changes what must not change.
    Change(Vec<String>),
    /// The file is valid, but something that it needs is missing.
    Failed(anyhow::Error),
}

impl Reloader {
    /// Starts the background loops of the current configuration.
    pub(crate) fn new(
        source: Option<Source>,
        (current, engine, admin): (Arc<Current>, Engine, Admin),
        status: Status,
        prepared: Prepared,
    ) -> Self {
        let config = current.config();
        let workers = Workers::start_with(&engine, pace(&config), current.clone());
        let text = source.as_ref().and_then(|source| source.text.clone());
        let named = tls::fingerprint_of(&config.files());
        Self {
            decided: text.map(|text| Content { text, named }),
            source,
            current,
            admin,
            engine,
            workers,
            delivering: Delivering::start(prepared),
            status,
            seen: None,
            not_before: Instant::now(),
        }
    }

    /// Resolves when the file's content differs from the last decided one and was the same at two polls.
    /// Never resolves without a file.
    pub(crate) async fn changed(&mut self) {
        let Some(source) = &self.source else {
            return std::future::pending().await;
        };
        let file = source.file.clone();
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if Instant::now() < self.not_before {
                continue;
            }
            let (file, named) = (file.clone(), self.current.config().files());
            let read = tokio::task::spawn_blocking(move || {
                config::read(&file).map(|text| Content {
                    text,
                    named: tls::fingerprint_of(&named),
                })
            });
            // A file that is briefly absent is being replaced.
            let Ok(Ok(content)) = read.await else {
                continue;
            };
            let stands = self.seen.as_ref() == Some(&content);
            let is_new = self.decided.as_ref() != Some(&content);
            self.seen = Some(content);
            if stands && is_new {
                return;
            }
        }
    }

    /// Reads the file, and puts it into effect if it is valid.
    pub(crate) async fn reload(&mut self) {
        let Some(source) = &self.source else {
            tracing::warn!("SIGHUP: there is no configuration file to read anew");
            return;
        };
        let name = source.file.display().to_string();
        let text = match config::read(&source.file) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(%error, file = name, "reload refused: the file cannot be read");
                self.status.refused("the file cannot be read".to_owned());
                return;
            }
        };
        let named = self.current.config().files();
        // Taken before these files are read for use, so that a change in between is noticed.
        let read = tls::fingerprint_of(&named);
        let env = |name: &str| std::env::var(name).ok();
        let outcome = match config::parse(&name, &text, &env, &source.overrides) {
            Ok(config) => self.apply(config).await,
            Err(diagnostics) => Err(Refusal::Bad(diagnostics)),
        };
        let now_named = self.current.config().files();
        let named = match now_named == named {
            true => read,
            false => tls::fingerprint_of(&now_named),
        };
        self.decided = Some(Content { text, named });
        match outcome {
            Ok(()) => {
                let generation = self.status.applied();
                tracing::info!(
                    generation,
                    "the configuration was read anew and is in effect"
                );
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    async fn apply(&mut self, config: Config) -> Result<(), Refusal> {
        let before = self.current.edge();
        let changes = change::refusals(before.config(), &config);
        if !changes.is_empty() {
            return Err(Refusal::Change(changes));
        }
        for warning in &config.warnings {
            telemetry::say(warning);
        }
        let config = Arc::new(config);
        let (edge, prepared) = self.made(&config, &before).await.map_err(|error| {
            // Some routes may have been built before one failed.
            before.policies_are_in_effect();
            Refusal::Failed(error)
        })?;
        self.current.replace(edge);
        self.admin.follow(&config);
        if let Some(prepared) = prepared {
            self.delivering.replace(prepared);
        }
        if pace(&config) != pace(before.config()) {
            // A loop can be stopped anywhere: each of its steps is complete or has not happened.
            let pace = pace(&config);
            self.workers = Workers::start_with(&self.engine, pace, self.current.clone());
        }
        Ok(())
    }

    /// Builds what `config` needs; the delivery of messages only if its options changed.
    async fn made(
        &self,
        config: &Arc<Config>,
        before: &Edge,
    ) -> anyhow::Result<(Edge, Option<Prepared>)> {
        serve::demand_level(config, &**self.engine.store())?;
        let edge = Edge::new(config, &self.engine, Some(before)).await?;
        let was = before.config();
        let changes = config.outbox != was.outbox
            || config.workers.deliver_every != was.workers.deliver_every;
        let prepared = match changes {
            true => Some(outbox::prepare(config, &self.engine).await?),
            false => None,
        };
        Ok((edge, prepared))
    }

    /// Stops claiming messages; returns when none is under way.
    pub(crate) async fn stop_delivering(&mut self) {
        self.delivering.stop().await;
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let told = match refusal {
            Refusal::Bad(diagnostics) => {
                telemetry::say(diagnostics);
                tracing::error!("reload refused: the file has errors; the old one stays in effect");
                diagnostics.summary()
            }
            Refusal::Change(changes) => {
                let changes = changes.join("; ");
                tracing::error!("reload refused: {changes}; the old one stays in effect");
                changes
            }
            Refusal::Failed(error) => {
                tracing::error!("reload failed: {error:#}; the old one stays in effect");
                self.decided = None;
                self.not_before = Instant::now() + RETRY_AFTER;
                "the file is good and could not be put into effect: see the log".to_owned()
            }
        };
        self.status.refused(told);
    }
}

fn pace(config: &Config) -> Pace {
    Pace {
        sweep_every: config.workers.sweep_every,
        reap_every: config.workers.reap_every,
        reconcile_every: config.workers.reconcile_every,
        keep_audit: config.admin.audit_retention,
    }
}
