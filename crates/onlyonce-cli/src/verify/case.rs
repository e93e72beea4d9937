//! How to make the API answer in a certain way, which only the user knows.

use std::{path::PathBuf, str::FromStr};

use bytes::Bytes;
use clap::ValueEnum;
use http::{HeaderName, HeaderValue};
use onlyonce_gateway::http_client::{Endpoint, Outgoing};

use super::exchange::Vary as _;

/// A kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// One that takes at least half a second.
    Slow,
    /// A refusal of the API's own, a declined card for instance.
    #[value(name = "4xx")]
    ClientError,
    /// A failure.
    #[value(name = "5xx")]
    ServerError,
    Binary,
    Empty,
    Large,
    Chunked,
}

/// A parsed `NAME=HOW`.
#[derive(Clone, Debug)]
pub(super) struct CaseArg {
    kind: Kind,
    how: How,
}

#[derive(Clone, Debug)]
enum How {
    Header(HeaderName, HeaderValue),
    Body(PathBuf),
    Url(Endpoint),
}

impl FromStr for CaseArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shape = "NAME=header:HEADER, NAME=body:FILE or NAME=url:URL";
        let (name, how) = text.split_once('=').ok_or(shape)?;
        let kind = Kind::from_str(name, false)?;
        let how = match how.split_once(':').ok_or(shape)? {
            ("header", header) => {
                let (name, value) = parse_header(header)?;
                How::Header(name, value)
            }
            ("body", file) => How::Body(file.into()),
            ("url", url) => How::Url(Endpoint::parse(url).map_err(|error| error.to_string())?),
            _ => return Err(shape.to_owned()),
        };
        Ok(Self { kind, how })
    }
}

/// `Name: value`.
pub(super) fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    // The value may be a credential, so a message never repeats the line.
    let shape = "a header is `Name: value`";
    let (name, value) = text.split_once(':').ok_or(shape)?;
    let name = name.trim().parse().map_err(|_| shape)?;
    let value = value.trim().parse().map_err(|_| shape)?;
    Ok((name, value))
}

/// Everything that produces one kind of answer.
#[derive(Clone, Debug)]
pub(super) struct Case {
    kind: Kind,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Option<Bytes>,
    endpoint: Option<Endpoint>,
}

impl Case {
    /// Combines the arguments for each kind.
    pub(super) fn collect(args: &[CaseArg]) -> anyhow::Result<Vec<Self>> {
        let mut cases: Vec<Self> = Vec::new();
        for arg in args {
            let at = cases.iter().position(|case| case.kind == arg.kind);
            let at = at.unwrap_or_else(|| {
                cases.push(Self {
                    kind: arg.kind,
                    headers: Vec::new(),
                    body: None,
                    endpoint: None,
                });
                cases.len() - 1
            });
            match &arg.how {
                How::Header(name, value) => cases[at].headers.push((name.clone(), value.clone())),
                How::Body(file) => cases[at].body = Some(super::target::read(file)?.into()),
                How::Url(endpoint) => cases[at].endpoint = Some(endpoint.clone()),
            }
        }
        Ok(cases)
    }

    pub(super) fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// Whether only headers produce it, so that the same request can be sent without it.
    pub(super) fn by_headers_alone(&self) -> bool {
        self.body.is_none() && self.endpoint.is_none()
    }

    /// `request`, changed so that it gets this kind of answer.
    pub(super) fn apply(&self, request: &Outgoing) -> Outgoing {
        let mut request = request.clone();
        request.set_headers(&self.headers);
        if let Some(body) = &self.body {
            request.body = body.clone();
        }
        if let Some(endpoint) = &self.endpoint {
            request.endpoint = endpoint.clone();
        }
        request
    }
}
