//! YAML in the forms of an older gateway, read where it lies beside the project.

use super::*;

const SEED: &str = "../../../shared/seeds/000_591208c4463fc659.txt";

/// What may be said about the seed's fragments: parts that a fragment leaves out, and what this
/// version does not do yet.
const EXPECTED: [&str; 5] = [
    "`routes` is missing",
    "a route without `backends`",
    "`key_scope: per_client` without `auth`: there is no client to tell apart",
    "`mode: distributed` needs a store that several gateways can share",
    "profile `payments` demands `reconcile`",
];

fn blocks(text: &str) -> Vec<String> {
    text.split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(block, _)| block.to_owned()))
        .collect()
}

#[test]
fn every_form_of_the_seed_is_known() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SEED);
    let Ok(text) = fs::read_to_string(&path) else {
        println!("skipped: {} is not here", path.display());
        return;
    };
    let blocks = blocks(&text);
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        let Err(Diagnostics(found)) = parsed(&block) else {
            continue;
        };
        for diagnostic in found {
            assert!(
                EXPECTED.contains(&diagnostic.message.as_str()),
                "{block}\n{diagnostic}"
            );
        }
    }
}

/// The forms themselves, for where the seed is not at hand.
#[test]
fn a_complete_example_runs() {
    let config = good(
        "routes:\n\
         \x20 - id: create-order\n\
         \x20   path: /api/v1/orders\n\
         \x20   methods: [POST, PUT]\n\
         \x20   backends:\n\
         \x20     - url: http://order-service:8080\n\
         \x20   idempotency:\n\
         \x20     enabled: true\n\
         \x20     header_name: \"X-Request-Id\"\n\
         \x20     methods: [POST]\n\
         \x20     ttl: 12h\n",
    );
    assert_eq!(config.routes[0].policy.header_name.as_str(), "x-request-id");
}
