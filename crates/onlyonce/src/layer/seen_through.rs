//! A future that runs to its end, whether or not somebody polls it.
//!
//! Usually it is polled in place, which costs no task and no wake-up. If its owner drops it before the end (a
//! client that hangs up, an answer sent early), it continues in a separate task. Dropping it therefore never
//! stops an execution and never releases a key.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::runtime::Handle;

use crate::limits::Attendance;

/// Runs `F` to its end.
pub(super) struct SeenThrough<F: Future<Output = ()> + Send + 'static> {
    future: Option<Pin<Box<F>>>,
    attended: Arc<Attendance>,
}

impl<F: Future<Output = ()> + Send + 'static> SeenThrough<F> {
    /// Tells `attended` when nobody polls the future any more.
    pub(super) fn new(future: F, attended: Arc<Attendance>) -> Self {
        Self {
            future: Some(Box::pin(future)),
            attended,
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Future for SeenThrough<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(());
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<F: Future<Output = ()> + Send + 'static> Drop for SeenThrough<F> {
    fn drop(&mut self) {
        // A future that panicked cannot continue; without a runtime nothing can.
        if let Some(future) = self.future.take()
            && !std::thread::panicking()
            && let Ok(runtime) = Handle::try_current()
        {
            self.attended.unwatched();
            runtime.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DetachedExecutions;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn it_goes_on_without_its_watcher() {
        let (go, told_to_go) = oneshot::channel::<()>();
        let (say, said) = oneshot::channel();
        let all = DetachedExecutions::default();
        let attended = all.execution(None);
        let execution = attended.clone();
        let work = async move {
            let _execution = execution;
            told_to_go.await.expect("somebody says go");
            say.send("done").expect("somebody listens");
        };
        let mut work = SeenThrough::new(work, attended);
        // Polled once, then dropped in the middle.
        let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx))).await;
        assert!(polled.is_pending());
        assert_eq!(all.total(), 0);
        drop(work);
        assert_eq!(all.total(), 1, "nobody watches it");
        go.send(()).expect("it is still there");
        assert_eq!(said.await, Ok("done"));
    }

    #[tokio::test]
    async fn what_has_ended_is_over() {
        let attended = DetachedExecutions::default().execution(None);
        let mut work = SeenThrough::new(async {}, attended);
        (&mut work).await;
        (&mut work).await;
    }
}
