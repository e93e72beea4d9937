//! What becomes of a message on its way out. As for keys, a function from values to values decides, and
//! the store writes.
//!
//! A message is sent under the same key every time. That makes its effect happen once where the receiver
//! knows a key again; where it does not, or not any more, an attempt whose end nobody saw is not repeated.

#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr, time::Duration};

use crate::{secret::RecordId, time::Timestamp};

/// The name of a message: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub [u8; 16]);

impl MessageId {
    /// The name under which the journal tells what operators did to a message that belongs to no key.
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

    /// With dashes, as databases write such a name, or without.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let RecordId(bytes) = text.replace('-', "").parse()?;
        Ok(Self(bytes))
    }
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageState {
    /// It waits, or somebody is sending it.
    Pending,
    /// The receiver has it.
    Delivered,
    /// It was given up, and waits for a person.
    Dead,
    /// Nobody can tell whether the receiver has it, and it may not be sent again to find out.
    Unknown,
    /// A person said that it is not to be sent.
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

    /// Those of messages that are not done, which stores can count without walking all that were delivered.
    pub const OPEN: [Self; 3] = [Self::Pending, Self::Dead, Self::Unknown];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
            Self::Discarded => "discarded",
        }
    }

    /// The state that goes by this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// What is agreed with a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetRules {
    /// Whether it knows a key again that it has seen, and then does nothing twice.
    pub dedups: bool,
    /// For how long it does.
    pub key_ttl: Duration,
    /// How often a message is sent at most.
    pub max_attempts: u32,
    /// The pause after the first failure; every further one is twice as long.
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

/// What is known of a message that has been claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Attempts, counted when they are claimed, this one included.
    pub attempts: u32,
    /// When the first attempt began that may have reached the receiver without anybody knowing.
    pub unclear_since: Option<Timestamp>,
}

/// How an attempt to send ended, as the sender saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The receiver has it, and may have said what it calls it.
    Delivered(Option<String>),
    /// The receiver said no, for good.
    Refused(String),
    /// Nothing reached the receiver.
    NotSent(String),
    /// It may have reached the receiver.
    Unclear(String),
}

impl Sent {
    /// The same as the key sees it that the message `settles`: a refusal with an answer is what that key
    /// waits for, so the message has done its work.
    pub fn for_its_key(self, settles: bool, has_answer: bool) -> Self {
        match self {
            Self::Refused(_) if settles && has_answer => Self::Delivered(None),
            sent => sent,
        }
    }
}

/// What becomes of a message after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is done.
    Delivered {
        /// What the receiver calls it.
        provider_id: Option<String>,
    },
    /// It is sent again, under the same key.
    Again {
        /// Not before this time has gone by.
        pause: Duration,
        /// Whether this attempt may have reached the receiver.
        unclear: bool,
        /// Why.
        reason: String,
    },
    /// It waits for a person.
    Dead {
        /// Whether this attempt may have reached the receiver.
        unclear: bool,
        /// Why.
        reason: String,
    },
    /// Nobody can tell.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl Next {
    /// The state that it leads to.
    pub fn state(&self) -> MessageState {
        match self {
            Self::Delivered { .. } => MessageState::Delivered,
            Self::Again { .. } => MessageState::Pending,
            Self::Dead { .. } => MessageState::Dead,
            Self::Unknown { .. } => MessageState::Unknown,
        }
    }

    /// What the receiver calls it.
    pub fn provider_id(&self) -> Option<&str> {
        match self {
            Self::Delivered { provider_id } => provider_id.as_deref(),
            Self::Again { .. } | Self::Dead { .. } | Self::Unknown { .. } => None,
        }
    }

    /// How long it rests.
    pub fn pause(&self) -> Duration {
        match self {
            Self::Again { pause, .. } => *pause,
            Self::Delivered { .. } | Self::Dead { .. } | Self::Unknown { .. } => Duration::ZERO,
        }
    }

    /// Whether it may have reached the receiver without anybody knowing.
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::Again { unclear, .. } | Self::Dead { unclear, .. } => *unclear,
            Self::Unknown { .. } => true,
            Self::Delivered { .. } => false,
        }
    }

    /// Why, unless it is done.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Delivered { .. } => None,
            Self::Again { reason, .. } | Self::Dead { reason, .. } | Self::Unknown { reason } => {
                Some(reason)
            }
        }
    }
}

/// Whether a message that was claimed may be sent: `None`. Otherwise what becomes of it instead.
pub fn before_sending(tried: Tried, now: Timestamp, rules: &TargetRules) -> Option<Next> {
    if let Some(next) = tried
        .unclear_since
        .and_then(|since| not_again(since, now, rules))
    {
        return Some(next);
    }
    // Attempts whose sender died were counted too.
    (tried.attempts > rules.max_attempts).then(|| Next::Dead {
        unclear: false,
        reason: format!("sent {} times without success", rules.max_attempts),
    })
}

/// What becomes of a message whose attempt ended as `sent`. `random` is any number.
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
/// knows the key again. Without the rules of the target, a message whose attempts had to end for that reason
/// is not, and what becomes of any other is decided by whoever delivers it.
pub fn retry_is_safe_for(state: MessageState, rules: Option<&TargetRules>) -> Duration {
    match (rules, state) {
        (Some(rules), _) if rules.dedups => rules.key_ttl,
        (Some(_), _) | (None, MessageState::Unknown) => Duration::ZERO,
        (None, _) => Duration::MAX,
    }
}

/// Why what may have arrived at `since` must not be sent again, if it must not.
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

/// Twice as long each time, and somewhere between half of that and all of it.
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
