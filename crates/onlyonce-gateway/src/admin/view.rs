//! Records as the admin API shows them, in types of its own, so that neither the core nor a store can change
//! what operators' scripts read.

use http::StatusCode;
use onlyonce::Engine;
use onlyonce_core::{Record, Spelling, State, Timestamp, machine};
use onlyonce_store::{JournalRow, Listed};
use serde_json::{Value, json};

use crate::clock::rfc3339;

/// How records are shown.
pub(super) struct View<'a> {
    pub(super) engine: &'a Engine,
    pub(super) mask_keys: bool,
}

impl View<'_> {
    /// A record of a list.
    pub(super) fn listed(&self, listed: &Listed) -> Value {
        self.fields(&listed.record, listed.response)
    }

    /// A whole record.
    pub(super) fn record(&self, record: &Record) -> Value {
        let response = record.response.as_ref();
        self.fields(
            record,
            response.map(|response| (response.status, response.stored_bytes())),
        )
    }

    /// A record's key, masked if configured; empty if it was erased.
    pub(super) fn key(&self, record: &Record) -> String {
        match self.mask_keys {
            _ if record.notes.erased => String::new(),
            true => self.engine.secret().key_tag(&record.key).to_string(),
            false => record.key.as_str().to_owned(),
        }
    }

    fn fields(&self, record: &Record, response: Option<(StatusCode, u64)>) -> Value {
        let times = &record.times;
        let erased = record.notes.erased;
        let key = self.key(record);
        // A spelling other than the key itself, under which a provider may know the key.
        let spelling = match (&record.notes.spelling, self.mask_keys) {
            (Some(Spelling::Quoted(value)), false) if !erased => {
                Some(String::from_utf8_lossy(value))
            }
            _ => None,
        };
        json!({
            "id": record.id.to_string(),
            "scope": record.scope.as_str(),
            "key": key,
            "spelling": spelling,
            "route": &*record.route,
            "method": &*record.method,
            "path": &*record.path,
            "state": record.state.as_str(),
            "attempt": record.fence.0,
            "generation": record.generation,
            "created_at": times.created_at.map(rfc3339),
            "last_run_at": times.last_run_at.map(rfc3339),
            "completed_at": times.completed_at.map(rfc3339),
            "expires_at": times.expires_at.map(rfc3339),
            "lease_until": times.lease_until.map(rfc3339),
            "reconcile_after": times.reconcile_after.map(rfc3339),
            "release_not_before": self.release_not_before(record).map(rfc3339),
            "response": response.map(|(status, bytes)| {
                json!({ "status": status.as_u16(), "bytes": bytes })
            }),
            "last_error": record.last_error.map(|error| error.as_str()),
            "erased": erased,
        })
    }

    /// When an unknown key may be released without force.
    fn release_not_before(&self, record: &Record) -> Option<Timestamp> {
        machine::releasable_from(record, &self.engine.policy(&record.route))
    }

    /// The history of a record. Ordinary steps come from the record's times, all others from the journal.
    pub(super) fn history(&self, record: &Record, journal: &[JournalRow]) -> Value {
        let mut lines: Vec<(i64, Value)> = Vec::new();
        let mut ordinary = |at: Option<Timestamp>, event, from, to, attempt| {
            if let Some(at) = at {
                let line = json!({
                    "at": rfc3339(at), "event": event, "from": from, "to": to,
                    "attempt": attempt, "actor": "executor", "detail": null,
                });
                lines.push((at.0, line));
            }
        };
        let in_progress = State::InProgress.as_str();
        let completed = State::Completed.as_str();
        let first = journal
            .iter()
            .map(|row| row.entry.attempt)
            .min()
            .unwrap_or(record.fence.0);
        ordinary(
            record.times.created_at,
            "reserved",
            None,
            in_progress,
            first,
        );
        let journalled = |row: &JournalRow| {
            row.entry.to == Some(State::Completed) && row.entry.attempt == record.fence.0
        };
        if !journal.iter().any(journalled) {
            let at = record.times.completed_at;
            ordinary(
                at,
                "completed",
                Some(in_progress),
                completed,
                record.fence.0,
            );
        }
        lines.extend(journal.iter().map(|row| (row.at.0, self.line(row))));
        lines.sort_by_key(|(at, _)| *at);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// A line of the journal.
    pub(super) fn line(&self, row: &JournalRow) -> Value {
        let entry = &row.entry;
        json!({
            "at": rfc3339(row.at),
            "event": entry.event.as_str(),
            "from": entry.from.map(State::as_str),
            "to": entry.to.map(State::as_str),
            "attempt": entry.attempt,
            "actor": entry.actor.as_str(),
            "detail": entry.detail,
        })
    }
}
