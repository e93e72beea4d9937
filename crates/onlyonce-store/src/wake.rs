//! Wake-ups for waiters, on this node and on others.
//!
//! Polling is the truth; this only makes it quick. A node that finds a key in flight asks for it by
//! a word to all nodes. The node that settles a key somebody has asked for says so by another. A key
//! that nobody waits for, which is nearly every key, costs nothing. How words travel is the store's
//! own affair.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use onlyonce_core::{Record, RecordId};
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, watch};

use crate::WAKEUP_BACKLOG;

/// Keys that others may have asked for at once. Beyond it they are forgotten: they poll.
const MAX_WANTED: usize = 100_000;
/// Words that may wait to be said. Beyond it they are dropped.
pub(crate) const MAX_UNSAID: usize = 10_000;
/// Words in one notice: PostgreSQL takes less than 8,000 bytes.
pub(crate) const WORDS_PER_NOTICE: usize = 200;
/// How long it takes until a key is asked for a second time.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the connection for words was lost.
pub(crate) const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// A word, and the key it is about.
pub(crate) type Word = (u8, RecordId);

const WANTED: u8 = b'?';
const SETTLED: u8 = b'!';
/// A message was left; the key says nothing.
const MESSAGE: u8 = b'@';

/// Tells waiters, and asks to be told.
pub(crate) struct Wake {
    local: broadcast::Sender<RecordId>,
    /// What other nodes have asked for.
    wanted: Mutex<HashSet<RecordId>>,
    wanted_count: AtomicUsize,
    /// When this node asked for a key.
    asked: Mutex<HashMap<RecordId, tokio::time::Instant>>,
    words: Option<mpsc::Sender<Word>>,
    /// Counts the news of messages.
    messages: watch::Sender<u64>,
}

impl Wake {
    /// With the way to say words, or without one where nobody could hear them.
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

    /// Changes when a message has been left, here or elsewhere.
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
        // No listener is no failure.
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

    /// This node has found the record in this form: if an attempt is running, somebody may wait.
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
            // Whoever is not told polls.
            let _ = words.try_send((word, id));
        }
    }

    /// Others have said this.
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

/// The words, as [`Wake::heard`] reads them.
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
