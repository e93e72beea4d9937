//! Renders `docs/reference/state-machine.md` by asking the machine, and fails when the page that is
//! checked in says something else. `ONLYONCE_BLESS=1` writes it anew.

use std::{fmt::Write as _, path::Path, time::Duration};

use onlyonce_core::{
    machine::Resolution,
    machine::{Step, Write},
    record::{JournalEntry, JournalEvent, Record, State},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::{
    events::{Effect, End, Event, Says, Setting, Voice, Who, Whose, Word, apply},
    world::{
        FRESH, GAP, LEASE, MAX_EXECUTION, OTHER, OWN, START, TOMBSTONE, TTL, answer, completed,
        expired, failed, in_progress, not_stored, once_negative, policy, rejecting, resolved,
        settled_down, unknown,
    },
};

use super::invariants::check;

const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/state-machine.md"
);

const HEAD: &str = "\
# State machine

What a key's past permits. This page is rendered from the machine itself by a test of
`onlyonce-core`; do not edit it (`ONLYONCE_BLESS=1 cargo test -p onlyonce-core state_machine_page`
writes it anew).

## States

| state | meaning |
|---|---|
| *absent* | Nothing is remembered of the key. |
| `in_progress` | An attempt owns the key and shows signs of life. |
| `completed` | The operation took effect and its answer is final. |
| `failed_retryable` | The operation is proven, or declared, to have left nothing behind. |
| `unknown` | Nobody saw how the last attempt ended. Never executed again by guessing. |
| `expired` | A tombstone: the answer is wiped, the fingerprint is kept. |

## Transitions

Find the event on the left and the state the key is in at the top. **Bold** is the state after it;
a cell without bold changes no state. `code` is the line in the key's history, written in the same
atomic write. A dash means that nothing happens.

";

const LEGEND: &str = "
## Legend

| word | what it means |
|---|---|
| execute | The request goes upstream, once its reservation is durable. One of many wins. |
| in flight | Wait, 409 or 202, as `on_in_flight` says. |
| replay | The stored status, headers and bytes. |
| 409 not stored | It was executed, but its answer was too large to keep. |
| 409 unknown | Do not retry with a new key. The reconciler, if there is one, looks sooner. |
| 409 expired | `after_expiry: reject` forbids a second life. |
| 422 | The key was used for another request (400 in dialect `stripe`). |
| 422 caller differs | The key was used for the same request by another caller (400 in dialect `stripe`). |
| kept | The record already says so, or says something better. |
| already | The attempt has committed its effect: its transaction must roll back. |
| audited | Refused, and `duplicate_execution_suspected` is written to the audit. |
| lost | The executor is told that the key is no longer its own. |
| refused | The operator is told why (409). |
| fence, generation | Counts executions; counts lives. Both are shown where they change. |

There is no way from `unknown` to `in_progress`: an unknown key is executed again only after
evidence, or an operator, made it `failed_retryable`. `in_progress` and `unknown` never expire.
";

/// When an event of the table happens.
#[derive(Clone, Copy)]
enum When {
    /// While leases and answers last.
    InTime,
    /// Past `lease_until` and past `expires_at`, before anybody came by.
    Late,
    /// Past `expires_at + tombstone_ttl`.
    Over,
    /// Past `max_execution`.
    Overdue,
    /// Once an upstream cannot be executing any more.
    SettledDown,
    /// `negative_gap` later.
    Apart,
}

/// What is special about the record.
#[derive(Clone, Copy)]
enum Twist {
    None,
    NotStored,
    Attested,
    OnceNegative,
    LastTry,
}

struct Row {
    title: &'static str,
    events: &'static [Event],
    when: When,
    twist: Twist,
    rejecting: bool,
}

const fn row(title: &'static str, events: &'static [Event]) -> Row {
    Row {
        title,
        events,
        when: When::InTime,
        twist: Twist::None,
        rejecting: false,
    }
}

const ASK: &[Event] = &[Event::Request(Who::Same)];
const NOT_FOUND: &[Event] = &[Event::Evidence(Says::NotExecuted, Voice::Proven)];

/// The groups of the table. Events that share a row must make the same cells.
const GROUPS: &[(&str, &[Row])] = &[
    (
        "a request arrives",
        &[
            row("same request", ASK),
            Row {
                twist: Twist::NotStored,
                ..row("same request, answer not stored", ASK)
            },
            Row {
                when: When::Late,
                ..row("same request, past `lease_until` or `expires_at`", ASK)
            },
            Row {
                when: When::Late,
                rejecting: true,
                ..row("the same, with `after_expiry: reject`", ASK)
            },
            Row {
                when: When::Over,
                ..row("same request, past `expires_at` + `tombstone_ttl`", ASK)
            },
            row("other content", &[Event::Request(Who::OtherContent)]),
            row(
                "same content, another caller",
                &[Event::Request(Who::OtherCaller)],
            ),
        ],
    ),
    (
        "an attempt ends",
        &[
            row(
                "its answer, to keep",
                &[
                    Event::Settle(Whose::Own, End::Complete),
                    Event::Settle(Whose::Own, End::CompleteUnstored),
                ],
            ),
            row(
                "its answer, in one transaction with its effect",
                &[
                    Event::Commit(Whose::Own, true),
                    Event::Commit(Whose::Own, false),
                ],
            ),
            Row {
                twist: Twist::Attested,
                ..row(
                    "the same, completed on somebody else's word",
                    &[Event::Commit(Whose::Own, true)],
                )
            },
            row(
                "nothing was sent, or a status that releases",
                &[Event::Settle(Whose::Own, End::Release)],
            ),
            row(
                "307 or 308: its request was sent elsewhere",
                &[Event::Settle(Whose::Own, End::Redirect)],
            ),
            row(
                "its end was not seen",
                &[Event::Settle(Whose::Own, End::Unknown)],
            ),
            row(
                "any end of another attempt",
                &[
                    Event::Settle(Whose::Other, End::Complete),
                    Event::Commit(Whose::Other, true),
                    Event::Settle(Whose::Other, End::Release),
                    Event::Settle(Whose::Other, End::Redirect),
                    Event::Settle(Whose::Other, End::Unknown),
                ],
            ),
        ],
    ),
    (
        "an attempt shows a sign of life",
        &[
            row("heartbeat", &[Event::Renew(Whose::Own)]),
            Row {
                when: When::Overdue,
                ..row(
                    "heartbeat past `max_execution`",
                    &[Event::Renew(Whose::Own)],
                )
            },
            row(
                "heartbeat of another attempt",
                &[Event::Renew(Whose::Other)],
            ),
        ],
    ),
    (
        "time passes",
        &[
            row("sweeper or reaper, in time", &[Event::Sweep, Event::Reap]),
            Row {
                when: When::Late,
                ..row("sweeper, past `lease_until`", &[Event::Sweep])
            },
            Row {
                when: When::Late,
                ..row("reaper, past `expires_at`", &[Event::Reap])
            },
            Row {
                when: When::Over,
                ..row(
                    "reaper, past `expires_at` + `tombstone_ttl`",
                    &[Event::Reap],
                )
            },
        ],
    ),
    (
        "somebody says what became of it",
        &[
            row(
                "webhook: took effect",
                &[Event::Evidence(
                    Says::TookEffect,
                    Voice::Webhook(Whose::Own),
                )],
            ),
            row(
                "webhook: not executed, for the first time",
                &[Event::Evidence(
                    Says::NotExecuted,
                    Voice::Webhook(Whose::Own),
                )],
            ),
            row(
                "webhook about an earlier attempt: took effect",
                &[Event::Evidence(
                    Says::TookEffect,
                    Voice::Webhook(Whose::Other),
                )],
            ),
            row(
                "webhook about an earlier attempt: not executed",
                &[Event::Evidence(
                    Says::NotExecuted,
                    Voice::Webhook(Whose::Other),
                )],
            ),
            row(
                "query, or kept webhook: took effect",
                &[
                    Event::Evidence(Says::TookEffect, Voice::Proven),
                    Event::Evidence(Says::TookEffect, Voice::Unproven),
                    Event::Evidence(Says::TookEffect, Voice::Kept),
                ],
            ),
            row(
                "kept webhook: not executed",
                &[Event::Evidence(Says::NotExecuted, Voice::Kept)],
            ),
            row(
                "query: not found, too early or for the first time",
                NOT_FOUND,
            ),
            Row {
                when: When::SettledDown,
                twist: Twist::OnceNegative,
                ..row(
                    "query: not found, the second time too soon after the first",
                    NOT_FOUND,
                )
            },
            Row {
                when: When::Apart,
                twist: Twist::OnceNegative,
                ..row(
                    "query: not found, twice in a row, far enough apart and late enough",
                    NOT_FOUND,
                )
            },
            Row {
                when: When::Apart,
                twist: Twist::OnceNegative,
                ..row(
                    "webhook: not executed, the second such look",
                    &[Event::Evidence(
                        Says::NotExecuted,
                        Voice::Webhook(Whose::Own),
                    )],
                )
            },
            row(
                "query: not found, by a query that never found any key",
                &[Event::Evidence(Says::NotExecuted, Voice::Unproven)],
            ),
            row("query: inconclusive", &[Event::Inconclusive]),
            row("query: still under way", &[Event::Pending]),
            row("query: several operations under the key", &[Event::Several]),
            Row {
                twist: Twist::LastTry,
                ..row(
                    "query: inconclusive, for the last time",
                    &[Event::Inconclusive],
                )
            },
        ],
    ),
    (
        "an operator acts",
        &[
            row("resolve as completed", &[Event::Attest]),
            row(
                "resolve as failed_retryable, too early or where the provider does not say",
                &[
                    Event::Release {
                        heard: Word::Nobody,
                        force: false,
                    },
                    Event::Release {
                        heard: Word::Denial,
                        force: false,
                    },
                    Event::Release {
                        heard: Word::Nothing,
                        force: false,
                    },
                ],
            ),
            Row {
                when: When::SettledDown,
                ..row(
                    "the same where there is nobody to ask or the provider does not know it, once it cannot be under way any more",
                    &[
                        Event::Release {
                            heard: Word::Nobody,
                            force: false,
                        },
                        Event::Release {
                            heard: Word::Denial,
                            force: false,
                        },
                    ],
                )
            },
            row(
                "the same with force",
                &[
                    Event::Release {
                        heard: Word::Nobody,
                        force: true,
                    },
                    Event::Release {
                        heard: Word::Denial,
                        force: true,
                    },
                    Event::Release {
                        heard: Word::Nothing,
                        force: true,
                    },
                ],
            ),
            row("forget", &[Event::Forget { force: false }]),
            row("forget with force", &[Event::Forget { force: true }]),
            row("extend", &[Event::Extend]),
            row("erase", &[Event::Erase]),
        ],
    ),
];

#[test]
fn state_machine_page_says_what_the_machine_does() {
    let rendered = render();
    let page = Path::new(PAGE);
    if std::env::var_os("ONLYONCE_BLESS").is_some() {
        std::fs::create_dir_all(page.parent().expect("a folder")).unwrap();
        std::fs::write(page, &rendered).unwrap();
    }
    let checked_in = std::fs::read_to_string(page).unwrap_or_default();
    assert!(
        checked_in == rendered,
        "docs/reference/state-machine.md has drifted; run this test with ONLYONCE_BLESS=1"
    );
}

fn render() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| event | *absent* |");
    for state in State::ALL {
        write!(page, " `{state}` |").unwrap();
    }
    page.push_str("\n|---|---|---|---|---|---|---|\n");
    for (group, rows) in GROUPS {
        writeln!(page, "| ***{group}*** | | | | | | |").unwrap();
        for row in *rows {
            write!(page, "| {} | {} |", row.title, cell(row, None)).unwrap();
            for state in State::ALL {
                write!(page, " {} |", cell(row, Some(state))).unwrap();
            }
            page.push('\n');
        }
    }
    page.push_str(LEGEND);
    page
}

fn cell(row: &Row, state: Option<State>) -> String {
    if matches!(row.twist, Twist::NotStored | Twist::Attested) && state != Some(State::Completed) {
        return String::new();
    }
    let record = state.map(|state| twisted(row.twist, state));
    let mut cells = row
        .events
        .iter()
        .map(|event| one_cell(row, record.as_ref(), *event));
    let first = cells.next().expect("a row has an event");
    for other in cells {
        assert_eq!(first, other, "the events of {:?} differ", row.title);
    }
    first
}

fn twisted(twist: Twist, state: State) -> Record {
    let record = match state {
        State::InProgress => in_progress(),
        State::Completed => completed(),
        State::FailedRetryable => failed(),
        State::Unknown => unknown(),
        State::Expired => expired(&completed()),
    };
    match (twist, state) {
        (Twist::NotStored, State::Completed) => not_stored(),
        (Twist::Attested, State::Completed) => resolved(&Resolution::Completed(answer(OWN))),
        (Twist::OnceNegative, State::Unknown) => once_negative(),
        (Twist::LastTry, State::Unknown) => Record {
            inconclusive: 2,
            ..record
        },
        _ => record,
    }
}

fn one_cell(row: &Row, record: Option<&Record>, event: Event) -> String {
    let policy = if row.rejecting { rejecting() } else { policy() };
    let setting = Setting {
        now: moment(row.when),
        policy: &policy,
        fresh: FRESH,
        stranger: OTHER,
    };
    let step = apply(record, event, setting);
    let text = describe(record, &step);
    check(record, event, step, setting);
    text
}

fn moment(when: When) -> Timestamp {
    let after = |duration: Duration| START.plus(duration);
    match when {
        When::InTime => START,
        When::Late => after(TTL.max(LEASE)),
        When::Over => after(TTL + TOMBSTONE),
        When::Overdue => after(MAX_EXECUTION),
        When::SettledDown => settled_down(&unknown()),
        When::Apart => settled_down(&unknown()).plus(GAP),
    }
}

fn describe(record: Option<&Record>, step: &Step<Effect>) -> String {
    let effect = &step.effect;
    let (to, journal) = match &step.write {
        Write::Insert(draft) => (Some(&draft.record), &[][..]),
        Write::Swap(change) => (Some(&change.draft.record), &change.journal[..]),
        Write::Delete => return "***absent***".to_owned(),
        Write::Stay => (None, &[][..]),
    };
    let mut parts = Vec::new();
    if let Some(after) = to
        && record.is_none_or(|before| before.state != after.state)
    {
        parts.push(format!("**{}**", after.state));
    }
    parts.extend(word(effect, record, to, journal).map(str::to_owned));
    parts.extend(
        journal
            .iter()
            .map(|entry| format!("`{}`", entry.event.as_str())),
    );
    match (parts.is_empty(), to) {
        (false, _) => parts.join(", "),
        (true, Some(_)) => "counted, looked at again later".to_owned(),
        (true, None) => "-".to_owned(),
    }
}

fn word(
    effect: &Effect,
    before: Option<&Record>,
    after: Option<&Record>,
    journal: &[JournalEntry],
) -> Option<&'static str> {
    Some(match effect {
        Effect::Execute => match (before, journal.first().map(|entry| entry.event)) {
            (None, _) => "execute (fence 1, generation 1)",
            (Some(_), Some(JournalEvent::ExecutedAgain)) => "execute (fence + 1)",
            (Some(_), Some(_)) => "execute (fence + 1, generation + 1)",
            // As if it were absent, but a fence never falls while its row exists.
            (Some(_), None) => "execute (fence + 1, generation 1)",
        },
        Effect::AskAgain => "then as `unknown`",
        Effect::InFlight(_) => "in flight",
        Effect::Replay(_) => "replay",
        Effect::Reused => "422",
        Effect::CallerDiffers => "422 caller differs",
        Effect::OutcomeUnknown => "409 unknown",
        Effect::NotStored => "409 not stored",
        Effect::KeyExpired => "409 expired",
        Effect::Kept => "kept",
        Effect::Already => "already",
        Effect::Suspected(_) => "audited",
        Effect::Lost => "lost",
        Effect::Refused => "refused",
        Effect::Written => return renewed(before?, after?),
        Effect::Ignored => return None,
    })
}

/// What a write that leaves the state alone, and no line in the history, is about.
fn renewed(before: &Record, after: &Record) -> Option<&'static str> {
    let beats = before.state == State::InProgress && after.state == State::InProgress;
    (beats && after.evidence.is_none()).then_some("lease renewed")
}
