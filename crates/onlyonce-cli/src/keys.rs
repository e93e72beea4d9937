//! `onlyonce keys`: list, show, resolve, erase and forget keys, through a gateway or in a store.
//!
//! Both ways use the same addresses of the admin API: those of a running gateway, or the same code on a store
//! that this process opens. So the answers look the same.

mod of_client;
pub(crate) mod shown;
pub(crate) mod way;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use http::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::colour;

pub(crate) use way::{DEFAULT_ADMIN, Way, Where, Wish};

/// The exit code for a negative result.
const NO: u8 = 1;
/// The exit code for invalid usage.
const USAGE: u8 = 2;
/// How many keys with the same name are fetched: enough to list them.
const MOST_NAMESAKES: usize = 20;
/// How many keys are searched for one that begins with the given text.
const MOST_LOOKED_THROUGH: &str = "500";
/// The length of an id, in characters.
const ID_LENGTH: usize = 32;
/// The shortest accepted beginning of an id.
const SHORTEST_ID: usize = 4;

/// What `keys` takes.
#[derive(Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Where,
}

#[derive(Subcommand)]
enum Command {
    /// List keys, newest first
    List(ListArgs),
    /// Show a key and its history
    Show(Which),
    /// Say what became of an unknown key
    Resolve(ResolveArgs),
    /// List what waits for a person, newest first
    DeadLetters(DeadLettersArgs),
    /// Say what became of many dead letters at once; without --yes only which they are
    ResolveDeadLetters(ResolveAllArgs),
    /// Remove what is remembered of a key, or of all keys of a client: the next request executes
    Forget(ForgetArgs),
    /// Remove a person's data from a key, or from all keys of a client: nothing executes again for it
    Erase(EraseArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Only this state: in_progress, completed, failed_retryable, unknown or expired
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only this route
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    route: Option<String>,
    /// Only keys of this client
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// Only this key, as clients send it in its header
    #[arg(long, value_name = "RAW", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// How many, 1 to 500
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Where the page before ended
    #[arg(long, value_name = "NEXT", value_parser = NonEmptyStringValueParser::new())]
    cursor: Option<String>,
}

/// One key, by its id or by what clients send.
#[derive(Args)]
struct Which {
    /// The key as clients send it, the key's id, or how the id begins; `show` takes the beginning of a key, too
    #[arg(value_name = "KEY", required_unless_present = "key", value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// The key as clients send it in its header
    #[arg(long, value_name = "RAW", conflicts_with = "id", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// The client that sent it
    #[arg(long, value_name = "ID", requires = "key", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Outcome {
    /// It took effect, and retries get this answer
    #[value(name = "completed")]
    Completed,
    /// It left nothing behind, and a retry executes
    #[value(name = "failed_retryable", alias = "failed-retryable")]
    FailedRetryable,
}

#[derive(Args)]
struct ResolveArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    says: Says,
    /// The revision that the decision was made on; without it, the one that is there now
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
}

/// A decision.
#[derive(Args)]
struct Says {
    /// What became of it
    #[arg(long, value_enum)]
    outcome: Outcome,
    /// Why you know; goes to the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// With `failed_retryable`: even though the provider does not say, or it is too early
    #[arg(long)]
    force: bool,
    /// With `completed`: the status that retries get
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,
    /// With `completed`: ask the provider, and take its answer
    #[arg(long, conflicts_with = "status")]
    from_provider: bool,
    /// With `completed`: a header that retries get; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "status")]
    headers: Vec<String>,
    /// With `completed`: the body that retries get
    #[arg(long, value_name = "TEXT", requires = "status")]
    body: Option<String>,
    /// With `completed`: a file with that body
    #[arg(
        long,
        value_name = "FILE",
        requires = "status",
        conflicts_with = "body"
    )]
    body_file: Option<PathBuf>,
}

#[derive(Args)]
struct DeadLettersArgs {
    /// Only this route
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    route: Option<String>,
    /// Only keys of this client
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// How many, 1 to 500
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Where the page before ended
    #[arg(long, value_name = "NEXT", value_parser = NonEmptyStringValueParser::new())]
    cursor: Option<String>,
}

#[derive(Args)]
struct ResolveAllArgs {
    /// Only this route
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    route: Option<String>,
    /// Only keys of this client
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// Only those whose reason contains this
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    because: Option<String>,
    #[command(flatten)]
    says: Says,
    /// Do it
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct ForgetArgs {
    /// The key's id, as `keys list` shows it
    #[arg(value_name = "ID", required_unless_present_any = ["key", "client"], value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// The key as clients send it in its header
    #[arg(long, value_name = "RAW", conflicts_with = "id", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// The client that sent it; without --key, all keys of this client
    #[arg(long, value_name = "ID", conflicts_with = "id", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// With --client alone: say what would be done, and do nothing
    #[arg(long, requires = "client", conflicts_with_all = ["key", "id"])]
    dry_run: bool,
    /// Even though the operation took effect, and a retry would execute it again
    #[arg(long)]
    force: bool,
    /// Why; goes to the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Args)]
struct EraseArgs {
    /// The key's id, as `keys list` shows it
    #[arg(value_name = "ID", required_unless_present_any = ["key", "client"], value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// The key as clients send it
    #[arg(long, value_name = "RAW", conflicts_with = "id", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// The client that sent it; without --key, all keys of this client
    #[arg(long, value_name = "ID", conflicts_with = "id", value_parser = NonEmptyStringValueParser::new())]
    client: Option<String>,
    /// With --client alone: say how many there are, and do nothing
    #[arg(long, requires = "client", conflicts_with_all = ["key", "id"])]
    dry_run: bool,
    /// Why; goes to the audit. No personal data
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// A negative result, or invalid usage.
pub(crate) struct Refusal {
    code: u8,
    why: String,
    /// The problem body, for programs.
    body: Value,
}

impl Refusal {
    /// The reason.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    fn no(why: impl Into<String>) -> Self {
        let why = why.into();
        let body = json!({ "detail": why });
        Self {
            code: NO,
            why,
            body,
        }
    }

    /// A refusal because of invalid usage.
    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            ..Self::no(why)
        }
    }
}

/// Runs the command.
pub(crate) async fn run(args: KeysArgs) -> anyhow::Result<ExitCode> {
    let wish = match args.command {
        Command::List(_) | Command::Show(_) | Command::DeadLetters(_) => Wish::Look,
        Command::Resolve(_) | Command::ResolveDeadLetters(_) => Wish::Resolve,
        Command::Forget(_) | Command::Erase(_) => Wish::Remove,
    };
    let json = args.place.json;
    let way = match args.place.open(wish).await? {
        Ok(way) => way,
        Err(why) => return Ok(refused(Refusal::usage(why), json)),
    };
    let asked = match args.command {
        Command::List(list) => way.list(&list).await?,
        Command::Show(which) => way.show(&which).await?,
        Command::Resolve(resolve) => way.resolve(&resolve).await?,
        Command::DeadLetters(list) => way.dead_letters(&list).await?,
        Command::ResolveDeadLetters(all) => way.resolve_all(&all).await?,
        Command::Forget(forget) => way.forget(&forget).await?,
        Command::Erase(erase) => way.erase(&erase).await?,
    };
    Ok(match asked {
        Ok(found) => {
            match json {
                true => outln!("{:#}", found),
                false => out!("{}", colour::output(&shown::text(&found))),
            }
            // If many keys were to be resolved, some may have been refused.
            let refused = found["refused"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
            let refused = refused && found["resolved"].is_array();
            ExitCode::from(if refused { NO } else { 0 })
        }
        Err(refusal) => refused(refusal, json),
    })
}

/// Prints the refusal, and returns its exit code.
pub(crate) fn refused(refusal: Refusal, json: bool) -> ExitCode {
    if json {
        outln!("{:#}", refusal.body);
    }
    eprintln!("error: {}", refusal.why);
    ExitCode::from(refusal.code)
}

/// A result or a refusal; an error if nobody could be asked.
pub(crate) type Asked = anyhow::Result<Result<Value, Refusal>>;

impl Way {
    async fn list(&self, args: &ListArgs) -> Asked {
        let limit = args.limit.to_string();
        let parameters = [
            ("state", args.state.as_deref()),
            ("route", args.route.as_deref()),
            ("client", args.client.as_deref()),
            ("key", args.key.as_deref()),
            ("limit", Some(limit.as_str())),
            ("cursor", args.cursor.as_deref()),
        ];
        let path = with_query("/idempotency/keys", &parameters);
        self.ask(Method::GET, &path, None).await
    }

    async fn show(&self, which: &Which) -> Asked {
        match self.path_of_like(which, Match::Beginning).await? {
            Ok(path) => self.ask(Method::GET, &path, None).await,
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    async fn resolve(&self, args: &ResolveArgs) -> Asked {
        let mut body = match resolution(&args.says) {
            Ok(body) => body,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let path = match self.path_of(&args.which).await? {
            Ok(path) => path,
            Err(refusal) => return Ok(Err(refusal)),
        };
        body["revision"] = match args.revision {
            Some(revision) => revision.into(),
            None => match self.ask(Method::GET, &path, None).await? {
                Ok(record) => record["revision"].clone(),
                Err(refusal) => return Ok(Err(refusal)),
            },
        };
        let path = format!("{path}/resolve");
        self.ask(Method::POST, &path, Some(body)).await
    }

    async fn dead_letters(&self, args: &DeadLettersArgs) -> Asked {
        let limit = args.limit.to_string();
        let parameters = [
            ("route", args.route.as_deref()),
            ("client", args.client.as_deref()),
            ("limit", Some(limit.as_str())),
            ("cursor", args.cursor.as_deref()),
        ];
        let path = with_query("/dead-letters", &parameters);
        self.ask(Method::GET, &path, None).await
    }

    async fn resolve_all(&self, args: &ResolveAllArgs) -> Asked {
        let mut body = match resolution(&args.says) {
            Ok(body) => body,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let said = [
            ("route", &args.route),
            ("client", &args.client),
            ("reason", &args.because),
        ];
        let filter: Map<String, Value> = said
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?.into())))
            .collect();
        body["filter"] = filter.into();
        body["dry_run"] = (!args.yes).into();
        self.ask(Method::POST, "/dead-letters/resolve", Some(body))
            .await
    }

    async fn forget(&self, args: &ForgetArgs) -> Asked {
        if let (None, None, Some(client)) = (&args.id, &args.key, &args.client) {
            return self.forget_client(client, args).await;
        }
        let which = Which {
            id: args.id.clone(),
            key: args.key.clone(),
            client: args.client.clone(),
        };
        match self.path_of(&which).await? {
            Ok(path) => {
                let force = args.force.then_some("true");
                let parameters = [("force", force), ("reason", args.reason.as_deref())];
                let path = with_query(&path, &parameters);
                self.ask(Method::DELETE, &path, None).await
            }
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    async fn erase(&self, args: &EraseArgs) -> Asked {
        if let (None, None, Some(client)) = (&args.id, &args.key, &args.client) {
            return self.erase_client(client, args).await;
        }
        let which = Which {
            id: args.id.clone(),
            key: args.key.clone(),
            client: args.client.clone(),
        };
        match self.path_of(&which).await? {
            Ok(path) => self.erase_at(&path, args.reason.as_deref()).await,
            Err(refusal) => Ok(Err(refusal)),
        }
    }

    async fn erase_at(&self, path: &str, reason: Option<&str>) -> Asked {
        let body = reason.map(|reason| json!({ "reason": reason }));
        self.ask(Method::POST, &format!("{path}/erase"), body).await
    }

    /// The address of one key that is to be changed.
    async fn path_of(&self, which: &Which) -> anyhow::Result<Result<String, Refusal>> {
        self.path_of_like(which, Match::Whole).await
    }

    async fn path_of_like(
        &self,
        which: &Which,
        how: Match,
    ) -> anyhow::Result<Result<String, Refusal>> {
        let id = match (&which.id, &which.key) {
            (Some(id), _) if is_whole_id(id) => Ok(id.clone()),
            (Some(text), _) => self.id_like(text, how).await?,
            (None, key) => {
                self.id_among(key.as_deref(), which.client.as_deref(), None)
                    .await?
            }
        };
        Ok(id.map(|id| format!("/idempotency/keys/{}", encoded(&id))))
    }

    /// The id of the one key that `text` names: by the key, by the beginning of its id, or by the beginning
    /// of the key if `how` allows it. Only the newest keys are searched for a beginning.
    async fn id_like(&self, text: &str, how: Match) -> anyhow::Result<Result<String, Refusal>> {
        let named = self.keys(&[("key", Some(text))]).await?;
        let mut found = match named {
            Ok(found) => found,
            // The text is not a valid key, but may be an id.
            Err(refusal) if refusal.code == USAGE => Vec::new(),
            Err(refusal) => return Ok(Err(refusal)),
        };
        if found.is_empty() {
            let pages = [None, Some("unknown"), Some("in_progress")];
            for state in pages {
                let parameters = [("state", state), ("limit", Some(MOST_LOOKED_THROUGH))];
                match self.keys(&parameters).await? {
                    Ok(keys) => found.extend(keys),
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            let begins = |key: &Value, member: &str| {
                let value = key[member].as_str();
                value.is_some_and(|value| value.starts_with(text))
            };
            found.retain(|key| {
                (text.len() >= SHORTEST_ID && begins(key, "id"))
                    || (how == Match::Beginning && begins(key, "key"))
            });
            found.sort_by_key(|key| key["id"].to_string());
            found.dedup_by_key(|key| key["id"].to_string());
        }
        Ok(only_one(&found))
    }

    /// A page of keys.
    async fn keys(
        &self,
        parameters: &[(&str, Option<&str>)],
    ) -> anyhow::Result<Result<Vec<Value>, Refusal>> {
        let path = with_query("/idempotency/keys", parameters);
        let found = self.ask(Method::GET, &path, None).await?;
        Ok(found.map(|mut found| match found["keys"].take() {
            Value::Array(keys) => keys,
            _ => Vec::new(),
        }))
    }

    /// The id of the one key with this name, of this client and route if given.
    pub(crate) async fn id_among(
        &self,
        key: Option<&str>,
        client: Option<&str>,
        route: Option<&str>,
    ) -> anyhow::Result<Result<String, Refusal>> {
        let limit = MOST_NAMESAKES.to_string();
        let parameters = [
            ("key", key),
            ("client", client),
            ("route", route),
            ("limit", Some(limit.as_str())),
        ];
        Ok(match self.keys(&parameters).await? {
            Ok(found) => only_one(&found),
            Err(refusal) => Err(refusal),
        })
    }

    /// Sends one request; a status that is not a success is a refusal.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Asked {
        let (status, answer) = self.call(method, path, body).await?;
        if status.is_success() {
            return Ok(Ok(answer));
        }
        let detail = answer["detail"].as_str().unwrap_or("no reason was given");
        let code = if status == StatusCode::BAD_REQUEST {
            USAGE
        } else {
            NO
        };
        let mut why = format!("{} {detail}", status.as_u16());
        if status == StatusCode::UNAUTHORIZED {
            why.push_str(&way::token_hint());
        }
        Ok(Err(Refusal {
            code,
            why,
            body: answer,
        }))
    }
}

/// How a key may be named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Match {
    /// By the whole key: a change must not affect another key with the same beginning.
    Whole,
    /// By the beginning of a key.
    Beginning,
}

/// Whether the text has the form of a complete id.
fn is_whole_id(text: &str) -> bool {
    text.len() == ID_LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The id of the only key that was found.
fn only_one(found: &[Value]) -> Result<String, Refusal> {
    let text = |key: &Value, member: &str| shown::field(key, member);
    match found {
        [] => Err(Refusal::no("there is no such key")),
        [one] => Ok(text(one, "id")),
        several => {
            let named = several.iter().take(MOST_NAMESAKES);
            let which: Vec<String> = named
                .map(|one| {
                    let (id, key, scope) = (text(one, "id"), text(one, "key"), text(one, "scope"));
                    format!("{id} ({key}, {scope})")
                })
                .collect();
            Err(Refusal::no(format!(
                "several keys have this name; take one of the ids, or name the client: {}",
                which.join(", ")
            )))
        }
    }
}

/// The body of a resolution.
fn resolution(args: &Says) -> Result<Value, Refusal> {
    let mut body = json!({ "reason": args.reason });
    match (args.outcome, args.status) {
        (Outcome::FailedRetryable, _) if args.from_provider => {
            let why = "the provider's answer belongs to --outcome completed";
            return Err(Refusal::usage(why));
        }
        (Outcome::Completed, None) if args.from_provider && !args.force => {
            body["outcome"] = "completed".into();
            body["response"] = "provider".into();
        }
        (Outcome::Completed, None) => {
            let why = "--outcome completed needs --status, or --from-provider";
            return Err(Refusal::usage(why));
        }
        (Outcome::FailedRetryable, Some(_)) => {
            let why = "an answer belongs to --outcome completed: after failed_retryable a retry makes one";
            return Err(Refusal::usage(why));
        }
        (Outcome::FailedRetryable, None) => {
            body["outcome"] = "failed_retryable".into();
            body["force"] = args.force.into();
        }
        (Outcome::Completed, _) if args.force => {
            let why = "--force belongs to --outcome failed_retryable";
            return Err(Refusal::usage(why));
        }
        (Outcome::Completed, status) => {
            body["outcome"] = "completed".into();
            let mut headers = Map::new();
            for line in &args.headers {
                let Some((name, value)) = line.split_once(':') else {
                    let why = "--header is `NAME: VALUE`; nothing was changed";
                    return Err(Refusal::usage(why));
                };
                let values = headers.entry(name.trim()).or_insert_with(|| json!([]));
                if let Some(values) = values.as_array_mut() {
                    values.push(value.trim().into());
                }
            }
            let mut response = json!({ "status": status, "headers": headers });
            if let Some(text) = &args.body {
                response["body"] = text.as_str().into();
            } else if let Some(file) = &args.body_file {
                use base64::{Engine as _, engine::general_purpose::STANDARD};
                let bytes = match std::fs::read(file) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        let why = format!("{} cannot be read: {error}", file.display());
                        return Err(Refusal::usage(why));
                    }
                };
                response["body_base64"] = STANDARD.encode(bytes).into();
            }
            body["response"] = response;
        }
    }
    Ok(body)
}

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(crate) fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let said = parameters
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))));
    let query = said.collect::<Vec<_>>().join("&");
    match query.as_str() {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}
