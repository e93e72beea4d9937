//! What clients asked and what they were told, judged against what happened.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use onlyonce::Body;
use onlyonce_core::{Record, RecordId, State, policy::OnInFlight, record::StoredBody};

use crate::{
    edges::Edge,
    history::{History, Life, Process},
    setup::{Ask, Setup, is_shared},
};

/// How long a node may give its copy of an answer that another has taken away, in milliseconds.
const COPIES_HOLD: u64 = 1_000;

/// One request of one client.
pub struct Call {
    pub ask: Ask,
    pub process: Process,
    pub arrived: u64,
    /// The record as it was when the request arrived.
    pub met: Option<Record>,
    /// How often the key had been forgotten altogether by then.
    pub epoch: u32,
    pub answered: bool,
    /// Status and problem code of the answer.
    pub told: Option<(u16, Option<String>)>,
    /// The client hung up, or its node died.
    pub gone: bool,
    /// The attempt that was sent upstream for it.
    pub attempt: Option<u128>,
}

/// What a client received.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    /// The code of a problem; the upstream's answers have none.
    pub code: Option<String>,
    pub mark: Option<String>,
    pub replayed: bool,
    pub expires: bool,
    pub cookie: bool,
    pub generation: u32,
    pub body: Bytes,
    /// Whether the body came to its end.
    pub whole: bool,
    /// Whether it is said to be what everybody hears.
    pub says_completed: bool,
}

impl Answer {
    pub async fn read(response: Response<Body>) -> Self {
        let (parts, mut body) = response.into_parts();
        let text = |name: &str| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let problem = text("content-type").as_deref() == Some("application/problem+json");
        let (mut bytes, mut whole) = (Vec::new(), true);
        while let Some(frame) = body.frame().await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => bytes.extend_from_slice(&data),
                Ok(Err(_)) => {}
                Err(_) => {
                    whole = false;
                    break;
                }
            }
        }
        let code = problem
            .then(|| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
            .flatten()
            .and_then(|body| body["code"].as_str().map(str::to_owned));
        Self {
            status: parts.status,
            code,
            mark: text("x-mark"),
            replayed: parts.headers.contains_key("x-idempotent-replayed"),
            expires: parts.headers.contains_key("idempotency-key-expires"),
            cookie: parts.headers.contains_key("set-cookie"),
            generation: text("idempotency-generation")
                .and_then(|n| n.parse().ok())
                .unwrap_or(1),
            body: bytes.into(),
            whole,
            says_completed: text("idempotency-status").as_deref() == Some("completed"),
        }
    }
}

impl History {
    /// A client was answered. `held` is what the store came to hold from its arrival on until
    /// then, the last of it last.
    pub fn answered(&mut self, number: usize, answer: &Answer, held: &[Option<Record>]) {
        let call = &mut self.calls[number];
        call.answered = true;
        call.told = Some((answer.status.as_u16(), answer.code.clone()));
        let (ask, attempt) = (call.ask, call.attempt);
        self.say(&format!(
            "told {number} {} {} {:?} attempt {}",
            answer.status,
            answer.code.as_deref().unwrap_or("-"),
            answer.mark,
            attempt.is_some(),
        ));
        match &answer.code {
            Some(code) => self.refused(number, code, held),
            None => {
                if let Err(what) = self.passed(number, ask, attempt, answer) {
                    self.violated(format!("{what} (call {number})"));
                }
            }
        }
    }

    /// An upstream's, operator's or provider's answer reached a client.
    fn passed(
        &mut self,
        number: usize,
        ask: Ask,
        attempt: Option<u128>,
        answer: &Answer,
    ) -> Result<(), String> {
        let mark = answer.mark.clone().ok_or("3: an answer from nowhere")?;
        let mut parts = mark.split('/');
        let origin = parts.next().unwrap_or_default();
        let numbers: Vec<usize> = parts.filter_map(|part| part.parse().ok()).collect();
        if numbers != [ask.caller, ask.key, ask.variant] {
            return Err(format!("3: {ask:?} was told what belongs to {mark}"));
        }
        if !answer.body.starts_with(mark.as_bytes()) {
            return Err(format!("3: head and body of different answers, {mark}"));
        }
        let maker = u128::from_str_radix(origin, 16).ok();
        let id = self.setup.id(ask);
        let life: Life = match maker.and_then(|maker| self.trials.get(&maker)) {
            Some(trial) => trial.life,
            None => self.life_told(number, id, answer),
        };
        if answer.replayed && answer.cookie {
            return Err("2: a cookie was replayed".into());
        }
        if !answer.expires {
            return self.passed_once(attempt, maker, answer);
        }
        if life.2 != answer.generation {
            return Err(format!(
                "2: generation {} was told as {}",
                life.2, answer.generation
            ));
        }
        let durable = self
            .durable
            .get(&life)
            .ok_or("6: told before it was durable")?;
        if durable.status != answer.status {
            return Err("2: another status than the durable one".into());
        }
        match &durable.body {
            StoredBody::Full { bytes, .. } if !answer.whole || *bytes != answer.body => {
                return Err("2: other bytes than the durable ones".into());
            }
            StoredBody::NotStored if maker.is_none() || maker != attempt => {
                return Err("2: an answer that was not stored was told again".into());
            }
            _ => {}
        }
        let met_running = self.calls[number]
            .met
            .as_ref()
            .is_some_and(|met| met.state == State::InProgress);
        if attempt.is_some() && maker != attempt {
            self.hits.hit(Edge::LateKeptC);
        } else if answer.replayed && met_running {
            self.hits.hit(Edge::Waited);
        } else if answer.replayed {
            self.hits.hit(Edge::Replayed);
        }
        Ok(())
    }

    /// The life of the key that an operator's or provider's answer belongs to. A process that stands still with
    /// it may tell it when there is another life already.
    fn life_told(&self, number: usize, id: RecordId, answer: &Answer) -> Life {
        let now = self.epoch(id);
        let lives = (self.calls[number].epoch..=now).rev();
        let mut lives = lives.map(|epoch| (id, epoch, answer.generation));
        let is_it = |life: &Life| {
            let durable = self.durable.get(life);
            durable.is_some_and(|durable| {
                matches!(&durable.body, StoredBody::Full { bytes, .. } if *bytes == answer.body)
            })
        };
        let told = lives.find(is_it);
        told.unwrap_or((id, now, answer.generation))
    }

    /// An answer that did not complete its key goes to the one that executed it, and only after the
    /// key says so.
    fn passed_once(
        &mut self,
        attempt: Option<u128>,
        maker: Option<u128>,
        answer: &Answer,
    ) -> Result<(), String> {
        if attempt.is_none() || attempt != maker || answer.replayed {
            return Err("2: an answer that is not kept was told to somebody else".into());
        }
        let trial = attempt.and_then(|attempt| self.trials.get(&attempt));
        // Somebody may complete the key while its own answer is on the way.
        let completed_meanwhile = trial.is_some_and(|trial| {
            let given_at = trial.given.as_ref().map(|given| given.at);
            given_at.is_some() && given_at <= trial.attested_at
        });
        match trial.and_then(|trial| trial.settled) {
            None => Err("6: told before the key was settled".into()),
            Some(State::Completed) if !completed_meanwhile => {
                Err("2: a completed answer without its expiry".into())
            }
            Some(_) => Ok(()),
        }
    }

    fn refused(&mut self, number: usize, code: &str, held: &[Option<Record>]) {
        let call = &self.calls[number];
        let (ask, attempt) = (call.ask, call.attempt);
        let is_other = |owner: Option<Ask>| owner.is_some_and(|owner| !Setup::same(owner, ask));
        let differs = |record: &Option<Record>| {
            is_other(record.as_ref().and_then(|record| self.owner(record)))
        };
        let id = self.setup.id(ask);
        let written = self.owners.get(&id).into_iter().flatten();
        let meanwhile: Vec<bool> = written
            .filter(|(at, _)| *at >= call.arrived)
            .map(|(_, owner)| is_other(*owner))
            .collect();
        let taken = self.taken.get(&id);
        let copied = taken.filter(|(at, _)| at + COPIES_HOLD >= call.arrived);
        let copied = copied.map(|(_, record)| Some(record.clone()));
        let seen = || copied.iter().chain([&call.met]).chain(held);
        let ever = seen().any(differs) || meanwhile.contains(&true);
        let always = seen().all(differs) && !meanwhile.contains(&false);
        let record = seen().last().and_then(Option::as_ref).cloned();
        let record = record.as_ref();
        let state = record.map(|record| record.state);
        match code {
            "idempotency_key_reused" | "idempotency_caller_differs" => {
                if !ever {
                    self.violated(format!("15: call {number} was taken for another request"));
                }
                let owner = record.and_then(|record| self.owner(record));
                match (owner, state) {
                    (Some(owner), _) if is_shared(ask) && owner.caller != ask.caller => {
                        self.hits.hit(Edge::OtherCaller);
                    }
                    (_, Some(state)) => self.hits.hit(Edge::mismatch(state)),
                    _ => {}
                }
            }
            "idempotency_store_unavailable" => {
                if self.unreadable == Some(self.setup.id(ask)) {
                    self.hits.hit(Edge::Unreadable);
                }
            }
            _ if attempt.is_some() => {}
            "upstream_not_reached" => {}
            // A stranger learns nothing of the state of a key.
            _ if always => {
                self.violated(format!(
                    "3: call {number} of another request was told {code}"
                ));
            }
            "idempotency_key_in_progress" => {
                let accepts = self.setup.policy.on_in_flight == OnInFlight::Accept;
                self.hits.hit(if accepts {
                    Edge::InFlight202
                } else {
                    Edge::InFlight409
                });
            }
            "idempotency_outcome_unknown" => self.hits.hit(Edge::Unknown409),
            "idempotency_response_not_stored" => self.hits.hit(Edge::NotStored409),
            "idempotency_key_expired" => self.hits.hit(Edge::Expired409),
            other => self.violated(format!("8: call {number} was told {other}")),
        }
    }
}
