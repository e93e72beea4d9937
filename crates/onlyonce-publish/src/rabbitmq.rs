//! Messages to RabbitMQ: persistent, mandatory and confirmed, with the message's key as `message_id`.
//!
//! Each message has a channel to itself while it is being sent. The server returns an unroutable message
//! before the confirmation of some message on its channel; with only one message on the channel, there is no
//! doubt which one it is.
//!
//! Deliberately absent: declaring exchanges and queues. They belong to the consumers.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
    uri::AMQPUri,
};
use onlyonce::outbox::{Delivery, Parcel, Publish};
use parking_lot::Mutex;

use crate::Template;

/// How long a message may wait for a channel, by default: less than the timeout for sending, so that an
/// unsent message is known to be unsent.
pub const DEFAULT_CHANNEL_WITHIN: Duration = Duration::from_secs(4);
/// Idle channels kept for the next messages; others are closed.
const MAX_IDLE_CHANNELS: usize = 64;
/// The delivery mode of a message that a durable queue writes to disk before it is confirmed.
const PERSISTENT: u8 = 2;
const CONTENT_TYPE: &str = "content-type";
const JSON: &str = "application/json";

/// The server, exchange and routing key.
#[derive(Clone)]
pub struct RabbitMqOptions {
    /// Such as `amqp://user:password@127.0.0.1:5672/vhost`; `amqps://` for TLS.
    pub url: String,
    /// The exchange; empty for the default exchange, which routes to queues by name.
    pub exchange: String,
    /// The routing key of a message.
    pub routing_key: Template,
    /// Connection options beyond the URL.
    pub connect: ConnectionProperties,
    /// How long a message may wait for a channel, including connecting. Keep it below the target's timeout.
    pub channel_within: Duration,
}

impl RabbitMqOptions {
    /// Options with this server, exchange and routing key.
    pub fn new(url: &str, exchange: &str, routing_key: Template) -> Self {
        Self {
            url: url.to_owned(),
            exchange: exchange.to_owned(),
            routing_key,
            connect: ConnectionProperties::default().with_connection_name("onlyonce outbox".into()),
            channel_within: DEFAULT_CHANNEL_WITHIN,
        }
    }
}

/// Why the options are invalid. The error does not repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RabbitMqError {
    /// The URL is invalid.
    #[error("a RabbitMQ server's URL is such as amqp://user:password@host:5672/vhost")]
    Url,
    /// The exchange's name is too long.
    #[error("an exchange's name has 255 bytes at most")]
    Exchange,
}

/// Publishes to one exchange, and waits for the server's confirmation.
pub struct RabbitMq {
    uri: AMQPUri,
    exchange: ShortString,
    routing_key: Template,
    connect: ConnectionProperties,
    channel_within: Duration,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    idle: Mutex<Vec<Channel>>,
}

impl RabbitMq {
    /// Connects with the first message, and reconnects when necessary.
    ///
    /// # Errors
    /// [`RabbitMqError`] if the options are invalid.
    pub fn new(options: RabbitMqOptions) -> Result<Self, RabbitMqError> {
        let exchange = ShortString::try_new(options.exchange);
        Ok(Self {
            uri: options.url.parse().map_err(|_| RabbitMqError::Url)?,
            exchange: exchange.map_err(|_| RabbitMqError::Exchange)?,
            routing_key: options.routing_key,
            connect: options.connect,
            channel_within: options.channel_within,
            connection: tokio::sync::Mutex::new(None),
            idle: Mutex::default(),
        })
    }

    /// A channel that nobody else uses.
    async fn channel(&self) -> lapin::Result<Channel> {
        let mut connection = self.connection.lock().await;
        let alive = connection.as_ref().filter(|one| one.status().connected());
        let connection = match alive {
            Some(connection) => Arc::clone(connection),
            None => {
                self.idle.lock().clear();
                let (uri, properties) = (self.uri.clone(), self.connect.clone());
                let opened = Arc::new(Connection::connect_uri(uri, properties).await?);
                connection.insert(opened).clone()
            }
        };
        while let Some(channel) = self.idle.lock().pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = connection.create_channel().await?;
        let options = ConfirmSelectOptions::default();
        channel.confirm_select(options).await?;
        Ok(channel)
    }

    fn give_back(&self, channel: Channel) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE_CHANNELS && channel.status().connected() {
            idle.push(channel);
        }
    }

    async fn send(&self, letter: Letter, payload: &[u8]) -> Delivery {
        // A client that misses a refused connection, and a server that does not respond, both end here.
        let channel = match tokio::time::timeout(self.channel_within, self.channel()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Delivery::NotSent(format!("no channel to RabbitMQ: {error}")),
            Err(_) => {
                return Delivery::NotSent(format!(
                    "no channel to RabbitMQ within {:?}",
                    self.channel_within
                ));
            }
        };
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let (
            exchange,
            Letter {
                routing_key,
                properties,
            },
        ) = (self.exchange.clone(), letter);
        let sent = channel.basic_publish(exchange, routing_key, options, payload, properties);
        let confirmed = match sent.await {
            Ok(confirmed) => confirmed.await,
            Err(error) => Err(error),
        };
        match confirmed {
            Ok(confirmation) => {
                self.give_back(channel);
                confirmed_as(confirmation)
            }
            Err(error) => not_confirmed(&error),
        }
    }
}

impl Publish for RabbitMq {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            match Letter::write(parcel, &self.routing_key) {
                Ok(letter) => self.send(letter, &parcel.payload).await,
                Err(reason) => Delivery::Refused {
                    reason,
                    answer: None,
                },
            }
        })
    }
}

fn confirmed_as(confirmation: Confirmation) -> Delivery {
    match confirmation {
        Confirmation::Ack(None) => Delivery::delivered(),
        // No queue has it; one may be bound before the next attempt.
        Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
            Delivery::NotSent(format!("no queue takes it: {}", returned.reply_text))
        }
        // The server takes no responsibility for it: some queues may have it.
        Confirmation::Nack(None) => {
            Delivery::Unclear("the server could not take charge of it".to_owned())
        }
        Confirmation::NotRequested => {
            Delivery::Unclear("the server was not asked to confirm".to_owned())
        }
    }
}

/// The result if there is no confirmation.
fn not_confirmed(error: &lapin::Error) -> Delivery {
    let reason = error.to_string();
    match error.kind() {
        // The server closed the channel because of its only message, before routing it.
        ErrorKind::ProtocolError(said) => match said.kind() {
            AMQPErrorKind::Soft(
                AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE,
            ) => Delivery::Refused {
                reason,
                answer: None,
            },
            AMQPErrorKind::Soft(_) => Delivery::NotSent(reason),
            AMQPErrorKind::Hard(_) => Delivery::Unclear(reason),
        },
        _ => Delivery::Unclear(reason),
    }
}

/// A message in AMQP terms.
struct Letter {
    routing_key: ShortString,
    properties: BasicProperties,
}

impl Letter {
    /// The AMQP form of `parcel`, or why there is none.
    fn write(parcel: &Parcel, routing_key: &Template) -> Result<Self, String> {
        let short = |what: &str, text: &str| {
            ShortString::try_new(text).map_err(|_| format!("{what} is longer than 255 bytes"))
        };
        let mut headers = FieldTable::default();
        let mut content_type = short("its content type", JSON)?;
        for (name, value) in &parcel.headers {
            if name.eq_ignore_ascii_case(CONTENT_TYPE) {
                content_type = short("its content type", value)?;
            } else {
                let name = short("the name of a header", name)?;
                headers.insert(name, AMQPValue::LongString(value.as_str().into()));
            }
        }
        let seconds = u64::try_from(parcel.created_at.0 / 1_000).unwrap_or_default();
        let properties = BasicProperties::default()
            .with_message_id(short("its key", &parcel.key)?)
            .with_delivery_mode(PERSISTENT)
            .with_content_type(content_type)
            .with_type(short("its type", &parcel.kind)?)
            .with_timestamp(seconds)
            .with_headers(headers);
        Ok(Self {
            routing_key: short("its routing key", &routing_key.fill(parcel))?,
            properties,
        })
    }
}
