//! What people see: lists, filters and counts.

use super::*;

/// Paging sees every record that was there all along once, whatever is added meanwhile.
pub async fn pages_are_stable(store: Any) {
    for number in 0..25 {
        reserve(&*store, &format!("k{number}"), 1).await;
    }
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.list(&Filter::default(), cursor, 10).await.unwrap();
        seen.extend(page.items.into_iter().map(|item| item.record.key));
        reserve(&*store, &format!("late{}", seen.len()), 1).await;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 25);
    let newest_first: Vec<_> = (0..25)
        .rev()
        .map(|number| Key::from_stored(&format!("k{number}")))
        .collect();
    assert_eq!(seen, newest_first);
}

/// What waits for a person is found among what does not, and evidence of every kind comes back as it
/// was written.
pub async fn dead_letters_are_listed(store: Any) {
    for key in ["fine", "letter", "unknown"] {
        let record = reserve(&*store, key, 1).await;
        if key == "fine" {
            continue;
        }
        let mut draft = Draft::after(&record);
        draft.record.state = State::Unknown;
        draft.record.last_error = Some(LastError::Timeout);
        draft.record.dead_letter = key == "letter";
        draft.record.evidence = Some(match key {
            "letter" => Evidence::Contradictory,
            _ => Evidence::NotExecuted,
        });
        draft.stamps.lease_until = Stamp::Never;
        draft.stamps.unknown_since = Stamp::NOW;
        let change = Change {
            draft: Box::new(draft),
            journal: Vec::new(),
        };
        store.swap(record.revision, change).await.unwrap();
    }
    let letters = Filter {
        dead_letters: true,
        ..Filter::default()
    };
    let page = store.list(&letters, None, 10).await.unwrap();
    let keys: Vec<&str> = page
        .items
        .iter()
        .map(|one| one.record.key.as_str())
        .collect();
    assert_eq!(keys, ["letter"]);
    let kept = page.items[0].record.evidence.clone();
    assert_eq!(kept, Some(Evidence::Contradictory));
}

/// Lists show what was asked for, with the response's status and size but without its bytes.
pub async fn filters_filter(store: Any) {
    let mine = Scope::client("me");
    for (scope, key) in [(&mine, "a"), (&mine, "b"), (&Scope::client("you"), "a")] {
        let draft = machine::first(&request(&*store, scope, key, 1), &policy());
        store.insert_or_get(draft).await.unwrap();
    }
    let routed = Scope::route("r", Some("me"));
    let draft = machine::first(&request(&*store, &routed, "c", 1), &policy());
    let Inserted::New(record) = store.insert_or_get(draft).await.unwrap().value else {
        panic!("new")
    };
    complete(&*store, &record, &policy()).await;
    let count = async |filter: Filter| store.list(&filter, None, 10).await.unwrap().items.len();
    assert_eq!(
        count(Filter {
            client: Some("me".into()),
            ..Filter::default()
        })
        .await,
        3
    );
    assert_eq!(
        count(Filter {
            key: Some(Key::from_stored("a")),
            ..Filter::default()
        })
        .await,
        2
    );
    assert_eq!(
        count(Filter {
            route: Some("other".into()),
            ..Filter::default()
        })
        .await,
        0
    );
    let completed = Filter {
        state: Some(State::Completed),
        ..Filter::default()
    };
    let page = store.list(&completed, None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].response, Some((StatusCode::CREATED, 4)));
    assert_eq!(page.items[0].record.response, None);
}

/// Counts follow every step.
pub async fn counts_count(store: Any) {
    let record = reserve(&*store, "a", 1).await;
    reserve(&*store, "b", 1).await;
    complete(&*store, &record, &policy()).await;
    let counts = store.counts().await.unwrap();
    assert_eq!(counts.get(&State::InProgress), Some(&1));
    assert_eq!(counts.get(&State::Completed), Some(&1));
    assert_eq!(counts.get(&State::Unknown), Some(&0));
}

/// Live keys are counted for one scope and one caller: in progress, nothing else, and no further than
/// asked.
pub async fn live_counts_one_client(store: Any) {
    let caller = Some(CallerMark([9; 16]));
    let mut records = Vec::new();
    for (scope, key) in [
        (Scope::client("a"), "running"),
        (Scope::client("a"), "lost"),
        (Scope::client("a"), "released"),
        (Scope::client("a"), "done"),
        (Scope::client("b"), "running"),
        (Scope::global(), "running"),
    ] {
        let draft = machine::first(&request(&*store, &scope, key, 1), &policy());
        match store.insert_or_get(draft).await.unwrap().value {
            Inserted::New(record) => records.push(record),
            Inserted::Existing(_) => panic!("the key was there already"),
        }
    }
    let of_a = async |caller, limit| {
        store
            .live(&Scope::client("a"), caller, limit)
            .await
            .unwrap()
    };
    assert_eq!(of_a(caller, 100).await, 4);
    assert_eq!(of_a(caller, 3).await, 3, "no further than asked");
    for (index, settlement) in [
        (1, Settlement::Unknown(LastError::ConnectionLost)),
        (2, Settlement::Release(LastError::NotSent)),
        (3, Settlement::Complete(response())),
    ] {
        let record = &records[index];
        let change = settled(record, &settlement, &policy());
        done(store.swap(record.revision, change).await.unwrap().value);
    }
    assert_eq!(of_a(caller, 100).await, 1, "the running one");
    assert_eq!(of_a(None, 100).await, 0, "another caller");
    assert_eq!(
        store.live(&Scope::client("b"), caller, 100).await.unwrap(),
        1
    );
    assert_eq!(
        store.live(&Scope::client("c"), caller, 100).await.unwrap(),
        0
    );
}
