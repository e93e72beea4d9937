//! The payment provider, mocked: a ledger that knows its keys again, and can fail at every step; and the
//! client for it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// How long the client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is read, and the connection is closed before anything is done.
    BeforeCharge,
    /// It is done, and the connection is closed without a word.
    AfterCharge,
    /// It is answered with 500 before anything is done.
    ServerError,
    /// The card is declined.
    Decline,
}

/// One charge: the key it was asked for under, and how much.
pub(crate) type Charge = (String, i64);

/// A provider on a loopback port. Its ledger is the evidence.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) url: String,
    ledger: Arc<Mutex<Vec<Charge>>>,
    faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl Provider {
    pub(crate) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let provider = Self {
            url: listener.local_addr()?.to_string(),
            ledger: Arc::default(),
            faults: Arc::default(),
        };
        let serving = provider.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let provider = serving.clone();
                tokio::spawn(async move { provider.serve(stream).await });
            }
        });
        Ok(provider)
    }

    /// What was charged.
    pub(crate) fn ledger(&self) -> Vec<Charge> {
        self.ledger
            .lock()
            .map(|ledger| ledger.clone())
            .unwrap_or_default()
    }

    /// The next request goes wrong.
    pub(crate) fn fail_next(&self, fault: Fault) {
        if let Ok(mut faults) = self.faults.lock() {
            faults.push_back(fault);
        }
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut request = [0; 512];
        let read = stream.read(&mut request).await?;
        let text = String::from_utf8_lossy(&request[..read]).into_owned();
        let Some((key, fare)) = text.trim().split_once(' ') else {
            return Ok(());
        };
        let fault = self
            .faults
            .lock()
            .ok()
            .and_then(|mut faults| faults.pop_front());
        match fault {
            Some(Fault::BeforeCharge) => return Ok(()),
            Some(Fault::ServerError) => return stream.write_all(b"500\n").await,
            Some(Fault::Decline) => return stream.write_all(b"402\n").await,
            Some(Fault::AfterCharge) | None => {}
        }
        let id = self.charged(key, fare.parse().unwrap_or(0));
        if fault.is_none() {
            stream.write_all(format!("201 {id}\n").as_bytes()).await?;
        }
        Ok(())
    }

    /// Charges, unless the key was seen before.
    fn charged(&self, key: &str, fare: i64) -> String {
        let Ok(mut ledger) = self.ledger.lock() else {
            return String::new();
        };
        let known = ledger.iter().position(|(seen, _)| seen == key);
        let number = known.unwrap_or_else(|| {
            ledger.push((key.to_owned(), fare));
            ledger.len() - 1
        });
        format!("ch_{number}")
    }
}

/// What the provider said.
pub(crate) enum Told {
    Charged(String),
    Declined,
    NotReached(std::io::Error),
    Nothing(std::io::Error),
}

/// Asks the provider at `url` to charge `fare` under `key`.
pub(crate) async fn charge(url: &str, key: &str, fare: i64) -> Told {
    let mut stream = match TcpStream::connect(url).await {
        Ok(stream) => stream,
        Err(error) => return Told::NotReached(error),
    };
    let exchange = async {
        stream
            .write_all(format!("{key} {fare}\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    let answer = match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Told::Nothing(error),
        Err(_) => return Told::Nothing(std::io::ErrorKind::TimedOut.into()),
    };
    match answer.trim().split_once(' ') {
        Some(("201", id)) => Told::Charged(id.to_owned()),
        _ if answer.trim() == "402" => Told::Declined,
        _ => Told::Nothing(std::io::Error::other("no answer that decides")),
    }
}
