//! Recipes as stores keep them.

use onlyonce_core::fingerprint::{BodyMode, Pointer, Recipe};
use onlyonce_testkit::fuzz::Fuzz;

/// Goal: stored bytes are a recipe only if they are what that recipe is written as.
#[test]
fn recipes() {
    let pointer = |text: &str| Pointer::parse(text).unwrap();
    let selecting = Recipe::new(
        BodyMode::Json,
        vec![pointer("/amount"), pointer("/to/iban")],
        vec![pointer("/sent~1at")],
        vec!["content-type".to_owned(), "stripe-account".to_owned()],
    );
    let plain = Recipe::version_1(BodyMode::Raw, Vec::new(), Vec::new(), Vec::new());
    Fuzz::new("recipe", 250_000)
        .seeds([selecting.encode(), plain.encode()])
        .words(["/a", "\0\0\0\x01", "content-type", "~1", "~"])
        .run(|bytes| match Recipe::decode(bytes) {
            Ok(recipe) => {
                assert_eq!(recipe.encode(), bytes);
                (0, recipe.fields().len(), recipe.headers().len())
            }
            Err(error) => (1, bytes.len(), error.to_string().len()),
        });
}
