//! Finds out who is master from the deciders: all Sentinels, or all nodes of a cluster, at the same time.
//!
//! A server cannot tell by itself that it was deposed: one that was frozen continues as master until it is
//! told otherwise. So mastership counts only if enough of the others confirm it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Client, Value, aio::MultiplexedConnection};
use tokio::time::{Instant, timeout_at};

use super::{
    Net, patient,
    view::{ClusterAnswer, SentinelAnswer, View, cluster_view, sentinel_view},
};
use crate::{
    BoxError,
    redis::{
        address::{Host, Kind},
        failure::Failure,
    },
};

/// The most time for one decider's answer; half of the store's timeout if that is less.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How long a silent decider is not asked, so that it does not delay every query.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(1);

/// A decider did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("nobody answered in time")]
struct Silent;

/// A decider, with a connection of its own: calls on the other connections may wait for replicas.
pub(super) struct Decider {
    client: Client,
    link: Mutex<Option<MultiplexedConnection>>,
    left_alone_until: Mutex<Option<Instant>>,
}

impl Decider {
    /// The answers to `questions`; a server error takes the place of its answer.
    async fn ask(
        &self,
        questions: &redis::Pipeline,
        until: Instant,
    ) -> Result<Vec<Value>, BoxError> {
        if self.is_left_alone() {
            return Err("it was silent a moment ago".into());
        }
        let exchange = async {
            let open = self.link.lock().clone();
            let mut link = match open {
                Some(link) => link,
                None => {
                    let config = patient();
                    self.client
                        .get_multiplexed_async_connection_with_config(&config)
                        .await?
                }
            };
            let answers = link
                .send_packed_commands(questions, 0, questions.len())
                .await?;
            *self.link.lock() = Some(link);
            Ok::<_, redis::RedisError>(answers)
        };
        let outcome = timeout_at(until, exchange).await;
        if !matches!(outcome, Ok(Ok(_))) {
            *self.link.lock() = None;
        }
        match outcome {
            Ok(answered) => Ok(answered?),
            Err(_) => Err(Silent.into()),
        }
    }

    fn is_left_alone(&self) -> bool {
        let until = *self.left_alone_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }
}

impl Net {
    /// Whether another server may replace a master. Once true it stays so: absent replicas may come back.
    pub(super) fn can_fail_over(&self) -> bool {
        self.can_fail_over.load(Ordering::Relaxed)
    }

    fn decider(&self, host: &Host) -> Result<Arc<Decider>, Failure> {
        if let Some(decider) = self.deciders.lock().get(host) {
            return Ok(decider.clone());
        }
        let address = &self.address;
        let (user, password) = match address.kind {
            Kind::Sentinel(_) => (&address.sentinel_user, &address.sentinel_password),
            Kind::Server | Kind::Cluster => (&address.user, &address.password),
        };
        let decider = Arc::new(Decider {
            client: self.client(host, (user.as_deref(), password.as_deref()), 0)?,
            link: Mutex::default(),
            left_alone_until: Mutex::default(),
        });
        self.deciders.lock().insert(host.clone(), decider.clone());
        Ok(decider)
    }

    /// Asks all known deciders the same, concurrently. Fails only if nobody answers.
    async fn ask_all(
        &self,
        questions: &redis::Pipeline,
        deadline: Instant,
    ) -> Result<Vec<(Host, Vec<Value>)>, Failure> {
        let mut hosts: HashSet<Host> = self.deciders.lock().keys().cloned().collect();
        hosts.extend(self.address.hosts.iter().cloned());
        let mut hosts: Vec<Host> = hosts.into_iter().collect();
        hosts.sort();
        let until = deadline.min(Instant::now() + ANSWER_WITHIN.min(self.timeout / 2));
        let asked = hosts.into_iter().map(|host| async move {
            let answers = match self.decider(&host) {
                Ok(decider) => decider.ask(questions, until).await,
                Err(Failure::Refused(error) | Failure::Lost(error)) => Err(error),
            };
            (host, answers)
        });
        let mut last: BoxError = "nobody is there to be asked".into();
        let (mut answered, mut silent) = (Vec::new(), Vec::new());
        for (host, answers) in join_all(asked).await {
            match answers {
                Ok(answers) => answered.push((host, answers)),
                Err(error) => {
                    if error.is::<Silent>() {
                        silent.push(host);
                    }
                    last = error;
                }
            }
        }
        // If nobody answers, either we are slow or all of them are away.
        if answered.is_empty() {
            return Err(Failure::Refused(last));
        }
        let until = Instant::now() + LEFT_ALONE_FOR;
        let deciders = self.deciders.lock();
        for decider in silent.iter().filter_map(|host| deciders.get(host)) {
            *decider.left_alone_until.lock() = Some(until);
        }
        Ok(answered)
    }

    /// Keeps connections to the named and the configured deciders, and to no others.
    fn keep_deciders(&self, named: &HashSet<Host>) {
        let configured = &self.address.hosts;
        self.deciders
            .lock()
            .retain(|host, _| named.contains(host) || configured.contains(host));
        for host in named {
            // A decider that cannot be asked does not answer; the others are counted without it.
            let _ = self.decider(host);
        }
    }

    /// The master of this name as the Sentinels see it.
    pub(super) async fn ask_sentinels(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<View, Failure> {
        let mut questions = redis::pipe();
        questions
            .cmd("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg(name);
        questions.cmd("SENTINEL").arg("MASTER").arg(name);
        questions.cmd("SENTINEL").arg("SENTINELS").arg(name);
        questions.cmd("SENTINEL").arg("MYID");
        let asked_at = Instant::now();
        let told = self.ask_all(&questions, deadline).await?;
        let mut last: BoxError = format!("no Sentinel knows a master {name:?}").into();
        // One Sentinel may be reached under two names, and has one vote.
        let mut answers = BTreeMap::new();
        for (host, told) in told {
            match SentinelAnswer::read(told, &host) {
                Ok(answer) => drop(answers.insert(answer.id.clone(), answer)),
                Err(Some(error)) => last = error.into(),
                Err(None) => {}
            }
        }
        let answers: Vec<SentinelAnswer> = answers.into_values().collect();
        let named = answers.iter().flat_map(|answer| answer.others.clone());
        self.keep_deciders(&named.collect());
        sentinel_view(&answers, asked_at).ok_or(Failure::Refused(last))
    }

    /// The masters of a cluster as its nodes see them.
    pub(super) async fn ask_cluster(&self, deadline: Instant) -> Result<View, Failure> {
        let mut questions = redis::pipe();
        questions.cmd("CLUSTER").arg("SLOTS");
        questions.cmd("CLUSTER").arg("NODES");
        let asked_at = Instant::now();
        let told = self.ask_all(&questions, deadline).await?;
        let mut last: BoxError = "CLUSTER SLOTS cannot be read".into();
        let mut answers = HashMap::new();
        for (host, told) in told {
            match ClusterAnswer::read(told, &host) {
                Ok(answer) => drop(answers.insert(answer.id.clone(), answer)),
                Err(Some(error)) => last = error.into(),
                Err(None) => {}
            }
        }
        let answers: Vec<ClusterAnswer> = answers.into_values().collect();
        if answers.is_empty() {
            return Err(Failure::Refused(last));
        }
        let named = answers.iter().flat_map(|answer| answer.hosts.clone());
        self.keep_deciders(&named.collect());
        let view = cluster_view(&answers, asked_at);
        if view.masters.values().any(|master| master.replicas > 0) {
            self.can_fail_over.store(true, Ordering::Relaxed);
        }
        Ok(view)
    }
}
