//! Applies a provider's statements to records.

use std::{sync::Arc, time::Duration};

use onlyonce_core::{
    Key, MessageState, Record, RecordId, State, Timestamp,
    machine::{self, About, Found, Look, Negative, Source, Step, Write},
    record::{Actor, Evidence, JournalEntry, JournalEvent},
    time::Stamp,
};
use onlyonce_store::{Filter, JournalRow, Reply, StoreError};

use super::{
    Engine,
    transition::{Fault as _, Known, MAX_ROUNDS, Unanswered, Wrote},
};
use crate::{
    reconcile::{Answer, Ask, Judged, Told},
    stats::{Amount, Background},
};

/// The unknown keys that a census examines: this many pages of this many.
const CENSUS_PAGES: usize = 20;
const CENSUS_PAGE: usize = 500;

/// The journal's text for an operation that the provider has not finished.
const PENDING: &str = "the provider says that it is still under way";

/// The journal's text for a denial at a time when a clock is not trusted.
const UNSTEADY: &str = "not found; a clock has jumped, so it does not count";

/// The unresolved keys of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Dead letters, including messages.
    pub dead_letters: u64,
    /// How long the oldest unknown key has been unknown.
    pub oldest: Duration,
}

/// What became of a webhook event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The event changed the record.
    Changed,
    /// The event had been processed before.
    Before,
    /// There is no such key, or the key needs no evidence.
    Nothing,
}

impl Engine {
    /// Unknown keys that are due for a look, up to `limit`.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.bounded_read(self.0.store.due(limit)).await
    }

    /// Asks the provider about the key of `record`, which was read when the store's time was `now`. Returns
    /// `Some(true)` if the key was settled, `Some(false)` if something else was written.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn look_into(
        &self,
        record: Record,
        now: Timestamp,
        provider: &dyn Ask,
    ) -> Result<Option<bool>, StoreError> {
        let policy = self.policy(&record.route);
        // A denial from before the exchange ended counts for nothing, so ask the provider.
        if let Some(kept) = record.evidence.clone()
            && kept != Evidence::NotExecuted
        {
            let found = Found::Evidence(&kept, Source::Kept);
            return self.looked(record, now, found).await;
        }
        if policy.reconcile.is_none() {
            return self.looked(record, now, Found::Nothing("")).await;
        }
        let answer = provider.ask(&record).await;
        self.heard(record, now, answer).await
    }

    /// Applies a provider's answer about the key of `record`, which was read when the store's time was `now`;
    /// see [`Engine::look_into`].
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn heard(
        &self,
        record: Record,
        now: Timestamp,
        answer: Answer,
    ) -> Result<Option<bool>, StoreError> {
        let Answer { judged, question } = answer;
        let tag = self.secret().key_tag(&record.key);
        tracing::debug!(key = %tag, route = %record.route, heard = word(&judged), "a provider was asked");
        let several;
        let found = match &judged {
            Judged::Says(Evidence::NotExecuted) if !self.store_clock().is_steady() => {
                Found::NoLook(UNSTEADY)
            }
            Judged::Says(evidence) => {
                let source = self.worth(&record, evidence, question.as_deref()).await?;
                Found::Evidence(evidence, source)
            }
            Judged::Pending => Found::NoLook(PENDING),
            Judged::Several(list) => {
                several = format!("the provider knows several operations under this key: {list}");
                Found::Several(&several)
            }
            Judged::Inconclusive(why) => Found::Nothing(why),
        };
        self.looked(record, now, found).await
    }

    /// How much a negative answer is worth: a query that finds a key is proven to work.
    async fn worth(
        &self,
        record: &Record,
        evidence: &Evidence,
        question: Option<&str>,
    ) -> Result<Source, StoreError> {
        let negative = match (evidence, question) {
            (_, None) => Negative::Unproven,
            (Evidence::Completed(_), Some(question)) => {
                self.prove(&record.route, question).await?;
                Negative::Proven
            }
            (Evidence::NotExecuted | Evidence::Contradictory, Some(question)) => {
                match self.is_proven(&record.route, question).await? {
                    true => Negative::Proven,
                    false => Negative::Unproven,
                }
            }
        };
        Ok(Source::Query(negative))
    }

    /// Whether `question`, asked for `route`, is known to have found a key.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn is_proven(&self, route: &str, question: &str) -> Result<bool, StoreError> {
        let id = self.question_id(route, question);
        if self.0.proven.lock().contains(&id) {
            return Ok(true);
        }
        let rows = self.bounded_read(self.0.store.history(id)).await?;
        let proven = rows
            .iter()
            .any(|row| row.entry.event == JournalEvent::QueryProven);
        if proven {
            self.0.proven.lock().insert(id);
        }
        Ok(proven)
    }

    /// Records that `question`, asked for `route`, has found a key.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be written.
    pub async fn prove(&self, route: &str, question: &str) -> Result<(), StoreError> {
        if self.is_proven(route, question).await? {
            return Ok(());
        }
        let id = self.question_id(route, question);
        let entry = JournalEntry {
            id,
            event: JournalEvent::QueryProven,
            from: None,
            to: None,
            attempt: 0,
            actor: Actor::Reconciler,
            detail: Some(format!("route {route}")),
        };
        self.bounded_read(self.0.store.append(vec![entry])).await?;
        self.0.proven.lock().insert(id);
        Ok(())
    }

    /// The id of the journal rows about a question.
    fn question_id(&self, route: &str, question: &str) -> RecordId {
        let question = Key::from_stored(question);
        self.secret()
            .record_id(&format!("question of route:{route}"), &question)
    }

    /// Writes the machine's decision about a look at `record`, which was read when the store's time was
    /// `now`. That is before the question, and counts as the time of the answer.
    async fn looked(
        &self,
        record: Record,
        now: Timestamp,
        found: Found<'_>,
    ) -> Result<Option<bool>, StoreError> {
        let id = record.id;
        let policy = self.policy(&record.route);
        let look = Look {
            found,
            asked_about: Some((record.attempt_id, record.revision)),
        };
        let moved = self.transition(id, Known::Read(Arc::new(record), now), |record, _| {
            let mut step = machine::apply(record, &look, now, &policy);
            self.jitter(&mut step);
            (step, Unanswered::Fail)
        });
        let moved = moved.await?;
        let written = moved.record.filter(|_| moved.wrote == Wrote::Yes);
        Ok(written.map(|record| {
            self.0.waiters.wake_all(id);
            record.times.unknown_since.is_none()
        }))
    }

    /// Moves the next look by up to a fifth either way, so that keys which became unknown together do not
    /// stay synchronised.
    fn jitter(&self, step: &mut Step) {
        if let Write::Swap(change) = &mut step.write
            && let Stamp::In(pause) = change.draft.stamps.reconcile_after
            && !pause.is_zero()
        {
            let chance = self.0.options.attempt_ids.fresh().0 % 401;
            let share = 800 + u32::try_from(chance).unwrap_or(200);
            let moved = pause.saturating_mul(share) / 1_000;
            change.draft.stamps.reconcile_after = Stamp::In(moved.max(Duration::from_millis(1)));
        }
    }

    /// Applies a webhook event about the key `id`, at most once for each event: the event's id is written
    /// together with the change.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached; the provider should send the event again.
    pub async fn told(&self, id: RecordId, told: &Told) -> Result<Taken, StoreError> {
        let tag = self.event_tag(told);
        for _ in 0..MAX_ROUNDS {
            let reply = self.bounded_read(self.0.store.lookup(id)).await?;
            let rows = self.bounded_read(self.0.store.history(id)).await?;
            let of_this = |row: &JournalRow| {
                row.entry.event == JournalEvent::WebhookTaken
                    && row.entry.detail.as_deref() == Some(tag.as_str())
            };
            if rows.iter().any(of_this) {
                return self.nothing(Taken::Before).await;
            }
            let Some(record) = reply.value.filter(|record| *record.route == *told.route) else {
                return self.nothing(Taken::Nothing).await;
            };
            let policy = self.policy(&record.route);
            let coarse = i64::try_from(told.coarse.as_millis()).unwrap_or(i64::MAX);
            let source = Source::Webhook(About::Moment {
                from: Timestamp(told.at.0.saturating_sub(coarse)),
                until: told.at,
            });
            let is_denial = told.evidence == Evidence::NotExecuted;
            let is_unsteady =
                is_denial && !machine::is_running(&record) && !self.store_clock().is_steady();
            let look = Look {
                found: match is_unsteady {
                    true => Found::NoLook(UNSTEADY),
                    false => Found::Evidence(&told.evidence, source),
                },
                asked_about: None,
            };
            let read = record.revision;
            let known = Known::Read(Arc::new(record), reply.now);
            let moved = self.transition(id, known, |record, now| {
                // Another writer may have applied this very event.
                let is_read = record.is_some_and(|record| record.revision == read);
                let mut step = match is_read {
                    true => machine::apply(record, &look, now, &policy),
                    false => Step {
                        write: Write::Stay,
                        effect: (),
                    },
                };
                if let (Write::Swap(change), Some(record)) = (&mut step.write, record) {
                    change.journal.push(JournalEntry {
                        id,
                        event: JournalEvent::WebhookTaken,
                        from: Some(record.state),
                        to: Some(change.draft.record.state),
                        attempt: record.fence.0,
                        actor: Actor::Reconciler,
                        detail: Some(tag.clone()),
                    });
                }
                (step, Unanswered::Fail)
            });
            let moved = moved.await?;
            if moved.wrote == Wrote::Yes {
                self.0.waiters.wake_all(id);
                return Ok(Taken::Changed);
            }
            if moved.record.is_none_or(|record| record.revision == read) {
                return self.nothing(Taken::Nothing).await;
            }
        }
        Err(StoreError::busy())
    }

    /// Counts unknown keys, up to a bound, for the gauges and the alarm about old ones.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn census(&self) -> Result<Census, StoreError> {
        let now = self.store_now().await?;
        let unknown = Filter {
            state: Some(State::Unknown),
            is_lenient: true,
            ..Filter::default()
        };
        let mut census = Census::default();
        let mut cursor = None;
        for _ in 0..CENSUS_PAGES {
            let page = self.bounded_read(self.0.store.list(&unknown, cursor, CENSUS_PAGE));
            let page = page.await?;
            for listed in &page.items {
                census.dead_letters += u64::from(listed.record.dead_letter);
                let age = listed
                    .record
                    .times
                    .unknown_since
                    .map(|since| now.since(since));
                census.oldest = census.oldest.max(age.unwrap_or_default());
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        census.dead_letters += self.undelivered().await?;
        Amount::DeadLetters.set(census.dead_letters);
        Amount::UnknownAge.set(census.oldest.as_secs());
        Ok(census)
    }

    /// Dead and unknown messages, which wait for a person.
    async fn undelivered(&self) -> Result<u64, StoreError> {
        let Some(outbox) = self.outbox() else {
            return Ok(0);
        };
        let depth = self.bounded_read(outbox.depth()).await?;
        let of = |state| depth.get(&state).copied().unwrap_or(0);
        Ok(of(MessageState::Dead) + of(MessageState::Unknown))
    }

    /// Takes as long as a write: the response time must not reveal whether a key exists.
    async fn nothing(&self, taken: Taken) -> Result<Taken, StoreError> {
        self.bounded_read(self.0.store.probe()).await?;
        Ok(taken)
    }

    /// The journal's name for an event. An event id may be anything, so it is hashed.
    fn event_tag(&self, told: &Told) -> String {
        let event = Key::from_stored(&told.event);
        let scope = format!("webhook of route:{}", told.route);
        self.secret().record_id(&scope, &event).to_string()
    }

    /// Records how long a key was unknown once it no longer is, whoever settled it.
    pub(super) fn time_unknown(&self, before: &Record, after: &Record, now: Timestamp) {
        if let (Some(since), None) = (before.times.unknown_since, after.times.unknown_since) {
            metrics::histogram!(crate::stats::UNKNOWN_SETTLED, "route" => after.route.to_string())
                .record(now.since(since));
        }
    }

    /// Counts the journal events of a write that concern unknown keys, and raises the alarms.
    pub(super) fn observe(&self, record: &Record, events: &[(JournalEvent, Actor)]) {
        for (event, actor) in events {
            match event {
                JournalEvent::BecameUnknown | JournalEvent::LeaseLapsed
                    if self.policy(&record.route).reconcile.is_some() =>
                {
                    Background::ReconcileScheduled.count(1);
                }
                JournalEvent::Reconciled => Background::ReconcileResolved.count(1),
                JournalEvent::DeadLettered => {
                    Background::ReconcileFailed.count(1);
                    let key = self.secret().key_tag(&record.key);
                    tracing::error!(%key, route = %record.route, id = %record.id,
                        "dead_letters: a person has to say what became of a key");
                }
                JournalEvent::ReleaseWasWrong if *actor == Actor::Reconciler => {
                    // Without a client label: only a route's own counts know which series exist.
                    metrics::counter!("onlyonce_release_was_wrong_total",
                        "route" => record.route.to_string())
                    .increment(1);
                    let key = self.secret().key_tag(&record.key);
                    tracing::error!(%key, route = %record.route,
                        "release_was_wrong: the provider says that a released key took effect");
                }
                _ => {}
            }
        }
    }
}

fn word(judged: &Judged) -> &'static str {
    match judged {
        Judged::Says(Evidence::Completed(_)) => "completed",
        Judged::Says(Evidence::NotExecuted) => "not executed",
        Judged::Says(Evidence::Contradictory) => "contradictory",
        Judged::Pending => "pending",
        Judged::Several(_) => "several",
        Judged::Inconclusive(_) => "inconclusive",
    }
}
