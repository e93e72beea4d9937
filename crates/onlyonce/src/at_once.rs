//! Timeouts that set no timer for a future that is already ready.
//!
//! A store in memory answers at the first poll, and a small body has mostly arrived with its head. A timer
//! for each of them would cost more than the work that it bounds.

use std::{pin::Pin, task::Poll, time::Duration};

use tokio::time::Instant;

/// Longer than anybody waits, and short enough to be added to any instant.
const AS_GOOD_AS_NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// `duration` after `from`, or `AS_GOOD_AS_NEVER` on overflow.
pub(crate) fn after(from: Instant, duration: Duration) -> Instant {
    from.checked_add(duration)
        .unwrap_or_else(|| from + AS_GOOD_AS_NEVER)
}

/// The output of `future` if it is ready at its first poll.
pub(crate) async fn at_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    })
    .await
}

/// The output of `future`, or `None` if it takes longer than `limit`.
pub(crate) async fn in_time<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    match at_once(future.as_mut()).await {
        Some(value) => Some(value),
        None => tokio::time::timeout(limit, future).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_waits_as_long_as_it_may() {
        let limit = Duration::from_secs(1);
        let takes = |millis| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            millis
        };
        assert_eq!(in_time(limit, async { 7 }).await, Some(7));
        assert_eq!(in_time(limit, takes(900)).await, Some(900));
        assert_eq!(in_time(limit, takes(1_100)).await, None);
    }
}
