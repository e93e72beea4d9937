//! The listings of `docs/guide/publishers.md`, as they stand there.

use std::time::Duration;

use onlyonce::{inbox::MessageIdFrom, outbox::Target};
use onlyonce_core::fingerprint::Pointer;
use onlyonce_publish::{
    Template,
    http::{Http, HttpOptions, Pooled, Secrets},
    kafka::{Kafka, KafkaOptions},
    nats::{Nats, NatsOptions},
    rabbitmq::{RabbitMq, RabbitMqOptions},
};

type Any = Box<dyn std::error::Error>;

fn http() -> Result<Target, Any> {
    let mut options = HttpOptions::new("http://billing.internal/hooks".parse()?);
    options.secret = Some(Secrets::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?);
    let mut target = Target::new("billing", Http::new(Pooled::plain(), options)?);
    target.rules.max_attempts = 12;
    Ok(target)
}

async fn nats() -> Result<Target, Any> {
    let subject = Template::parse("shop.{type}.{ordering_key}")?;
    let options = NatsOptions::new("nats://127.0.0.1:4222", subject);
    let mut target = Target::new("orders", Nats::connect(options).await?);
    // The stream's `duplicate_window`.
    target.rules.key_ttl = Duration::from_secs(120);
    Ok(target)
}

fn rabbitmq() -> Result<Target, Any> {
    let url = "amqp://shop:secret@127.0.0.1:5672/%2f";
    let routing_key = Template::parse("{type}.{ordering_key}")?;
    let options = RabbitMqOptions::new(url, "shop", routing_key);
    let mut target = Target::new("orders", RabbitMq::new(options)?);
    // As long as consumers remember what they have processed.
    target.rules.key_ttl = Duration::from_secs(30 * 86_400);
    Ok(target)
}

fn kafka() -> Result<Target, Any> {
    let mut options = KafkaOptions::new("127.0.0.1:9092", Template::parse("shop.{type}")?);
    options.settings.push(("linger.ms".into(), "0".into()));
    let mut target = Target::new("orders", Kafka::new(options)?);
    // As long as consumers remember what they have processed.
    target.rules.key_ttl = Duration::from_secs(30 * 86_400);
    Ok(target)
}

fn ids() -> Result<Option<String>, Any> {
    let from_nats = MessageIdFrom::Header("Nats-Msg-Id".into());
    let from_content = MessageIdFrom::Pointer(Pointer::parse("/event/id")?);
    let headers = [("nats-msg-id", "m-1")];
    assert_eq!(from_nats.of(headers, b"").as_deref(), Some("m-1"));
    Ok(from_content.of([], br#"{"event":{"id":"m-1"}}"#))
}

/// Goal: the page's listings compile, run, and are these.
#[tokio::test(flavor = "multi_thread")]
async fn the_listings_run() {
    for target in [http(), nats().await, rabbitmq(), kafka()] {
        target.unwrap();
    }
    assert_eq!(ids().unwrap().as_deref(), Some("m-1"));
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    let here = lines(include_str!("guide.rs"));
    let page = include_str!("../../../../docs/guide/publishers.md");
    let listings: Vec<_> = page.split("```rust,ignore\n").skip(1).collect();
    assert_eq!(listings.len(), 5);
    for rest in listings {
        let wanted = lines(rest.split_once("```").unwrap().0);
        let found = here.windows(wanted.len()).any(|part| part == wanted);
        assert!(found, "not here:\n{}", wanted.join("\n"));
    }
}
