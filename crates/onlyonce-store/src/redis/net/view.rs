//! Combines the deciders' answers about masters. No I/O here.

use std::collections::{HashMap, HashSet};

use redis::{FromRedisValue, RedisError, Value};
use tokio::time::Instant;

use super::map::{Map, Range};
use crate::redis::address::Host;

/// The number of hash slots of a cluster.
const SLOTS: usize = 16_384;

/// The masters and their slots.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) map: Map,
    pub(super) masters: HashMap<Host, Master>,
    /// When the deciders were asked.
    pub(super) asked_at: Option<Instant>,
}

/// A master, as the others see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Master {
    /// Enough of the others say that it is master and not about to be replaced: it cannot have been
    /// replaced without one of them knowing.
    pub(super) vouched_for: bool,
    /// Its replicas, attached or not: any of them may replace it.
    pub(super) replicas: usize,
}

impl View {
    /// Whether `host` was master of `slot` when the deciders were asked. After an ASK redirection the slot
    /// still belongs to another host, and only the host counts.
    pub(super) fn vouches_for(&self, host: &Host, slot: Option<u16>) -> bool {
        let owns = slot.is_none_or(|slot| self.map.owner(slot) == Some(host));
        owns && self
            .masters
            .get(host)
            .is_some_and(|master| master.vouched_for)
    }
}

/// One answer, or the error in its place.
fn take<T: FromRedisValue>(told: Option<Value>) -> Result<T, Option<RedisError>> {
    let told = told.ok_or(None)?.extract_error().map_err(Some)?;
    redis::from_redis_value(told).map_err(|_| None)
}

/// A Sentinel's answer.
#[derive(Clone, Debug)]
pub(super) struct SentinelAnswer {
    pub(super) id: String,
    master: Host,
    epoch: u64,
    replicas: usize,
    /// The number of Sentinels, this one included.
    sentinels: usize,
    /// Whether the master answers this Sentinel.
    is_up: bool,
    /// Whether the master is about to be replaced, or enough Sentinels agree that it is down.
    is_going: bool,
    pub(super) others: HashSet<Host>,
}

impl SentinelAnswer {
    /// Reads the answers to the four queries. `Err(Some)` is the server's error; `Err(None)` an answer
    /// without a master.
    pub(super) fn read(told: Vec<Value>, asked: &Host) -> Result<Self, Option<RedisError>> {
        let mut told = told.into_iter();
        let (name, port) = take::<Option<(String, u16)>>(told.next())?.ok_or(None)?;
        let master = Host { name, port };
        let fields: HashMap<String, String> = take(told.next())?;
        let others: Vec<HashMap<String, String>> = take(told.next()).unwrap_or_default();
        // Before Redis 6.2 a Sentinel does not tell its id; then the host that was asked stands for it.
        let id = take::<String>(told.next()).unwrap_or_else(|_| asked.to_string());
        let host = |fields: &HashMap<String, String>| {
            let (name, port) = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?);
            Some(Host { name, port })
        };
        let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok());
        let count = |name: &str| number(name).and_then(|value| usize::try_from(value).ok());
        let flags = fields.get("flags").map_or("", String::as_str);
        let flagged = |flag: &str| flags.split(',').any(|found| found == flag);
        // After a takeover the new master's address is returned, while the flags are still the old one's.
        let is_of_the_old = host(&fields).as_ref() != Some(&master);
        let going = flagged("o_down") || flagged("failover_in_progress");
        Ok(Self {
            id,
            master,
            epoch: number("config-epoch").ok_or(None)?,
            replicas: count("num-slaves").ok_or(None)?,
            sentinels: 1 + count("num-other-sentinels").ok_or(None)?,
            is_up: is_of_the_old || !flagged("s_down"),
            is_going: going && !is_of_the_old,
            others: others.iter().filter_map(host).collect(),
        })
    }
}

/// The master of the latest configuration. It is confirmed if a majority of all Sentinels sees it up and none
/// of them is replacing it.
pub(super) fn sentinel_view(answers: &[SentinelAnswer], asked_at: Instant) -> Option<View> {
    let latest = answers.iter().max_by_key(|answer| answer.epoch)?;
    let of_it = || {
        answers
            .iter()
            .filter(|answer| answer.master == latest.master)
    };
    let all = of_it().map(|answer| answer.sentinels).max()?;
    let up = of_it().filter(|answer| answer.is_up).count();
    let going = of_it().any(|answer| answer.is_going);
    let master = Master {
        vouched_for: up > all / 2 && !going,
        replicas: of_it().map(|answer| answer.replicas).max()?,
    };
    Some(View {
        map: Map(vec![(0, u16::MAX, latest.master.clone())]),
        masters: HashMap::from([(latest.master.clone(), master)]),
        asked_at: Some(asked_at),
    })
}

/// A cluster node's answer.
#[derive(Clone, Debug)]
pub(super) struct ClusterAnswer {
    pub(super) id: String,
    /// The slot ranges with their owners and the owners' ids.
    slots: Vec<(Range, String)>,
    nodes: HashMap<String, Node>,
    pub(super) hosts: HashSet<Host>,
}

/// A cluster node's statement about another node.
#[derive(Clone, Debug)]
struct Node {
    epoch: u64,
    /// Whether the node is a master, and answers.
    is_up: bool,
    /// The id of the master that it replicates.
    follows: Option<String>,
}

impl ClusterAnswer {
    /// Reads `CLUSTER SLOTS` and `CLUSTER NODES`.
    pub(super) fn read(told: Vec<Value>, asked: &Host) -> Result<Self, Option<RedisError>> {
        let mut told = told.into_iter();
        let slots: Value = take(told.next())?;
        let text: String = take(told.next())?;
        let (slots, hosts) = read_slots(&slots, asked).ok_or(None)?;
        let mut nodes = HashMap::new();
        let mut id = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [node, _, flags, follows, _, _, epoch, ..] = words[..] else {
                return Err(None);
            };
            let flagged = |flag: &str| flags.split(',').any(|found| found == flag);
            if flagged("myself") {
                id = Some(node.to_owned());
            }
            let read = Node {
                epoch: epoch.parse().map_err(|_| None)?,
                is_up: flagged("master") && !flagged("fail") && !flagged("fail?"),
                follows: flagged("slave").then(|| follows.to_owned()),
            };
            nodes.insert(node.to_owned(), read);
        }
        Ok(Self {
            id: id.ok_or(None)?,
            slots,
            nodes,
            hosts,
        })
    }

    fn replicas_of(&self, id: &str) -> usize {
        let follows = |node: &&Node| node.follows.as_deref() == Some(id);
        self.nodes.values().filter(follows).count()
    }
}

/// For each slot, the claimant with the highest epoch, which is how the nodes settle it themselves.
///
/// A replica takes over with the votes of a majority of the masters, and none votes before it considers the
/// old master failed. So a master is confirmed if the others that do not consider it failed are, with itself,
/// a majority: no other majority can have voted without one of them.
pub(super) fn cluster_view(answers: &[ClusterAnswer], asked_at: Instant) -> View {
    let mut owners: Vec<Option<(u64, &Host, &str)>> = vec![None; SLOTS];
    for answer in answers {
        for ((first, last, host), id) in &answer.slots {
            let epoch = answer.nodes.get(id).map_or(0, |node| node.epoch);
            let claimed = owners.get_mut(usize::from(*first)..=usize::from(*last));
            for owner in claimed.into_iter().flatten() {
                if owner.is_none_or(|(other, _, _)| epoch > other) {
                    *owner = Some((epoch, host, id));
                }
            }
        }
    }
    let mut map: Vec<Range> = Vec::new();
    let mut ids: HashMap<&str, &Host> = HashMap::new();
    for (slot, owner) in (0_u16..).zip(&owners) {
        let Some((_, host, id)) = owner else { continue };
        // Nodes may name the same one differently; a link is kept under one name.
        let host = *ids.entry(*id).or_insert(*host);
        match map.last_mut() {
            Some((_, last, before)) if before == host && *last + 1 == slot => *last = slot,
            _ => map.push((slot, slot, host.clone())),
        }
    }
    let mut masters = HashMap::new();
    for (id, host) in &ids {
        let vouching = answers.iter().filter(|answer| {
            let sees_it_up = answer.nodes.get(*id).is_some_and(|node| node.is_up);
            answer.id != *id && ids.contains_key(answer.id.as_str()) && sees_it_up
        });
        let replicas = answers.iter().map(|answer| answer.replicas_of(id));
        let master = Master {
            vouched_for: vouching.count() >= ids.len() / 2,
            replicas: replicas.max().unwrap_or(0),
        };
        masters.insert((*host).clone(), master);
    }
    View {
        map: Map(map),
        masters,
        asked_at: Some(asked_at),
    }
}

/// Slot ranges with their owners, and every host that is named.
type Slots = (Vec<(Range, String)>, HashSet<Host>);

/// Parses the answer of `CLUSTER SLOTS` from `asked`.
fn read_slots(told: &Value, asked: &Host) -> Option<Slots> {
    let Value::Array(ranges) = told else {
        return None;
    };
    let (mut slots, mut hosts) = (Vec::with_capacity(ranges.len()), HashSet::new());
    for range in ranges {
        let Value::Array(parts) = range else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = &parts[..] else {
            return None;
        };
        let nodes: Option<Vec<_>> = nodes.iter().map(|node| read_node(node, asked)).collect();
        let nodes = nodes?;
        let (host, id) = nodes.first()?.clone();
        hosts.extend(nodes.into_iter().map(|(host, _)| host));
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        slots.push(((first, last, host), id));
    }
    Some((slots, hosts))
}

/// A node's address and id.
fn read_node(told: &Value, asked: &Host) -> Option<(Host, String)> {
    let Value::Array(parts) = told else {
        return None;
    };
    let [name, Value::Int(port), Value::BulkString(id), ..] = &parts[..] else {
        return None;
    };
    let name = match name {
        Value::BulkString(name) if !name.is_empty() && name != b"?" => {
            String::from_utf8(name.clone()).ok()?
        }
        // A server that does not know its own name is reached by the name that was used.
        _ => asked.name.clone(),
    };
    let port = u16::try_from(*port).ok()?;
    Some((Host { name, port }, String::from_utf8(id.clone()).ok()?))
}

#[cfg(test)]
mod tests;
