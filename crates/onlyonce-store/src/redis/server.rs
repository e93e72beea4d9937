//! A server's state: its role, what its acknowledged writes survive, and its eviction policy.

use redis::aio::MultiplexedConnection;

use crate::Level;

/// After this many seconds of silence a replica, which reports every second, is not waited for.
const MAX_LAG_SECONDS: u64 = 2;

/// The state read from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Whether it is a node of a cluster.
    pub(super) is_cluster: bool,
    /// Whether it is a Sentinel, which has no data.
    pub(super) is_sentinel: bool,
    /// Whether it takes writes.
    pub(super) is_master: bool,
    /// What an acknowledged write survives.
    pub(super) level: Level,
    /// The attached replicas that have reported recently.
    pub(super) replicas: usize,
    /// The eviction policy; `None` if the server does not tell.
    pub(super) policy: Option<String>,
}

impl Server {
    /// Queries the server. What it may not be asked, or does not tell, counts as absent.
    pub(super) async fn read(link: &mut MultiplexedConnection) -> redis::RedisResult<Self> {
        let mut questions = redis::pipe();
        questions.cmd("INFO");
        questions.cmd("CONFIG").arg("GET").arg("appendfsync");
        let mut answers = link
            .send_packed_commands(&questions, 0, 2)
            .await?
            .into_iter();
        let info: String = match answers.next() {
            Some(told) => redis::from_redis_value(told.extract_error()?)?,
            None => String::new(),
        };
        let fsync = answers.next().and_then(|told| told.extract_error().ok());
        let fsync: Option<Vec<String>> = fsync.and_then(|told| redis::from_redis_value(told).ok());
        let fsync = fsync.and_then(|pair| pair.into_iter().nth(1));
        Ok(Self::judge(&info, fsync.as_deref()))
    }

    fn judge(info: &str, fsync: Option<&str>) -> Self {
        let said = |name: &str| {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim)
        };
        let mode = said("redis_mode").or_else(|| said("server_mode"));
        Self {
            is_cluster: mode == Some("cluster"),
            is_sentinel: mode == Some("sentinel"),
            is_master: said("role") != Some("slave"),
            level: level(said("aof_enabled"), fsync, said("connected_slaves")),
            replicas: replicas(info),
            policy: said("maxmemory_policy").map(str::to_owned),
        }
    }

    /// Whether the server evicts keys without a ttl when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        let policy = self.policy.as_deref();
        policy.is_some_and(|policy| policy.starts_with("allkeys-"))
    }
}

/// The number of attached replicas that report. A frozen replica stays attached for a minute.
fn replicas(info: &str) -> usize {
    let lag = |line: &str| -> Option<u64> {
        let (name, fields) = line.trim().strip_prefix("slave")?.split_once(':')?;
        name.parse::<usize>().ok()?;
        let said = |name: &str| {
            let mut fields = fields.split(',');
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let online = said("state") == Some("online");
        said("lag").filter(|_| online)?.parse().ok()
    };
    let lags = info.lines().filter_map(lag);
    lags.filter(|lag| *lag <= MAX_LAG_SECONDS).count()
}

/// - Without the append-only file, a crash loses everything after the last snapshot.
/// - With `everysec` or `no`, a crash of the machine loses unsynced writes.
/// - With replicas, a failover loses writes that they have not received.
fn level(aof: Option<&str>, fsync: Option<&str>, replicas: Option<&str>) -> Level {
    match (aof, fsync, replicas) {
        (Some("1"), Some("always"), Some("0")) => Level::Sync,
        (Some("1"), Some("always" | "everysec" | "no"), Some(_)) => Level::Async,
        _ => Level::Volatile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        for (aof, fsync, replicas, expected) in [
            (Some("1"), Some("always"), Some("0"), Level::Sync),
            (Some("1"), Some("always"), Some("1"), Level::Async),
            (Some("1"), Some("everysec"), Some("0"), Level::Async),
            (Some("1"), Some("no"), Some("0"), Level::Async),
            (Some("0"), Some("always"), Some("0"), Level::Volatile),
            (Some("1"), None, Some("0"), Level::Volatile),
            (None, Some("always"), Some("0"), Level::Volatile),
            (Some("1"), Some("always"), None, Level::Volatile),
        ] {
            assert_eq!(
                level(aof, fsync, replicas),
                expected,
                "{aof:?} {fsync:?} {replicas:?}"
            );
        }
    }

    #[test]
    fn what_a_server_says() {
        let info = "# Server\r\nredis_mode:cluster\r\nrole:master\r\nconnected_slaves:0\r\n\
                    aof_enabled:1\r\nmaxmemory_policy:allkeys-lru\r\n";
        let server = Server::judge(info, Some("always"));
        assert!(server.is_cluster && server.is_master && server.evicts());
        assert_eq!(server.level, Level::Sync);
        assert_eq!(server.replicas, 0);
        let info = "role:master\r\nconnected_slaves:3\r\n\
                    slave0:ip=127.0.0.1,port=1,state=online,offset=5,lag=1\r\n\
                    slave1:ip=127.0.0.1,port=2,state=online,offset=5,lag=30\r\n\
                    slave2:ip=127.0.0.1,port=3,state=wait_bgsave,offset=0,lag=0\r\n\
                    slave_read_only:1\r\n";
        assert_eq!(Server::judge(info, Some("always")).replicas, 1);
        let other = Server::judge("role:slave\r\nmaxmemory_policy:volatile-lru\r\n", None);
        assert!(!other.is_master && !other.evicts() && !other.is_cluster);
        assert_eq!(other.level, Level::Volatile);
    }
}
