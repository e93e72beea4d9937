//! Exiting with the parent process, even if the parent was killed.

use std::io::{self, Read as _};

use tokio::sync::oneshot;

/// Resolves when standard input ends, which means that the parent process is gone.
///
/// Uses a plain thread: a read of standard input cannot be cancelled, and would delay the shutdown of a
/// runtime that did it on one of its own threads.
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
    // Without the thread nobody would notice the parent's exit, so a failed spawn counts as that exit.
    let _ = std::thread::Builder::new()
        .name("parent-watch".into())
        .spawn(watch);
    let _ = gone.await;
}
