//! A client with little overhead: sends prebuilt bytes, and parses only a response's length and status.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A payment of 330 bytes, members already in canonical order.
const BODY: &str = r#"{"amount":129900,"billing":{"city":"Reykjavik","country":"IS","line1":"Laugavegur 26","postal_code":"101"},"capture":true,"currency":"eur","customer":"cus_9f8e7d6c5b4a3210","description":"Order 4711, two tickets and a boat","metadata":{"basket":"b-20261115-000042","channel":"web","source":"checkout-v3"},"statement":"NORTHERN BOATS"}"#;
/// Digits of the number in a key.
const DIGITS: usize = 16;
/// The longest response head that this client reads, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A request whose key can be changed in place.
#[derive(Clone)]
pub(super) struct Template {
    bytes: Vec<u8>,
    key: Option<usize>,
}

impl Template {
    /// A POST to `path` at `host`; with a key that begins with `prefix` if there is one.
    pub(super) fn new(host: &str, path: &str, prefix: Option<&str>) -> Self {
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n",
            BODY.len()
        );
        let key = prefix.map(|prefix| {
            head.push_str("idempotency-key: ");
            head.push_str(prefix);
            let at = head.len();
            head.push_str(&"0".repeat(DIGITS));
            head.push_str("\r\n");
            at
        });
        head.push_str("\r\n");
        head.push_str(BODY);
        Self {
            bytes: head.into_bytes(),
            key,
        }
    }

    /// The request with key number `number`.
    pub(super) fn numbered(&mut self, number: u64) -> &[u8] {
        if let Some(at) = self.key {
            let digits = format!("{number:0DIGITS$}");
            self.bytes[at..at + DIGITS].copy_from_slice(digits.as_bytes());
        }
        &self.bytes
    }
}

/// A persistent connection.
pub(super) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            read: Vec::with_capacity(4096),
        })
    }

    /// Sends `request` and reads its answer to the end. Returns the status.
    pub(super) async fn send(&mut self, request: &[u8]) -> io::Result<u16> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let (status, whole) = loop {
            self.fill().await?;
            if let Some(found) = head(&self.read)? {
                break found;
            }
            if self.read.len() > MAX_HEAD {
                return Err(io::Error::other("the head of the answer is too long"));
            }
        };
        while self.read.len() < whole {
            self.fill().await?;
        }
        Ok(status)
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The status, and the length of head and body together, once the head is complete.
fn head(read: &[u8]) -> io::Result<Option<(u16, usize)>> {
    let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&read[..end]).map_err(io::Error::other)?;
    let status = text.get(9..12).and_then(|digits| digits.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("no status line"))?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.ok_or_else(|| io::Error::other("an answer without a length"))?;
    Ok(Some((status, end + 4 + length)))
}
