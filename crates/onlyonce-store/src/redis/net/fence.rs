//! Checks whether a master's answer still counts: nothing is acknowledged on the word of a deposed master.
//!
//! A server that was frozen while a replica took its place continues as master when it wakes, until it is
//! told. Its writes until then are thrown away. So, if a master can be replaced, an answer counts only with
//! evidence that is newer than the answer. Evidence from the last second is enough if nothing was written, or
//! if every replica has the write.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, timeout_at};

use super::{Does, Link, Net};
use crate::{BoxError, redis::address::Host};

/// How long a write waits for replicas to acknowledge it. The connection carries nothing else meanwhile.
const HEARD_WITHIN: Duration = Duration::from_millis(100);
/// How long replicas that did not acknowledge are not waited for.
const NOT_WAITED_FOR: Duration = Duration::from_millis(500);
/// How old the evidence for a master may be if nothing was written, or if every replica has the write. An
/// answer may be out of date by as much; nothing is executed on the strength of it alone.
const VOUCHED_FOR: Duration = Duration::from_secs(1);

/// The acknowledgements by the replicas of one connection's server.
#[derive(Default)]
pub(super) struct Heard {
    /// When the replicas were last asked, and how many had everything before that.
    last: tokio::sync::Mutex<Option<(Instant, usize)>>,
}

impl Heard {
    /// How many replicas have every write whose answer came on this connection before `since`. One `WAIT`
    /// serves all writes that were answered before it.
    async fn by(
        &self,
        wanted: usize,
        connection: &mut MultiplexedConnection,
        since: Instant,
    ) -> usize {
        let mut last = self.last.lock().await;
        if let Some((at, count)) = *last {
            let is_newer = at >= since;
            let is_in_vain = count < wanted && at.elapsed() < NOT_WAITED_FOR;
            if is_newer || is_in_vain {
                return if is_newer { count } else { 0 };
            }
        }
        let at = Instant::now();
        let mut question = redis::cmd("WAIT");
        question.arg(wanted).arg(HEARD_WITHIN.as_millis() as u64);
        let count = question.query_async::<usize>(connection).await.unwrap_or(0);
        *last = Some((at, count));
        count
    }
}

impl Net {
    /// Returns `Ok` if the last answer of `host` counts.
    pub(super) async fn confirm(
        &self,
        (host, slot): (&Host, Option<u16>),
        mut link: Link,
        does: Does,
        deadline: Instant,
    ) -> Result<(), BoxError> {
        if does == Does::Tell || !self.is_fenced || !self.can_fail_over() {
            return Ok(());
        }
        let answered = Instant::now();
        let view = self.view.read().clone();
        let known = view.masters.get(host).map_or(0, |master| master.replicas);
        let there = known.min(link.server.replicas);
        // Every replica that might take over has the write, or nothing was written.
        let is_safe = does == Does::Read || {
            let heard = link.heard.by(there, &mut link.connection, answered);
            let heard = match there {
                0 => 0,
                _ => timeout_at(deadline, heard).await.unwrap_or(0),
            };
            known > 0 && heard >= known
        };
        let since = answered.checked_sub(VOUCHED_FOR);
        if is_safe && view.asked_at >= since && view.vouches_for(host, slot) {
            return Ok(());
        }
        let asked = self.refresh_since(answered, deadline).await;
        let view = self.view.read().clone();
        match asked {
            Ok(()) if view.asked_at >= Some(answered) && view.vouches_for(host, slot) => Ok(()),
            _ => Err(format!("{host} answered, but nobody vouches for it as the master").into()),
        }
    }
}
