//! What the gateways said of their store, and when; and which answers were lost although they said otherwise.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use onlyonce_testkit::promise::{At, Broken, Event, Heard, Promise, check};
use tokio::task::JoinHandle;

use crate::harness::{
    Gateway, Request, client,
    history::{TERMS, Tape},
    ms,
};

/// How often the gateways are asked, in milliseconds.
const ASK_EVERY: u64 = 50;

/// What gateways said, in the order in which they said it.
pub(crate) struct Levels {
    said: Arc<Mutex<Vec<(u64, String)>>>,
    asking: Vec<JoinHandle<()>>,
}

impl Drop for Levels {
    fn drop(&mut self) {
        for asking in &self.asking {
            asking.abort();
        }
    }
}

/// What one gateway says now.
pub(crate) async fn level_of(gateway: &Gateway) -> Option<String> {
    ask(gateway.admin_addr()).await
}

async fn ask(addr: std::net::SocketAddr) -> Option<String> {
    let answer = client::send(addr, &Request::get("/readyz")).await.ok()?;
    let answer: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    Some(answer["store"]["level"].as_str()?.to_owned())
}

impl Levels {
    pub(crate) fn watch(gateways: &[Gateway], tape: &Tape) -> Self {
        let said = Arc::<Mutex<Vec<(u64, String)>>>::default();
        let asking = gateways.iter().map(|gateway| {
            let (addr, said, tape) = (gateway.admin_addr(), Arc::clone(&said), tape.clone());
            tokio::spawn(async move {
                loop {
                    if let Some(level) = ask(addr).await {
                        said.lock().unwrap().push((tape.now(), level));
                    }
                    tokio::time::sleep(ms(ASK_EVERY)).await;
                }
            })
        });
        let asking = asking.collect();
        Self { said, asking }
    }

    /// What was said last before this moment.
    fn at(&self, moment: u64) -> Option<String> {
        let said = self.said.lock().unwrap();
        let before = said.iter().rev().find(|(at, _)| *at <= moment);
        before.map(|(_, level)| level.clone())
    }

    /// How often each level was said.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, level) in &*self.said.lock().unwrap() {
            *counts.entry(level.clone()).or_default() += 1;
        }
        counts
    }
}

/// The judgement on one key.
pub(crate) struct Judged {
    pub(crate) key: String,
    /// What the gateways said of their store when it was first executed, and when its outcome was first
    /// heard, if that was ever so.
    executed_at: Option<String>,
    heard_at: Option<String>,
    pub(crate) broken: Vec<Broken>,
}

impl Judged {
    /// Whether what was lost was written to a store that was said to be able to lose it, and nothing else is
    /// wrong: its reservation, or its outcome.
    pub(crate) fn is_announced_loss(&self) -> bool {
        let is_less = |said: &Option<String>| said.as_deref().is_some_and(|said| said != "sync");
        let announced = |broken: &Broken| match broken.promise {
            Promise::Once => is_less(&self.executed_at),
            Promise::Same | Promise::Kept => is_less(&self.heard_at),
            _ => false,
        };
        self.broken.iter().all(announced)
    }

    pub(crate) fn was_executed_again(&self) -> bool {
        self.broken
            .iter()
            .any(|broken| broken.promise == Promise::Once)
    }
}

impl std::fmt::Display for Judged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (executed, heard) = (&self.executed_at, &self.heard_at);
        writeln!(
            f,
            "{}: executed at {executed:?}, heard at {heard:?}",
            self.key
        )?;
        for broken in &self.broken {
            writeln!(f, "  {broken}")?;
        }
        Ok(())
    }
}

/// The keys for which a promise was broken. Keys have nothing to do with each other, so each has a history of
/// its own.
pub(crate) fn judge(history: &[At], levels: &Levels) -> Vec<Judged> {
    let (mut keys, mut calls) = (BTreeMap::<String, Vec<At>>::new(), BTreeMap::new());
    let mut executions = BTreeMap::new();
    for At { event, .. } in history {
        match event {
            Event::Sent { call, asked, .. } => drop(calls.insert(*call, asked.key.to_string())),
            Event::Began {
                execution, asked, ..
            } => drop(executions.insert(*execution, asked.key.to_string())),
            _ => {}
        }
    }
    for key in calls.values() {
        keys.entry(key.clone()).or_default();
    }
    for at in history {
        let key = match &at.event {
            Event::Sent { call, .. } | Event::Heard { call, .. } | Event::Left { call } => {
                &calls[call]
            }
            Event::Began { execution, .. }
            | Event::Ended { execution, .. }
            | Event::Undone { execution } => &executions[execution],
            Event::AtRest => {
                keys.values_mut().for_each(|events| events.push(at.clone()));
                continue;
            }
            Event::Attested { .. } | Event::Forgotten { .. } => {
                unreachable!("nobody does that here")
            }
        };
        keys.entry(key.clone()).or_default().push(at.clone());
    }
    let judged = keys.into_iter().map(|(key, history)| {
        let level_at = |what: fn(&Event) -> bool| {
            let moments = history.iter().filter(|at| what(&at.event));
            levels.at(moments.map(|at| at.at).min()?)
        };
        Judged {
            key,
            executed_at: level_at(|event| matches!(event, Event::Began { .. })),
            heard_at: level_at(|event| {
                matches!(
                    event,
                    Event::Heard {
                        heard: Heard::Outcome(_),
                        ..
                    }
                )
            }),
            broken: check(&TERMS, &history),
        }
    });
    judged.filter(|judged| !judged.broken.is_empty()).collect()
}
