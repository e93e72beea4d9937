//! Where the servers are: asked of the servers themselves, or of Sentinels.

use std::sync::{Arc, atomic::Ordering};

use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::{Net, REFRESH_EVERY, patient};
use crate::{
    BoxError,
    redis::{
        address::{Host, Kind},
        failure::Failure,
        script::Call,
    },
};

/// Which server has which slots.
#[derive(Debug, Default)]
pub(super) struct Map(pub(super) Vec<(u16, u16, Host)>);

impl Map {
    pub(super) fn owner(&self, slot: u16) -> Option<&Host> {
        let range = self
            .0
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, host)| host)
    }
}

impl Net {
    /// Asks who has which slots, unless somebody has just done so.
    pub(super) async fn refresh(&self, deadline: Instant) -> Result<(), Failure> {
        let late = || Failure::refused("nobody said in time which server has what");
        let lock = timeout_at(deadline, self.refreshing.lock()).await;
        let mut last = lock.map_err(|_| late())?;
        if last.is_some_and(|at| at.elapsed() < REFRESH_EVERY) {
            return Ok(());
        }
        let found = match &self.address.kind {
            Kind::Sentinel(name) => self.ask_sentinels(name, deadline).await,
            Kind::Server | Kind::Cluster => self.ask_servers(deadline).await,
        };
        *last = Some(Instant::now());
        let map = found?;
        let hosts: Vec<Host> = map.0.iter().map(|(_, _, host)| host.clone()).collect();
        self.nodes.lock().retain(|host, _| hosts.contains(host));
        *self.map.write() = Arc::new(map);
        Ok(())
    }

    async fn ask_servers(&self, deadline: Instant) -> Result<Map, Failure> {
        let mut candidates = self.owners();
        candidates.extend(self.address.hosts.iter().cloned());
        let mut last = Failure::refused("no server answers");
        let count = u32::try_from(candidates.len()).unwrap_or(1).max(1);
        for (index, host) in (0..).zip(candidates) {
            // One that does not answer must leave time for the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let until = Instant::now() + left / count.saturating_sub(index).max(1);
            match self.map_of(&host, until).await {
                Ok(map) => return Ok(map),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// The map as `host` knows it.
    async fn map_of(&self, host: &Host, deadline: Instant) -> Result<Map, Failure> {
        let node = self.node(host)?;
        let link = node.link(self, deadline).await?;
        if !link.server.is_cluster {
            if self.address.kind == Kind::Cluster {
                return Err(Failure::refused("this server is not in cluster mode"));
            }
            if !link.server.is_master {
                node.drop_link(link.number);
                return Err(Failure::refused(
                    "this server is a replica and takes no writes",
                ));
            }
            return Ok(Map(vec![(0, u16::MAX, host.clone())]));
        }
        if self.address.database != 0 {
            return Err(Failure::refused("a cluster has the database 0 only"));
        }
        self.is_cluster.store(true, Ordering::Relaxed);
        let call = Call::plain("CLUSTER").arg("SLOTS");
        let told = node.send(link, &call, false, deadline).await;
        let told = told.map_err(|(_, error)| Failure::Refused(error))?;
        let map = read_slots(&told, host);
        map.ok_or_else(|| Failure::refused("CLUSTER SLOTS cannot be read"))
    }

    async fn ask_sentinels(&self, name: &str, deadline: Instant) -> Result<Map, Failure> {
        let mut last: BoxError = "no Sentinel answers".into();
        let address = &self.address;
        let credentials = (
            address.sentinel_user.as_deref(),
            address.sentinel_password.as_deref(),
        );
        for sentinel in &address.hosts {
            let client = self.client(sentinel, credentials, 0)?;
            let ask = async {
                let mut link = client
                    .get_multiplexed_async_connection_with_config(&patient())
                    .await?;
                let mut command = redis::cmd("SENTINEL");
                command.arg("get-master-addr-by-name").arg(name);
                command
                    .query_async::<Option<(String, u16)>>(&mut link)
                    .await
            };
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left / 2, ask).await {
                Ok(Ok(Some((name, port)))) => {
                    return Ok(Map(vec![(0, u16::MAX, Host { name, port })]));
                }
                Ok(Ok(None)) => last = format!("no Sentinel knows a master {name:?}").into(),
                Ok(Err(error)) => last = error.into(),
                Err(_) => last = "a Sentinel does not answer".into(),
            }
        }
        Err(Failure::Refused(last))
    }
}

/// The answer of `CLUSTER SLOTS`, which `asked` gave.
fn read_slots(told: &Value, asked: &Host) -> Option<Map> {
    let Value::Array(ranges) = told else {
        return None;
    };
    let mut map = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Value::Array(parts) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &parts[..]
        else {
            return None;
        };
        let name = match master.first()? {
            Value::BulkString(name) if !name.is_empty() && name != b"?" => {
                String::from_utf8(name.clone()).ok()?
            }
            // A server that does not know its own name is reached as it was.
            _ => asked.name.clone(),
        };
        let Value::Int(port) = master.get(1)? else {
            return None;
        };
        let host = Host {
            name,
            port: u16::try_from(*port).ok()?,
        };
        map.push((
            u16::try_from(*first).ok()?,
            u16::try_from(*last).ok()?,
            host,
        ));
    }
    Some(Map(map))
}
