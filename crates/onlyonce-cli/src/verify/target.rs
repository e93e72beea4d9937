//! The API to check, and the rules: the arguments, validated once.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use http::{HeaderName, HeaderValue, Method, header};
use onlyonce_gateway::http_client::{Endpoint, Outgoing, trusting};
use tokio_rustls::rustls::ClientConfig;

use super::{
    args::VerifyArgs,
    body::Template,
    case::{Case, Kind, parse_header},
    exchange::Vary as _,
    profile::Rules,
};

/// The default rate to another machine, in requests per second.
const DEFAULT_RATE: u32 = 10;
/// The default rate to this machine, in requests per second.
const LOOPBACK_RATE: u32 = 500;

/// The API and what the user said about it.
pub(super) struct Target {
    pub(super) method: Method,
    pub(super) endpoint: Endpoint,
    pub(super) second: Option<Endpoint>,
    pub(super) other: Option<Endpoint>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) second_caller: Vec<(HeaderName, HeaderValue)>,
    pub(super) key_header: HeaderName,
    pub(super) quoted_keys: bool,
    pub(super) key_optional: bool,
    pub(super) body: Template,
    pub(super) changed_body: Option<Template>,
    pub(super) count: Option<CountAt>,
    pub(super) rules: Rules,
    pub(super) duplicates: usize,
    /// Requests per second on average.
    pub(super) rate: u32,
    pub(super) timeout: Duration,
    /// The trusted authorities for `https://`.
    pub(super) tls: Arc<ClientConfig>,
    cases: Vec<Case>,
}

/// Where the API publishes its count of executions.
pub(super) struct CountAt {
    pub(super) endpoint: Endpoint,
    pub(super) pointer: Option<String>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Target {
    /// # Errors
    /// What is wrong with the arguments, without repeating a credential.
    pub(super) fn from_args(args: &VerifyArgs) -> anyhow::Result<Self> {
        let endpoint = Endpoint::parse(&args.url).context("URL")?;
        let optional = |url: &Option<String>, option: &'static str| {
            let parsed = url.as_deref().map(Endpoint::parse).transpose();
            parsed.context(option)
        };
        let second = optional(&args.second_url, "--second-url")?;
        let other = optional(&args.other_url, "--other-url")?;
        let count = match optional(&args.count_url, "--count-url")? {
            Some(endpoint) => Some(CountAt {
                endpoint,
                pointer: args.count_pointer.clone(),
                headers: headers(&args.count_header, "--count-header")?,
            }),
            None => None,
        };
        let body = args.body.as_deref().map(read).transpose()?;
        let body = Template::new(body.unwrap_or_default());
        let changed_body = args.changed_body.as_deref().map(read).transpose()?;
        let mut headers_ = headers(&args.header, "--header")?;
        if body.is_json()
            && !headers_
                .iter()
                .any(|(name, _)| name == header::CONTENT_TYPE)
        {
            let json = HeaderValue::from_static("application/json");
            headers_.push((header::CONTENT_TYPE, json));
        }
        let mut target = Self {
            method: args.method.clone(),
            endpoint,
            second,
            other,
            headers: headers_,
            second_caller: headers(&args.second_caller_header, "--second-caller-header")?,
            key_header: args.key_header.clone(),
            quoted_keys: args.quoted_keys,
            key_optional: args.key_optional,
            body,
            changed_body: changed_body.map(Template::new),
            count,
            rules: args.profile.rules(),
            duplicates: usize::from(args.duplicates),
            rate: 0,
            timeout: args.timeout,
            tls: trusted(args.ca.as_deref())?,
            cases: Case::collect(&args.case)?,
        };
        let default = match target.is_loopback() {
            true => LOOPBACK_RATE,
            false => DEFAULT_RATE,
        };
        target.rate = args.rate.unwrap_or(default);
        Ok(target)
    }

    /// Whether every request stays on this machine.
    pub(super) fn is_loopback(&self) -> bool {
        let cases = self.cases.iter().filter_map(Case::endpoint);
        let named = [&self.second, &self.other];
        let named = named.into_iter().flatten().chain(cases);
        self.endpoint.is_loopback() && named.into_iter().all(Endpoint::is_loopback)
    }

    pub(super) fn case(&self, kind: Kind) -> Option<&Case> {
        self.cases.iter().find(|case| case.is(kind))
    }

    /// The request with this key and this value for `{{unique}}`.
    pub(super) fn request(&self, key: &str, unique: &str) -> Outgoing {
        let request = Outgoing {
            method: self.method.clone(),
            endpoint: self.endpoint.clone(),
            headers: self.headers.clone(),
            key_header: self.key_header.clone(),
            keys: Vec::new(),
            body: self.body.fill(unique),
        };
        match self.quoted_keys {
            true => request.with_key(&format!("\"{key}\"")),
            false => request.with_key(key),
        }
    }
}

/// The public authorities, and those in `file`.
fn trusted(file: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let trusted = trusting(file);
    match file {
        Some(file) => trusted.with_context(|| format!("--ca {}", file.display())),
        None => trusted,
    }
}

fn headers(
    lines: &[String],
    option: &'static str,
) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
    let parsed = lines.iter().map(|line| parse_header(line));
    let parsed: Result<_, _> = parsed.collect();
    parsed.map_err(|error| anyhow::anyhow!("{option}: {error}"))
}

pub(super) fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}
