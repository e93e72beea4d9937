//! What `verify` takes on the command line.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use http::{HeaderName, Method};

use super::{case::CaseArg, catalogue::Check, profile::Profile};

/// What `verify` takes.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// The API: an operation that may be executed for a test
    pub(super) url: String,
    /// Its method
    #[arg(long, default_value = "POST")]
    pub(super) method: Method,
    /// The body of the request; {{unique}} and {{unique_number}} in it differ for each new key
    #[arg(long, value_name = "FILE")]
    pub(super) body: Option<PathBuf>,
    /// A body that is valid and means something else [default: one value of the body changed]
    #[arg(long, value_name = "FILE")]
    pub(super) changed_body: Option<PathBuf>,
    /// A header to send, `Name: value`; its value is never shown
    #[arg(long, value_name = "HEADER")]
    pub(super) header: Vec<String>,
    /// The header that carries the key
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    pub(super) key_header: HeaderName,
    /// Send keys as "…", for an API that takes nothing else
    #[arg(long)]
    pub(super) quoted_keys: bool,
    /// The API takes requests without a key on purpose
    #[arg(long)]
    pub(super) key_optional: bool,
    /// Whose rules count
    #[arg(long, value_enum, default_value = "ietf")]
    pub(super) profile: Profile,
    /// Where the API tells how often it has executed anything: a number, or JSON with --count-pointer
    #[arg(long, value_name = "URL")]
    pub(super) count_url: Option<String>,
    /// The place of the number, or of a list whose length counts, as a JSON pointer
    #[arg(long, value_name = "POINTER", requires = "count_url")]
    pub(super) count_pointer: Option<String>,
    /// A header for --count-url
    #[arg(long, value_name = "HEADER", requires = "count_url")]
    pub(super) count_header: Vec<String>,
    /// The same API on another node
    #[arg(long, value_name = "URL")]
    pub(super) second_url: Option<String>,
    /// Another operation of the API that takes the same method and body
    #[arg(long, value_name = "URL")]
    pub(super) other_url: Option<String>,
    /// Headers of another caller, instead of those of the same names
    #[arg(long, value_name = "HEADER")]
    pub(super) second_caller_header: Vec<String>,
    /// How to get an answer of a kind: NAME=header:HEADER, NAME=body:FILE or NAME=url:URL, where NAME
    /// is slow, 4xx, 5xx, binary, empty, large or chunked
    #[arg(long, value_name = "NAME=HOW")]
    pub(super) case: Vec<CaseArg>,
    /// How many duplicates are sent at once
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub(super) duplicates: u16,
    /// Requests per second on average [default: 10, and 500 on this machine]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: Option<u32>,
    /// How long one answer may take
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub(super) timeout: Duration,
    /// Certificates to believe behind https:// beside the public ones, in PEM
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// Only these checks
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub(super) only: Vec<Check>,
    /// Not these checks
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub(super) skip: Vec<Check>,
    /// Count what could not be told as a failure
    #[arg(long)]
    pub(super) strict: bool,
    /// Do not ask before sending to another machine
    #[arg(long)]
    pub(super) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write a JUnit file
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    /// Write a page of its own
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}
