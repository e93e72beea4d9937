//! Histories that keep the promise, and histories that are wrong in one way each.
//!
//! One event per line, or several separated by `;`: when, what, and whose. `a k r` is the request `r` of
//! caller `a` under the key `k`. Executions are numbers after `#`, calls plain numbers.

use std::{collections::BTreeSet, sync::Arc};

use super::{Answer, Asked, At, Event, Heard, Promise, Terms, check};

const TERMS: Terms = Terms {
    kept_for: 1_000,
    once_for: 2_000,
    largest_answer: 5,
    longest_wait: Some(500),
    unclear_ends: false,
};

fn asked(words: &[&str]) -> Asked {
    let [caller, key, request] = words else {
        panic!("not a request: {words:?}");
    };
    Asked {
        keyspace: "s".into(),
        caller: (*caller).into(),
        key: (*key).into(),
        request: (*request).into(),
    }
}

fn bytes(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    let number = word.trim_start_matches('#').parse();
    number.unwrap_or_else(|_| panic!("not a number: {word}"))
}

fn heard(words: &[&str]) -> Heard {
    let answer = |source: &str, text: &str| Answer {
        bytes: bytes(text),
        execution: source.starts_with('#').then(|| number(source)),
    };
    match words {
        ["outcome", source, text] => Heard::Outcome(answer(source, text)),
        ["passed", source, text] => Heard::Passed(answer(source, text)),
        ["executed-before"] => Heard::ExecutedBefore,
        ["not-executed"] => Heard::NotExecuted,
        ["running"] => Heard::Running,
        ["unclear"] => Heard::Unclear,
        ["another"] => Heard::AnotherRequest,
        ["expired"] => Heard::Expired,
        ["nothing"] => Heard::Nothing,
        _ => panic!("nobody hears {words:?}"),
    }
}

fn read(text: &str) -> Vec<At> {
    let lines = text.split(['\n', ';']).map(str::trim);
    let lines = lines.filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let event = match &words[1..] {
                ["sent", call, rest @ ..] => Event::Sent {
                    call: number(call),
                    asked: asked(&rest[..3]),
                    whole: rest.get(3) != Some(&"cut"),
                },
                ["heard", call, rest @ ..] => Event::Heard {
                    call: number(call),
                    heard: heard(rest),
                },
                ["left", call] => Event::Left { call: number(call) },
                ["began", execution, rest @ ..] => Event::Began {
                    execution: number(execution),
                    asked: asked(&rest[..3]),
                    call: rest.get(3).map(|call| number(call)),
                },
                ["ended", execution, how @ ..] => Event::Ended {
                    execution: number(execution),
                    conclusive: how != ["in", "vain"],
                },
                ["undone", execution] => Event::Undone {
                    execution: number(execution),
                },
                ["attested", rest @ ..] => Event::Attested {
                    asked: asked(&rest[..3]),
                    bytes: bytes(rest[3]),
                },
                ["forgotten", key] => Event::Forgotten {
                    keyspace: "s".into(),
                    key: (*key).into(),
                },
                ["at-rest"] => Event::AtRest,
                _ => panic!("nothing happens by {line:?}"),
            };
            let at = words[0].parse().expect("a line begins with a moment");
            At { at, event }
        })
        .collect()
}

/// One payment that is executed, completed at 20 with the bytes `paid`, and heard at 30.
const PAID: &str = "0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1; 30 heard 1 outcome #1 paid;";

/// Histories that keep the promise.
const RIGHT: &[(&str, &str)] = &[
    ("nothing happens", ""),
    ("a payment", PAID),
    ("a retry hears the outcome", "{paid} 100 sent 2 a k r; 110 heard 2 outcome #1 paid"),
    ("a retry while it runs is told so, or waits", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 sent 2 a k r; 12 heard 2 running; 13 sent 3 a k r
        20 ended #1; 30 heard 1 outcome #1 paid; 31 heard 3 outcome #1 paid"),
    ("the client hangs up, and its retry hears the outcome", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 left 1; 20 ended #1
        30 sent 2 a k r; 40 heard 2 outcome #1 paid"),
    ("an answer gets lost, the key is unclear, a provider knows", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1 in vain; 30 heard 1 unclear
        40 sent 2 a k r; 50 heard 2 unclear; 60 attested a k r known
        70 sent 3 a k r; 80 heard 3 outcome word known"),
    ("an answer that lets it be executed again", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 undone #1; 20 ended #1 in vain
        30 heard 1 passed #1 wait; 40 sent 2 a k r; 50 began #2 a k r 2; 60 ended #2
        70 heard 2 outcome #2 paid"),
    ("two callers with a key of one name in one keyspace", "
        {paid} 100 sent 2 b k r; 110 heard 2 another"),
    ("another request under the key", "{paid} 100 sent 2 a k q; 110 heard 2 another"),
    ("the store is away", "{paid} 100 sent 2 a k r; 110 heard 2 not-executed
        200 sent 3 a k r; 210 heard 3 outcome #1 paid"),
    ("a key that has expired is executed again", "
        {paid} 2020 sent 2 a k r; 2021 began #2 a k r 2; 2030 ended #2
        2040 heard 2 outcome #2 again; 2050 sent 3 a k r; 2060 heard 3 outcome #2 again"),
    ("a key that has expired is refused", "{paid} 1020 sent 2 a k r; 1030 heard 2 expired"),
    ("a key that was forgotten is executed again", "
        {paid} 50 forgotten k; 100 sent 2 a k r; 110 began #2 a k r 2; 120 ended #2
        130 heard 2 outcome #2 again"),
    ("a long answer is told once", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1; 30 heard 1 outcome #1 much-too-long
        100 sent 2 a k r; 110 heard 2 executed-before"),
    ("a body that breaks off is not executed", "0 sent 1 a k r cut; 10 left 1"),
    ("an answer to a request that overtakes the end of a life", "
        {paid} 2015 sent 2 a k r; 2020 sent 3 a k r; 2021 began #2 a k r 3; 2022 heard 2 outcome #1 paid
        2030 ended #2; 2040 heard 3 outcome #2 again"),
    ("an operator completes a key while its own answer is on the way", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1 in vain; 25 attested a k r known
        30 heard 1 passed #1 who-knows; 40 sent 2 a k r; 50 heard 2 outcome word known"),
    ("a request runs when its own client's wait ends", "0 sent 1 a k r; 10 heard 1 running; 20 began #1 a k r 1"),
    ("an operator releases what is only begun afterwards", "
        0 sent 1 a k r; 10 undone #1; 20 began #1 a k r 1; 30 sent 2 a k r; 40 began #2 a k r 2
        50 ended #2; 60 heard 1 outcome #2 paid; 60 heard 2 outcome #2 paid"),
    ("unclear when all is at rest, where nobody can find out", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 heard 1 unclear; 100 at-rest
        110 sent 2 a k r; 120 heard 2 unclear"),
];

/// Histories that break one promise, and which.
const WRONG: &[(Promise, &str, &str)] = &[
    (Promise::Once, "a retry is executed", "{paid} 100 sent 2 a k r; 110 began #2 a k r 2; 120 ended #2
        120 left 2"),
    (Promise::Once, "two at the same time are both executed", "
        0 sent 1 a k r; 0 sent 2 a k r; 10 began #1 a k r 1; 10 began #2 a k r 2; 20 ended #1; 20 ended #2
        30 left 1; 30 left 2"),
    (Promise::Once, "executed again after the client hung up", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 left 1; 20 sent 2 a k r; 30 began #2 a k r 2; 40 left 2"),
    (Promise::Once, "executed again after the answer was lost", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1 in vain; 30 heard 1 unclear
        40 sent 2 a k r; 50 began #2 a k r 2; 60 ended #2; 70 heard 2 outcome #2 paid"),
    (Promise::Once, "an unclear one is executed again however long ago it was", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1 in vain; 30 heard 1 unclear
        90000 sent 2 a k r; 90001 began #2 a k r 2; 90002 left 2"),
    (Promise::Once, "executed again a moment before its time", "
        {paid} 2019 sent 2 a k r; 2019 began #2 a k r 2; 2020 left 2"),
    (Promise::Once, "executed again after an answer that is final", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1; 21 left 1; 30 sent 2 a k r
        40 began #2 a k r 2; 50 left 2"),
    (Promise::Once, "executed before somebody said that nothing was left behind", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 sent 2 a k r; 30 began #2 a k r 2; 31 undone #1
        40 ended #2; 50 left 1; 50 left 2"),
    (Promise::Once, "the second of three was undone, and the first was not", "
        {paid} 40 sent 2 a k r; 50 began #2 a k r 2; 60 undone #2; 70 left 2"),
    (Promise::Once, "another request is executed under the key", "
        {paid} 100 sent 2 a k q; 110 began #2 a k q 2; 120 left 2"),
    (Promise::Once, "another caller's request is executed under the key", "
        {paid} 100 sent 2 b k r; 110 began #2 b k r 2; 120 left 2"),
    (Promise::Once, "one request is executed twice", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 began #2 a k r 1; 20 ended #1; 30 heard 1 outcome #1 paid"),
    (Promise::Once, "an execution begins twice", "
        0 sent 1 a k r; 10 began #1 a k r 1; 10 undone #1; 11 began #1 a k r 1; 20 left 1"),
    (Promise::Once, "forgotten once, executed twice", "
        {paid} 50 forgotten k; 60 sent 2 a k r; 61 began #2 a k r 2; 62 sent 3 a k r; 63 began #3 a k r 3
        70 left 2; 70 left 3"),
    (Promise::Once, "another key was forgotten", "
        {paid} 50 forgotten l; 60 sent 2 a k r; 61 began #2 a k r 2; 70 left 2"),
    (Promise::Once, "executed again after a provider knew of it", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 heard 1 unclear; 60 attested a k r known
        70 sent 2 a k r; 80 began #2 a k r 2; 90 left 2"),
    (Promise::Same, "a retry hears another answer", "{paid} 100 sent 2 a k r; 110 heard 2 outcome #1 pad"),
    (Promise::Same, "a retry hears a part of the answer as if it were all", "
        {paid} 100 sent 2 a k r; 110 heard 2 outcome #1 pai"),
    (Promise::Same, "the second retry hears another answer", "
        {paid} 100 sent 2 a k r; 110 heard 2 outcome #1 paid; 200 sent 3 a k r; 210 heard 3 outcome #1 void"),
    (Promise::Same, "who waited hears another answer", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 sent 2 a k r; 20 ended #1; 30 heard 1 outcome #1 paid
        31 heard 2 outcome #1 void"),
    (Promise::Same, "an operator's word replaces an answer that was heard", "
        {paid} 50 attested a k r known; 100 sent 2 a k r; 110 heard 2 outcome word known"),
    (Promise::Same, "the answer replaces a provider's word that was heard", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 attested a k r known; 30 sent 2 a k r
        40 heard 2 outcome word known; 50 ended #1; 60 heard 1 outcome #1 paid"),
    (Promise::Own, "a caller hears the answer of another", "
        {paid} 100 sent 2 b k r; 110 heard 2 outcome #1 paid"),
    (Promise::Own, "a key hears the answer of another", "
        {paid} 100 sent 2 a l r; 110 heard 2 outcome #1 paid"),
    (Promise::Own, "a request hears the answer to another", "
        {paid} 100 sent 2 a k q; 110 heard 2 outcome #1 paid"),
    (Promise::Own, "an answer of no execution", "0 sent 1 a k r; 10 heard 1 outcome #7 paid"),
    (Promise::Own, "a word that nobody gave", "0 sent 1 a k r; 10 heard 1 outcome word known"),
    (Promise::Own, "a word about another key", "
        0 sent 1 a k r; 10 attested a l r known; 20 heard 1 outcome word known"),
    (Promise::Own, "a word about another caller's request", "
        0 sent 1 a k r; 10 attested b k r known; 20 heard 1 outcome word known"),
    (Promise::Own, "an answer that is not kept reaches another client", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 sent 2 a k r; 20 undone #1; 20 ended #1 in vain
        30 heard 2 passed #1 wait; 40 left 1"),
    (Promise::Own, "an answer that is not kept reaches another caller", "
        0 sent 1 a k r; 10 began #1 a k r; 11 sent 2 b k r; 20 undone #1; 30 heard 2 passed #1 wait; 40 left 1"),
    (Promise::Own, "a word is passed on as an answer of the API", "
        0 sent 1 a k r; 10 attested a k r known; 20 heard 1 passed word known"),
    (Promise::Kept, "what was heard is running", "{paid} 100 sent 2 a k r; 110 heard 2 running"),
    (Promise::Kept, "what was heard is unclear", "{paid} 100 sent 2 a k r; 110 heard 2 unclear"),
    (Promise::Kept, "what was heard has expired too early", "{paid} 500 sent 2 a k r; 510 heard 2 expired"),
    (Promise::Kept, "what was heard is said to be another's", "
        10 sent 9 a k q; 11 heard 9 not-executed; {paid} 100 sent 2 a k r; 110 heard 2 another"),
    (Promise::Kept, "a short answer is not told again", "{paid} 100 sent 2 a k r; 110 heard 2 executed-before"),
    (Promise::Kept, "a provider's word is not kept", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 heard 1 unclear; 60 attested a k r known
        70 sent 2 a k r; 80 heard 2 outcome word known; 90 sent 3 a k r; 99 heard 3 unclear"),
    (Promise::Kept, "what a waiting client heard is lost", "
        0 sent 1 a k r; 1 left 1; 2 sent 2 a k r; 10 began #1 a k r 1; 20 ended #1; 30 heard 2 outcome #1 paid
        40 sent 3 a k r; 50 heard 3 running"),
    (Promise::Honest, "nothing was executed, it says, and it was", "
        0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1 in vain; 30 heard 1 not-executed"),
    (Promise::Honest, "it says so while it runs", "
        0 sent 1 a k r; 10 began #1 a k r 1; 30 heard 1 not-executed; 40 ended #1"),
    (Promise::Honest, "another request, where there is none", "0 sent 1 a k r; 10 heard 1 another"),
    (Promise::Honest, "another request, where it is the same", "
        0 sent 1 a k r; 1 left 1; 5 sent 2 a k r; 10 heard 2 another"),
    (Promise::Honest, "expired, where nothing was", "0 sent 1 a k r; 10 heard 1 expired"),
    (Promise::Honest, "expired, a moment after it was first sent", "
        0 sent 1 a k r; 10 heard 1 not-executed; 20 sent 2 a k r; 30 heard 2 expired"),
    (Promise::Honest, "executed before, where nothing was", "
        0 sent 1 a k r; 1 left 1; 5 sent 2 a k r; 10 heard 2 executed-before"),
    (Promise::Whole, "a part of a body is executed", "0 sent 1 a k r cut; 10 began #1 a k r 1; 20 left 1"),
    (Promise::Whole, "what the API gets is not what was sent", "
        0 sent 1 a k r; 10 began #1 a k q 1; 20 left 1"),
    (Promise::Whole, "what nobody sent is executed", "0 sent 1 a k r; 10 began #1 a l r; 20 left 1"),
    (Promise::Whole, "another caller's name goes to the API", "
        0 sent 1 a k r; 10 began #1 b k r 1; 20 left 1"),
    (Promise::Whole, "executed before it was sent", "10 began #1 a k r 1; 20 sent 1 a k r; 30 left 1"),
    (Promise::Answered, "nobody answers", "0 sent 1 a k r; 10 began #1 a k r 1; 20 ended #1"),
    (Promise::Answered, "a retry is not answered", "{paid} 100 sent 2 a k r"),
    (Promise::Answered, "an answer comes too late", "0 sent 1 a k r; 501 heard 1 not-executed"),
    (Promise::Answered, "a request is answered twice", "{paid} 40 heard 1 outcome #1 paid"),
    (Promise::Answered, "an answer to nobody", "0 heard 1 not-executed"),
    (Promise::Settled, "a key runs although all is at rest", "
        0 sent 1 a k r; 10 began #1 a k r 1; 11 left 1; 100 at-rest; 110 sent 2 a k r; 120 heard 2 running"),
];

fn story(text: &str) -> Vec<At> {
    read(&text.replace("{paid}", PAID))
}

/// Goal: the checker accepts every correct history.
#[test]
fn what_keeps_the_promise() {
    for (name, text) in RIGHT {
        let broken = check(&TERMS, &story(text));
        assert!(broken.is_empty(), "{name}: {broken:?}");
    }
}

/// Goal: the checker detects each way to break the promise, and names the promise.
#[test]
fn what_breaks_it() {
    for (promise, name, text) in WRONG {
        let broken = check(&TERMS, &story(text));
        let promises: BTreeSet<Promise> = broken.iter().map(|broken| broken.promise).collect();
        assert_eq!(promises, BTreeSet::from([*promise]), "{name}: {broken:#?}");
    }
    let names: BTreeSet<&str> = WRONG.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(names.len(), WRONG.len(), "no history is there twice");
}

/// Goal: if everything unclear is found out, nothing stays unclear.
#[test]
fn what_is_unclear_ends() {
    let text = "0 sent 1 a k r; 10 began #1 a k r 1; 20 heard 1 unclear; 100 at-rest
        110 sent 2 a k r; 120 heard 2 unclear";
    let terms = Terms {
        unclear_ends: true,
        ..TERMS
    };
    let broken = check(&terms, &story(text));
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert_eq!(broken[0].promise, Promise::Settled);
}
