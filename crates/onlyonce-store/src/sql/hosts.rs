//! The hosts of one database, of which one takes writes, and the level last seen.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    time::Duration,
};

use super::failure::no_answer;
use crate::Level;

pub(crate) struct Hosts<O> {
    all: Vec<O>,
    /// The host that took the last connection.
    last: AtomicUsize,
    timeout: Duration,
    level: AtomicU8,
    had_standby: AtomicBool,
}

impl<O> Hosts<O> {
    pub(crate) fn new(all: Vec<O>, timeout: Duration) -> Self {
        Self {
            all,
            last: AtomicUsize::new(0),
            timeout,
            level: AtomicU8::new(code(Level::Volatile)),
            had_standby: AtomicBool::new(false),
        }
    }

    /// The timeout of a call.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether another server may replace the primary: one that is attached, or was when this process looked.
    /// Such a server may come back without the writes made while it was away.
    pub(crate) fn may_be_replaced(&self, standbys: u64) -> bool {
        self.had_standby.fetch_or(standbys > 0, Ordering::SeqCst) || standbys > 0
    }

    /// What an acknowledged write survives, as last seen.
    pub(crate) fn level(&self) -> Level {
        level(self.level.load(Ordering::SeqCst))
    }

    /// Records the level seen on a connection in use. Returns whether it is higher than the known level: then
    /// other connections may be older, with settings of their own, and the higher level counts once they have
    /// reconnected.
    pub(crate) fn saw_again(&self, now: Level) -> bool {
        if now > self.level() {
            return true;
        }
        self.saw(now);
        false
    }

    /// Records the level.
    pub(crate) fn saw(&self, now: Level) {
        let before = level(self.level.swap(code(now), Ordering::SeqCst));
        // At the first look, whoever opens the store reports the level.
        if now < before {
            tracing::error!(%before, %now, "what an acknowledged write survives is less than before");
        }
    }

    /// The host that took the last connection.
    pub(crate) fn last(&self) -> &O {
        &self.all[self.last.load(Ordering::Relaxed)]
    }

    /// Tries `connect` on the hosts, starting with the last one used, and returns the first success.
    /// `connect` also returns the host's level.
    pub(crate) async fn connect<'h, C, F>(
        &'h self,
        connect: impl Fn(&'h O) -> F,
    ) -> Result<C, sqlx::Error>
    where
        F: Future<Output = Result<(C, Level), sqlx::Error>>,
    {
        let start = self.last.load(Ordering::Relaxed);
        let mut failure = None;
        for offset in 0..self.all.len() {
            let index = (start + offset) % self.all.len();
            match tokio::time::timeout(self.timeout, connect(&self.all[index])).await {
                Ok(Ok((connection, level))) => {
                    self.last.store(index, Ordering::Relaxed);
                    self.saw(level);
                    return Ok(connection);
                }
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(no_answer("no answer to a new connection")),
            }
        }
        Err(failure.unwrap_or_else(|| no_answer("no host")))
    }
}

fn level(code: u8) -> Level {
    match code {
        2 => Level::Sync,
        1 => Level::Async,
        _ => Level::Volatile,
    }
}

fn code(level: Level) -> u8 {
    match level {
        Level::Volatile => 0,
        Level::Async => 1,
        Level::Sync => 2,
    }
}

/// One URL for each host of a URL with several hosts.
pub(crate) fn split(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return vec![url.to_owned()];
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    hosts
        .split(',')
        .map(|host| format!("{scheme}://{user}{host}{tail}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        assert_eq!(
            split("postgres://u:p@a:1,b/db?x=1"),
            ["postgres://u:p@a:1/db?x=1", "postgres://u:p@b/db?x=1"]
        );
        assert_eq!(split("postgres://a/db"), ["postgres://a/db"]);
    }
}
