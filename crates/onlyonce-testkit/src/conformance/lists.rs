//! Lists, filters and counts for people.

use super::*;

/// Paging returns every record that exists all along once, whatever is added meanwhile.
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

/// Dead letters are found among other records, and evidence of every kind comes back as it was written.
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

/// Lists contain the matching records, with the response's status and size but without its bytes.
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

/// Live keys are counted for one scope and one caller: only those in progress, and only up to the limit.
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

async fn keep_scope(store: &dyn Store, scope: &Scope) {
    let id = scope_id(store.secret(), scope);
    store.keep_scope(id, scope.as_str()).await.unwrap();
}

/// Every stored scope is returned once, in the order of ids, however often it was stored.
pub async fn scopes_are_kept(store: Any) {
    let mut expected = Vec::new();
    for number in 0..1_200 {
        let scope = Scope::client(&format!("c{number}"));
        keep_scope(&*store, &scope).await;
        expected.push((scope_id(store.secret(), &scope), scope.as_str().to_owned()));
    }
    keep_scope(&*store, &Scope::client("c7")).await;
    expected.sort();
    let mut named = Vec::new();
    loop {
        let after = named.last().map(|(id, _)| *id);
        let next = store.scopes(after).await.unwrap().unwrap();
        if next.is_empty() {
            break;
        }
        named.extend(next);
    }
    assert_eq!(named, expected);
}

/// A key is found in every known scope, newest first and in pages, including erased keys. Once all scopes are
/// known nothing else is searched: a record in an unknown scope proves it.
pub async fn a_key_is_found_by_probes(store: Any) {
    let scopes = [
        Scope::client("me"),
        Scope::route("r", Some("me")),
        Scope::client("you"),
        Scope::global(),
        Scope::client("untold"),
    ];
    for scope in &scopes {
        for key in ["a", "b"] {
            let draft = machine::first(&request(&*store, scope, key, 1), &policy());
            store.insert_or_get(draft).await.unwrap();
        }
    }
    let of_a = Filter {
        key: Some(Key::from_stored("a")),
        ..Filter::default()
    };
    let found = |filter: Filter, limit: usize| {
        let store = store.clone();
        async move {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let page = onlyonce_store::find(&*store, &filter, cursor, limit)
                    .await
                    .unwrap();
                assert!(page.items.len() <= limit);
                found.extend(page.items.into_iter().map(|one| one.record.scope));
                cursor = page.next;
                if cursor.is_none() {
                    return found;
                }
            }
        }
    };
    let mut newest_first: Vec<Scope> = scopes.iter().rev().cloned().collect();
    assert_eq!(found(of_a.clone(), 10).await, newest_first);
    for scope in &scopes[..4] {
        keep_scope(&*store, scope).await;
    }
    assert_eq!(found(of_a.clone(), 2).await, newest_first);
    store.keep_block(SCOPES_KNOWN, b"0").await.unwrap();
    newest_first.remove(0);
    for limit in [1, 3, 4, 10] {
        assert_eq!(found(of_a.clone(), limit).await, newest_first);
    }
    let of_me = Filter {
        client: Some("me".into()),
        ..of_a.clone()
    };
    assert_eq!(found(of_me.clone(), 10).await, newest_first[2..]);
    let completed = Filter {
        state: Some(State::Completed),
        ..of_me.clone()
    };
    assert!(found(completed.clone(), 10).await.is_empty());
    let id = store
        .secret()
        .record_id("client:me", &Key::from_stored("a"));
    let record = store.lookup(id).await.unwrap().value.unwrap();
    let record = complete(&*store, &record, &policy()).await;
    assert_eq!(found(completed.clone(), 10).await, scopes[..1]);
    let page = onlyonce_store::find(&*store, &completed, None, 10)
        .await
        .unwrap();
    assert!(page.items[0].record.response.is_none());
    assert!(page.items[0].response.is_some());
    let erase = machine::apply(
        Some(&record),
        &Erase { reason: None },
        Timestamp::default(),
        &policy(),
    );
    let change = erase.swapped().expect("it was not erased before");
    done(store.swap(record.revision, change).await.unwrap().value);
    assert_eq!(found(of_me, 10).await, newest_first[2..]);
    assert_eq!(found(of_a, 10).await, newest_first);
}

/// A new record.
async fn insert(store: &dyn Store, scope: &Scope, key: &str) -> Record {
    let draft = machine::first(&request(store, scope, key, 1), &policy());
    match store.insert_or_get(draft).await.unwrap().value {
        Inserted::New(record) => record,
        Inserted::Existing(_) => panic!("the key was there already"),
    }
}

/// The ids of all records that match `filter`, newest first, in pages of `limit`. After each page another
/// record is added to `late`.
async fn paged(
    store: &dyn Store,
    filter: &Filter,
    limit: usize,
    late: Option<&Scope>,
) -> Vec<RecordId> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = onlyonce_store::find(store, filter, cursor, limit).await;
        let page = page.unwrap();
        assert!(page.items.len() <= limit);
        found.extend(page.items.into_iter().map(|one| one.record.id));
        cursor = page.next;
        if cursor.is_none() {
            return found;
        }
        if let Some(scope) = late {
            insert(store, scope, &format!("late{limit}.{}", found.len())).await;
        }
    }
}

/// A client's records are listed newest first and in pages, in any of the client's scopes and in any state,
/// among those of others. The cursor is stable while others come and go. Nothing else is searched: a record
/// of the client on an unmarked route proves it.
pub async fn a_client_is_listed_in_pages(store: Any) {
    let (mine, routed) = (Scope::client("me"), Scope::route("r", Some("me")));
    let others = [
        Scope::client("you"),
        Scope::global(),
        Scope::client("mee"),
        // A name that ends like that of a client on a route.
        Scope::client("a/client:me"),
    ];
    let settlements = [
        None,
        Some(Settlement::Complete(response())),
        Some(Settlement::Release(LastError::NotSent)),
        Some(Settlement::Unknown(LastError::ConnectionLost)),
    ];
    let mut records = Vec::new();
    for (number, settlement) in settlements.iter().cycle().take(16).enumerate() {
        for scope in &others {
            insert(&*store, scope, &format!("k{number}")).await;
        }
        let scope = if number % 3 == 0 { &routed } else { &mine };
        let mut record = insert(&*store, scope, &format!("k{number}")).await;
        if let Some(settlement) = settlement {
            let change = settled(&record, settlement, &policy());
            record = done(store.swap(record.revision, change).await.unwrap().value);
        }
        records.push(record);
    }
    // One completed record is erased, another forgotten: its tombstone stays. One is deleted altogether.
    for (number, event) in [(1, true), (5, false)] {
        let record = &records[number];
        let step = match event {
            true => {
                let erase = Erase { reason: None };
                machine::apply(Some(record), &erase, Timestamp::default(), &policy())
            }
            false => {
                let forget = Forget {
                    force: true,
                    fresh: AttemptId(9),
                    reason: None,
                };
                machine::apply(Some(record), &forget, Timestamp::default(), &policy())
            }
        };
        let change = step.swapped().expect("it may be done to a completed key");
        let revision = record.revision;
        records[number] = done(store.swap(revision, change).await.unwrap().value);
    }
    let gone = records.remove(9);
    assert!(store.delete(gone.id, gone.revision).await.unwrap());
    let unmarked = insert(&*store, &Scope::route("unmarked", Some("me")), "k").await;
    for scope in others.iter().chain([&mine, &routed]) {
        keep_scope(&*store, scope).await;
    }
    let (id, nobodys) = mark_of(store.secret(), &routed).expect("it is of a route");
    store.keep_scope(id, nobodys.as_str()).await.unwrap();
    for block in [SCOPES_KNOWN, ROUTES_KNOWN] {
        store.keep_block(block, b"0").await.unwrap();
    }
    let mut newest_first: Vec<RecordId> = records.iter().rev().map(|record| record.id).collect();
    let filter = Filter {
        client: Some("me".into()),
        ..Filter::default()
    };
    let walks = store.list_in(&[], &Filter::default(), None, 1).await;
    if walks.unwrap().is_none() {
        newest_first.insert(0, unmarked.id);
    }
    for limit in [1, 2, 5, 15, 50] {
        let found = paged(&*store, &filter, limit, Some(&others[0])).await;
        assert_eq!(found, newest_first, "{limit}");
    }
    for (state, count) in [
        (State::Completed, 2),
        (State::Expired, 1),
        (State::FailedRetryable, 4),
        (State::Unknown, 4),
        // Including the one on an unmarked route: live keys are searched completely.
        (State::InProgress, 5),
    ] {
        let of_state = Filter {
            state: Some(state),
            ..filter.clone()
        };
        let found = paged(&*store, &of_state, 2, None).await;
        assert_eq!(found.len(), count, "{state:?}");
    }
    // A key whose client is named is found in the same scopes.
    let of_key = Filter {
        key: Some(Key::from_stored("k3")),
        ..filter
    };
    let found = paged(&*store, &of_key, 2, None).await;
    assert_eq!(found, [records[3].id]);
}
