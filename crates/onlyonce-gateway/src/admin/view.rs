//! Records as the admin API shows them: types of its own, so that neither the core nor a store can
//! change what operators' scripts read.

use http::StatusCode;
use onlyonce_core::{Record, Secret, State};
use onlyonce_store::{JournalRow, Listed};
use serde_json::{Value, json};

use crate::clock::rfc3339;

/// How keys are shown.
pub(super) struct View<'a> {
    pub(super) secret: &'a Secret,
    pub(super) mask_keys: bool,
}

impl View<'_> {
    /// A record of a list.
    pub(super) fn listed(&self, listed: &Listed) -> Value {
        self.fields(&listed.record, listed.response)
    }

    /// A record that was read whole.
    pub(super) fn record(&self, record: &Record) -> Value {
        let response = record.response.as_ref();
        self.fields(
            record,
            response.map(|response| (response.status, response.stored_bytes())),
        )
    }

    fn fields(&self, record: &Record, response: Option<(StatusCode, u64)>) -> Value {
        let times = &record.times;
        let key = match self.mask_keys {
            true => self.secret.key_tag(&record.key).to_string(),
            false => record.key.as_str().to_owned(),
        };
        json!({
            "id": record.id.to_string(),
            "scope": record.scope.as_str(),
            "key": key,
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
            "response": response.map(|(status, bytes)| {
                json!({ "status": status.as_u16(), "bytes": bytes })
            }),
            "last_error": record.last_error.map(|error| error.as_str()),
        })
    }

    /// The history of a record: the ordinary steps are read off the record, the others stand in the
    /// journal.
    pub(super) fn history(&self, record: &Record, journal: &[JournalRow]) -> Value {
        let mut lines: Vec<(i64, Value)> = Vec::new();
        let mut ordinary = |at: Option<onlyonce_core::Timestamp>, event, from, to, attempt| {
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
