//! Ending with the process that started this one, even if that was killed.

use std::io::{self, Read as _};

use tokio::sync::oneshot;

/// Resolves when standard input ends, which is when the process that started us is gone.
///
/// It takes a plain thread, because a read of standard input cannot be cancelled and would hold up
/// the end of a runtime that did it on one of its own.
pub async fn gone() {
    let (alive, gone) = oneshot::channel::<()>();
    let watch = move || {
        let _alive = alive;
        let mut ignored = [0; 256];
        let mut input = io::stdin().lock();
        loop {
            match input.read(&mut ignored) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    };
    // Without the thread nobody would notice the parent's end, so its absence counts as that end.
    let _ = std::thread::Builder::new()
        .name("parent-watch".into())
        .spawn(watch);
    let _ = gone.await;
}
