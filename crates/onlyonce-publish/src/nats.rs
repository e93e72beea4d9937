//! Messages to NATS JetStream. The message's key is its `Nats-Msg-Id`, which a stream recognises during its
//! duplicate window.
//!
//! While disconnected, the NATS client buffers what is published and sends it later. Nothing is handed to it
//! then, which proves that nothing was sent.

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

/// The longest wait for a stream's acknowledgement. The outbox stops waiting sooner.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The pause before the first reconnection; each further pause is longer by this much.
const RECONNECT_STEP: Duration = Duration::from_millis(100);
/// The longest pause between two reconnections.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// The prefix of headers that are instructions to the server.
const INSTRUCTION: &str = "nats-";

/// The servers and the subject.
#[derive(Clone)]
pub struct NatsOptions {
    /// URLs such as `nats://127.0.0.1:4222` or `tls://nats.example`, separated by commas. They may contain a
    /// user and a password.
    pub servers: String,
    /// The subject of a message. A stream must accept it.
    pub subject: Template,
    /// Connection options beyond the URL: certificates, or another way to log in.
    pub connect: ConnectOptions,
}

impl NatsOptions {
    /// Options with these servers and this subject.
    pub fn new(servers: &str, subject: Template) -> Self {
        Self {
            servers: servers.to_owned(),
            subject,
            connect: ConnectOptions::new(),
        }
    }
}

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// A server's URL is invalid.
    #[error("a NATS server's URL is not one")]
    Url(#[source] io::Error),
    /// The client could not be created.
    #[error("the NATS client could not be made")]
    Client(#[source] async_nats::ConnectError),
}

/// Publishes to JetStream streams, and waits for their acknowledgement.
pub struct Nats {
    client: async_nats::Client,
    context: jetstream::Context,
    subject: Template,
    /// How often the connection was lost.
    losses: watch::Receiver<u64>,
}

impl Nats {
    /// A client that connects and reconnects in the background. No server needs to be up now.
    ///
    /// # Errors
    /// [`NatsError`] if the options cannot be used.
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
            // The message was not handed to the connection.
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
            // An acknowledgement on its way is lost with the connection.
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

/// The result if a stream did not acknowledge.
fn not_acknowledged(error: &PublishError) -> Delivery {
    if error.kind() == PublishErrorKind::StreamNotFound {
        // The server itself said that no stream listens there.
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

/// The message's own headers, without instructions to the server, plus its key.
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

/// Whether `subject` can be published to: words separated by full stops, without wildcards.
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
