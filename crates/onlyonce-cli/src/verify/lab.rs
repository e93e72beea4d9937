//! The environment of the checks: it makes requests, paces them, and determines how often they were executed.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::bail;
use indicatif::ProgressBar;
use onlyonce_gateway::http_client::Outgoing;
use tokio::{sync::Mutex, time::Instant};

use super::{
    body::{self, number},
    case::Kind,
    client::Client,
    count,
    exchange::{Exchange, Inspect as _, Vary as _},
    finding::Sure,
    target::Target,
};

/// How many requests it takes to learn how the API answers.
pub(super) const CALIBRATION_REQUESTS: usize = 2;
/// How long a first request runs before its duplicate follows.
const HEAD_START: Duration = Duration::from_millis(120);

/// The API, the pacing, and what is known about the API's answers.
pub(super) struct Lab {
    pub(super) target: Target,
    client: Client,
    sent: AtomicUsize,
    /// When the next request may be sent.
    next: Mutex<Instant>,
    progress: ProgressBar,
    /// Whether two executions have different answers.
    pub(super) tells_apart: bool,
    /// The status of a success.
    usual: u16,
}

/// The count before something was sent.
pub(super) struct Watch(Option<u64>);

/// How often something was executed, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Executed {
    /// `None` if unknown.
    pub(super) times: Option<u64>,
    pub(super) sure: Sure,
}

impl Executed {
    pub(super) fn once(self) -> bool {
        self.times == Some(1)
    }

    pub(super) fn more_than_once(self) -> bool {
        self.times.is_some_and(|times| times > 1)
    }

    /// In words, such as `executed once`, for a sentence.
    pub(super) fn words(self) -> String {
        let times = match self.times {
            None => return "executed nobody knows how often".to_owned(),
            Some(0) => "not executed".to_owned(),
            Some(1) => "executed once".to_owned(),
            Some(2) => "executed twice".to_owned(),
            Some(times) => format!("executed {times} times"),
        };
        match self.sure {
            Sure::Answers if self.more_than_once() => format!("{times}, judging by the answers"),
            _ => times,
        }
    }
}

impl Lab {
    /// Sends two requests with different keys, to learn how the API answers.
    ///
    /// # Errors
    /// When the API does not do what every check builds on.
    pub(super) async fn open(target: Target, progress: ProgressBar) -> anyhow::Result<Self> {
        let mut lab = Self {
            client: Client::new(target.timeout, target.tls.clone()),
            target,
            sent: AtomicUsize::new(0),
            next: Mutex::new(Instant::now()),
            progress,
            tells_apart: false,
            usual: 0,
        };
        let watch = lab.watch().await?;
        let first_unique = random_hex(6)?;
        let first = lab.target.request(&random_key()?, &first_unique);
        let first = lab.send("the first request", first).await;
        lab.usual = accepted(&first)?;
        lab.counted_one(&watch).await?;
        let second_unique = random_hex(6)?;
        let second = lab.target.request(&random_key()?, &second_unique);
        let second = lab.send("another request", second).await;
        if !second.succeeded() && !lab.target.body.varies() {
            bail!(
                "the API answered {} to a second request with a new key; if it wants another body each \
                 time, put {{{{unique}}}} into it",
                second.outcome()
            );
        }
        accepted(&second)?;
        let face = |exchange: &Exchange, unique: &str| {
            let answer = exchange.ok()?;
            let text = String::from_utf8_lossy(&answer.body)
                .replace(unique, "")
                .replace(&number(unique), "")
                .replace(&exchange.request.key(), "");
            Some((text, answer.header("location").map(str::to_owned)))
        };
        lab.tells_apart = face(&first, &first_unique) != face(&second, &second_unique);
        Ok(lab)
    }

    /// A new request, with a new key.
    pub(super) fn fresh(&self) -> anyhow::Result<Outgoing> {
        Ok(self.target.request(&random_key()?, &random_hex(6)?))
    }

    /// A new request that gets an answer of this kind; `None` if the user has not said how.
    pub(super) fn fresh_of(&self, kind: Kind) -> anyhow::Result<Option<Outgoing>> {
        let fresh = self.fresh()?;
        Ok(self.target.case(kind).map(|case| case.apply(&fresh)))
    }

    /// The same key for another request; `None` if there is no body to change.
    pub(super) fn changed(&self, request: &Outgoing) -> anyhow::Result<Option<Outgoing>> {
        let unique = random_hex(6)?;
        let body = match &self.target.changed_body {
            Some(template) => Some(template.fill(&unique)),
            None if self.target.body.varies() => Some(self.target.body.fill(&unique)),
            None => body::changed(&request.body),
        };
        Ok(body.map(|body| request.with_body(body)))
    }

    pub(super) async fn send(&self, label: &'static str, request: Outgoing) -> Exchange {
        self.pace(1).await;
        self.client.send(label, request).await
    }

    /// Sends all requests at the same moment.
    pub(super) async fn race(&self, label: &'static str, requests: Vec<Outgoing>) -> Vec<Exchange> {
        self.pace(requests.len()).await;
        self.client.send_at_once(label, requests).await
    }

    /// Sends `first`, and `second` while `first` is running, if it runs long enough.
    pub(super) async fn overlap(&self, first: Outgoing, second: Outgoing) -> (Exchange, Exchange) {
        self.pace(2).await;
        let client = self.client.clone();
        let first = tokio::spawn(async move { client.send("first, slow", first).await });
        tokio::time::sleep(HEAD_START).await;
        let second = self.client.send("while it runs", second).await;
        match first.await {
            Ok(first) => (first, second),
            Err(_) => (second.clone(), second),
        }
    }

    /// Sends `request` and hangs up without reading the answer.
    pub(super) async fn hang_up(&self, request: Outgoing, after: Duration) -> Exchange {
        self.pace(1).await;
        self.client.hang_up("we hang up", request, after).await
    }

    /// Sends `request` with a declared length that it does not reach.
    pub(super) async fn break_off(&self, request: Outgoing) -> Exchange {
        self.pace(1).await;
        self.client.break_off("we break off", request).await
    }

    /// Reads the count before something is sent.
    pub(super) async fn watch(&self) -> anyhow::Result<Watch> {
        Ok(Watch(match &self.target.count {
            Some(at) => Some(count::settled(&self.client, at).await?),
            None => None,
        }))
    }

    /// How often the requests of `exchanges`, which are all that were sent since `watch`, were executed.
    pub(super) async fn executed(
        &self,
        watch: &Watch,
        exchanges: &[&Exchange],
    ) -> anyhow::Result<Executed> {
        if let (Some(before), Some(at)) = (watch.0, &self.target.count) {
            let now = count::settled(&self.client, at).await?;
            return Ok(Executed {
                times: Some(now.saturating_sub(before)),
                sure: Sure::Counted,
            });
        }
        Ok(self.infer(exchanges))
    }

    /// Without a count: by the answers, if two executions have different ones; otherwise by what the API says
    /// about itself.
    fn infer(&self, exchanges: &[&Exchange]) -> Executed {
        let done = exchanges.iter().copied();
        let done: Vec<&Exchange> = done.filter(|exchange| self.is_done(exchange)).collect();
        let mut kinds: Vec<&Exchange> = Vec::new();
        for exchange in &done {
            if !kinds.iter().any(|known| known.same_as(exchange)) {
                kinds.push(exchange);
            }
        }
        let marked = |exchange: &&&Exchange| exchange.ok().is_some_and(|a| a.marker().is_some());
        let (times, sure) = match kinds.len() {
            0 => (Some(0), Sure::Word),
            1 if self.tells_apart => (Some(1), Sure::Answers),
            1 if done.len() == 1 || done.iter().filter(marked).count() + 1 >= done.len() => {
                (Some(1), Sure::Word)
            }
            1 => (None, Sure::No),
            many => (Some(many as u64), Sure::Answers),
        };
        Executed { times, sure }
    }

    /// Whether this answer says that the operation was executed. 202 may only mean that a duplicate is
    /// running.
    pub(super) fn is_done(&self, exchange: &Exchange) -> bool {
        exchange.succeeded() && (exchange.status() != 202 || self.usual == 202)
    }

    /// How many requests have been sent, except those for the count.
    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    async fn counted_one(&self, watch: &Watch) -> anyhow::Result<()> {
        let executed = self.executed(watch, &[]).await?;
        if executed.sure == Sure::Counted && !executed.once() {
            let moved = executed.times.unwrap_or_default();
            bail!(
                "one request moved the count at --count-url by {moved}, not by 1: it counts something \
                 else, or somebody else uses the API at the same time"
            );
        }
        Ok(())
    }

    /// Waits until `requests` may be sent.
    async fn pace(&self, requests: usize) {
        self.sent.fetch_add(requests, Ordering::Relaxed);
        self.progress.inc(requests as u64);
        let mut next = self.next.lock().await;
        tokio::time::sleep_until(*next).await;
        let share = Duration::from_secs_f64(requests as f64 / f64::from(self.target.rate));
        *next = Instant::now() + share;
    }
}

/// The status of a success.
fn accepted(exchange: &Exchange) -> anyhow::Result<u16> {
    if exchange.succeeded() {
        return Ok(exchange.status());
    }
    match &exchange.answer {
        Err(why) => bail!("the API did not answer the plain request: {why}"),
        Ok(answer) => bail!(
            "the API answered {} to the plain request; it has to work before it can be retried",
            answer.status.as_u16()
        ),
    }
}

/// A key as clients generate them.
pub(super) fn random_key() -> anyhow::Result<String> {
    let hex = random_hex(16)?;
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..],
    );
    Ok(format!("{a}-{b}-4{c}-a{d}-{e}"))
}

fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut random = vec![0; bytes];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| anyhow::anyhow!("the system gave no random numbers"))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
