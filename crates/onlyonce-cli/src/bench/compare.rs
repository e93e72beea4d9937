//! Compares the gateway with its baselines: the API alone, a bare proxy, and SQLite one key at a time.

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};

use super::{
    BenchArgs,
    client::{Client, Template},
    median,
    process::Measured,
};

/// How long each subject is warmed up before it is measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// The number of keys that replays cycle through.
const REPLAYED_KEYS: u64 = 1_000;

/// The result of one measurement.
#[derive(Clone, Copy)]
struct Found {
    per_second: f64,
    cpu_micros: f64,
}

/// A line of the table.
struct Line {
    name: &'static str,
    found: Vec<Found>,
}

/// Which keys a measurement sends.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    None,
    New,
    Replayed,
}

/// Runs the comparison and prints it.
pub(super) async fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let mut lines: Vec<Line> = Vec::new();
    for round in 0..args.rounds.max(1) {
        eprintln!("round {} of {}", round + 1, args.rounds.max(1));
        for (index, (name, found)) in measure_all(args).await?.into_iter().enumerate() {
            if lines.len() <= index {
                lines.push(Line {
                    name,
                    found: Vec::new(),
                });
            }
            lines[index].found.push(found);
        }
    }
    if args.json {
        print_json(&lines)
    } else {
        print_table(&lines, args)
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure_all(args: &BenchArgs) -> anyhow::Result<Vec<(&'static str, Found)>> {
    let folder = std::env::temp_dir().join(format!("onlyonce-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let any = "127.0.0.1:0";
    let api = Measured::start(&["bench-stand-in", "--listen", any])?;
    let upstream = api.address.to_string();
    let url = format!("http://{upstream}");
    let proxy = Measured::start(&["bench-stand-in", "--listen", any, "--upstream", &upstream])?;
    let gateway = |name: &str, store: &str, options: &str| -> anyhow::Result<Measured> {
        let file = folder.join(format!("{name}.yaml"));
        let text = format!(
            "listen: {any}\nadmin: {{ listen: {any} }}\nstore: {{ url: \"{store}\" }}\n\
             idempotency: {{ enabled: true{options} }}\nroutes:\n  - {{ id: r, path: /, \
             backends: [{{ url: \"{url}\" }}] }}\n",
        );
        std::fs::write(&file, text)?;
        Measured::start(&[
            "serve",
            "--exit-with-parent",
            "--config",
            &file.to_string_lossy(),
        ])
    };
    let raw = ", fingerprint: { mode: raw }";
    let on_disk = format!("sqlite:{}", folder.join("bench.db").display());
    let many = args.connections;
    let mut found = vec![
        (
            "(a) the API alone",
            measure(&api, Keys::None, many, args.time).await?,
        ),
        (
            "(b) a bare hyper proxy",
            measure(&proxy, Keys::None, many, args.time).await?,
        ),
    ];
    if let Some(store) = &args.store {
        let shared = gateway("shared", store, "")?;
        for (name, keys, connections) in [
            ("(f) this store, new keys", Keys::New, many),
            ("(f) one at a time", Keys::New, 1),
            ("(f) replays", Keys::Replayed, many),
        ] {
            found.push((name, measure(&shared, keys, connections, args.time).await?));
        }
        drop(shared);
        std::fs::remove_dir_all(&folder)?;
        return Ok(found);
    }
    let memory = gateway("memory", "memory:", "")?;
    found.push((
        "(c) memory:, new keys",
        measure(&memory, Keys::New, many, args.time).await?,
    ));
    let replayed = measure(&memory, Keys::Replayed, many, args.time).await?;
    drop(memory);
    let memory = gateway("raw", "memory:", raw)?;
    found.push((
        "(c) the same, raw bodies",
        measure(&memory, Keys::New, many, args.time).await?,
    ));
    drop(memory);
    let sqlite = gateway("sqlite", &on_disk, "")?;
    found.push((
        "(d) sqlite:, new keys",
        measure(&sqlite, Keys::New, many, args.time).await?,
    ));
    found.push((
        "(d) sqlite:, one at a time",
        measure(&sqlite, Keys::New, 1, args.time).await?,
    ));
    found.push(("(e) memory:, replays", replayed));
    found.push((
        "(e) sqlite:, replays",
        measure(&sqlite, Keys::Replayed, many, args.time).await?,
    ));
    drop(sqlite);
    std::fs::remove_dir_all(&folder)?;
    Ok(found)
}

async fn measure(
    subject: &Measured,
    keys: Keys,
    connections: usize,
    time: Duration,
) -> anyhow::Result<Found> {
    if keys == Keys::Replayed {
        first_answers(subject.address).await?;
    }
    load(subject.address, keys, connections, WARM_UP).await?;
    let cpu = subject.cpu();
    let started = Instant::now();
    let done = load(subject.address, keys, connections, time).await?;
    let elapsed = started.elapsed();
    let used = subject.cpu().saturating_sub(cpu);
    anyhow::ensure!(done > 0, "no request was answered");
    Ok(Found {
        per_second: done as f64 / elapsed.as_secs_f64(),
        cpu_micros: used.as_secs_f64() * 1e6 / done as f64,
    })
}

async fn first_answers(address: SocketAddr) -> anyhow::Result<()> {
    let mut client = Client::connect(address).await?;
    let mut template = Template::new("bench", "/payments", Some("replay-"));
    for number in 0..REPLAYED_KEYS {
        let status = client.send(template.numbered(number)).await?;
        anyhow::ensure!(status == 201, "a first request was answered with {status}");
    }
    Ok(())
}

/// Keeps `connections` busy for `time`; returns how many requests were answered.
async fn load(
    address: SocketAddr,
    keys: Keys,
    connections: usize,
    time: Duration,
) -> anyhow::Result<u64> {
    // New keys are unique across all measurements of this process.
    static NEXT: AtomicU64 = AtomicU64::new(1_000_000);
    let done = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + time;
    let mut busy = JoinSet::new();
    for _ in 0..connections {
        let done = done.clone();
        busy.spawn(async move {
            let mut client = Client::connect(address).await?;
            let prefix = match keys {
                Keys::None => None,
                Keys::New => Some("new-"),
                Keys::Replayed => Some("replay-"),
            };
            let mut template = Template::new("bench", "/payments", prefix);
            while Instant::now() < end {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let number = if keys == Keys::Replayed {
                    number % REPLAYED_KEYS
                } else {
                    number
                };
                let status = client.send(template.numbered(number)).await?;
                anyhow::ensure!(status == 201, "a request was answered with {status}");
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    while let Some(ended) = busy.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed))
}

fn of(line: &Line, value: fn(&Found) -> f64) -> f64 {
    median(line.found.iter().map(value).collect())
}

fn print_table(lines: &[Line], args: &BenchArgs) {
    let baseline = lines.iter().find(|line| line.name.starts_with("(b)"));
    let (base_rate, base_cpu) = baseline
        .map(|line| {
            (
                of(line, |found| found.per_second),
                of(line, |found| found.cpu_micros),
            )
        })
        .unwrap_or_default();
    outln!(
        "{} requests in flight, {} for each line, medians of {}; ratios are against (b).",
        args.connections,
        humantime::format_duration(args.time),
        args.rounds.max(1)
    );
    outln!(
        "{:<28} {:>12} {:>7} {:>14} {:>7}",
        "",
        "requests/s",
        "ratio",
        "CPU us/request",
        "ratio"
    );
    for line in lines {
        let (rate, cpu) = (
            of(line, |found| found.per_second),
            of(line, |found| found.cpu_micros),
        );
        outln!(
            "{:<28} {rate:>12.0} {:>7.2} {cpu:>14.1} {:>7.2}",
            line.name,
            rate / base_rate,
            cpu / base_cpu
        );
    }
}

fn print_json(lines: &[Line]) {
    let lines: Vec<_> = lines
        .iter()
        .map(|line| {
            serde_json::json!({
                "name": line.name,
                "requests_per_second": of(line, |found| found.per_second),
                "cpu_micros_per_request": of(line, |found| found.cpu_micros),
            })
        })
        .collect();
    outln!("{}", serde_json::Value::from(lines));
}
