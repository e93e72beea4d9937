//! The state machine of outbox messages. As for keys, a function from values to values decides, and the store
//! writes.
//!
//! Every attempt sends a message under the same key. The effect happens once if the receiver recognises
//! repeated keys. If it does not, or no longer does, an attempt with an unseen end is not repeated.

#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr, time::Duration};

use crate::{secret::RecordId, time::Timestamp};

/// The id of a message: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub [u8; 16]);

impl MessageId {
    /// The id under which the journal records operator actions on a message that belongs to no key.
    pub fn as_record(self) -> RecordId {
        RecordId(self.0)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RecordId(self.0).fmt(f)
    }
}

impl FromStr for MessageId {
    type Err = <RecordId as FromStr>::Err;

    /// Accepts dashes, as databases write such ids.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let RecordId(bytes) = text.replace('-', "").parse()?;
        Ok(Self(bytes))
    }
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageState {
    /// Waiting to be sent, or being sent.
    Pending,
    /// The receiver has it.
    Delivered,
    /// Given up; waits for a person.
    Dead,
    /// The receiver may or may not have it, and sending it again to find out is not allowed.
    Unknown,
    /// A person decided not to send it.
    Discarded,
}

impl MessageState {
    /// Every value.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Delivered,
        Self::Dead,
        Self::Unknown,
        Self::Discarded,
    ];

    /// The states of unfinished messages, which stores can count without scanning every delivered message.
    pub const OPEN: [Self; 3] = [Self::Pending, Self::Dead, Self::Unknown];

    /// The word for this state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
            Self::Discarded => "discarded",
        }
    }

    /// The state for a word; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// The delivery rules of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetRules {
    /// Whether the receiver recognises a repeated key and then does nothing twice.
    pub dedups: bool,
    /// For how long the receiver remembers a key.
    pub key_ttl: Duration,
    /// The largest number of attempts.
    pub max_attempts: u32,
    /// The pause after the first failure, doubled after each further one.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for TargetRules {
    fn default() -> Self {
        Self {
            dedups: true,
            key_ttl: Duration::from_secs(24 * 3_600),
            max_attempts: 10,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(300),
        }
    }
}

/// The attempts of a claimed message so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The number of attempts, counted when claimed, including this one.
    pub attempts: u32,
    /// When the first attempt began whose delivery is unclear.
    pub unclear_since: Option<Timestamp>,
}

/// How an attempt ended, as the sender saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The receiver has the message. It may have returned an id for it.
    Delivered(Option<String>),
    /// The receiver refused the message permanently.
    Refused(String),
    /// Nothing reached the receiver.
    NotSent(String),
    /// The message may have reached the receiver.
    Unclear(String),
}

impl Sent {
    /// The result as seen by the key that the message settles. For that key a refusal with an answer is the
    /// awaited answer, so the message counts as delivered.
    pub fn for_its_key(self, settles: bool, has_answer: bool) -> Self {
        match self {
            Self::Refused(_) if settles && has_answer => Self::Delivered(None),
            sent => sent,
        }
    }
}

/// What happens to a message after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The message is done.
    Delivered {
        /// The receiver's id for the message.
        provider_id: Option<String>,
    },
    /// The message is sent again, under the same key.
    Again {
        /// The pause before the next attempt.
        pause: Duration,
        /// Whether this attempt may have reached the receiver.
        unclear: bool,
        /// Why.
        reason: String,
    },
    /// The message waits for a person.
    Dead {
        /// Whether this attempt may have reached the receiver.
        unclear: bool,
        /// Why.
        reason: String,
    },
    /// The receiver may or may not have the message.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl Next {
    /// The resulting state.
    pub fn state(&self) -> MessageState {
        match self {
            Self::Delivered { .. } => MessageState::Delivered,
            Self::Again { .. } => MessageState::Pending,
            Self::Dead { .. } => MessageState::Dead,
            Self::Unknown { .. } => MessageState::Unknown,
        }
    }

    /// The receiver's id for the message.
    pub fn provider_id(&self) -> Option<&str> {
        match self {
            Self::Delivered { provider_id } => provider_id.as_deref(),
            Self::Again { .. } | Self::Dead { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The pause before the next attempt.
    pub fn pause(&self) -> Duration {
        match self {
            Self::Again { pause, .. } => *pause,
            Self::Delivered { .. } | Self::Dead { .. } | Self::Unknown { .. } => Duration::ZERO,
        }
    }

    /// Whether the message may have reached the receiver without anybody knowing.
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::Again { unclear, .. } | Self::Dead { unclear, .. } => *unclear,
            Self::Unknown { .. } => true,
            Self::Delivered { .. } => false,
        }
    }

    /// The reason, unless the message is done.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Delivered { .. } => None,
            Self::Again { reason, .. } | Self::Dead { reason, .. } | Self::Unknown { reason } => {
                Some(reason)
            }
        }
    }
}

/// What happens to a claimed message instead of being sent; `None` if it may be sent.
pub fn before_sending(tried: Tried, now: Timestamp, rules: &TargetRules) -> Option<Next> {
    if let Some(next) = tried
        .unclear_since
        .and_then(|since| not_again(since, now, rules))
    {
        return Some(next);
    }
    // Attempts whose sender died count too.
    (tried.attempts > rules.max_attempts).then(|| Next::Dead {
        unclear: false,
        reason: format!("sent {} times without success", rules.max_attempts),
    })
}

/// What happens to a message whose attempt ended as `sent`. `random` can be any number.
pub fn after_sending(
    tried: Tried,
    began: Timestamp,
    sent: Sent,
    now: Timestamp,
    rules: &TargetRules,
    random: u64,
) -> Next {
    let (unclear, reason) = match sent {
        Sent::Delivered(provider_id) => return Next::Delivered { provider_id },
        Sent::Refused(reason) => {
            return Next::Dead {
                unclear: false,
                reason,
            };
        }
        Sent::NotSent(reason) => (false, reason),
        Sent::Unclear(reason) => (true, reason),
    };
    if unclear {
        let since = tried.unclear_since.unwrap_or(began);
        if let Some(Next::Unknown { reason: why }) = not_again(since, now, rules) {
            let reason = format!("{reason}; {why}");
            return Next::Unknown { reason };
        }
    }
    if tried.attempts >= rules.max_attempts {
        return Next::Dead { unclear, reason };
    }
    Next::Again {
        pause: pause(tried.attempts, rules, random),
        unclear,
        reason,
    }
}

/// For how long after an attempt that may have arrived an operator's retry is safe: as long as the receiver
/// remembers the key. If the target's rules are unavailable, a retry of an unknown message is not safe, and
/// the process that delivers any other message decides.
pub fn retry_is_safe_for(state: MessageState, rules: Option<&TargetRules>) -> Duration {
    match (rules, state) {
        (Some(rules), _) if rules.dedups => rules.key_ttl,
        (Some(_), _) | (None, MessageState::Unknown) => Duration::ZERO,
        (None, _) => Duration::MAX,
    }
}

/// The refusal to send a message again that may have arrived at `since`, if it must not be.
fn not_again(since: Timestamp, now: Timestamp, rules: &TargetRules) -> Option<Next> {
    let reason = if !rules.dedups {
        "it may have been delivered, and the receiver does not know its keys again"
    } else if since.plus(rules.key_ttl) <= now {
        "it may have been delivered, longer ago than the receiver remembers its keys"
    } else {
        return None;
    };
    let reason = reason.to_owned();
    Some(Next::Unknown { reason })
}

/// Exponential backoff with jitter: between half of the pause and all of it.
fn pause(attempts: u32, rules: &TargetRules, random: u64) -> Duration {
    let doublings = attempts.saturating_sub(1).min(31);
    let whole = rules
        .first_pause
        .saturating_mul(1 << doublings)
        .min(rules.longest_pause);
    let half = whole / 2;
    let millis = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
    half + Duration::from_millis(random % millis.saturating_add(1))
}
