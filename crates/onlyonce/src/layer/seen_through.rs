//! A future that is seen through to its end, whoever watches it.
//!
//! In the common case it is polled where it stands, which costs no task and wakes nobody. If the
//! watcher goes away before the end (a client that hangs up, an answer that was told early), it goes
//! on in a task of its own. So dropping never stops an execution, and never releases a key.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

/// `F`, seen through.
pub(super) struct SeenThrough<F: Future<Output = ()> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output = ()> + Send + 'static> SeenThrough<F> {
    pub(super) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output = ()> + Send + 'static> Future for SeenThrough<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.0 else {
            return Poll::Ready(());
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F: Future<Output = ()> + Send + 'static> Drop for SeenThrough<F> {
    fn drop(&mut self) {
        // One that panicked cannot go on; without a runtime nothing can.
        if let Some(future) = self.0.take()
            && !std::thread::panicking()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn it_goes_on_without_its_watcher() {
        let (go, told_to_go) = oneshot::channel::<()>();
        let (say, said) = oneshot::channel();
        let mut work = SeenThrough::new(async move {
            told_to_go.await.expect("somebody says go");
            say.send("done").expect("somebody listens");
        });
        // Polled once, then dropped in the middle.
        let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx))).await;
        assert!(polled.is_pending());
        drop(work);
        go.send(()).expect("it is still there");
        assert_eq!(said.await, Ok("done"));
    }

    #[tokio::test]
    async fn what_has_ended_is_over() {
        let mut work = SeenThrough::new(async {});
        (&mut work).await;
        (&mut work).await;
    }
}
