//! `onlyonce reconcile`: compares a provider's ledger with our records, and proves that a route's query can
//! find a key.

mod compare;
mod csv;
mod moment;
mod ours;
mod rules;

use std::{
    fs::File,
    io::{BufRead, BufReader, Cursor},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, builder::NonEmptyStringValueParser};
use http::{HeaderName, Method, header};
use onlyonce::body::may_be_cut;
use onlyonce_gateway::{
    config::{self, Overrides},
    http_client::{Client, Endpoint, Outgoing, trusting},
};
use serde_json::{Value, json};

use crate::{
    cli::Usage,
    keys::{DEFAULT_ADMIN, Way, Wish},
};
use compare::{Columns, Comparison, Difference};
use rules::LedgerRules;

/// The exit code for a negative result.
const NO: u8 = 1;
/// The exit code for invalid usage.
const USAGE: u8 = 2;
/// How long a provider may take to send its ledger.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(300);

/// What `reconcile` takes.
#[derive(Args)]
pub(crate) struct ReconcileArgs {
    /// Ask the provider about this key, best a completed one: once it is found, negative answers count
    #[arg(long, value_name = "KEY", conflicts_with_all = ["provider", "since", "store", "config"], value_parser = NonEmptyStringValueParser::new())]
    probe: Option<String>,
    /// The client whose key it is
    #[arg(long, value_name = "ID", requires = "probe", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// The route; required without --probe
    #[arg(long, value_name = "ID", required_unless_present = "probe", value_parser = NonEmptyStringValueParser::new())]
    route: Option<String>,
    /// The provider's ledger: a CSV file or the URL of one, with a header line; required without --probe
    #[arg(long, value_name = "FILE.csv|URL", required_unless_present = "probe")]
    provider: Option<String>,
    /// Only what is at least as new: RFC 3339, a day such as 2026-01-31 (UTC), or a time back such as 48h;
    /// required without --probe
    #[arg(long, value_name = "T", required_unless_present = "probe")]
    since: Option<String>,
    /// Only what is at most as new
    #[arg(long, value_name = "T", requires = "provider")]
    until: Option<String>,
    /// The column with the key
    #[arg(long, value_name = "NAME", default_value = "key")]
    key_column: String,
    /// The column with the client's id, where the ledger has one
    #[arg(long, value_name = "NAME", default_value = "client")]
    client_column: String,
    /// The column with the time, where the ledger has one
    #[arg(long, value_name = "NAME", default_value = "at")]
    at_column: String,
    /// A header for the provider, `NAME: VALUE`; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "provider")]
    headers: Vec<String>,
    /// The configuration whose `outcomes` say what the ledger's words mean; otherwise the gateway is asked
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The admin API of a gateway; its token is taken from ONLYONCE_ADMIN_TOKEN
    #[arg(long, value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: String,
    /// Open this store instead: sqlite:FILE that no gateway uses, or postgres://…
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The variable with the keys of a store that is encrypted, as in `store.encryption_key_env`
    #[arg(long, value_name = "NAME", default_value = "ONLYONCE_ENCRYPTION_KEYS")]
    encryption_key_env: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) async fn run(args: ReconcileArgs) -> anyhow::Result<ExitCode> {
    let key_env = &args.encryption_key_env;
    let way = match Way::open(&args.admin, args.store.as_deref(), key_env, Wish::Look).await? {
        Ok(way) => way,
        Err(why) => return Ok(usage(&why)),
    };
    match &args.probe {
        Some(key) => probe(&way, key, &args).await,
        None => compare(&way, &args).await,
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::from(USAGE)
}

async fn probe(way: &Way, key: &str, args: &ReconcileArgs) -> anyhow::Result<ExitCode> {
    let id = match way
        .id_among(Some(key), args.client.as_deref(), args.route.as_deref())
        .await?
    {
        Ok(id) => id,
        Err(refusal) => {
            eprintln!("error: {}", refusal.why());
            return Ok(ExitCode::from(NO));
        }
    };
    let path = format!("/idempotency/keys/{id}/probe");
    let (status, answer) = way.call(Method::POST, &path, Some(json!({}))).await?;
    if args.json {
        outln!("{answer:#}");
    }
    let text = |name: &str| answer[name].as_str().unwrap_or("?").to_owned();
    if !status.is_success() {
        bail!("{} {}", status.as_u16(), text("detail"));
    }
    let found = answer["found"] == true;
    if !args.json {
        let route = text("route");
        match found {
            true => outln!(
                "route {route}: {}; negative answers of this query count from now on",
                text("detail")
            ),
            false => outln!("route {route}: {}: {}", text("outcome"), text("detail")),
        }
    }
    Ok(match found {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO),
    })
}

async fn compare(way: &Way, args: &ReconcileArgs) -> anyhow::Result<ExitCode> {
    let (Some(route), Some(provider), Some(since)) = (&args.route, &args.provider, &args.since)
    else {
        return Ok(usage("--route, --provider and --since are needed"));
    };
    let read = |text: &str| {
        let why = "--since and --until are RFC 3339, a day, or a time back such as 48h";
        moment::on_the_command_line(text).ok_or_else(|| Usage::new(why))
    };
    let since = read(since)?;
    let until = args.until.as_deref().map(read).transpose()?;
    let rules = rules_of(way, route, args).await?;
    let ledger = ledger(provider, &args.headers).await?;
    let columns = Columns {
        key: args.key_column.clone(),
        client: args.client_column.clone(),
        at: args.at_column.clone(),
    };
    let mut comparison = Comparison::read(ledger, &columns, &rules, (since, until))
        .context(Usage::new("--provider"))?;
    ours::walk(way, route, since, &mut comparison).await?;
    let differences = comparison.finish(way, route).await?;
    report(route, &differences, &comparison, args.json);
    Ok(match differences.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO),
    })
}

fn report(route: &str, differences: &[Difference], comparison: &Comparison, json: bool) {
    let counts = comparison.counts();
    if json {
        let lines: Vec<Value> = differences.iter().map(Difference::json).collect();
        let answer = json!({
            "route": route, "provider_rows": counts.rows, "unclear_rows": counts.unclear,
            "records": counts.records, "differences": lines,
        });
        outln!("{answer:#}");
        return;
    }
    for difference in differences {
        outln!("{difference}");
    }
    if counts.unclear > 0 {
        outln!(
            "{} rows say nothing that a rule knows, and were not compared",
            counts.unclear
        );
    }
    outln!(
        "{} rows of the provider, {} records of route {route}: {}",
        counts.rows,
        counts.records,
        match differences.len() {
            0 => "no difference".to_owned(),
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        }
    );
}

/// The rules that interpret the ledger's words: those of the route's query.
async fn rules_of(way: &Way, route: &str, args: &ReconcileArgs) -> anyhow::Result<LedgerRules> {
    let running = match args.store {
        Some(_) => None,
        None => Some(running(way).await?),
    };
    if running
        .as_ref()
        .is_some_and(|config| config["admin"]["mask_keys"] == true)
    {
        bail!(Usage::new(
            "this gateway masks keys (admin.mask_keys), so they cannot be compared: open its store with \
             --store, or ask a gateway that shows them"
        ));
    }
    let config = match (&args.config, running) {
        (Some(file), _) => match config::load(file, &Overrides::default()) {
            Ok(config) => config::view(&config),
            Err(diagnostics) => bail!(Usage::new(diagnostics.to_string())),
        },
        (None, Some(config)) => config,
        (None, None) => return Ok(LedgerRules::by_words()),
    };
    let routes = config["routes"].as_array().cloned().unwrap_or_default();
    let found = routes.iter().find(|one| one["id"] == route);
    let found = found.ok_or_else(|| Usage(format!("there is no route {route}")))?;
    Ok(LedgerRules::of(&found["idempotency"]["reconcile"]))
}

/// The configuration in effect at the gateway.
async fn running(way: &Way) -> anyhow::Result<Value> {
    let (status, config) = way.call(Method::GET, "/config", None).await?;
    if !status.is_success() {
        let why = config["detail"].as_str().unwrap_or("no reason was given");
        bail!("{} {why}", status.as_u16());
    }
    Ok(config)
}

async fn ledger(provider: &str, headers: &[String]) -> anyhow::Result<Box<dyn BufRead>> {
    if !provider.starts_with("http://") && !provider.starts_with("https://") {
        let file = File::open(provider)
            .with_context(|| Usage(format!("--provider: {provider} cannot be read")))?;
        return Ok(Box::new(BufReader::new(file)));
    }
    let endpoint = Endpoint::parse(provider).context(Usage::new("--provider"))?;
    let mut lines = vec![(header::ACCEPT, header::HeaderValue::from_static("text/csv"))];
    for line in headers {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| Usage::new("--header is `NAME: VALUE`"))?;
        let mut value =
            header::HeaderValue::from_str(value.trim()).context(Usage::new("--header"))?;
        value.set_sensitive(true);
        lines.push((
            HeaderName::try_from(name.trim()).context(Usage::new("--header"))?,
            value,
        ));
    }
    let shown = endpoint.shown();
    let outgoing = Outgoing {
        method: Method::GET,
        endpoint,
        headers: lines,
        key_header: HeaderName::from_static("idempotency-key"),
        keys: Vec::new(),
        body: bytes::Bytes::new(),
    };
    let client = Client::new(LEDGER_TIMEOUT, trusting(None)?);
    let answer = client.send(&outgoing).await;
    let answer = answer.map_err(|why| anyhow!("{shown}: {why}"))?;
    if !answer.status.is_success() {
        bail!("{shown} answered {}", answer.status.as_u16());
    }
    if answer.ended_by_close && may_be_cut(&answer.headers, &answer.body) {
        bail!("{shown}: the ledger may be cut off: only the end of the connection ended it");
    }
    Ok(Box::new(Cursor::new(answer.body)))
}
