//! What a new key may do on a store that has lost keys.

use std::time::Duration;

use onlyonce_core::{
    Policy, Timestamp,
    machine::{History, NewKey, new_key},
    policy::{OnStoreError, Profile, ReconcilePolicy},
};

/// When the store lost keys.
const LOST: i64 = 1_000_000_000_000;
const TTL: Duration = Duration::from_secs(72 * 3_600);
const MINUTE: Duration = Duration::from_secs(60);

fn policy(profile: Profile, on_store_error: OnStoreError, provider: Provider) -> Policy {
    let asks = |upstream_max_execution, asks| ReconcilePolicy {
        after: MINUTE,
        attempts: 8,
        upstream_max_execution,
        negative_gap: MINUTE,
        asks,
    };
    let mut policy = Policy::default();
    policy.profile = profile;
    policy.on_store_error = on_store_error;
    policy.ttl = TTL;
    policy.lease = MINUTE;
    policy.max_execution = 10 * MINUTE;
    policy.reconcile = match provider {
        Provider::None => None,
        Provider::OnlyTells => Some(asks(Some(5 * MINUTE), false)),
        Provider::NeverSure => Some(asks(None, true)),
        Provider::Denies => Some(asks(Some(5 * MINUTE), true)),
    };
    policy
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Provider {
    None,
    OnlyTells,
    NeverSure,
    Denies,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Nothing,
    Newest,
    Any,
    Both,
}

/// Every combination of profile, what is lost, an operator's word, the time and what the provider can say.
#[test]
fn every_combination() {
    let profiles = [Profile::Safe, Profile::Payments, Profile::Cache];
    let on_errors = [OnStoreError::Refuse, OnStoreError::Bypass];
    let losses = [Lost::Nothing, Lost::Newest, Lost::Any, Lost::Both];
    // Before the loss, in its instant, and after it.
    let words = [None, Some(LOST - 1), Some(LOST), Some(LOST + 1)];
    let end = LOST + i64::try_from(TTL.as_millis()).unwrap();
    // By a clock that was set back, at once, at the last instant and after it.
    let times = [LOST - 5, LOST, end - 1, end, end + 1];
    let providers = [
        Provider::None,
        Provider::OnlyTells,
        Provider::NeverSure,
        Provider::Denies,
    ];
    let (mut held, mut askable, mut seen) = (0, 0, 0);
    for profile in profiles {
        for on_error in on_errors {
            for lost in losses {
                for word in words {
                    for now in times {
                        for provider in providers {
                            let at = |is_so: bool| is_so.then_some(Timestamp(LOST));
                            let history = History {
                                lost_at: at(matches!(lost, Lost::Any | Lost::Both)),
                                newest_lost_at: at(matches!(lost, Lost::Newest | Lost::Both)),
                                accepted_at: word.map(Timestamp),
                            };
                            let minds = match lost {
                                Lost::Nothing => false,
                                _ if profile == Profile::Payments => true,
                                Lost::Newest => false,
                                Lost::Any | Lost::Both => on_error == OnStoreError::Refuse,
                            };
                            let accepted = word == Some(LOST + 1);
                            let expected = match minds && !accepted && now < end {
                                false => NewKey::Execute,
                                true if provider == Provider::Denies => {
                                    // 10 min of the exchange, 1 of its lease, 5 of the upstream, 1 of the gap.
                                    NewKey::OnlyIfDenied(Timestamp(LOST).plus(17 * MINUTE))
                                }
                                true => NewKey::Wait,
                            };
                            let policy = policy(profile, on_error, provider);
                            let found = new_key(&history, Timestamp(now), &policy);
                            let case = (profile, on_error, lost, word, now - LOST, provider);
                            assert_eq!(found, expected, "{case:?}");
                            seen += 1;
                            held += u32::from(found == NewKey::Wait);
                            askable += u32::from(matches!(found, NewKey::OnlyIfDenied(_)));
                            let is_felt = lost != Lost::Nothing && !accepted && now < end;
                            assert_eq!(
                                history.is_felt(Timestamp(now), &policy),
                                is_felt,
                                "{case:?}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert_eq!((seen, held, askable), (1_920, 270, 90));
}
