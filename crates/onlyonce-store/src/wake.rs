//! Wake-ups for waiters, on this node and on others.
//!
//! Polling is what waiters rely on; wake-ups only make it faster. A node that finds a key in flight
//! broadcasts that it wants the key. The node that settles a wanted key broadcasts that too. A key that
//! nobody waits for, which is nearly every key, costs nothing. The store provides the transport.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use onlyonce_core::{Record, RecordId};
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, watch};

use crate::WAKEUP_BACKLOG;

/// The most keys remembered as wanted by other nodes. Beyond it all are forgotten, and the waiters poll.
const MAX_WANTED: usize = 100_000;
/// The most words that may wait to be sent. Further ones are dropped.
pub(crate) const MAX_UNSAID: usize = 10_000;
/// Words per notice: PostgreSQL accepts less than 8,000 bytes.
pub(crate) const WORDS_PER_NOTICE: usize = 200;
/// How long until a key is requested a second time.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the connection for words was lost.
pub(crate) const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// A word, and the key it is about.
pub(crate) type Word = (u8, RecordId);

const WANTED: u8 = b'?';
const SETTLED: u8 = b'!';
/// A message was enqueued; the key is meaningless.
const MESSAGE: u8 = b'@';

/// Notifies waiters, and asks other nodes for notifications.
pub(crate) struct Wake {
    local: broadcast::Sender<RecordId>,
    /// The keys that other nodes want.
    wanted: Mutex<HashSet<RecordId>>,
    wanted_count: AtomicUsize,
    /// When this node asked for each key.
    asked: Mutex<HashMap<RecordId, tokio::time::Instant>>,
    words: Option<mpsc::Sender<Word>>,
    /// Counts enqueued messages.
    messages: watch::Sender<u64>,
}

impl Wake {
    /// With the channel for words, or without one if nobody could receive them.
    pub(crate) fn new(words: Option<mpsc::Sender<Word>>) -> Self {
        Self {
            local: broadcast::Sender::new(WAKEUP_BACKLOG),
            wanted: Mutex::default(),
            wanted_count: AtomicUsize::new(0),
            asked: Mutex::default(),
            words,
            messages: watch::Sender::new(0),
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<RecordId> {
        self.local.subscribe()
    }

    /// Changes when a message was enqueued, here or elsewhere.
    pub(crate) fn messages(&self) -> watch::Receiver<u64> {
        self.messages.subscribe()
    }

    /// This node has committed a message.
    pub(crate) fn left_a_message(&self) {
        self.messages.send_modify(|count| *count += 1);
        self.say(MESSAGE, RecordId([0; 16]));
    }

    /// This node has changed the record.
    pub(crate) fn settled(&self, id: RecordId) {
        // Having no receivers is not a failure.
        let _ = self.local.send(id);
        if self.wanted_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut wanted = self.wanted.lock();
        let asked_for = wanted.remove(&id);
        self.wanted_count.store(wanted.len(), Ordering::Relaxed);
        drop(wanted);
        if asked_for {
            self.say(SETTLED, id);
        }
    }

    /// This node has found this record: if an attempt is running, somebody may wait for it.
    pub(crate) fn ask_for(&self, record: &Record) {
        if record.times.lease_until.is_none() || self.words.is_none() {
            return;
        }
        let now = tokio::time::Instant::now();
        let mut asked = self.asked.lock();
        if asked
            .get(&record.id)
            .is_some_and(|at| now - *at < ASK_AGAIN)
        {
            return;
        }
        if asked.len() >= MAX_WANTED {
            asked.clear();
        }
        asked.insert(record.id, now);
        drop(asked);
        self.say(WANTED, record.id);
    }

    fn say(&self, word: u8, id: RecordId) {
        if let Some(words) = &self.words {
            // A node that is not told polls.
            let _ = words.try_send((word, id));
        }
    }

    /// Processes a notice from another node.
    pub(crate) fn heard(&self, notice: &str) {
        for word in notice.as_bytes().chunks(33) {
            let Some((kind, hex)) = word.split_first() else {
                continue;
            };
            let Some(id) = parse(hex) else { continue };
            match *kind {
                WANTED => {
                    let mut wanted = self.wanted.lock();
                    if wanted.len() >= MAX_WANTED {
                        wanted.clear();
                    }
                    wanted.insert(id);
                    self.wanted_count.store(wanted.len(), Ordering::Relaxed);
                }
                SETTLED => {
                    self.asked.lock().remove(&id);
                    let _ = self.local.send(id);
                }
                MESSAGE => self.messages.send_modify(|count| *count += 1),
                _ => {}
            }
        }
    }
}

fn parse(hex: &[u8]) -> Option<RecordId> {
    let digits = std::str::from_utf8(hex)
        .ok()
        .filter(|hex| hex.len() == 32)?;
    let number = u128::from_str_radix(digits, 16).ok()?;
    Some(RecordId(number.to_be_bytes()))
}

/// Encodes words for [`Wake::heard`].
pub(crate) fn notice(words: impl Iterator<Item = Word>) -> String {
    let mut notice = String::new();
    for (word, id) in words {
        notice.push(char::from(word));
        notice.push_str(&format!("{:032x}", u128::from_be_bytes(id.0)));
    }
    notice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_travel() {
        let id = RecordId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        let hex = format!("{:032x}", u128::from_be_bytes(id.0));
        assert_eq!(parse(hex.as_bytes()), Some(id));
        assert_eq!(parse(b"+f"), None);
    }
}
