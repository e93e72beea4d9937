//! NATS JetStream, on a private server.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{
    self, AckKind,
    consumer::{AckPolicy, PullConsumer, pull},
    stream,
};
use futures_util::StreamExt as _;
use onlyonce::{
    inbox::MessageIdFrom,
    outbox::{Delivery, Publish as _},
};
use onlyonce_publish::{
    Template,
    nats::{Nats, NatsError, NatsOptions},
};
use onlyonce_testkit::servers;

use crate::shop::{Consumer, Nobody, Seen, large, messages, once, patience, send_all, step};

const STREAM: &str = "ORDERS";

async fn publisher(url: &str) -> Nats {
    let subject = Template::parse("shop.{type}.{ordering_key}").unwrap();
    Nats::connect(NatsOptions::new(url, subject)).await.unwrap()
}

async fn stream(url: &str) -> jetstream::stream::Stream {
    let client = async_nats::ConnectOptions::new()
        .reconnect_delay_callback(|_| Duration::from_millis(100))
        .connect(url)
        .await
        .unwrap();
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["shop.>".to_owned()],
        ..stream::Config::default()
    };
    let stream = jetstream::new(client).get_or_create_stream(config).await;
    stream.unwrap()
}

/// Waits until the publisher has its connection.
async fn connected(nats: &Nats) -> Delivery {
    loop {
        match nats.publish(&step(0, 0)).await {
            Delivery::NotSent(why) if why.contains("connection") => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return other,
        }
    }
}

/// Goal: what a stream says about a message is understood.
///
/// Evidence: the stream's own messages.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stream_says() {
    let server = servers::Nats::start();
    let nats = publisher(&server.url()).await;
    let delivery = connected(&nats).await;
    assert_eq!(
        delivery,
        Delivery::NotSent("no stream takes its subject".to_owned())
    );
    let stream = stream(&server.url()).await;
    let mut parcel = step(1, 1);
    // An instruction to the server, which a message must not give: with it, the server would say no.
    let instruction = "Nats-Expected-Last-Sequence".to_owned();
    parcel.headers.insert(instruction, "17".to_owned());
    for _ in 0..2 {
        let delivery = nats.publish(&parcel).await;
        let provider_id = Some(format!("{STREAM}/1"));
        let answer = None;
        assert_eq!(
            delivery,
            Delivery::Delivered {
                provider_id,
                answer
            }
        );
    }
    let stored = stream.get_raw_message(1).await.unwrap();
    assert_eq!(stored.subject.as_str(), "shop.order.changed.order-1");
    assert_eq!(stored.payload, parcel.payload);
    let header = |name: &str| stored.headers.get(name).map(|value| value.to_string());
    assert_eq!(header("Nats-Msg-Id").as_deref(), Some("order-1/1"));
    assert_eq!(header("x-tenant").as_deref(), Some("t1"));
    assert_eq!(stream.get_info().await.unwrap().state.messages, 1);

    let mut unsendable = vec![step(1, 2), step(1, 2), step(1, 2)];
    unsendable[0].payload = large(2 << 20);
    unsendable[1].kind = "order changed".to_owned();
    unsendable[2].key = "a\r\nb".to_owned();
    for parcel in unsendable {
        let delivery = nats.publish(&parcel).await;
        assert!(matches!(delivery, Delivery::Refused { .. }), "{delivery:?}");
    }
}

/// Goal: without a server nothing is sent, and a publisher waits for none.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_server() {
    let nobody = Nobody::new();
    let nats = publisher(&format!("nats://127.0.0.1:{}", nobody.port())).await;
    let delivery = once(&nats, &step(0, 0)).await;
    assert!(matches!(delivery, Delivery::NotSent(_)), "{delivery:?}");
    let options = NatsOptions::new("http://[", Template::parse("a").unwrap());
    assert!(matches!(
        Nats::connect(options).await,
        Err(NatsError::Url(_))
    ));
}

/// A consumer that the server remembers.
async fn puller(stream: &stream::Stream) -> PullConsumer {
    let config = pull::Config {
        durable_name: Some("shop".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(2),
        // One at a time: what is delivered again comes before what follows it.
        max_ack_pending: 1,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap()
}

/// Takes messages until every effect has happened, over however many connections.
async fn consume(pull: &PullConsumer, consumer: &mut Consumer) {
    while !consumer.has_all() {
        let batch = pull
            .fetch()
            .max_messages(50)
            .expires(Duration::from_secs(1));
        let Ok(mut batch) = batch.messages().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Some(Ok(message)) = batch.next().await {
            let headers = message.headers.iter().flat_map(|headers| headers.iter());
            let headers = headers.flat_map(|(name, values)| {
                values.iter().map(|value| (name.as_ref(), value.as_str()))
            });
            let told = if consumer.take(headers, &message.payload).await {
                message.ack().await
            } else {
                message.ack_with(AckKind::Nak(None)).await
            };
            if told.is_err() {
                break;
            }
        }
    }
}

/// Goal: a broker that dies loses nothing and does nothing twice.
///
/// Method: it is killed and started again twice while messages are sent and consumed; the sender repeats
/// what it is not sure of, and some of what it is; the consumer does not say that it had some of them.
/// Evidence: the consumer's table of effects, and the stream's own count of messages.
#[tokio::test(flavor = "multi_thread")]
async fn killed_and_started_again() {
    let mut server = servers::Nats::start();
    let url = server.url();
    let stream = stream(&url).await;
    let pull = puller(&stream).await;
    let nats = Arc::new(publisher(&url).await);
    let seen = Seen::new();
    let sending = tokio::spawn(send_all(nats, Arc::clone(&seen), |first, second| {
        assert!(first.is_some());
        assert_eq!(first, second, "the stream has it twice");
    }));
    let mut consumer = Consumer::new(MessageIdFrom::Header("nats-msg-id".to_owned()));
    let deaths = async {
        for thirds in 1..=2 {
            seen.thirds(thirds).await;
            let before = seen.failures();
            tokio::task::block_in_place(|| server.kill());
            seen.until("the loss to be noticed", |seen| seen.failures() > before)
                .await;
            tokio::task::block_in_place(|| server.boot());
            seen.open_gate();
        }
    };
    let consumed = tokio::time::timeout(patience(), consume(&pull, &mut consumer));
    let ((), consumed) = tokio::join!(deaths, consumed);
    consumer.report("NATS", &seen);
    consumed.expect("every effect in time");
    sending.await.unwrap();
    consumer.check();
    let info = stream.get_info().await.unwrap();
    assert_eq!(info.state.messages, u64::try_from(messages()).unwrap());
}
