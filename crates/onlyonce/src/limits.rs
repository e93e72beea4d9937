//! What one client may take of what all share.

mod bucket;

pub use bucket::{Bucket, Rate};
