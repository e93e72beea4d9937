//! What must hold once everything has come to rest, and who asks then.

use onlyonce_core::{Record, RecordId, State, record::StoredBody};

use crate::{
    history::History,
    setup::{Ask, VARIANTS},
};

impl History {
    /// Nothing is left hanging, and the store holds what was written.
    pub fn is_over(&mut self, held: impl Fn(RecordId) -> Option<Record>) -> bool {
        for id in self.setup.ids() {
            let held = held(id);
            if held.as_ref() != self.records.get(&id) {
                self.violated(format!("8: {id} was written behind our back"));
            }
            if held.is_some_and(|record| record.state == State::InProgress) {
                self.violated(format!("4: {id} is in progress when all is over"));
            }
        }
        let waits = |call: &&crate::calls::Call| !call.answered && !call.gone;
        let left = self.calls.iter().filter(waits).count();
        if left > 0 {
            self.violated(format!("24: {left} calls are waiting when all is over"));
        }
        self.violations.is_empty()
    }
}

/// Who asks in the calm.
#[derive(Clone, Copy, Debug)]
pub enum Prober {
    Stranger,
    Owner,
}

impl Prober {
    /// Whether there is something to ask about `record`.
    pub fn asks(self, record: &Record) -> bool {
        match self {
            Self::Stranger => true,
            Self::Owner => record.state == State::Completed,
        }
    }

    /// What is asked about the record of `owner`.
    pub fn ask(self, owner: Ask) -> Ask {
        match self {
            Self::Stranger => Ask {
                variant: (owner.variant + 1) % VARIANTS,
                ..owner
            },
            Self::Owner => Ask {
                spelling: 1,
                ..owner
            },
        }
    }

    /// Status and code of the answer.
    pub fn expects(self, record: &Record) -> (u16, Option<String>) {
        let problem = |status, code: &str| (status, Some(code.to_owned()));
        match (self, &record.response) {
            (Self::Owner, Some(response)) if response.body == StoredBody::NotStored => {
                problem(409, "idempotency_response_not_stored")
            }
            (Self::Owner, Some(response)) => (response.status.as_u16(), None),
            _ => problem(422, "idempotency_key_reused"),
        }
    }
}
