//! Tests of the derived values: stable, separated from each other, unambiguous in their parts.

use super::*;

fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

#[test]
fn record_ids_depend_on_secret_scope_and_key() {
    let key = Key::from_stored("abc");
    let id = secret().record_id("global", &key);
    assert_eq!(id, secret().record_id("global", &Key::from_stored("abc")));
    assert_ne!(id, secret().record_id("client:a", &key));
    assert_ne!(id, secret().record_id("global", &Key::from_stored("abd")));
    assert_ne!(id, Secret::from_bytes([8; 32]).record_id("global", &key));
    // Without length prefixes these two would be one message.
    let left = secret().record_id("client:a", &Key::from_stored("bc"));
    assert_ne!(
        left,
        secret().record_id("client:ab", &Key::from_stored("c"))
    );
}

#[test]
fn record_ids_survive_their_text() {
    let id = secret().record_id("global", &Key::from_stored("abc"));
    let text = id.to_string();
    assert_eq!(text.len(), 32);
    assert_eq!(text.parse(), Ok(id));
    assert_eq!(format!("{id:?}"), text);
    for wrong in [
        "",
        "00",
        &text[1..],
        &format!("{text}0"),
        &"G".repeat(32),
        &"A".repeat(32),
    ] {
        assert_eq!(wrong.parse::<RecordId>(), Err(RecordIdError), "{wrong}");
    }
}

/// Stored ids must be found again after an upgrade, so the bytes themselves are pinned.
#[test]
fn the_derivation_never_changes() {
    let key = Key::from_stored("abc");
    assert_eq!(
        secret().record_id("global", &key).to_string(),
        "110aa3b460be455ae609c49a58b9b7d0"
    );
    assert_eq!(secret().key_tag(&key).to_string(), "88252c50");
}

#[test]
fn tags_are_eight_hex_digits() {
    let tag = secret().key_tag(&Key::from_stored("abc")).to_string();
    assert!(tag.len() == 8 && tag.bytes().all(|b| b.is_ascii_hexdigit()));
    assert_ne!(tag, secret().key_tag(&Key::from_stored("abd")).to_string());
}

#[test]
fn caller_marks_keep_parts_apart() {
    let mark = |parts: &[&[u8]]| secret().caller_mark("global", parts);
    assert_eq!(mark(&[b"a", b"b"]), mark(&[b"a", b"b"]));
    assert_ne!(mark(&[b"a", b"b"]), mark(&[b"ab"]));
    assert_ne!(mark(&[b"a", b""]), mark(&[b"a"]));
    assert_ne!(mark(&[b"a", b"b"]), mark(&[b"b", b"a"]));
    assert_ne!(mark(&[b"a"]), secret().caller_mark("route:x", &[b"a"]));
}

#[test]
fn nothing_secret_is_printed() {
    assert_eq!(format!("{:?}", secret()), "Secret(..)");
    assert_eq!(
        format!("{:?}", secret().scope_hasher("global")),
        "ScopeHasher(..)"
    );
    assert_eq!(secret().as_bytes(), &[7; 32]);
}
