//! Messages to NATS JetStream. The message's key is its `Nats-Msg-Id`, which a stream knows again for as
//! long as its duplicate window lasts.
//!
//! The client of NATS keeps what is published while it has no connection, and sends it later. So nothing
//! is given to it then: that is the one proof here that nothing was sent.

use std::{error::Error as StdError, io, sync::Arc, time::Duration};

use async_nats::{
    ConnectOptions, Event, HeaderMap, HeaderName, HeaderValue, ServerAddr,
    connection::State,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self,
        context::{ContextBuilder, PublishError, PublishErrorKind},
        message::PublishMessage,
    },
};
use futures_util::future::BoxFuture;
use onlyonce::outbox::{Delivery, Parcel, Publish};
use tokio::sync::watch;

use crate::Template;

/// The longest wait for a stream's word. The outbox stops waiting sooner.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The pause before the first attempt to connect again; every further one is that much longer.
const RECONNECT_STEP: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to connect.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// What begins a header that is an instruction to the server.
const INSTRUCTION: &str = "nats-";

/// Which server, and which subject.
#[derive(Clone)]
pub struct NatsOptions {
    /// URLs such as `nats://127.0.0.1:4222` or `tls://nats.example`, separated by commas. They may hold
    /// a user and a password.
    pub servers: String,
    /// The subject of a message. A stream has to take it.
    pub subject: Template,
    /// How to connect, for those who need more than a URL: certificates, or another way to log in.
    pub connect: ConnectOptions,
}

impl NatsOptions {
    /// These servers and this subject.
    pub fn new(servers: &str, subject: Template) -> Self {
        Self {
            servers: servers.to_owned(),
            subject,
            connect: ConnectOptions::new(),
        }
    }
}

/// Why there is no client for these servers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// A server's URL is not one.
    #[error("a NATS server's URL is not one")]
    Url(#[source] io::Error),
    /// The client could not be made.
    #[error("the NATS client could not be made")]
    Client(#[source] async_nats::ConnectError),
}

/// Publishes to streams of JetStream, and waits for their word.
pub struct Nats {
    client: async_nats::Client,
    context: jetstream::Context,
    subject: Template,
    /// How often the connection was lost.
    losses: watch::Receiver<u64>,
}

impl Nats {
    /// A client that connects when it can, and again whenever it has to. No server need be there now.
    ///
    /// # Errors
    /// [`NatsError`] if what was said about the servers cannot be used.
    pub async fn connect(options: NatsOptions) -> Result<Self, NatsError> {
        let servers = options.servers.split(',').map(|one| one.trim().parse());
        let servers: Vec<ServerAddr> = servers.collect::<Result<_, _>>().map_err(NatsError::Url)?;
        let (lost, losses) = watch::channel(0);
        let lost = Arc::new(lost);
        let connect = options
            .connect
            .retry_on_initial_connect()
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    lost.send_modify(|times| *times += 1);
                }
                async {}
            })
            .reconnect_delay_callback(|attempts| {
                let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
                RECONNECT_STEP.saturating_mul(attempts).min(RECONNECT_MAX)
            });
        let client = connect.connect(servers.as_slice()).await;
        let client = client.map_err(NatsError::Client)?;
        let context = ContextBuilder::new().timeout(MAX_WAIT);
        Ok(Self {
            context: context.build(client.clone()),
            client,
            subject: options.subject,
            losses,
        })
    }

    async fn send(&self, subject: String, message: PublishMessage) -> Delivery {
        let mut losses = self.losses.clone();
        losses.mark_unchanged();
        if self.client.connection_state() != State::Connected {
            return Delivery::NotSent("there is no connection to NATS".to_owned());
        }
        let sent = match self.context.send_publish(subject, message).await {
            Ok(sent) => sent,
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                return refused("the server takes no message of this size");
            }
            // It was not handed to the connection.
            Err(error) => return Delivery::NotSent(describe(&error)),
        };
        tokio::select! {
            biased;
            answer = sent.into_future() => match answer {
                Ok(ack) => Delivery::Delivered {
                    provider_id: Some(format!("{}/{}", ack.stream, ack.sequence)),
                    answer: None,
                },
                Err(error) => not_acknowledged(&error),
            },
            // A word that was under way is lost with it.
            _ = losses.changed() => Delivery::Unclear("the connection to NATS was lost".to_owned()),
        }
    }
}

impl Publish for Nats {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let subject = self.subject.fill(parcel);
            if !is_subject(&subject) {
                return refused("its subject is not one that can be published to");
            }
            match headers(parcel) {
                Ok(headers) => {
                    let message = PublishMessage::build().payload(parcel.payload.clone());
                    self.send(subject, message.headers(headers)).await
                }
                Err(reason) => refused(&reason),
            }
        })
    }
}

fn refused(reason: &str) -> Delivery {
    Delivery::Refused {
        reason: reason.to_owned(),
        answer: None,
    }
}

/// What it means that a stream did not say yes.
fn not_acknowledged(error: &PublishError) -> Delivery {
    if error.kind() == PublishErrorKind::StreamNotFound {
        // The server itself said that nobody listens there.
        return Delivery::NotSent("no stream takes its subject".to_owned());
    }
    let said = error.source();
    let said = said.and_then(|cause| cause.downcast_ref::<jetstream::Error>());
    match said {
        Some(said) if (400..500).contains(&said.code()) => refused(&describe(error)),
        _ => Delivery::Unclear(describe(error)),
    }
}

fn describe(error: &dyn StdError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The message's own headers, without instructions to the server, and its key.
fn headers(parcel: &Parcel) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &parcel.headers {
        if name.to_ascii_lowercase().starts_with(INSTRUCTION) {
            continue;
        }
        let (Ok(header), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>())
        else {
            return Err(format!("its header {name:?} cannot be sent to NATS"));
        };
        headers.insert(header, value);
    }
    let key = parcel.key.parse::<HeaderValue>();
    let key = key.map_err(|_| "its key cannot be sent in a header")?;
    headers.insert(NATS_MESSAGE_ID, key);
    Ok(headers)
}

/// Whether one can publish to `subject`: words with full stops between them, none of them a wildcard.
fn is_subject(subject: &str) -> bool {
    subject.split('.').all(|word| {
        !word.is_empty()
            && !word.contains(|c: char| c.is_whitespace() || c.is_control() || c == '*' || c == '>')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_subject() {
        for good in ["orders", "orders.paid", "a.b-c_d.17"] {
            assert!(is_subject(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a.*",
            "a.>",
            "a\r\nPUB b",
        ] {
            assert!(!is_subject(bad), "{bad}");
        }
    }
}
