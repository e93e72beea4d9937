//! Open-loop load on any address: requests are sent on schedule, whether or not earlier ones have been
//! answered, and latency counts from the moment a request was due. A closed loop would wait with the server
//! and hide its queues.

use std::{
    collections::BTreeMap, net::SocketAddr, process::ExitCode, str::FromStr, sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use onlyonce_gateway::http_client::Endpoint;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::cli::Usage;

use super::{
    BenchArgs,
    client::{Client, Template},
};

/// How many requests may be unanswered at a time before the run is aborted.
const MAX_LATE: usize = 20_000;

/// Shares of a hundred; the rest are replays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    new: u32,
    duplicate: u32,
}

impl FromStr for Mix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = "three whole numbers that add up to 100, such as 70:15:15";
        let parts: Vec<u32> = text
            .split(':')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| form)?;
        match parts[..] {
            [new, duplicate, replay] if new > 0 && new + duplicate + replay == 100 => {
                Ok(Self { new, duplicate })
            }
            _ => Err(form),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    New,
    Duplicate,
    Replay,
}

impl Kind {
    fn of(number: u64, mix: Mix) -> Self {
        // A fixed order spreads the kinds evenly and needs no randomness.
        let place = u32::try_from(number.wrapping_mul(37) % 100).unwrap_or_default();
        match place {
            place if place < mix.new => Self::New,
            place if place < mix.new + mix.duplicate => Self::Duplicate,
            _ => Self::Replay,
        }
    }
}

#[derive(Default)]
struct Results {
    latencies: BTreeMap<Kind, Vec<Duration>>,
    statuses: BTreeMap<u16, u64>,
    failed: u64,
}

/// Loads `url` and prints the results.
pub(super) async fn run(url: &str, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let endpoint = Endpoint::parse(url).context(Usage::new("--url"))?;
    if endpoint.tls {
        bail!(Usage::new("--url: only http:// URLs can be loaded"));
    }
    let host = (endpoint.host.as_str(), endpoint.port);
    let address = tokio::net::lookup_host(host).await?.next();
    let address = address.context("the host has no address")?;
    // Keys of two runs must not collide.
    let prefix = format!("bench-{}-", std::process::id());
    let template = Template::new(&endpoint.authority, &endpoint.target(), Some(&prefix));
    let results = send(address, template, args).await?;
    print(&results, args);
    anyhow::ensure!(!results.statuses.is_empty(), "no request was answered");
    Ok(ExitCode::SUCCESS)
}

async fn send(
    address: SocketAddr,
    template: Template,
    args: &BenchArgs,
) -> anyhow::Result<Results> {
    let results = Arc::new(Mutex::new(Results::default()));
    let idle: Arc<Mutex<Vec<Client>>> = Arc::default();
    let gap = Duration::from_secs(1) / args.rate();
    let total = u64::try_from(args.time.as_nanos() / gap.as_nanos().max(1))?;
    let started = Instant::now();
    let mut late = JoinSet::new();
    // The keys that were sent, in order.
    let mut sent = Vec::new();
    for number in 0..total {
        let due = started + gap * u32::try_from(number).unwrap_or(u32::MAX);
        tokio::time::sleep_until(due).await;
        while late.try_join_next().is_some() {}
        anyhow::ensure!(
            late.len() < MAX_LATE,
            "{MAX_LATE} requests wait for an answer: this address does not take {} a second; try a lower \
             --rate",
            args.rate()
        );
        let (kind, key) = match (Kind::of(number, args.mix), sent.last()) {
            // The latest key, whose request is probably still running.
            (Kind::Duplicate, Some(latest)) => (Kind::Duplicate, *latest),
            // A key that was sent some time ago.
            (Kind::Replay, Some(_)) => (Kind::Replay, sent[sent.len() / 2]),
            (Kind::New, _) | (_, None) => {
                sent.push(number);
                (Kind::New, number)
            }
        };
        let (idle, results, mut template) = (idle.clone(), results.clone(), template.clone());
        late.spawn(async move {
            let answered = exchange(address, &idle, template.numbered(key)).await;
            let mut results = results.lock();
            match answered {
                Ok(status) => {
                    *results.statuses.entry(status).or_default() += 1;
                    results
                        .latencies
                        .entry(kind)
                        .or_default()
                        .push(due.elapsed());
                }
                Err(_) => results.failed += 1,
            }
        });
    }
    while late.join_next().await.is_some() {}
    let results = std::mem::take(&mut *results.lock());
    Ok(results)
}

async fn exchange(
    address: SocketAddr,
    idle: &Mutex<Vec<Client>>,
    request: &[u8],
) -> std::io::Result<u16> {
    let kept = idle.lock().pop();
    let mut client = match kept {
        Some(client) => client,
        None => Client::connect(address).await?,
    };
    let status = client.send(request).await?;
    idle.lock().push(client);
    Ok(status)
}

fn at(sorted: &[Duration], per_mille: usize) -> Duration {
    let index = sorted.len().saturating_sub(1) * per_mille / 1_000;
    sorted.get(index).copied().unwrap_or_default()
}

fn print(results: &Results, args: &BenchArgs) {
    let mut kinds = Vec::new();
    for (kind, latencies) in &results.latencies {
        let mut sorted = latencies.clone();
        sorted.sort_unstable();
        let millis = |per_mille| at(&sorted, per_mille).as_secs_f64() * 1e3;
        kinds.push((kind, sorted.len(), millis(500), millis(990), millis(1_000)));
    }
    if args.json {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|(kind, count, p50, p99, max)| {
                serde_json::json!({
                    "kind": format!("{kind:?}").to_lowercase(), "count": count,
                    "p50_ms": p50, "p99_ms": p99, "max_ms": max,
                })
            })
            .collect();
        let statuses: BTreeMap<String, u64> = results
            .statuses
            .iter()
            .map(|(status, count)| (status.to_string(), *count))
            .collect();
        let all = serde_json::json!({
            "rate": args.rate(), "kinds": kinds, "statuses": statuses, "failed": results.failed,
        });
        outln!("{all}");
        return;
    }
    outln!(
        "{} requests/s on time; latency from the moment a request was due.",
        args.rate()
    );
    outln!(
        "{:<10} {:>8} {:>10} {:>10} {:>10}",
        "",
        "count",
        "p50 ms",
        "p99 ms",
        "max ms"
    );
    for (kind, count, p50, p99, max) in kinds {
        let name = format!("{kind:?}").to_lowercase();
        outln!("{name:<10} {count:>8} {p50:>10.2} {p99:>10.2} {max:>10.2}");
    }
    let statuses: Vec<String> = results
        .statuses
        .iter()
        .map(|(status, count)| format!("{count} x {status}"))
        .collect();
    outln!(
        "answers: {}; failed: {}",
        statuses.join(", "),
        results.failed
    );
}
