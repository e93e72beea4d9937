//! Tests the SQL functions against the machine: every kind of record, every moment at which its treatment
//! changes, and every event that a function implements, through both, comparing every column.
//!
//! The records, the moments and the machine's answers are those of the machine's own exhaustive test.

use std::time::Duration;

use onlyonce_core::{
    AttemptId, Policy, Record, RecordId, Timestamp,
    machine::Write,
    policy::{AfterExpiry, OnInFlight},
    record::{Draft, JournalEntry, Revision},
};
use onlyonce_testkit::{
    scenarios::{
        events::{Effect, End, Event, Setting, Who, Whose, apply},
        world::{self, FRESH, OTHER, START, answer, moments, policies, records, unstored},
    },
    servers::Postgres,
    soak,
};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, postgres::PgRow};

use super::{PostgresOptions, migrate, statement};
use crate::{
    codec::body_of,
    sql::{
        lane::{Found, How},
        queue::Swap,
        row::{self, JOURNAL_COLUMNS},
    },
};

/// The functions get the time and the attempt id from the test, as the machine does.
const UNDER_TEST: &str = "
CREATE OR REPLACE FUNCTION onlyonce.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT current_setting('onlyonce.test_now')::bigint $$;
CREATE OR REPLACE FUNCTION onlyonce.new_attempt() RETURNS bytea LANGUAGE sql VOLATILE AS
    $$ SELECT decode(current_setting('onlyonce.test_attempt'), 'hex') $$;
INSERT INTO onlyonce.routes (route, ttl, max_body_size, max_execution)
    VALUES ('payments', 1, 1000000, 1);
";

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}

/// The result of an event.
#[derive(Debug, PartialEq)]
struct Outcome {
    said: String,
    answer: Option<(u16, Option<Vec<u8>>)>,
    record: Option<Record>,
    journal: Vec<JournalEntry>,
}

fn of_the_machine(record: Option<&Record>, event: Event, setting: Setting<'_>) -> Outcome {
    let mut current = record.cloned();
    let mut journal = Vec::new();
    loop {
        let step = apply(current.as_ref(), event, setting);
        let effect = step.effect;
        match step.write {
            Write::Insert(draft) => current = Some(draft.stamp(setting.now)),
            Write::Swap(change) => {
                journal.extend(change.journal);
                current = Some(change.draft.stamp(setting.now));
            }
            Write::Delete => {
                current = None;
                // The earlier journal disappears with its key.
                journal.clear();
            }
            Write::Stay => {}
        }
        if effect == Effect::AskAgain {
            continue;
        }
        let mut answer = None;
        let said = match effect {
            Effect::Execute => "execute",
            Effect::InFlight(_) => "in_progress",
            Effect::Replay(stored) => {
                let body = body_of(&stored).map(<[u8]>::to_vec);
                answer = Some((stored.status.as_u16(), body));
                "replay"
            }
            Effect::NotStored => {
                let stored = current.as_ref().and_then(|record| record.response.clone());
                answer = stored.map(|stored| (stored.status.as_u16(), None));
                "not_stored"
            }
            Effect::Reused | Effect::CallerDiffers => "reused",
            Effect::OutcomeUnknown => "unknown",
            Effect::KeyExpired => "expired",
            Effect::Written => "written",
            Effect::Kept => "kept",
            Effect::Already => "already",
            Effect::Suspected(entry) => {
                // Without a record a function has nothing to write the entry under.
                journal.extend(record.map(|_| *entry));
                "lost"
            }
            Effect::Lost => "lost",
            Effect::Ignored => "ignored",
            Effect::AskAgain | Effect::Refused => unreachable!("not of these events"),
        };
        return Outcome {
            said: said.to_owned(),
            answer,
            record: current,
            journal,
        };
    }
}

/// Whether a function implements the event.
fn has_a_function(event: Event) -> bool {
    match event {
        // A function completes a key only in one transaction with the effect.
        Event::Settle(_, end) => matches!(end, End::Release | End::Redirect | End::Unknown),
        Event::Request(_) | Event::Commit(..) | Event::Renew(_) | Event::Sweep | Event::Reap => {
            true
        }
        _ => false,
    }
}

struct Place {
    connection: PgConnection,
}

impl Place {
    async fn put(&mut self, record: &Record) {
        let before = Record {
            revision: Revision(record.revision.0 - 1),
            ..record.clone()
        };
        let draft = Draft::after(&before);
        let first = Draft {
            record: before.clone(),
            ..draft.clone()
        };
        let inserted = statement::insert(&[&first]).fetch_all(&mut self.connection);
        inserted.await.unwrap();
        let swap = Swap {
            expected: before.revision,
            change: Box::new(onlyonce_core::record::Change {
                draft: Box::new(draft),
                journal: Vec::new(),
            }),
            met_a_lock: false,
        };
        let swapped = statement::swap(&[&swap], How::Any).fetch_all(&mut self.connection);
        assert_eq!(swapped.await.unwrap().len(), 1);
    }

    async fn set(&mut self, setting: Setting<'_>) {
        sqlx::query(
            "WITH u AS (UPDATE onlyonce.routes SET reconcile_after = $3, max_execution = $4 \
             WHERE route = 'payments') \
             SELECT set_config('onlyonce.test_now', $1::text, true), \
             set_config('onlyonce.test_attempt', $2, true)",
        )
        .bind(setting.now.0.to_string())
        .bind(setting.fresh.to_string())
        .bind(
            setting
                .policy
                .reconcile
                .as_ref()
                .map(|reconcile| millis(reconcile.after)),
        )
        .bind(millis(setting.policy.max_execution))
        .fetch_all(&mut self.connection)
        .await
        .unwrap();
    }

    async fn ask(&mut self, record: Option<&Record>, event: Event, setting: Setting<'_>) -> PgRow {
        let policy = setting.policy;
        let id = record.map_or(RecordId([7; 16]), |record| record.id);
        let attempt = |whose| match (whose, record) {
            (Whose::Own, Some(record)) => record.attempt_id,
            _ => setting.stranger,
        };
        let statement = match event {
            Event::Request(who) => {
                let mut request = world::request(1, Some(1), setting.fresh);
                if let Some(record) = record {
                    request.fingerprint = record.fingerprint.unwrap_or(request.fingerprint);
                    request.caller = record.caller;
                }
                match who {
                    Who::Same => {}
                    Who::OtherContent if record.is_none() => request.fingerprint.0 = [2; 32],
                    Who::OtherContent => request.fingerprint.0[0] ^= 1,
                    Who::OtherCaller => {
                        let mut mark = request.caller.map_or([1; 16], |caller| caller.0);
                        mark = match record {
                            Some(_) => {
                                mark[0] ^= 1;
                                mark
                            }
                            None => [2; 16],
                        };
                        request.caller = Some(onlyonce_core::CallerMark(mark));
                    }
                }
                let recipe = match who {
                    Who::OtherContent if record.is_none() => [2; 8],
                    _ => request.recipe.0,
                };
                let reject = policy.after_expiry == AfterExpiry::Reject;
                sqlx::query(
                    "SELECT outcome, status, body FROM onlyonce.admit($1, 'global', 'k', $2, $3, $4, \
                     $5, $6, $7, 'payments', 'POST', '/payments')",
                )
                .bind(id.0)
                .bind(request.fingerprint.0)
                .bind(recipe)
                .bind(request.caller.map(|caller| caller.0))
                .bind(millis(policy.lease))
                .bind(millis(policy.tombstone_ttl))
                .bind(if reject { "reject" } else { "new" })
            }
            Event::Settle(whose, _) | Event::Commit(whose, _) => {
                let attempt = attempt(whose);
                let (ending, error) = match event {
                    Event::Settle(_, End::Release) => ("release", Some("not_sent")),
                    Event::Settle(_, End::Redirect) => ("release", Some("redirected")),
                    Event::Settle(_, End::Unknown) => ("unknown", Some("connection_lost")),
                    _ => ("complete", None),
                };
                let answer = match event {
                    Event::Commit(_, false) => unstored(),
                    _ => answer(attempt),
                };
                sqlx::query("SELECT onlyonce.end_attempt($1, $2, $3, $4, '{}', $5, $6)")
                    .bind(format!("{id}{attempt}"))
                    .bind(ending)
                    .bind(error)
                    .bind(i32::from(answer.status.as_u16()))
                    .bind(body_of(&answer).map(<[u8]>::to_vec))
                    .bind(millis(policy.ttl))
            }
            Event::Renew(whose) => sqlx::query(
                "SELECT CASE WHEN onlyonce.renew($1, $2 * interval '1 ms', $3 * interval '1 ms') \
                 THEN 'written' ELSE 'lost' END",
            )
            .bind(format!("{id}{}", attempt(whose)))
            .bind(millis(policy.lease) as f64)
            .bind(millis(policy.max_execution) as f64),
            Event::Sweep => {
                sqlx::query("SELECT CASE onlyonce.sweep() WHEN 0 THEN 'ignored' ELSE 'written' END")
            }
            Event::Reap => {
                sqlx::query("SELECT CASE onlyonce.reap() WHEN 0 THEN 'ignored' ELSE 'written' END")
            }
            other => unreachable!("{other:?} has no function"),
        };
        statement.fetch_one(&mut self.connection).await.unwrap()
    }

    async fn outcome(
        &mut self,
        record: Option<&Record>,
        event: Event,
        setting: Setting<'_>,
    ) -> Outcome {
        self.connection.execute("BEGIN").await.unwrap();
        if let Some(record) = record {
            self.put(record).await;
        }
        self.set(setting).await;
        let said = self.ask(record, event, setting).await;
        let mut answer = None;
        if matches!(event, Event::Request(_)) {
            let status: Option<i32> = said.get(1);
            answer = status.map(|status| (u16::try_from(status).unwrap(), said.get(2)));
        }
        let id = record.map_or(RecordId([7; 16]), |record| record.id);
        let found = statement::lookup(&[id]).fetch_all(&mut self.connection);
        let found = super::server::read(&found.await.unwrap())
            .unwrap()
            .1
            .remove(&id);
        let sql = format!("SELECT {JOURNAL_COLUMNS} FROM onlyonce.journal ORDER BY number");
        let journal = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut self.connection);
        let journal = journal.await.unwrap();
        let live =
            sqlx::query("SELECT count(*) FROM onlyonce.live").fetch_one(&mut self.connection);
        let live: i64 = live.await.unwrap().get(0);
        self.connection.execute("ROLLBACK").await.unwrap();
        let record = found.map(|found| match found {
            Found::There(record) => *record,
            Found::Unreadable(error) => panic!("{error}"),
            Found::New | Found::Busy => unreachable!("nothing was inserted"),
        });
        let is_live = record.as_ref().is_some_and(|record| {
            record.times.lease_until.is_some() || record.times.unknown_since.is_some()
        });
        assert_eq!(live, i64::from(is_live), "{event:?}");
        let journal = journal.iter().map(|row| row::read_journal(row).unwrap());
        Outcome {
            said: said.get(0),
            answer,
            record,
            journal: journal
                .map(|row| {
                    assert_eq!(row.at, setting.now);
                    row.entry
                })
                .collect(),
        }
    }
}

/// Whether an event is worth testing under a policy in the short form: cases without a difference are tested
/// once.
fn matters(record: &Record, is_alone: bool, policy: usize, event: Event) -> bool {
    let reconciled = record.times.lease_until.is_some() || record.times.unknown_since.is_some();
    match event {
        Event::Request(_) if is_alone => policy == 0,
        // The first three differ in how unknown outcomes are reconciled, the others reject.
        Event::Request(_) if reconciled => policy < 2,
        Event::Request(_) => policy == 0 || policy == 3,
        Event::Settle(_, End::Unknown) | Event::Sweep => !is_alone && policy < 2,
        _ => !is_alone && policy == 0,
    }
}

/// The moments worth testing: both sides of each change in the machine's answer.
fn turning_points(said: &[(Timestamp, Outcome)]) -> Vec<usize> {
    let word = |index: usize| {
        let (_, outcome) = said.get(index)?;
        Some((
            &outcome.said,
            outcome.record.as_ref().map(|record| record.state),
        ))
    };
    let turns = |index: &usize| {
        *index == 0 || word(*index) != word(index - 1) || word(*index) != word(index + 1)
    };
    (0..said.len()).filter(turns).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_functions_do_what_the_machine_does() {
    let server = Postgres::start_with(&["fsync=off"]);
    let url = server.url();
    migrate(&url, &PostgresOptions::default()).await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute(UNDER_TEST).await.unwrap();
    let mut place = Place { connection };
    let policies: Vec<Policy> = policies()
        .into_iter()
        .filter(|policy| policy.on_in_flight == OnInFlight::Wait)
        .collect();
    let everything = soak::is_on();
    let mut steps = 0;
    for (name, shared) in records() {
        let alone = Record {
            caller: None,
            ..shared.clone()
        };
        for (record, is_alone) in [(shared, false), (alone, true)] {
            for (number, policy) in policies.iter().enumerate() {
                for event in Event::all() {
                    let worth_it = everything || matters(&record, is_alone, number, event);
                    if !has_a_function(event) || !worth_it {
                        continue;
                    }
                    let setting = |now| Setting {
                        now,
                        policy,
                        fresh: FRESH,
                        stranger: AttemptId(record.attempt_id.0 ^ 1),
                    };
                    // A clock at its maximum has no room for a lease, and the server says so.
                    let expected: Vec<_> = moments(&record)
                        .into_iter()
                        .filter(|now| now.0 != i64::MAX)
                        .map(|now| (now, of_the_machine(Some(&record), event, setting(now))))
                        .collect();
                    let looked_at = match everything {
                        true => (0..expected.len()).collect(),
                        false => turning_points(&expected),
                    };
                    for index in looked_at {
                        let (now, expected) = &expected[index];
                        let found = place.outcome(Some(&record), event, setting(*now)).await;
                        assert_eq!(found, *expected, "{name}, {event:?} at {now:?}, {policy:?}");
                        steps += 1;
                    }
                }
            }
        }
    }
    for event in Event::all()
        .into_iter()
        .filter(|event| has_a_function(*event))
    {
        let setting = Setting {
            now: Timestamp(START.0),
            policy: &policies[0],
            fresh: FRESH,
            stranger: OTHER,
        };
        let expected = of_the_machine(None, event, setting);
        assert_eq!(
            place.outcome(None, event, setting).await,
            expected,
            "{event:?}"
        );
        steps += 1;
    }
    println!("{steps} steps, equal in every column");
}

/// Goal: the functions and the library compute the same from a scope, a key and a request.
#[tokio::test(flavor = "multi_thread")]
async fn ids_and_fingerprints_are_the_librarys() {
    use onlyonce_core::{Key, Recipe, RequestView, Secret, StoredResponse, fingerprint::BodyMode};
    let server = Postgres::start_with(&["fsync=off"]);
    migrate(&server.url(), &PostgresOptions::default())
        .await
        .unwrap();
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    let secret = super::schema::secret(&mut connection).await.unwrap();
    let secret = Secret::from_bytes(secret.unwrap().try_into().unwrap());
    let recipe = Recipe::version_1(BodyMode::Raw, vec![], vec![], vec![]);
    let kept = sqlx::query("SELECT recipe FROM onlyonce.recipes WHERE id = $1").bind(recipe.id().0);
    let kept = kept.fetch_one(&mut connection).await.unwrap();
    assert_eq!(kept.get::<Vec<u8>, _>(0), recipe.encode());
    for (scope, key, body) in [
        ("global", "k", ""),
        ("global", "\"k\"", ""),
        ("global", "\"k\\\";v=2", ""),
        ("client:\u{fc}", "a key", "{\"a\": 1}"),
    ] {
        let headers = http::HeaderMap::new();
        let view = RequestView {
            method: "SQL",
            authority: None,
            target: "POST /x",
            headers: &headers,
            body: body.as_bytes(),
        };
        let found = sqlx::query(
            "SELECT onlyonce.record_id($1, $2), onlyonce.fingerprint($1, 'POST /x', $3)",
        )
        .bind(scope)
        .bind(key)
        .bind(body.as_bytes())
        .fetch_one(&mut connection)
        .await
        .unwrap();
        let id = secret.record_id(scope, &Key::from_stored(key));
        assert_eq!(found.get::<Vec<u8>, _>(0), id.0);
        let fingerprint = secret.scope_hasher(scope).fingerprint(&recipe, &view);
        assert_eq!(found.get::<Vec<u8>, _>(1), fingerprint.0);
    }
    // A function writes the same head as the library, and reads it back.
    let mut answer = StoredResponse::plain(http::StatusCode::CREATED, "body");
    for (name, value) in [("link", "<a>"), ("link", "<b>"), ("x-long", "v")] {
        let value = if name == "x-long" {
            "v".repeat(70_000)
        } else {
            value.to_owned()
        };
        answer.headers.append(name, value.parse().unwrap());
    }
    let headers: Vec<_> = answer.headers.iter().collect();
    let pairs: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("[\"{name}\", \"{}\"]", value.to_str().unwrap()))
        .collect();
    let list = format!("[[\"Set-Cookie\", \"a\"], {}]", pairs.join(", "));
    let made = sqlx::query(
        "SELECT h, onlyonce.head_headers(h)::text FROM onlyonce.head(201, $1::jsonb, true) h",
    )
    .bind(list)
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(
        made.get::<Vec<u8>, _>(0),
        crate::codec::encode_head(&answer)
    );
    assert_eq!(made.get::<String, _>(1), format!("[{}]", pairs.join(", ")));
}
