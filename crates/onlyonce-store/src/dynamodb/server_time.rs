//! The server's clock, estimated from its answers.
//!
//! No DynamoDB expression knows the time, but every answer has a `Date`, in whole seconds. When the answer
//! was received, the server's time was that or later; when the request was sent, it was less than a second
//! later. The time here is the latest one that no answer contradicts: at first up to a second behind the
//! server, and closer with every answer. It advances by this machine's steady clock, so that gateways whose
//! wall clocks differ still compare leases and expiries by one clock.

use std::sync::Arc;

use aws_sdk_dynamodb::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::{
            BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
        },
    },
    error::BoxError,
    primitives::{DateTime, DateTimeFormat},
};
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use onlyonce_core::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A second, in microseconds.
const SECOND: i64 = 1_000_000;
/// How far the time may be corrected backwards without going back visibly, in microseconds: servers write the
/// second of an answer slightly late. A clock that is really set back moves by more.
const SMOOTHED: i64 = 2 * SECOND;

/// The estimate of the server's clock.
#[derive(Debug)]
pub(super) struct ServerTime {
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The server's time less the time since `origin`, in microseconds; `None` before the first answer.
    offset: Option<i64>,
    /// The last time that was returned.
    told: i64,
    /// The last number that was returned.
    numbered: i64,
}

impl ServerTime {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            state: Mutex::default(),
        }
    }

    fn since_origin(&self, at: Instant) -> i64 {
        i64::try_from((at - self.origin).as_micros()).unwrap_or(i64::MAX)
    }

    /// Takes the date, in seconds, of an answer to a request that was sent and answered at these times.
    fn heard(&self, sent: Instant, received: Instant, date: i64) {
        let date = date.saturating_mul(SECOND);
        let least = date - self.since_origin(received);
        let most = date + SECOND - self.since_origin(sent);
        let mut state = self.state.lock();
        let offset = state.offset.map_or(least, |offset| offset.max(least));
        state.offset = Some(offset.min(most));
    }

    fn micros(&self, state: &mut State) -> i64 {
        let now = self.since_origin(Instant::now()) + state.offset.unwrap_or(0);
        if now > state.told || state.told - now > SMOOTHED {
            state.told = now;
        }
        state.told
    }

    /// Whether the server has told its time.
    pub(super) fn is_known(&self) -> bool {
        self.state.lock().offset.is_some()
    }

    /// The current time.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp(self.micros(&mut self.state.lock()) / 1_000)
    }

    /// The current time in microseconds, never the same twice, for the numbers of lists.
    pub(super) fn next_micros(&self) -> u64 {
        let mut state = self.state.lock();
        let micros = self.micros(&mut state).max(state.numbered + 1);
        state.numbered = micros;
        micros.max(0).unsigned_abs()
    }
}

/// Reads the date of every answer.
#[derive(Debug)]
pub(super) struct Dates(pub(super) Arc<ServerTime>);

/// When the request was sent.
#[derive(Debug)]
struct Sent(Instant);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Dates {
    fn name(&self) -> &'static str {
        "Dates"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        kept: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        kept.interceptor_state().store_put(Sent(Instant::now()));
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        kept: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        if let (Some(date), Some(Sent(sent))) = (date, kept.load::<Sent>()) {
            self.0.heard(*sent, Instant::now(), date.secs());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A server whose clock is this many microseconds ahead of `origin` answers a request that takes 2 ms.
    fn ask(time: &ServerTime, after: Duration, ahead: i64) {
        let sent = time.origin + after;
        let answered = sent + Duration::from_millis(1);
        let date = (time.since_origin(answered) + ahead).div_euclid(SECOND);
        time.heard(sent, answered + Duration::from_millis(1), date);
    }

    fn offset(time: &ServerTime) -> i64 {
        time.state.lock().offset.unwrap()
    }

    #[test]
    fn answers_narrow_the_time_from_below() {
        let time = ServerTime::new();
        assert!(!time.is_known());
        let ahead = 1_700_000_000_700_000;
        ask(&time, Duration::ZERO, ahead);
        let first = offset(&time);
        assert!((ahead - 1_002_000..=ahead).contains(&first));
        for step in 1..200 {
            ask(&time, Duration::from_millis(step * 37), ahead);
            assert!(offset(&time) <= ahead, "never ahead of the server");
        }
        assert!(ahead - offset(&time) < 50_000, "within 50 ms after 7 s");
        assert!(time.is_known());
    }

    #[test]
    fn a_clock_that_is_set_is_followed() {
        let time = ServerTime::new();
        let ahead = 1_700_000_000_000_000;
        ask(&time, Duration::ZERO, ahead);
        let hour = 3_600 * SECOND;
        for moved in [hour, -hour] {
            ask(&time, MINUTE, ahead + moved);
            assert!((offset(&time) - (ahead + moved)).abs() <= SECOND + 2_000);
        }
    }

    #[test]
    fn numbers_only_rise() {
        let time = ServerTime::new();
        ask(&time, Duration::ZERO, 1_700_000_000_000_000);
        let numbers: Vec<u64> = (0..1_000).map(|_| time.next_micros()).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b));
        ask(&time, Duration::ZERO, 1_600_000_000_000_000);
        assert!(time.now().0 < 1_600_000_002_000, "it was set back");
        assert!(time.next_micros() > numbers[999]);
    }
}
