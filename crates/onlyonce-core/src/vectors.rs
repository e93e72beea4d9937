//! Locates the public test vectors, which live beside the repository and not in it.

use std::path::PathBuf;

/// The path of `relative` within the vectors. If it is absent, says so on standard error.
pub(crate) fn path(relative: &str) -> Option<PathBuf> {
    let root = std::env::var_os("ONLYONCE_VECTORS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"),
        PathBuf::from,
    );
    let path = root.join(relative);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: vectors absent ({})", path.display());
    None
}
