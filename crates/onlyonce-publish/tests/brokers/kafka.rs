//! Kafka, on the client library's own mock cluster: brokers that speak Kafka's protocol over TCP, in this
//! process and in memory. No other broker could be had.

use std::sync::Arc;

use futures_util::StreamExt as _;
use onlyonce::{
    inbox::MessageIdFrom,
    outbox::{Delivery, Publish as _},
};
use onlyonce_core::fingerprint::Pointer;
use onlyonce_publish::{
    Template,
    kafka::{Kafka, KafkaError, KafkaOptions, MESSAGE_ID},
};
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{Consumer as _, StreamConsumer},
    message::Headers as _,
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::shop::{Consumer, Nobody, Seen, large, once, patience, send_all, step};

const TOPIC: &str = "order.changed";
const PARTITIONS: i32 = 4;
const BROKERS: i32 = 3;

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster() -> Cluster {
    let cluster = MockCluster::new(BROKERS).unwrap();
    cluster.create_topic(TOPIC, PARTITIONS, BROKERS).unwrap();
    cluster
}

fn publisher(brokers: &str) -> Kafka {
    let topic = Template::parse("{type}").unwrap();
    Kafka::new(KafkaOptions::new(brokers, topic)).unwrap()
}

fn reader(cluster: &Cluster) -> StreamConsumer {
    let reader: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "shop")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(TOPIC, partition, Offset::Beginning)
            .unwrap();
    }
    reader.assign(&all).unwrap();
    reader
}

/// Goal: what a report says about a message is understood.
///
/// Evidence: the record in its partition.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_report_says() {
    let cluster = cluster();
    let kafka = publisher(&cluster.bootstrap_servers());
    let Delivery::Delivered { provider_id, .. } = kafka.publish(&step(1, 1)).await else {
        panic!("it was not delivered");
    };
    let provider_id = provider_id.unwrap();
    let (partition, offset) = provider_id.split_once('/').unwrap();
    let reader = reader(&cluster);
    let record = reader.stream().next().await.unwrap().unwrap();
    assert_eq!(record.partition().to_string(), partition);
    assert_eq!(record.offset().to_string(), offset);
    assert_eq!(record.key(), Some(&b"order-1"[..]));
    assert_eq!(record.payload(), Some(&step(1, 1).payload[..]));
    let headers = record.headers().unwrap();
    let header = |name: &str| {
        let found = headers.iter().find(|header| header.key == name);
        found.and_then(|header| header.value).map(<[u8]>::to_vec)
    };
    assert_eq!(header(MESSAGE_ID), Some(b"order-1/1".to_vec()));
    assert_eq!(header("x-tenant"), Some(b"t1".to_vec()));

    let mut too_large = step(1, 2);
    too_large.payload = large(2 << 20);
    let delivery = kafka.publish(&too_large).await;
    assert!(matches!(delivery, Delivery::Refused { .. }), "{delivery:?}");
    let mut options = KafkaOptions::new("a:1", Template::parse("a").unwrap());
    options.settings = vec![("acks".to_owned(), "0".to_owned())];
    assert!(matches!(Kafka::new(options), Err(KafkaError::Fixed(_))));
}

/// Goal: a producer that has lost the thread is replaced by the next message.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_cannot_go_on() {
    let cluster = cluster();
    let kafka = publisher(&cluster.bootstrap_servers());
    let delivered = |delivery: &Delivery| matches!(delivery, Delivery::Delivered { .. });
    assert!(delivered(&kafka.publish(&step(1, 1)).await));
    let lost = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER];
    cluster.request_errors(RDKafkaApiKey::Produce, &lost);
    let delivery = kafka.publish(&step(1, 2)).await;
    assert!(matches!(delivery, Delivery::Unclear(_)), "{delivery:?}");
    let delivery = kafka.publish(&step(1, 2)).await;
    assert!(delivered(&delivery), "{delivery:?}");
}

/// Takes records until every effect has happened.
async fn consume(reader: &StreamConsumer, consumer: &mut Consumer) {
    let mut records = reader.stream();
    while !consumer.has_all() {
        // While a broker is away there are errors, and the reader comes back by itself.
        let Some(Ok(record)) = records.next().await else {
            continue;
        };
        let _ = consumer.take([], record.payload().unwrap()).await;
    }
}

/// Goal: brokers that go away lose nothing and do nothing twice.
///
/// Method: all of them go away for longer than the producer tries, while records are sent and consumed,
/// and some requests are answered with errors; the sender repeats what it is not sure of, and some of
/// what it is.
/// Evidence: the consumer's table of effects.
///
/// One request is in flight at a time, because the mock cluster does not hold sequence numbers against each
/// other: it takes a second batch after the first was lost, and the producer concludes from that, rightly
/// with real brokers, that the first was written. With five in flight one run in eight lost a record so.
#[tokio::test(flavor = "multi_thread")]
async fn gone_and_back() {
    let cluster = cluster();
    let mut options = KafkaOptions::new(
        &cluster.bootstrap_servers(),
        Template::parse("{type}").unwrap(),
    );
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    options.settings = vec![
        setting("message.timeout.ms", "1500"),
        setting("linger.ms", "0"),
        setting("max.in.flight.requests.per.connection", "1"),
    ];
    let kafka = Arc::new(Kafka::new(options).unwrap());
    let seen = Seen::new();
    let reader = reader(&cluster);
    let sending = tokio::spawn(send_all(kafka, Arc::clone(&seen), |first, second| {
        assert!(first.is_some() && second.is_some());
    }));
    let pointer = Pointer::parse("/event").unwrap();
    let mut consumer = Consumer::new(MessageIdFrom::Pointer(pointer));
    let gone = async {
        seen.thirds(1).await;
        let errors = [
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        ];
        cluster.request_errors(RDKafkaApiKey::Produce, &errors);
        seen.open_gate();
        seen.thirds(2).await;
        for broker in 1..=BROKERS {
            cluster.broker_down(broker).unwrap();
        }
        seen.until("the loss to be noticed", |seen| seen.failures() > 0)
            .await;
        for broker in 1..=BROKERS {
            cluster.broker_up(broker).unwrap();
        }
        seen.open_gate();
    };
    let consumed = tokio::time::timeout(patience(), consume(&reader, &mut consumer));
    let ((), consumed) = tokio::join!(gone, consumed);
    consumer.report("Kafka", &seen);
    consumed.expect("every effect in time");
    sending.await.unwrap();
    consumer.check();
}

/// Goal: a broker that is not there is not waited for longer than the producer's own time limit.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_broker() {
    let nobody = Nobody::new();
    let brokers = format!("127.0.0.1:{}", nobody.port());
    let mut options = KafkaOptions::new(&brokers, Template::parse("a").unwrap());
    options.settings = vec![("message.timeout.ms".to_owned(), "300".to_owned())];
    let delivery = once(&Kafka::new(options).unwrap(), &step(0, 0)).await;
    assert!(
        matches!(delivery, Delivery::Unclear(_) | Delivery::NotSent(_)),
        "{delivery:?}"
    );
}
