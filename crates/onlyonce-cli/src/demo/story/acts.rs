//! What each button does. The shop behaves the same on both sides; only the way differs.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use super::{
    Hint, Kind, Story,
    shop::{Purchase, Saw, Side},
};

/// How long the shop waits before it considers an answer lost.
const IMPATIENT: Duration = Duration::from_millis(700);
/// When the gateway is disturbed, counted from the sending of the purchase.
const MID_FLIGHT: Duration = Duration::from_millis(400);
/// How long the gateway is paused.
const PAUSE: Duration = Duration::from_secs(3);
/// How long a killed gateway may take to answer again.
const RESTART: Duration = Duration::from_secs(30);
const CLICKS: usize = 50;
/// The API books immediately and answers later.
const SLOW_ANSWER: &str = "slow-after=1500";

/// What corresponds to a broken gateway for a shop without one.
const BROKEN_LINE: &str = "the connection breaks in the middle of it";
const UNKNOWN: &str = "idempotency_outcome_unknown";
/// How often to check whether the gateway has determined the outcome of an unknown purchase.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// A button.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Pay,
    LoseTheAnswer,
    Retry,
    DoubleClick,
    Kill,
    Pause,
    HangUp,
    LookUp,
}

impl Act {
    const ALL: [Self; 8] = [
        Self::Pay,
        Self::LoseTheAnswer,
        Self::Retry,
        Self::DoubleClick,
        Self::Kill,
        Self::Pause,
        Self::HangUp,
        Self::LookUp,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pay => "pay",
            Self::LoseTheAnswer => "lose",
            Self::Retry => "retry",
            Self::DoubleClick => "double-click",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::HangUp => "hang-up",
            Self::LookUp => "look-up",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|act| act.as_str() == word)
    }

    pub(super) async fn play(self, story: &Story) {
        match self {
            Self::Pay => {
                let key = story.new_order("pay", "pay");
                story.on_both(&key, "", None).await;
            }
            Self::LoseTheAnswer => {
                let what = "the answer is lost on its way";
                let key = story.new_order(what, what);
                story.on_both(&key, SLOW_ANSWER, Some(IMPATIENT)).await;
                story.0.told.lock().hint = Some(Hint::RetryAfterLoss);
            }
            Self::Retry => story.retry().await,
            Self::DoubleClick => story.double_click().await,
            Self::Kill => story.kill().await,
            Self::Pause => story.pause().await,
            Self::HangUp => {
                let what = "the provider takes the money and hangs up";
                let key = story.new_order(what, what);
                story.on_both(&key, "hang-up", None).await;
                story.on_both(&key, "", None).await;
            }
            Self::LookUp => story.look_up().await,
        }
    }
}

impl Story {
    /// Sends the same purchase by both ways at once.
    async fn on_both(&self, key: &str, fault: &str, patience: Option<Duration>) {
        let purchase = Purchase {
            key,
            fault,
            patience,
        };
        let one = async |side: Side| {
            self.say(side, Kind::Sent, "POST /payments, 49.00 EUR");
            let saw = self.0.shop.pay(side, purchase).await;
            self.tell(side, &saw);
        };
        tokio::join!(one(Side::With), one(Side::Without));
    }

    fn tell(&self, side: Side, saw: &Saw) {
        match saw {
            Saw::Paid { id, replayed: true } => {
                let text = format!("201 {id}, the stored answer replayed");
                self.say(side, Kind::Replayed, text);
            }
            Saw::Paid {
                id,
                replayed: false,
            } => {
                self.say(side, Kind::Answered, format!("201 {id}"));
            }
            Saw::Other { status, code } => {
                let text = match code.as_str() {
                    UNKNOWN => format!(
                        "{status}: the outcome is unknown. The gateway does not guess, and does not execute it again"
                    ),
                    "" => format!("{status}"),
                    code => format!("{status} {code}"),
                };
                self.say(side, Kind::Refused, text);
                if side == Side::With && code == UNKNOWN {
                    self.watch();
                }
            }
            Saw::Nothing => self.say(side, Kind::Lost, "No answer. Was it charged?"),
        }
    }

    /// Reports when the gateway has determined the outcome of the purchase by itself, unless there is a new
    /// purchase by then, or an operator was faster.
    fn watch(&self) {
        let mut told = self.0.told.lock();
        let Some(key) = told.key.clone() else { return };
        if told.unknown.replace(key.clone()).as_ref() == Some(&key) {
            return;
        }
        drop(told);
        let story = self.clone();
        tokio::spawn(async move {
            loop {
                sleep(WATCH_EVERY).await;
                let record = story.0.shop.record(&key).await;
                let completed = record.is_some_and(|record| record["state"] == "completed");
                let mut told = story.0.told.lock();
                if told.unknown.as_ref() != Some(&key) {
                    return;
                }
                if completed {
                    told.unknown = None;
                    told.hint = Some(Hint::RetryAfterReconciliation);
                    drop(told);
                    let text = "The gateway asked the payments API what became of the order, and completed the \
                                key with its answer. Nothing was executed again";
                    story.say(Side::With, Kind::Settled, text);
                    return;
                }
            }
        });
    }

    async fn retry(&self) {
        // The page offers a retry only after a purchase.
        let key = self.0.told.lock().key.clone();
        if let Some(key) = key {
            self.on_both(&key, "", None).await;
        }
    }

    async fn double_click(&self) {
        let what = "an impatient customer clicks 50 times";
        let key = self.new_order(what, what);
        let purchase = Purchase {
            key: &key,
            fault: "slow=100",
            patience: None,
        };
        let one = async |side: Side| {
            self.say(
                side,
                Kind::Sent,
                format!("{CLICKS} times POST /payments, at once"),
            );
            let saw = join_all((0..CLICKS).map(|_| self.0.shop.pay(side, purchase))).await;
            let paid = saw.iter().filter_map(|saw| match saw {
                Saw::Paid { id, replayed } => Some((id.as_str(), *replayed)),
                _ => None,
            });
            let (ids, replayed): (BTreeSet<&str>, Vec<bool>) = paid.unzip();
            let answered = replayed.len();
            let again = replayed.iter().filter(|replayed| **replayed).count();
            let payments = ids.len();
            let text = format!("{answered} times 201, {payments} different payments");
            match again {
                0 => self.say(side, Kind::Answered, text),
                again => {
                    let text = format!("{answered} times 201, {again} of them replayed");
                    self.say(side, Kind::Replayed, text);
                }
            }
        };
        tokio::join!(one(Side::With), one(Side::Without));
    }

    async fn kill(&self) {
        let with = "the gateway is killed in the middle of it";
        let key = self.new_order(with, BROKEN_LINE);
        let mut ready = self.0.gateway_pid.clone();
        let kill = async {
            sleep(MID_FLIGHT).await;
            self.say(Side::With, Kind::Event, "kill -9 of the gateway");
            self.say(Side::Without, Kind::Event, "The connection breaks");
            self.signal(Signal::KILL);
        };
        tokio::join!(self.on_both(&key, SLOW_ANSWER, Some(IMPATIENT)), kill);
        // Wait until it is gone, then until it is back.
        let back = async {
            let _ = ready.wait_for(Option::is_none).await;
            let _ = ready.wait_for(Option::is_some).await;
        };
        if timeout(RESTART, back).await.is_ok() {
            self.say(
                Side::With,
                Kind::Event,
                "The gateway is back. Its store is on disk, and the key is still reserved",
            );
        }
        self.on_both(&key, "", None).await;
    }

    async fn pause(&self) {
        let with = "the gateway freezes in the middle of it";
        let key = self.new_order(with, BROKEN_LINE);
        let freeze = async {
            sleep(MID_FLIGHT).await;
            self.say(Side::With, Kind::Event, "The gateway is paused for 3 s");
            self.say(Side::Without, Kind::Event, "The connection breaks");
            self.0.paused.store(true, Ordering::SeqCst);
            self.signal(Signal::STOP);
            sleep(PAUSE).await;
            self.signal(Signal::CONT);
            self.0.paused.store(false, Ordering::SeqCst);
            self.say(Side::With, Kind::Event, "The gateway goes on");
        };
        tokio::join!(self.on_both(&key, SLOW_ANSWER, Some(IMPATIENT)), freeze);
        self.on_both(&key, "", None).await;
    }

    fn signal(&self, signal: Signal) {
        let pid = *self.0.gateway_pid.borrow();
        if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // A process that is already gone needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    async fn look_up(&self) {
        let Some(key) = self.0.told.lock().key.clone() else {
            return;
        };
        self.0.told.lock().unknown = None;
        match self.0.shop.look_up(&key).await {
            Ok(found) => {
                self.say(Side::With, Kind::Event, found);
                let purchase = Purchase {
                    key: &key,
                    fault: "",
                    patience: None,
                };
                self.say(Side::With, Kind::Sent, "POST /payments, 49.00 EUR");
                let saw = self.0.shop.pay(Side::With, purchase).await;
                self.tell(Side::With, &saw);
            }
            Err(error) => self.say(
                Side::With,
                Kind::Event,
                format!("Nothing to resolve: {error}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buttons_have_words() {
        for act in Act::ALL {
            assert_eq!(Act::from_word(act.as_str()), Some(act));
        }
        assert_eq!(Act::from_word("reboot"), None);
    }
}
