//! What the tests of all brokers share: orders whose steps are sent in order, as an outbox sends them,
//! and a consumer that does the effect of each step once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use onlyonce::{
    Engine, EngineOptions, Transactions,
    inbox::{MessageIdFrom, Processed},
    outbox::{Delivery, Parcel, Publish},
};
use onlyonce_core::{MessageId, Timestamp};
use onlyonce_store::{
    TransactionalStore as _,
    sqlite::{SqliteStore, SqliteTransactions},
    transactional::Isolation,
};

/// Orders, each of which is an ordering key.
const ORDERS: usize = 8;
/// Messages in the short run, and with `ONLYONCE_SOAK=1`.
const MESSAGES: (usize, usize) = (400, 50_000);
/// One message of so many is sent again although it had arrived, and one delivery of so many is refused
/// after its effect.
const EVERY: usize = 10;
/// How long sending one message may take, as in the outbox.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause between two repetitions of what has arrived.
const BREATH: Duration = Duration::from_millis(2);
/// How long all of it may take for each message, and at least.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(120));

/// How many messages are sent.
pub(crate) fn messages() -> usize {
    if onlyonce_testkit::soak::is_on() {
        MESSAGES.1
    } else {
        MESSAGES.0
    }
}

/// How long to wait for all of them.
pub(crate) fn patience() -> Duration {
    let all = u32::try_from(messages()).unwrap() * PATIENCE.0;
    all.max(PATIENCE.1)
}

/// A step of an order.
pub(crate) fn step(order: usize, step: usize) -> Parcel {
    let key = format!("order-{order}/{step}");
    let mut id = [0; 16];
    id[..8].copy_from_slice(&u64::try_from(order).unwrap().to_be_bytes());
    id[8..].copy_from_slice(&u64::try_from(step).unwrap().to_be_bytes());
    Parcel {
        id: MessageId(id),
        target: "shop".into(),
        kind: "order.changed".to_owned(),
        aggregate: Some(("order".to_owned(), order.to_string())),
        ordering_key: Some(format!("order-{order}")),
        payload: format!(r#"{{"event":"{key}","order":{order},"step":{step}}}"#).into(),
        key,
        headers: BTreeMap::from([("x-tenant".to_owned(), "t1".to_owned())]),
        attempt: 1,
        created_at: Timestamp(1_000),
    }
}

/// What a loop like the outbox's has seen, and how far it may go.
pub(crate) struct Seen {
    /// How many thirds of the messages may arrive. At that point their senders repeat what they sent
    /// last, so that something is under way whenever the broker dies.
    gate: AtomicUsize,
    /// Messages that arrived.
    pub(crate) delivered: AtomicUsize,
    /// Attempts that proved that nothing was sent.
    pub(crate) not_sent: AtomicUsize,
    /// Attempts whose end nobody knows.
    pub(crate) unclear: AtomicUsize,
}

impl Seen {
    /// Nothing yet; the first third may arrive.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: AtomicUsize::new(1),
            delivered: AtomicUsize::new(0),
            not_sent: AtomicUsize::new(0),
            unclear: AtomicUsize::new(0),
        })
    }

    /// Lets one more third arrive.
    pub(crate) fn open_gate(&self) {
        self.gate.fetch_add(1, Ordering::SeqCst);
    }

    fn gate_is_shut(&self) -> bool {
        let gate = self.gate.load(Ordering::SeqCst);
        gate < 3 && self.has_thirds(gate)
    }

    fn has_thirds(&self, thirds: usize) -> bool {
        self.delivered.load(Ordering::SeqCst) * 3 >= messages() * thirds
    }

    pub(crate) fn failures(&self) -> usize {
        self.not_sent.load(Ordering::SeqCst) + self.unclear.load(Ordering::SeqCst)
    }

    /// Waits until this holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let looks = async {
            while !holds(self) {
                tokio::time::sleep(PAUSE).await;
            }
        };
        let waited = tokio::time::timeout(patience(), looks).await;
        assert!(waited.is_ok(), "waited for {what} in vain");
    }

    /// Waits until this share of the messages, in thirds, has arrived.
    pub(crate) async fn thirds(&self, thirds: usize) {
        self.until("messages to arrive", |seen| seen.has_thirds(thirds))
            .await;
    }
}

/// Sends one message until it has arrived, always under the same key; returns what it is called there.
async fn deliver(publisher: &dyn Publish, mut parcel: Parcel, seen: &Seen) -> Option<String> {
    loop {
        let sent = tokio::time::timeout(TIMEOUT, publisher.publish(&parcel)).await;
        match sent.unwrap_or_else(|_| Delivery::Unclear("it took too long".to_owned())) {
            Delivery::Delivered { provider_id, .. } => return provider_id,
            Delivery::NotSent(_) => seen.not_sent.fetch_add(1, Ordering::SeqCst),
            Delivery::Unclear(_) => seen.unclear.fetch_add(1, Ordering::SeqCst),
            refused @ Delivery::Refused { .. } => panic!("{refused:?}"),
        };
        tokio::time::sleep(PAUSE).await;
        parcel.attempt += 1;
    }
}

/// Sends the steps of all orders: each order's one after the other, as an outbox does for an ordering
/// key. Some are sent once more after they have arrived, as if the sender had died before it could note
/// that; then `same` holds the two names that the receiver gave them against each other.
pub(crate) async fn send_all(
    publisher: Arc<dyn Publish>,
    seen: Arc<Seen>,
    same: fn(Option<String>, Option<String>),
) {
    let orders = (0..ORDERS).map(|order| {
        let (publisher, seen) = (Arc::clone(&publisher), Arc::clone(&seen));
        tokio::spawn(async move {
            for number in 0..messages() / ORDERS {
                let parcel = step(order, number);
                let name = deliver(&*publisher, parcel.clone(), &seen).await;
                if number % EVERY == 0 {
                    let again = deliver(&*publisher, parcel.clone(), &seen).await;
                    same(name.clone(), again);
                }
                seen.delivered.fetch_add(1, Ordering::SeqCst);
                while seen.gate_is_shut() {
                    let again = deliver(&*publisher, parcel.clone(), &seen).await;
                    same(name.clone(), again);
                    tokio::time::sleep(BREATH).await;
                }
            }
        })
    });
    for order in join_all(orders).await {
        order.unwrap();
    }
}

/// A consumer with its own database, in which it notes what it has processed.
pub(crate) struct Consumer {
    folder: tempfile::TempDir,
    transactions: Transactions<SqliteTransactions>,
    id_from: MessageIdFrom,
    deliveries: usize,
    effects: usize,
}

impl Consumer {
    pub(crate) fn new(id_from: MessageIdFrom) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("consumer.db");
        let store = SqliteStore::open(&file).unwrap();
        rusqlite::Connection::open(&file)
            .unwrap()
            .execute_batch("CREATE TABLE effects (n INTEGER PRIMARY KEY, step TEXT NOT NULL)")
            .unwrap();
        let inside = store.transactions().unwrap();
        let engine = Engine::start(Arc::new(store), EngineOptions::default());
        Self {
            folder,
            transactions: Transactions::new(engine, inside),
            id_from,
            deliveries: 0,
            effects: 0,
        }
    }

    /// Whether every effect has happened.
    pub(crate) fn has_all(&self) -> bool {
        self.effects >= messages() / ORDERS * ORDERS
    }

    /// Does the effect of a message unless it has been done; returns whether the broker may be told so.
    pub(crate) async fn take<'h>(
        &mut self,
        headers: impl IntoIterator<Item = (&'h str, &'h str)>,
        body: &[u8],
    ) -> bool {
        self.deliveries += 1;
        let id = self
            .id_from
            .of(headers, body)
            .expect("a message with an id");
        let document: serde_json::Value = serde_json::from_slice(body).unwrap();
        let step = format!("{}/{}", document["order"], document["step"]);
        let (all, store) = (&self.transactions, self.transactions.store());
        let mut tx = store.begin(Isolation::default()).await.unwrap();
        let effect = all.process_once(&mut tx, "shop", &id, |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO effects (step) VALUES (?1)", [step])?;
                Ok(())
            })
        });
        let processed = effect.await.unwrap();
        store.commit(tx).await.unwrap();
        if processed == Processed::Before {
            return true;
        }
        self.effects += 1;
        // As if it had died between its own commit and the word to the broker.
        !self.effects.is_multiple_of(EVERY)
    }

    /// Every step had its effect once, the steps of each order in order, and messages came repeatedly.
    pub(crate) fn check(&self) {
        let file = self.folder.path().join("consumer.db");
        let file = rusqlite::Connection::open(file).unwrap();
        let mut rows = file.prepare("SELECT step FROM effects ORDER BY n").unwrap();
        let rows = rows.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let mut orders = vec![Vec::new(); ORDERS];
        for row in rows {
            let row = row.unwrap();
            let (order, step) = row.split_once('/').unwrap();
            let order: usize = order.parse().unwrap();
            orders[order].push(step.parse::<usize>().unwrap());
        }
        let expected: Vec<usize> = (0..messages() / ORDERS).collect();
        for (order, steps) in orders.into_iter().enumerate() {
            assert_eq!(steps, expected, "order {order}");
        }
        assert!(self.deliveries > self.effects, "nothing came twice");
    }

    pub(crate) fn report(&self, broker: &str, seen: &Seen) {
        println!(
            "{broker}: {} messages, {} attempts proved unsent, {} unclear, {} deliveries, {} effects",
            messages(),
            seen.not_sent.load(Ordering::SeqCst),
            seen.unclear.load(Ordering::SeqCst),
            self.deliveries,
            self.effects
        );
    }
}

/// A payload of this many bytes.
pub(crate) fn large(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

/// A port that nobody listens on, for as long as this is held.
pub(crate) struct Nobody(tokio::net::TcpSocket);

impl Nobody {
    pub(crate) fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }
}

/// What came of one attempt, which must not take for ever.
pub(crate) async fn once(publisher: &dyn Publish, parcel: &Parcel) -> Delivery {
    let sent = tokio::time::timeout(3 * TIMEOUT, publisher.publish(parcel));
    sent.await.expect("an end of the attempt")
}
