//! RabbitMQ, on a private server.

use std::{iter, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::join_all};
use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    message::Delivery as Delivered,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions, BasicQosOptions,
        ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use onlyonce::{
    inbox::MessageIdFrom,
    outbox::{DEFAULT_TIMEOUT, Delivery, Publish as _},
};
use onlyonce_publish::{
    Template,
    rabbitmq::{DEFAULT_CHANNEL_WITHIN, RabbitMq, RabbitMqError, RabbitMqOptions},
};
use onlyonce_testkit::servers;
use tokio::net::TcpListener;

use crate::shop::{Consumer, Nobody, Seen, once, patience, send_all, step};

const EXCHANGE: &str = "shop";
const QUEUE: &str = "orders";

fn publisher(url: &str, exchange: &str) -> RabbitMq {
    let routing_key = Template::parse("{type}.{ordering_key}").unwrap();
    RabbitMq::new(RabbitMqOptions::new(url, exchange, routing_key)).unwrap()
}

/// A channel on a connection of its own, which ends with it.
async fn channel(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// A queue for the messages of orders.
async fn queue(url: &str) {
    let (_connection, channel) = channel(url).await.unwrap();
    let (exchange, queue) = (EXCHANGE.into(), QUEUE.into());
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let none = FieldTable::default;
    let made = channel.exchange_declare(exchange, ExchangeKind::Topic, durable, none());
    made.await.unwrap();
    let made = channel.queue_declare(queue, QueueDeclareOptions::durable(), none());
    made.await.unwrap();
    let (queue, exchange, pattern) = (QUEUE.into(), EXCHANGE.into(), "order.#".into());
    let bound = channel.queue_bind(
        queue,
        exchange,
        pattern,
        QueueBindOptions::default(),
        none(),
    );
    bound.await.unwrap();
}

fn id_of(delivery: &Delivered) -> &str {
    let id = delivery.properties.message_id();
    id.as_ref().expect("a message id").as_str()
}

/// Takes messages until every effect has happened, over however many connections.
async fn consume(url: &str, consumer: &mut Consumer) {
    while !consumer.has_all() {
        // The client can lose sight of a refused connection.
        let connected = tokio::time::timeout(DEFAULT_CHANNEL_WITHIN, channel(url)).await;
        if let Ok(Ok((_connection, channel))) = connected
            && consume_from(&channel, consumer).await.is_ok()
        {
            continue;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn consume_from(channel: &Channel, consumer: &mut Consumer) -> lapin::Result<()> {
    channel.basic_qos(20, BasicQosOptions::default()).await?;
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let consuming = channel.basic_consume(QUEUE.into(), "shop".into(), options, none);
    let mut deliveries = consuming.await?;
    while !consumer.has_all() {
        let Some(delivery) = deliveries.next().await else {
            return Ok(());
        };
        let delivery = delivery?;
        let headers = iter::once(("message_id", id_of(&delivery)));
        if consumer.take(headers, &delivery.data).await {
            delivery.ack(BasicAckOptions::default()).await?;
        } else {
            let again = BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            };
            delivery.nack(again).await?;
        }
    }
    Ok(())
}

/// A server takes its time to start, so one serves both.
///
/// Goal: what the server says about a message is understood, and said of the right one; a broker that
/// dies loses nothing and does nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_private_server() {
    let mut server = tokio::task::block_in_place(servers::RabbitMq::start);
    queue(&server.url()).await;
    what_the_server_says(&server.url()).await;
    killed_and_started_again(&mut server).await;
}

/// Method: messages that a queue takes and messages that none takes, all at once; then a message to an
/// exchange that is not there, and one more.
/// Evidence: the messages in the queue.
async fn what_the_server_says(url: &str) {
    let rabbitmq = publisher(url, EXCHANGE);
    let sent = (0..40).map(|number| {
        let rabbitmq = &rabbitmq;
        async move {
            let mut parcel = step(0, number);
            if number % 2 == 1 {
                parcel.kind = "invoice.made".to_owned();
            }
            rabbitmq.publish(&parcel).await
        }
    });
    for (number, delivery) in join_all(sent).await.into_iter().enumerate() {
        match delivery {
            Delivery::Delivered { .. } => assert_eq!(number % 2, 0),
            Delivery::NotSent(why) => {
                assert!(
                    number % 2 == 1 && why.contains("no queue"),
                    "{number}: {why}"
                );
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    let (_connection, channel) = channel(url).await.unwrap();
    let mut found = Vec::new();
    let take = BasicGetOptions { no_ack: true };
    while let Some(message) = channel.basic_get(QUEUE.into(), take).await.unwrap() {
        let properties = &message.delivery.properties;
        assert_eq!(*properties.delivery_mode(), Some(2));
        let content_type = properties.content_type().as_ref();
        assert_eq!(
            content_type.map(|text| text.as_str()),
            Some("application/json")
        );
        let headers = properties.headers().as_ref().unwrap().inner();
        let tenant = AMQPValue::LongString("t1".into());
        assert_eq!(headers.get("x-tenant"), Some(&tenant));
        assert_eq!(
            message.delivery.routing_key.as_str(),
            "order.changed.order-0"
        );
        found.push(id_of(&message.delivery).to_owned());
    }
    found.sort();
    let mut expected: Vec<String> = (0..40).step_by(2).map(|n| step(0, n).key).collect();
    expected.sort();
    assert_eq!(found, expected);

    let delivery = publisher(url, "nowhere").publish(&step(0, 0)).await;
    assert!(
        matches!(&delivery, Delivery::NotSent(why) if why.contains("NOT_FOUND")),
        "{delivery:?}"
    );
    let mut long = step(0, 0);
    long.key = "x".repeat(256);
    let delivery = rabbitmq.publish(&long).await;
    assert!(matches!(delivery, Delivery::Refused { .. }), "{delivery:?}");
}

/// Method: the server is killed and started again while messages are sent and consumed; the sender
/// repeats what it is not sure of, and some of what it is; the consumer gives some back that it had.
/// Evidence: the consumer's table of effects.
async fn killed_and_started_again(server: &mut servers::RabbitMq) {
    let url = server.url();
    let rabbitmq = Arc::new(publisher(&url, EXCHANGE));
    let seen = Seen::new();
    let sending = tokio::spawn(send_all(rabbitmq, Arc::clone(&seen), |_, _| {}));
    let mut consumer = Consumer::new(MessageIdFrom::Header("message_id".to_owned()));
    let death = async {
        seen.open_gate();
        seen.thirds(2).await;
        tokio::task::block_in_place(|| server.kill());
        seen.until("the loss to be noticed", |seen| seen.failures() > 0)
            .await;
        tokio::task::block_in_place(|| server.boot());
        seen.open_gate();
    };
    let consumed = tokio::time::timeout(patience(), consume(&url, &mut consumer));
    let ((), consumed) = tokio::join!(death, consumed);
    consumer.report("RabbitMQ", &seen);
    consumed.expect("every effect in time");
    sending.await.unwrap();
    consumer.check();
}

/// Goal: without a server, and with one that says nothing, no message is sent, and that is known in time;
/// what is no URL is refused at once.
/// Method: nobody at the port, over and over: now and then the client does not notice that it was refused.
/// Then a listener that takes connections and keeps silent, for many messages at once.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_server() {
    let nobody = Nobody::new();
    let url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", nobody.port());
    let attempts = (0..100).map(async |number| {
        let delivery = once(&publisher(&url, EXCHANGE), &step(0, number)).await;
        assert!(matches!(delivery, Delivery::NotSent(_)), "{delivery:?}");
    });
    join_all(attempts).await;

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let rabbitmq = publisher(
        &format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
        EXCHANGE,
    );
    let attempts =
        (0..20).map(|number| {
            let rabbitmq = &rabbitmq;
            async move {
                tokio::time::timeout(DEFAULT_TIMEOUT, rabbitmq.publish(&step(0, number))).await
            }
        });
    for delivery in join_all(attempts).await {
        assert!(matches!(delivery, Ok(Delivery::NotSent(_))), "{delivery:?}");
    }
    drop(silent);
    let routing_key = Template::parse("a").unwrap();
    let options = RabbitMqOptions::new("http://a", EXCHANGE, routing_key);
    assert_eq!(RabbitMq::new(options).err(), Some(RabbitMqError::Url));
}
