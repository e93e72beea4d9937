//! What is done to the gateway so that it comes by the point.

use serde_json::json;

use crate::{
    cases::Scenario,
    harness::{
        Gateway, Request, Response, Script, Setup, Upstream, client, ms, upstream::ClosedPort,
    },
    place::Place,
};

pub(crate) const KEY: &str = "k";

/// A body that the socket buffers do not take at once: Linux lets one grow to 4 MiB.
const LARGE: usize = 5 << 20;
/// The variable that the config takes the store's timeout from.
pub(crate) const STORE_TIMEOUT: &str = "STORE_TIMEOUT";

/// The environment of a gateway whose leases lapse while their executions are alive.
pub(crate) const WITHOUT_HEARTBEATS: (&str, &str) = ("ONLYONCE_WITHOUT_HEARTBEATS", "1");

/// The upstream, or the port where it will be.
pub(crate) enum Back {
    Open(Upstream),
    Closed(ClosedPort),
}

impl Back {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Open(upstream) => upstream.url(),
            Self::Closed(port) => port.url(),
        }
    }

    pub(crate) fn upstream(&self) -> Option<&Upstream> {
        match self {
            Self::Open(upstream) => Some(upstream),
            Self::Closed(_) => None,
        }
    }

    /// The upstream, from now on if not before.
    pub(crate) fn open(self) -> Upstream {
        match self {
            Self::Open(upstream) => upstream,
            Self::Closed(port) => port.open(),
        }
    }
}

impl Scenario {
    /// The request that is made and retried.
    pub(crate) fn request(self) -> Request {
        match self {
            Self::Large => Request::post("/payments")
                .key(KEY)
                .body("application/octet-stream", vec![b'x'; LARGE]),
            _ => Request::pay(KEY),
        }
    }

    pub(crate) fn setup(self) -> Setup {
        let sweep = match self {
            Self::LapsedRetry => "1h",
            _ => "200ms",
        };
        let setup = match self {
            Self::Buried => Setup::with("lease: 1s, tombstone_ttl: 1ms"),
            Self::Oversized => Setup::with("lease: 1s, max_body_size: 1KiB"),
            Self::Large => Setup::with("lease: 1s, max_request_body: 16MiB"),
            _ => Setup::with("lease: 1s"),
        };
        let setup = setup.workers(&format!("sweep_every: {sweep}, reap_every: 1h"));
        let setup = setup.store_options(&format!("timeout: \"${{{STORE_TIMEOUT}}}\""));
        match self {
            Self::TimedOut => setup.route("timeout: 500ms"),
            Self::Overtaken => setup.env(WITHOUT_HEARTBEATS.0, WITHOUT_HEARTBEATS.1),
            _ => setup,
        }
    }

    /// How long the store may take, until the point was reached.
    pub(crate) fn store_timeout(self) -> &'static str {
        match self {
            // Shorter than what the store itself waits for.
            Self::Ambiguous => "100ms",
            Self::Impatient => "600ms",
            _ => "2s",
        }
    }

    /// The upstream with its part. Unless the scenario says otherwise it answers 201 at once.
    pub(crate) fn back(self) -> Back {
        let port = ClosedPort::reserve();
        if self == Self::Refused {
            return Back::Closed(port);
        }
        let upstream = port.open();
        match self {
            Self::Again => upstream.next(Script::reply(429)),
            Self::Large => upstream.read_after(ms(300)),
            Self::Lost => upstream.next(Script::reset()),
            Self::Oversized => upstream.always(Script::created().body(vec![b'y'; 4_096])),
            Self::Slow => upstream.next(Script::created().delayed(ms(700))),
            Self::TimedOut | Self::LapsedRetry | Self::LapsedSweep | Self::Overtaken => {
                upstream.next(Script::created().held());
            }
            _ => {}
        }
        Back::Open(upstream)
    }

    /// Executions that are proven or declared to have left nothing behind, or belong to an earlier
    /// life of the key: the release status, the operator's word.
    pub(crate) fn harmless(self) -> usize {
        match self {
            Self::Again | Self::Forgotten | Self::Buried | Self::Overtaken => 1,
            _ => 0,
        }
    }

    /// Whether a gateway without failpoints must first be killed with the key in progress.
    pub(crate) fn begins_with_a_crash(self) -> bool {
        matches!(self, Self::LapsedRetry | Self::LapsedSweep)
    }

    /// Whether the upstream answers only when told to, after everything else.
    pub(crate) fn answers_late(self) -> bool {
        self == Self::TimedOut
    }

    /// What a woken gateway makes of the key by itself, after its clients have been answered.
    pub(crate) fn comes_to(self) -> Option<&'static str> {
        match self {
            Self::TimedOut => Some("completed"),
            Self::Ambiguous => Some("failed_retryable"),
            _ => None,
        }
    }

    /// Makes the requests. Returns the answers that clients saw and that must be seen again; the
    /// gateway may be gone at any moment.
    pub(crate) async fn drive(
        self,
        gateway: &Gateway,
        place: &Place,
        back: &Back,
    ) -> Vec<Response> {
        let request = self.request();
        let mut seen = Vec::new();
        match self {
            Self::Twins => {
                let (first, duplicate) =
                    tokio::join!(gateway.try_send(&request), gateway.try_send(&request));
                seen.extend(first.into_iter().chain(duplicate));
            }
            Self::Plain
            | Self::Large
            | Self::Impatient
            | Self::Oversized
            | Self::Refused
            | Self::Lost
            | Self::TimedOut
            | Self::Slow
            | Self::LapsedRetry => {
                seen.extend(gateway.try_send(&request).await);
            }
            Self::LapsedSweep => {}
            Self::Again => {
                if let Ok(released) = gateway.try_send(&request).await {
                    assert_eq!(released.status, 429, "{released}");
                    seen.extend(gateway.try_send(&request).await);
                }
            }
            Self::Forgotten | Self::Buried => {
                gateway.send(&request).await.expect(201);
                forget(gateway).await;
                // Until the tombstone of `Buried` is due.
                tokio::time::sleep(ms(20)).await;
                seen.extend(gateway.try_send(&request).await);
            }
            Self::Ambiguous => {
                // A scope that the store does not know is told to it before anything is reserved.
                let _ = gateway.try_send(&Request::pay("other")).await;
                let held = place.hold_reservations(gateway).await;
                let told = gateway.try_send(&request).await;
                drop(held);
                if let Ok(told) = told {
                    seen.push(told.refused(503, "idempotency_store_unavailable"));
                }
            }
            Self::Overtaken => {
                let upstream = back.upstream().expect("an open upstream");
                // The gateway may die before it answers this one.
                let (addr, late) = (gateway.data(), request.clone());
                tokio::spawn(async move { client::send(addr, &late).await.ok() });
                upstream.begun(1).await;
                gateway.until_state(KEY, "unknown").await;
                release(gateway).await;
                seen.push(gateway.send(&request).await.expect(201));
                upstream.release();
            }
        }
        seen
    }
}

pub(crate) async fn forget(gateway: &Gateway) {
    let path = format!("/idempotency/keys/{}?force=true", gateway.id(KEY).await);
    let forgotten = gateway.admin(Request::new("DELETE", &path)).await;
    assert!(forgotten.status < 300, "{forgotten}");
}

pub(crate) async fn release(gateway: &Gateway) {
    let path = format!("/idempotency/keys/{}/resolve", gateway.id(KEY).await);
    let word = json!({"outcome": "failed_retryable", "reason": "not in the ledger", "force": true});
    gateway.admin_post(&path, &word).await.expect(200);
}
