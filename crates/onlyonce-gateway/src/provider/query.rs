//! The query to a provider: one GET, to the configured host and nowhere else.
//!
//! Deliberately absent: redirects, retries and pools. Anything but a usable answer is inconclusive, and the
//! reconciler asks again on its own schedule.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, header};
use onlyonce::{
    body::may_be_cut,
    reconcile::{Judged, Rule, judge},
};
use onlyonce_core::{Record, policy::Profile};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    config::QueryConfig,
    http_client::{Client, Endpoint, Outgoing},
};

/// The largest answer of a provider, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const NO_CLIENT: &str = "the key belongs to no client to ask for";
const ELSEWHERE: &str =
    "the key would lead to another path of the provider; `?key={key}` can ask for any";
const CUT: &str =
    "only the end of the connection ended the provider's answer, which may be incomplete";
const UNUSABLE: &str = "no URL can be made for the key";

/// A route's query.
pub(super) struct Query {
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    outcomes: Vec<Rule>,
    client: Client,
    /// Whether the end of a connection is believed to be the end of an answer.
    believes_close: bool,
    /// Everything that identifies the query.
    question: String,
}

impl Query {
    pub(super) fn new(
        config: &QueryConfig,
        outcomes: &[Rule],
        profile: Profile,
    ) -> anyhow::Result<Self> {
        let mut question = config.url.clone();
        let mut headers = Vec::new();
        for (name, value) in &config.headers {
            // Another credential may see another account. The store gets a keyed hash of this text.
            let shown = String::from_utf8_lossy(value.as_bytes());
            // Writing to a string cannot fail.
            let _ = write!(question, "\n{name}: {shown}");
            headers.push((name.clone(), value.clone()));
        }
        let _ = write!(question, "\n{outcomes:?}");
        if !config.headers.contains_key(header::ACCEPT) {
            headers.push((header::ACCEPT, HeaderValue::from_static("application/json")));
        }
        Ok(Self {
            url: config.url.clone(),
            headers,
            outcomes: outcomes.to_vec(),
            client: Client::new(config.timeout, config.trust.config(Some(false)))
                .reading_at_most(MAX_ANSWER),
            believes_close: profile != Profile::Payments,
            question,
        })
    }

    /// Everything that identifies the query: URL, headers and rules.
    pub(super) fn question(&self) -> &str {
        &self.question
    }

    /// Queries the outcome of the key of `record`, which the provider may know as `name`.
    pub(super) async fn ask(&self, record: &Record, name: &str) -> Judged {
        match self.endpoint(record, name) {
            Ok(endpoint) => self.hear(endpoint).await,
            Err(why) => Judged::Inconclusive(why.to_owned()),
        }
    }

    async fn hear(&self, endpoint: Endpoint) -> Judged {
        let outgoing = Outgoing {
            method: Method::GET,
            endpoint,
            headers: self.headers.clone(),
            key_header: HeaderName::from_static("idempotency-key"),
            keys: Vec::new(),
            body: Bytes::new(),
        };
        match self.client.send(&outgoing).await {
            Ok(answer)
                if answer.ended_by_close
                    && (!self.believes_close || may_be_cut(&answer.headers, &answer.body)) =>
            {
                Judged::Inconclusive(CUT.to_owned())
            }
            Ok(answer) => {
                let kind = answer.headers.get(header::CONTENT_TYPE);
                judge(&self.outcomes, Some(answer.status), kind, &answer.body)
            }
            Err(why) => Judged::Inconclusive(format!("the provider did not answer: {why}")),
        }
    }

    /// The URL for `record` under `name`, or why there is none.
    fn endpoint(&self, record: &Record, name: &str) -> Result<Endpoint, &'static str> {
        let client = match self.url.contains("{client}") {
            true => record.scope.client_id().ok_or(NO_CLIENT)?,
            false => "",
        };
        let (path, _) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let mut url = self.url.clone();
        for (place, value) in [
            ("{client}", client),
            ("{route}", &record.route),
            ("{key}", name),
        ] {
            if path.contains(place) && leads_elsewhere(value) {
                return Err(ELSEWHERE);
            }
            // Encoded values contain no brace, so they cannot form a placeholder.
            url = url.replace(place, &utf8_percent_encode(value, RESERVED).to_string());
        }
        Endpoint::parse(&url).map_err(|_| UNUSABLE)
    }
}

/// Whether `value`, as a path segment, may be read as another path: many servers decode before they resolve
/// dots and slashes.
fn leads_elsewhere(value: &str) -> bool {
    value
        .split(['/', '\\'])
        .any(|step| matches!(step, "." | ".."))
}

#[cfg(test)]
mod tests {
    use onlyonce_core::record::Evidence;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const JSON: &str = r#"{"id":"p_1","status":"paid"}"#;

    /// A query to `address` whose every answer with status 200 completes the key.
    fn query(address: std::net::SocketAddr, profile: Profile) -> Query {
        let config = format!(
            "routes: [{{ id: a, path: /, backends: [{{ url: \"http://up\" }}], idempotency: {{ enabled: true, \
             enforce: true, reconcile: {{ query: {{ url: \"http://{address}/p?key={{key}}\" }}, outcomes: \
             [{{ when: {{ status: [200] }}, complete: {{ status: 201, body: \"\" }} }}] }} }} }}]\n"
        );
        let config = crate::config::parse("oo.yaml", &config, &|_| None, &Default::default());
        let config = config.unwrap_or_else(|wrong| panic!("{wrong}"));
        let reconcile = config.routes[0].reconcile.as_deref().unwrap();
        Query::new(
            reconcile.query.as_ref().unwrap(),
            &reconcile.outcomes,
            profile,
        )
        .unwrap()
    }

    /// What `query` makes of a provider that sends `answer` and closes.
    async fn heard(answer: String, profile: Profile) -> Judged {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let provider = async {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") {
                client.read_buf(&mut read).await.unwrap();
            }
            client.write_all(answer.as_bytes()).await.unwrap();
        };
        let query = query(address, profile);
        let endpoint = Endpoint::parse(&format!("http://{address}/p")).unwrap();
        tokio::join!(query.hear(endpoint), provider).0
    }

    /// Goal: half an answer of a provider settles nothing, however it is framed.
    ///
    /// Method: every prefix of a JSON document, delimited by a length, by chunks and by the end of the
    /// connection alone. Evidence: only the whole document says that the key completed, and under `payments`
    /// only where its framing says that it is whole.
    #[tokio::test]
    async fn only_a_whole_answer_counts() {
        for profile in [Profile::Safe, Profile::Payments] {
            for cut in 0..=JSON.len() {
                let (part, whole) = (&JSON[..cut], JSON.len());
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
                let last = if cut == whole { "0\r\n\r\n" } else { "" };
                let chunk = match cut {
                    0 => last.to_owned(),
                    _ => format!("{cut:x}\r\n{part}\r\n{last}"),
                };
                for (framed, believed) in [
                    (format!("Content-Length: {whole}\r\n\r\n{part}"), true),
                    (format!("Transfer-Encoding: chunked\r\n\r\n{chunk}"), true),
                    (format!("\r\n{part}"), profile == Profile::Safe),
                ] {
                    let judged = heard(format!("{head}{framed}"), profile).await;
                    let completes = matches!(judged, Judged::Says(Evidence::Completed(_)));
                    assert_eq!(
                        completes,
                        cut == whole && believed,
                        "{framed:?}, {profile:?}"
                    );
                }
            }
        }
    }
}
