//! The observations of the last week, by client: the basis for switching a route on.
//!
//! The report is in memory and bounded: a number of clients by name and the rest together, with counts for
//! stretches of six hours. Time is measured by a clock that does not jump.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::Would;

/// How far back a report goes, to the nearest six hours.
pub const REPORT_SPAN: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Clients of one route that are reported by name; further ones are counted together.
pub const MAX_REPORTED_CLIENTS: usize = 64;
/// The time covered by one count.
const STRETCH: Duration = Duration::from_secs(6 * 3_600);
/// Whole stretches in a report.
const STRETCHES: u64 = REPORT_SPAN.as_secs() / STRETCH.as_secs();
const WORDS: usize = Would::ALL.len();

/// How many requests would have had each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; WORDS]);

impl Tally {
    /// How often `would` was observed.
    pub fn of(&self, would: Would) -> u64 {
        self.0[would as usize]
    }

    /// Observed requests.
    pub fn requests(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Duplicates that would have got the first request's answer.
    pub fn duplicates(&self) -> u64 {
        self.sum(Would::is_duplicate)
    }

    /// Requests that would have been refused.
    pub fn refused(&self) -> u64 {
        self.sum(Would::is_refused)
    }

    fn sum(&self, counts: impl Fn(Would) -> bool) -> u64 {
        let wanted = Would::ALL.iter().filter(|would| counts(**would));
        wanted.map(|would| self.of(*would)).sum()
    }

    /// The sum of both.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.saturating_add(theirs);
        }
        self
    }
}

/// What would have happened to one client's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// The client's id; `None` for requests without one.
    pub client: Option<Arc<str>>,
    /// The counts.
    pub would: Tally,
}

/// The observations of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The time covered: since the observation began, and at most a week and six hours.
    pub covers: Duration,
    /// All requests.
    pub all: Tally,
    /// By client, the busiest first.
    pub clients: Vec<ClientReport>,
    /// The clients beyond [`MAX_REPORTED_CLIENTS`], together.
    pub other_clients: Tally,
}

/// The counts of one client by stretch; only stretches with requests.
#[derive(Default)]
struct Stretches(VecDeque<(u64, [u32; WORDS])>);

impl Stretches {
    fn count(&mut self, stretch: u64, would: Would) {
        if self.0.back().is_none_or(|(newest, _)| *newest < stretch) {
            self.0.push_back((stretch, [0; WORDS]));
        }
        self.forget_before(stretch);
        if let Some((_, counts)) = self.0.back_mut() {
            let count = &mut counts[would as usize];
            *count = count.saturating_add(1);
        }
    }

    fn forget_before(&mut self, now: u64) {
        while self.0.front().is_some_and(|(at, _)| at + STRETCHES < now) {
            self.0.pop_front();
        }
    }

    fn tally(&self, now: u64) -> Tally {
        let mut sum = Tally::default();
        let recent = self.0.iter().filter(|(at, _)| at + STRETCHES >= now);
        for (_, counts) in recent {
            for (total, count) in sum.0.iter_mut().zip(counts) {
                *total += u64::from(*count);
            }
        }
        sum
    }
}

/// The counts of one route for a week.
pub(super) struct Week {
    began: Instant,
    clients: HashMap<Option<Arc<str>>, Stretches>,
    others: Stretches,
    /// The stretch in which inactive clients were last removed.
    tidied: u64,
}

impl Week {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            clients: HashMap::new(),
            others: Stretches::default(),
            tidied: 0,
        }
    }

    fn stretch(&self) -> u64 {
        self.began.elapsed().as_secs() / STRETCH.as_secs()
    }

    pub(super) fn count(&mut self, client: Option<&Arc<str>>, would: Would) {
        let now = self.stretch();
        if self.tidied < now {
            self.tidied = now;
            self.clients.retain(|_, counts| {
                counts.forget_before(now);
                !counts.0.is_empty()
            });
        }
        let client = client.cloned();
        let has_room = self.clients.len() < MAX_REPORTED_CLIENTS;
        let counts = match has_room || self.clients.contains_key(&client) {
            true => self.clients.entry(client).or_default(),
            false => &mut self.others,
        };
        counts.count(now, would);
    }

    pub(super) fn report(&self) -> Report {
        let now = self.stretch();
        let clients = self.clients.iter().map(|(client, counts)| ClientReport {
            client: client.clone(),
            would: counts.tally(now),
        });
        let mut clients: Vec<ClientReport> = clients
            .filter(|client| client.would.requests() > 0)
            .collect();
        clients.sort_by(|a, b| {
            let by_requests = b.would.requests().cmp(&a.would.requests());
            by_requests.then_with(|| a.client.cmp(&b.client))
        });
        let other_clients = self.others.tally(now);
        let all = clients
            .iter()
            .fold(other_clients, |sum, client| sum.and(&client.would));
        let gone = STRETCH * u32::try_from(now.saturating_sub(STRETCHES)).unwrap_or(u32::MAX);
        Report {
            covers: self.began.elapsed().saturating_sub(gone),
            all,
            clients,
            other_clients,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acme() -> Arc<str> {
        "acme".into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_week_is_reported_and_no_more() {
        let mut week = Week::new();
        week.count(Some(&acme()), Would::Replay);
        week.count(None, Would::Missing);
        tokio::time::advance(Duration::from_secs(3 * 24 * 3_600)).await;
        week.count(Some(&acme()), Would::Wait);
        week.count(Some(&acme()), Would::Keyless);
        let report = week.report();
        assert_eq!(report.covers, Duration::from_secs(3 * 24 * 3_600));
        let counts = (report.all.duplicates(), report.all.refused());
        assert_eq!((report.all.requests(), counts), (4, (2, 1)));
        assert_eq!(report.clients[0].client, Some(acme()));
        assert_eq!(report.clients[0].would.of(Would::Keyless), 1);
        assert_eq!(report.clients[1].would.of(Would::Missing), 1);

        tokio::time::advance(Duration::from_secs(5 * 24 * 3_600)).await;
        let report = week.report();
        assert_eq!((report.all.requests(), report.clients.len()), (2, 1));
        assert!(report.covers >= REPORT_SPAN && report.covers < REPORT_SPAN + STRETCH);
        tokio::time::advance(Duration::from_secs(8 * 24 * 3_600)).await;
        assert_eq!(week.report().all, Tally::default());
        week.count(None, Would::New);
        assert_eq!(week.clients.len(), 1, "silent clients make room");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_beyond_the_limit_are_counted_together() {
        let mut week = Week::new();
        for number in 0..MAX_REPORTED_CLIENTS + 40 {
            week.count(Some(&format!("client-{number}").into()), Would::Replay);
        }
        week.count(Some(&"client-0".into()), Would::Replay);
        let report = week.report();
        assert_eq!(report.clients.len(), MAX_REPORTED_CLIENTS);
        assert_eq!(&**report.clients[0].client.as_ref().unwrap(), "client-0");
        assert_eq!(report.other_clients.duplicates(), 40);
        assert_eq!(report.all.duplicates(), MAX_REPORTED_CLIENTS as u64 + 41);
    }
}
