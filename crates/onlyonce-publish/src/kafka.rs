//! Messages to Kafka, through an idempotent producer: what the producer itself sends again is written once,
//! and in order. What the outbox sends again is another record with the same id, which consumers recognise by
//! the header [`MESSAGE_ID`].
//!
//! Deliberately absent: TLS and SCRAM. Kafka's client library supports them only through OpenSSL.

use std::time::Duration;

use futures_util::future::BoxFuture;
use onlyonce::outbox::{Delivery, Parcel, Publish};
use parking_lot::RwLock;
use rdkafka::{
    ClientConfig,
    error::{KafkaError as ClientError, RDKafkaErrorCode as Code},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer as _},
};

use crate::Template;

/// The header for the message's key.
pub const MESSAGE_ID: &str = "message-id";
/// After how long the producer gives up on a message, by default: before the outbox stops waiting for it.
pub const DEFAULT_MESSAGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Settings that the producer depends on; they cannot be changed.
const FIXED: [(&str, &str); 2] = [("enable.idempotence", "true"), ("acks", "all")];

/// The brokers and the topic.
#[derive(Clone)]
pub struct KafkaOptions {
    /// Such as `10.0.0.1:9092,10.0.0.2:9092`.
    pub brokers: String,
    /// The topic of a message.
    pub topic: Template,
    /// Further settings, by their librdkafka names.
    pub settings: Vec<(String, String)>,
}

impl KafkaOptions {
    /// Options with these brokers and this topic.
    pub fn new(brokers: &str, topic: Template) -> Self {
        Self {
            brokers: brokers.to_owned(),
            topic,
            settings: Vec::new(),
        }
    }
}

/// Why a producer could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaError {
    /// The setting must not be changed.
    #[error("the setting {0} cannot be changed")]
    Fixed(String),
    /// The client library rejects the settings.
    #[error("Kafka's client library does not take these settings")]
    Settings(#[source] ClientError),
}

/// Publishes to one or more topics, and waits for the report of each delivery.
pub struct Kafka {
    settings: ClientConfig,
    topic: Template,
    producer: RwLock<FutureProducer>,
}

impl Kafka {
    /// Connects and reconnects in the background. No broker needs to be up now.
    ///
    /// # Errors
    /// [`KafkaError`] if the settings cannot be used.
    pub fn new(options: KafkaOptions) -> Result<Self, KafkaError> {
        let mut settings = ClientConfig::new();
        settings
            .set("bootstrap.servers", options.brokers)
            .set("client.id", "onlyonce-outbox")
            .set(
                "message.timeout.ms",
                DEFAULT_MESSAGE_TIMEOUT.as_millis().to_string(),
            )
            // The same partition for a key as clients in other languages choose.
            .set("partitioner", "murmur2_random");
        for (name, value) in options.settings {
            if FIXED.iter().any(|(fixed, _)| *fixed == name) {
                return Err(KafkaError::Fixed(name));
            }
            settings.set(name, value);
        }
        for (name, value) in FIXED {
            settings.set(name, value);
        }
        Ok(Self {
            producer: RwLock::new(settings.create().map_err(KafkaError::Settings)?),
            settings,
            topic: options.topic,
        })
    }

    /// The producer, or a new one if the old one has failed for good and can no longer keep its guarantee.
    fn producer(&self) -> Result<FutureProducer, ClientError> {
        let producer = self.producer.read().clone();
        if producer.client().fatal_error().is_none() {
            return Ok(producer);
        }
        let mut current = self.producer.write();
        if current.client().fatal_error().is_some() {
            let old = std::mem::replace(&mut *current, self.settings.create()?);
            // Dropping it waits for its thread.
            tokio::task::spawn_blocking(move || drop(old));
        }
        let new = current.clone();
        drop(current);
        tokio::task::spawn_blocking(move || drop(producer));
        Ok(new)
    }
}

impl Publish for Kafka {
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let producer = match self.producer() {
                Ok(producer) => producer,
                Err(error) => return Delivery::NotSent(error.to_string()),
            };
            let topic = self.topic.fill(parcel);
            let record = FutureRecord::to(&topic)
                .key(parcel.ordering_key.as_ref().unwrap_or(&parcel.key))
                .payload(&parcel.payload[..])
                .headers(headers(parcel));
            let report = match producer.send_result(record) {
                Ok(report) => report,
                Err((error, _)) => return not_queued(&error),
            };
            match report.await {
                Ok(Ok(delivery)) => Delivery::Delivered {
                    provider_id: place(delivery.partition, delivery.offset),
                    answer: None,
                },
                Ok(Err((error, _))) => not_delivered(&error),
                Err(_) => Delivery::Unclear("the producer has gone".to_owned()),
            }
        })
    }
}

/// The position of a record. For a repeated record the brokers report delivery without a position.
fn place(partition: i32, offset: i64) -> Option<String> {
    (offset >= 0).then(|| format!("{partition}/{offset}"))
}

fn headers(parcel: &Parcel) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(parcel.headers.len() + 1);
    let own = parcel.headers.iter();
    for (name, value) in own.filter(|(name, _)| !name.eq_ignore_ascii_case(MESSAGE_ID)) {
        headers = headers.insert(Header {
            key: name,
            value: Some(value),
        });
    }
    headers.insert(Header {
        key: MESSAGE_ID,
        value: Some(&parcel.key),
    })
}

/// The result if the producer did not accept a message, which is then never sent.
fn not_queued(error: &ClientError) -> Delivery {
    let reason = error.to_string();
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidArgument) => refused(reason),
        _ => Delivery::NotSent(reason),
    }
}

/// The result of a failed delivery report.
fn not_delivered(error: &ClientError) -> Delivery {
    let reason = error.to_string();
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidMessage | Code::InvalidRecord) => {
            refused(reason)
        }
        // After these errors nothing has been written.
        Some(
            Code::UnknownTopic
            | Code::UnknownPartition
            | Code::UnknownTopicOrPartition
            | Code::InvalidTopic
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::PurgeQueue,
        ) => Delivery::NotSent(reason),
        _ => Delivery::Unclear(reason),
    }
}

fn refused(reason: String) -> Delivery {
    Delivery::Refused {
        reason,
        answer: None,
    }
}
