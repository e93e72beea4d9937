//! What the ledger keeps across restarts, and what it refuses to guess.

use std::fs;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use tempfile::TempDir;

use super::*;

fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    (folder, path)
}

fn order(amount: u64) -> Order {
    Order {
        amount,
        currency: "eur".into(),
        customer: Some("ada".into()),
    }
}

fn seen(key: &str) -> Seen {
    Seen {
        idempotency_key: Some(key.into()),
        idempotency_attempt: Some("a1".into()),
    }
}

#[test]
fn bookings_survive_a_restart_and_numbers_go_on() {
    let (_folder, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let first = ledger.pay(order(1000), seen("k1"), UNIX_EPOCH).unwrap();
    ledger.pay(order(500), seen("k1"), UNIX_EPOCH).unwrap();
    ledger
        .refund(&first.id, Some(300), Seen::default(), UNIX_EPOCH)
        .unwrap();
    drop(ledger);

    let ledger = Ledger::open(&path).unwrap();
    let third = ledger.pay(order(1), seen("k2"), UNIX_EPOCH).unwrap();
    assert_eq!(third.id, "pay_000003");
    assert_eq!((ledger.count(None), ledger.count(Some("k1"))), (3, 2));
    let summary = ledger.summary();
    assert_eq!((summary.payments, summary.refunds), (3, 1));
    assert_eq!(summary.total_by_currency["eur"], 1201);
    assert_eq!(ledger.payment(&first.id).unwrap().refunded, 300);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4);
}

#[test]
fn a_torn_last_line_is_cut_off_and_its_number_used_again() {
    let (_folder, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.pay(order(1000), seen("k1"), UNIX_EPOCH).unwrap();
    drop(ledger);
    let whole = fs::read(&path).unwrap();

    let unterminated = whole[..whole.len() - 1].to_vec();
    for tail in [&b"{\"kind\":\"pay"[..], b"\0\0\0\0\n", &unterminated] {
        fs::write(&path, [&whole[..], tail].concat()).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.count(None), 1);
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(
            ledger
                .pay(order(7), Seen::default(), UNIX_EPOCH)
                .unwrap()
                .id,
            "pay_000002"
        );
        drop(ledger);
        assert_eq!(Ledger::open(&path).unwrap().count(None), 2);
    }
}

#[test]
fn a_damaged_line_in_the_middle_is_refused() {
    let (_folder, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.pay(order(1000), seen("k1"), UNIX_EPOCH).unwrap();
    drop(ledger);
    let whole = fs::read(&path).unwrap();

    fs::write(&path, [b"rubbish\n", &whole[..]].concat()).unwrap();
    assert!(matches!(
        Ledger::open(&path),
        Err(LedgerError::Corrupt { line: 1 })
    ));
    fs::write(&path, [&whole[..], &whole[..]].concat()).unwrap();
    assert!(matches!(
        Ledger::open(&path),
        Err(LedgerError::Corrupt { line: 2 })
    ));
}

#[test]
fn refunds_never_exceed_the_payment() {
    let (_folder, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let paid = ledger
        .pay(order(1000), Seen::default(), UNIX_EPOCH)
        .unwrap();
    let refund = |amount| {
        ledger
            .refund(&paid.id, amount, Seen::default(), UNIX_EPOCH)
            .unwrap()
    };

    assert!(matches!(refund(Some(400)), RefundOutcome::Booked(booked) if booked.amount == 400));
    assert_eq!(
        refund(Some(601)),
        RefundOutcome::MoreThanIsLeft { left: 600 }
    );
    assert!(matches!(refund(None), RefundOutcome::Booked(booked) if booked.amount == 600));
    assert_eq!(refund(None), RefundOutcome::AlreadyRefunded);
    for absent in ["pay_000002", "pay_1", "pay_000000", "ref_000001"] {
        let outcome = ledger
            .refund(absent, None, Seen::default(), UNIX_EPOCH)
            .unwrap();
        assert_eq!(outcome, RefundOutcome::NoSuchPayment);
    }
}

#[test]
fn the_summary_shows_the_latest_hundred() {
    let mut book = Book::default();
    for number in 1..=150 {
        let payment = Payment {
            id: payment_id(number),
            amount: 1,
            currency: "eur".into(),
            customer: None,
            created_at: timestamp(UNIX_EPOCH),
            seen: Seen::default(),
        };
        assert!(book.apply(Entry::Payment(payment)));
    }
    assert_eq!(book.latest.len(), ENTRIES_SHOWN);
    assert!(matches!(&book.latest[0], Entry::Payment(payment) if payment.id == "pay_000051"));
}
