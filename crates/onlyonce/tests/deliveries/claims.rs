//! A worker that was paused: what it claimed too long ago it does not send.

use std::sync::atomic::{AtomicU64, Ordering};

use onlyonce::clock::Clock;

use super::*;

/// Longer than may go by between a claim and its sending.
const PAUSED: u64 = 31_000;
/// What the clocks show at first: far from zero, so that they can be set back.
const START: u64 = 1_000_000;

/// A receiver that sets the clocks when it gets its first message, as if the worker had been stopped then.
#[derive(Clone)]
struct Pauses {
    receiver: Receiver,
    boot: (Arc<AtomicU64>, u64),
    wall: (Arc<AtomicU64>, u64),
}

impl Publish for Pauses {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        for (hand, shows) in [&self.boot, &self.wall] {
            hand.store(*shows, Ordering::SeqCst);
        }
        self.receiver.publish(parcel)
    }
}

/// Goal: a worker that wakes up after its claim may have lapsed sends nothing, by either clock.
///
/// Method: three messages of one claim, in one thread, so that they are sent one after the other; the clocks
/// are moved while the first one is sent.
/// Evidence: what the receiver got; the others are pending, not unclear, and say why; they are sent later.
#[tokio::test]
async fn a_worker_that_slept_does_not_send() {
    let cases = [
        ("the machine slept", START + PAUSED, START + PAUSED, 1),
        ("the wall clock went on", START, START + PAUSED, 1),
        ("the wall clock was set back", START, START - 1, 1),
        ("no time went by", START, START, 3),
    ];
    for (case, boot_shows, wall_shows, sent) in cases {
        let [boot, wall] = [(); 2].map(|()| Arc::new(AtomicU64::new(START)));
        let options = EngineOptions {
            clock: Clock::by_hands(boot.clone(), wall.clone()),
            ..EngineOptions::default()
        };
        let place = Place::by(false, options).await;
        for number in 0..3 {
            let text = number.to_string();
            place.leave(&Message::new("target", text)).await;
        }
        let receiver = Receiver::default();
        let publisher = Pauses {
            receiver: receiver.clone(),
            boot: (boot, boot_shows),
            wall: (wall, wall_shows),
        };
        let slow = Target::new("target", publisher);
        let deliveries = Deliveries::new(&place.engine).unwrap().target(slow);
        deliveries.run_once().await.unwrap();
        assert_eq!(receiver.got().len(), sent, "{case}");
        let waiting = "SELECT count(*) FROM outbox WHERE state = 'pending' AND claimed_at IS NULL \
             AND unclear_since IS NULL AND last_error LIKE '%too old%'";
        let waiting = number(&place.folder, waiting);
        assert_eq!(usize::try_from(waiting).unwrap(), 3 - sent, "{case}");
        // The first pause is a second at most.
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        deliveries.run_once().await.unwrap();
        assert_eq!(receiver.got().len(), 3, "{case}: later");
    }
}
