//! What finding a key costs Redis, by its own count of commands.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use futures_util::future::join_all;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Scope, State,
    machine::{self, Request},
    record::Draft,
};
use onlyonce_store::{
    Filter, SCOPES_KNOWN, Store, find,
    redis::{RedisOptions, RedisStore},
    scope_id,
};
use onlyonce_testkit::servers::Redis;

/// Records, in ten scopes.
const MANY: usize = 5_000;
const SCOPES: usize = 10;

fn draft(store: &dyn Store, number: usize) -> Draft {
    let key = Key::from_stored(&format!("k{number}"));
    let scope = Scope::client(&format!("c{}", number % SCOPES));
    let request = Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope,
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(1),
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    machine::first(&request, &Policy::default())
}

async fn fill(store: &RedisStore, from: usize, to: usize) {
    for numbers in (from..to).collect::<Vec<_>>().chunks(200) {
        let inserts = numbers
            .iter()
            .map(|number| store.insert_or_get(draft(store, *number)));
        for inserted in join_all(inserts).await {
            inserted.unwrap();
        }
    }
}

/// How often the commands of a search have been called.
fn calls(server: &Redis) -> Vec<u64> {
    let told = server.cli(&["INFO", "commandstats"]);
    let count = |name: &str| {
        let line = told
            .lines()
            .find(|line| line.starts_with(&format!("cmdstat_{name}:")));
        let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
    ["get", "hgetall", "zrange", "zrevrangebyscore"]
        .map(count)
        .to_vec()
}

/// What looking for a key costs, and how many were found.
async fn cost(server: &Redis, store: &RedisStore, filter: &Filter) -> (Vec<u64>, usize) {
    server.cli(&["CONFIG", "RESETSTAT"]);
    let found = find(store, filter, None, 50).await.unwrap().items.len();
    (calls(server), found)
}

/// Goal: a key is found with the same commands among many records as among few.
///
/// Method: ask for a key among ten records and among 5,000.
/// Evidence: the server's own count: one command for each bucket of scopes and each scope, no walk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_found_with_the_same_commands() {
    let server = tokio::task::block_in_place(Redis::start);
    let (url, options) = (server.url(), RedisOptions::default());
    let store = RedisStore::open(&url, &options).await.unwrap();
    for number in 0..SCOPES {
        let scope = Scope::client(&format!("c{number}"));
        let id = scope_id(store.secret(), &scope);
        store.keep_scope(id, scope.as_str()).await.unwrap();
    }
    store.keep_block(SCOPES_KNOWN, b"0").await.unwrap();
    fill(&store, 0, SCOPES).await;
    let of_key = Filter {
        key: Some(Key::from_stored("k7")),
        ..Filter::default()
    };
    let among_few = cost(&server, &store, &of_key).await;
    assert_eq!(among_few.1, 1);
    assert_eq!(among_few.0[0], SCOPES as u64);
    assert_eq!(among_few.0[2..], [0, 0]);
    fill(&store, SCOPES, MANY).await;
    assert_eq!(cost(&server, &store, &of_key).await, among_few);
    // None of them is unknown, and nothing else is looked at to say so.
    let unknown = Filter {
        state: Some(State::Unknown),
        ..Filter::default()
    };
    let (calls, found) = cost(&server, &store, &unknown).await;
    assert_eq!((found, calls[0], calls[3]), (0, 0, 0));
}
