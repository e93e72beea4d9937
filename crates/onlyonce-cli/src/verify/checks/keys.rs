//! Keys that are missing, written in two ways, or invalid.

use crate::verify::{
    catalogue::Check,
    exchange::{Exchange, Inspect as _, Vary as _},
    finding::{Finding, Sure},
    lab::{Lab, random_key},
};

/// How many kinds of bad keys there are.
pub(super) const BAD_KEYS: usize = 5;
/// The length of a key that most stores do not expect, in bytes.
const VERY_LONG: usize = 1_000;

/// Sends a request without a key.
pub(super) async fn missing(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::MissingKey;
    if lab.target.key_optional {
        let why = "--key-optional: requests without a key are taken on purpose";
        return Ok(Finding::not_applicable(check, why));
    }
    let watch = lab.watch().await?;
    let sent = lab.send("no key", lab.fresh()?.with_key_lines(&[])).await;
    let executed = lab.executed(&watch, &[&sent]).await?;
    let wanted = lab.target.rules.missing;
    let finding = if sent.succeeded() {
        let seen = format!("taken with {} and {}", sent.outcome(), executed.words());
        Finding::danger(check, executed.sure, seen)
    } else if sent.status() == wanted {
        Finding::pass(check, executed.sure, format!("refused with {wanted}"))
    } else {
        let seen = format!("answered {} instead of {wanted}", sent.outcome());
        Finding::trouble(check, executed.sure, seen)
    };
    Ok(finding.with(&[&sent]))
}

/// Sends the same key with and without quotes.
pub(super) async fn quoted(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::QuotedKey;
    let request = lab.fresh()?;
    let key = random_key()?;
    let (plain, quoted) = (
        request.with_key(&key),
        request.with_key(&format!("\"{key}\"")),
    );
    let watch = lab.watch().await?;
    let first = lab.send("without quotes", plain).await;
    let second = lab.send("with quotes", quoted).await;
    let executed = lab.executed(&watch, &[&first, &second]).await?;
    let broke = [&first, &second]
        .iter()
        .any(|exchange| !lab.is_done(exchange) && !exchange.refused());
    let finding = if executed.more_than_once() && !lab.target.rules.quotes_wrap {
        let why = "they are two keys, as this profile takes keys as they are";
        Finding::not_applicable(check, why)
    } else if executed.more_than_once() {
        Finding::danger(
            check,
            executed.sure,
            format!("one key in two forms: {}", executed.words()),
        )
    } else if broke {
        let seen = format!("answered {} and {}", first.outcome(), second.outcome());
        Finding::trouble(check, executed.sure, seen)
    } else if second.same_as(&first) && executed.once() {
        Finding::pass(check, executed.sure, "one and the same key")
    } else if first.refused() || second.refused() {
        let seen = format!(
            "only one form is taken: {} and {}",
            first.outcome(),
            second.outcome()
        );
        Finding::pass(check, executed.sure, seen)
    } else {
        Finding::cannot_tell(check, "every answer is the same; name a --count-url")
    };
    Ok(finding.with(&[&first, &second]))
}

/// The result of one bad key.
struct Tried {
    name: &'static str,
    /// A fault: whether it is dangerous, and the reason.
    verdict: Result<(), (bool, String)>,
    /// Whether the number of executions is unknown.
    unsure: bool,
    sure: Sure,
    exchanges: Vec<Exchange>,
}

/// Sends keys that no API should accept as they are.
pub(super) async fn bad(lab: &Lab) -> anyhow::Result<Finding> {
    let check = Check::BadKeys;
    let (one, two) = (random_key()?, random_key()?);
    let no_ascii = [one.as_bytes(), b"\xff"].concat();
    let unterminated = format!("\"{one}");
    let limit = lab.target.rules.longest_key;
    let long = "k".repeat(limit.map_or(VERY_LONG, |limit| limit + 1) - one.len()) + &one;
    let keys: [(&'static str, Vec<&[u8]>, bool); BAD_KEYS] = [
        ("an empty key", vec![b""], true),
        (
            "two keys in one request",
            vec![one.as_bytes(), two.as_bytes()],
            false,
        ),
        ("a byte outside ASCII", vec![&no_ascii], false),
        (
            "quotes that do not end",
            vec![unterminated.as_bytes()],
            false,
        ),
        (
            "a key that is too long",
            vec![long.as_bytes()],
            limit.is_some(),
        ),
    ];
    let mut tried = Vec::new();
    for (name, lines, must_refuse) in keys {
        tried.push(twice(lab, name, &lines, must_refuse).await?);
    }
    let taken = tried.last().is_some_and(|long| {
        long.verdict.is_ok()
            && long
                .exchanges
                .first()
                .is_some_and(|first| lab.is_done(first))
    });
    if let Some(long_key) = tried.last_mut().filter(|_| taken) {
        cut_short(lab, &long, long_key).await?;
    }
    let faults: Vec<&Tried> = tried.iter().filter(|one| one.verdict.is_err()).collect();
    let Some(worst) = faults
        .iter()
        .find(|one| matches!(one.verdict, Err((true, _))))
        .or(faults.first())
    else {
        let refused = |one: &&Tried| one.exchanges.iter().all(Exchange::refused);
        let refused = tried.iter().filter(refused).count();
        let seen = match refused {
            BAD_KEYS => "all five refused".to_owned(),
            refused => format!(
                "{refused} refused, {} honoured like any key",
                BAD_KEYS - refused
            ),
        };
        let shown: Vec<&Exchange> = tried.iter().flat_map(|one| one.exchanges.first()).collect();
        if let Some(one) = tried.iter().find(|one| one.unsure) {
            let why = format!("{}: every answer is the same; name a --count-url", one.name);
            return Ok(Finding::cannot_tell(check, why).with(&shown));
        }
        return Ok(Finding::pass(check, tried[0].sure, seen).with(&shown));
    };
    let words = faults.iter().filter_map(|one| {
        let (_, why) = one.verdict.as_ref().err()?;
        Some(format!("{}: {why}", one.name))
    });
    let seen = words.collect::<Vec<_>>().join("; ");
    let shown: Vec<&Exchange> = faults.iter().flat_map(|one| &one.exchanges).collect();
    let finding = match &worst.verdict {
        Err((true, _)) => Finding::danger(check, worst.sure, seen),
        _ => Finding::trouble(check, worst.sure, seen),
    };
    Ok(finding.with(&shown))
}

async fn twice(
    lab: &Lab,
    name: &'static str,
    lines: &[&[u8]],
    must_refuse: bool,
) -> anyhow::Result<Tried> {
    let request = lab.fresh()?.with_key_lines(lines);
    let watch = lab.watch().await?;
    let first = lab.send(name, request.clone()).await;
    let second = lab.send(name, request).await;
    let executed = lab.executed(&watch, &[&first, &second]).await?;
    let outcomes = format!("{} and {}", first.outcome(), second.outcome());
    let verdict = if executed.more_than_once() {
        Err((true, format!("ignored, {}", executed.words())))
    } else if first.refused() && second.refused() {
        Ok(())
    } else if !lab.is_done(&first) || !lab.is_done(&second) {
        Err((false, format!("answered {outcomes}")))
    } else if must_refuse {
        // An empty key that is honoured is the same key for everybody.
        Err((first.request.key().is_empty(), format!("taken: {outcomes}")))
    } else {
        Ok(())
    };
    Ok(Tried {
        name,
        verdict,
        unsure: executed.times.is_none(),
        sure: executed.sure,
        exchanges: vec![first, second],
    })
}

/// Tests an accepted long key with another last letter: it must be another key.
async fn cut_short(lab: &Lab, long: &str, tried: &mut Tried) -> anyhow::Result<()> {
    let twin = format!("{}z", &long[..long.len() - 1]);
    let Some(first) = tried.exchanges.first() else {
        return Ok(());
    };
    let watch = lab.watch().await?;
    let other = lab
        .send("another long key", first.request.with_key(&twin))
        .await;
    let executed = lab.executed(&watch, &[]).await?;
    let replayed = other.ok().is_some_and(|answer| answer.marker().is_some())
        || (lab.tells_apart && other.same_as(first));
    let ran = executed.sure == Sure::Counted && executed.once();
    if lab.is_done(&other) && replayed && !ran {
        let why = "only its beginning counts: two keys are taken for one".to_owned();
        tried.verdict = Err((true, why));
        tried.exchanges = vec![first.clone(), other];
    }
    Ok(())
}
