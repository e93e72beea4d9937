//! The payments API's own record of its executions: an append-only file, one JSON line per payment or refund.
//!
//! A line is on disk before the booking is answered, so the ledger is evidence: it counts every execution,
//! whatever the gateway, the client or a crash made of the answer. Deliberately absent: any comparison with
//! earlier keys. The API books every request.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// How many entries `GET /ledger` shows.
const ENTRIES_SHOWN: usize = 100;

/// A payment as stored in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Payment {
    pub(super) id: String,
    pub(super) amount: u64,
    pub(super) currency: String,
    pub(super) customer: Option<String>,
    pub(super) created_at: String,
    #[serde(flatten)]
    pub(super) seen: Seen,
}

/// A refund as stored in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refund {
    pub(super) id: String,
    pub(super) payment: String,
    pub(super) amount: u64,
    pub(super) currency: String,
    pub(super) created_at: String,
    #[serde(flatten)]
    pub(super) seen: Seen,
}

/// The idempotency headers of a request: recorded, never acted upon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) idempotency_key: Option<String>,
    pub(super) idempotency_attempt: Option<String>,
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Entry {
    Payment(Payment),
    Refund(Refund),
}

/// A valid order for a payment.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) amount: u64,
    pub(super) currency: String,
    pub(super) customer: Option<String>,
}

/// The outcome of a refund request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RefundOutcome {
    Booked(Refund),
    NoSuchPayment,
    AlreadyRefunded,
    MoreThanIsLeft { left: u64 },
}

/// A payment and how much of it was refunded.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) payment: Payment,
    pub(super) refunded: u64,
}

/// The answer of `GET /ledger`.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) payments: usize,
    pub(super) refunds: usize,
    /// Payments minus refunds.
    pub(super) total_by_currency: BTreeMap<String, u64>,
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LedgerError {
    #[error("the ledger cannot be read or written")]
    Io(#[from] io::Error),
    #[error("line {line} of the ledger is not an entry that can follow those before it")]
    Corrupt { line: usize },
    #[error("an earlier write to the ledger failed; start the API again")]
    Broken,
}

/// The open ledger. Bookings block on the disk: call them from a blocking thread.
pub(super) struct Ledger {
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    /// After a failed write the end of the file is unknown; only loading it again can tell.
    broken: bool,
    book: Book,
}

#[derive(Default)]
struct Book {
    payments: Vec<Standing>,
    refunds: usize,
    total_by_currency: BTreeMap<String, u64>,
    latest: VecDeque<Entry>,
    /// The first entry under each key, for queries about a key. Bookings never use it.
    by_key: HashMap<String, Entry>,
}

impl Ledger {
    /// Opens or creates the file and reads it. A last line that a crash cut short was never answered, so it
    /// is removed from the file. Any other unreadable line is an error.
    pub(super) fn open(path: &Path) -> Result<Self, LedgerError> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        let (book, good_bytes) = load(&file)?;
        if file.metadata()?.len() != good_bytes {
            file.set_len(good_bytes)?;
        }
        file.sync_all()?;
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            File::open(folder)?.sync_all()?;
        }
        Ok(Self {
            inner: Mutex::new(Inner {
                file,
                broken: false,
                book,
            }),
        })
    }

    /// Books a payment; it is on disk when this returns.
    pub(super) fn pay(
        &self,
        order: Order,
        seen: Seen,
        at: SystemTime,
    ) -> Result<Payment, LedgerError> {
        let mut inner = self.inner.lock();
        let payment = Payment {
            id: payment_id(inner.book.payments.len() + 1),
            amount: order.amount,
            currency: order.currency,
            customer: order.customer,
            created_at: timestamp(at),
            seen,
        };
        inner.append(Entry::Payment(payment.clone()))?;
        Ok(payment)
    }

    /// Books a refund of `amount`, or of the whole rest; it is on disk when this returns.
    pub(super) fn refund(
        &self,
        payment: &str,
        amount: Option<u64>,
        seen: Seen,
        at: SystemTime,
    ) -> Result<RefundOutcome, LedgerError> {
        let mut inner = self.inner.lock();
        let Some(standing) = inner.book.find(payment) else {
            return Ok(RefundOutcome::NoSuchPayment);
        };
        let left = standing.payment.amount.saturating_sub(standing.refunded);
        if left == 0 {
            return Ok(RefundOutcome::AlreadyRefunded);
        }
        let amount = amount.unwrap_or(left);
        if amount > left {
            return Ok(RefundOutcome::MoreThanIsLeft { left });
        }
        let refund = Refund {
            id: format!("ref_{:06}", inner.book.refunds + 1),
            payment: standing.payment.id.clone(),
            amount,
            currency: standing.payment.currency.clone(),
            created_at: timestamp(at),
            seen,
        };
        inner.append(Entry::Refund(refund.clone()))?;
        Ok(RefundOutcome::Booked(refund))
    }

    pub(super) fn payment(&self, id: &str) -> Option<Standing> {
        self.inner.lock().book.find(id).cloned()
    }

    /// The latest payments, oldest first.
    pub(super) fn latest_payments(&self) -> Vec<Standing> {
        let inner = self.inner.lock();
        let payments = &inner.book.payments;
        payments[payments.len().saturating_sub(ENTRIES_SHOWN)..].to_vec()
    }

    /// How many payments were booked, in total or under one key.
    pub(super) fn count(&self, key: Option<&str>) -> usize {
        let inner = self.inner.lock();
        match key {
            None => inner.book.payments.len(),
            Some(_) => {
                let under_key = |paid: &&Standing| paid.payment.seen.idempotency_key() == key;
                inner.book.payments.iter().filter(under_key).count()
            }
        }
    }

    /// The first booking under `key`.
    pub(super) fn of_key(&self, key: &str) -> Option<Entry> {
        self.inner.lock().book.by_key.get(bare(key)).cloned()
    }

    pub(super) fn summary(&self) -> Summary {
        let inner = self.inner.lock();
        Summary {
            payments: inner.book.payments.len(),
            refunds: inner.book.refunds,
            total_by_currency: inner.book.total_by_currency.clone(),
            entries: inner.book.latest.iter().cloned().collect(),
        }
    }
}

/// A key as a structured string and the bare key are the same key.
fn bare(key: &str) -> &str {
    key.strip_prefix('"')
        .and_then(|key| key.strip_suffix('"'))
        .unwrap_or(key)
}

impl Entry {
    fn seen(&self) -> &Seen {
        match self {
            Self::Payment(payment) => &payment.seen,
            Self::Refund(refund) => &refund.seen,
        }
    }
}

impl Seen {
    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}

impl Inner {
    fn append(&mut self, entry: Entry) -> Result<(), LedgerError> {
        if self.broken {
            return Err(LedgerError::Broken);
        }
        let mut line = serde_json::to_vec(&entry).map_err(io::Error::from)?;
        line.push(b'\n');
        self.broken = true;
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.broken = false;
        assert!(
            self.book.apply(entry),
            "an entry made from the book fits the book"
        );
        Ok(())
    }
}

impl Book {
    fn find(&self, id: &str) -> Option<&Standing> {
        self.payments
            .get(position(id)?)
            .filter(|standing| standing.payment.id == id)
    }

    /// Adds the entry; `false` if it cannot follow the existing ones.
    fn apply(&mut self, entry: Entry) -> bool {
        match &entry {
            Entry::Payment(payment) => {
                if payment.id != payment_id(self.payments.len() + 1) {
                    return false;
                }
                let total = self
                    .total_by_currency
                    .entry(payment.currency.clone())
                    .or_default();
                *total = total.saturating_add(payment.amount);
                self.payments.push(Standing {
                    payment: payment.clone(),
                    refunded: 0,
                });
            }
            Entry::Refund(refund) => {
                let found = position(&refund.payment).and_then(|at| self.payments.get_mut(at));
                let Some(standing) = found else { return false };
                if refund.amount > standing.payment.amount.saturating_sub(standing.refunded) {
                    return false;
                }
                standing.refunded += refund.amount;
                let total = self
                    .total_by_currency
                    .entry(refund.currency.clone())
                    .or_default();
                *total = total.saturating_sub(refund.amount);
                self.refunds += 1;
            }
        }
        if let Some(key) = entry.seen().idempotency_key() {
            let key = bare(key).to_owned();
            self.by_key.entry(key).or_insert_with(|| entry.clone());
        }
        if self.latest.len() == ENTRIES_SHOWN {
            self.latest.pop_front();
        }
        self.latest.push_back(entry);
        true
    }
}

/// Reads the file. Returns how many bytes of it are complete lines that were understood.
fn load(file: &File) -> Result<(Book, u64), LedgerError> {
    let mut reader = BufReader::new(file);
    let mut book = Book::default();
    let mut good_bytes = 0;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let bytes = reader.read_until(b'\n', &mut line)?;
        if bytes == 0 {
            break;
        }
        let whole = line.ends_with(b"\n");
        let entry = serde_json::from_slice::<Entry>(&line)
            .ok()
            .filter(|_| whole);
        match entry {
            Some(entry) if book.apply(entry.clone()) => good_bytes += bytes as u64,
            Some(_) => return Err(LedgerError::Corrupt { line: number }),
            // Nothing follows this line, so a crash cut it short.
            None if reader.fill_buf()?.is_empty() => break,
            None => return Err(LedgerError::Corrupt { line: number }),
        }
    }
    Ok((book, good_bytes))
}

fn payment_id(number: usize) -> String {
    format!("pay_{number:06}")
}

fn position(id: &str) -> Option<usize> {
    id.strip_prefix("pay_")?
        .parse::<usize>()
        .ok()?
        .checked_sub(1)
}

fn timestamp(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}
