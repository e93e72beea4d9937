//! Captures the server's warnings while a statement runs.
//!
//! A session that waits for a synchronous standby and is told to stop waiting commits all the same: the
//! driver reports success, and the server adds a warning. The driver does not return warnings but logs them
//! as `tracing` events, so this module subscribes to them while one of our statements is polled.
//!
//! Any warning counts, whatever its text: the text is in the server's language, the driver drops the code,
//! and our statements cause no warnings otherwise.

use std::{cell::RefCell, fmt, future::poll_fn, pin::pin, sync::OnceLock};

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    dispatcher::{get_default, with_default},
    field::{Field, Visit},
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
    span,
    subscriber::Interest,
};

use super::failure::judge;
use crate::sql::failure::Failure;

/// The target of the driver's events about server messages.
const TARGET: &str = "sqlx::postgres::notice";

thread_local! {
    /// What was captured while a statement is polled in this thread.
    static HEARD: RefCell<Option<Heard>> = const { RefCell::new(None) };
}

struct Heard {
    /// The dispatcher that was active in this thread.
    others: Dispatch,
    warning: Option<String>,
}

/// Whether this program was built so that warnings can be captured. A feature of `tracing` can remove them
/// from the whole program.
pub(super) fn can_be_heard() -> bool {
    STATIC_MAX_LEVEL >= LevelFilter::WARN
}

/// The result of a statement. If it succeeded with a warning, it was executed, but may be less durable than
/// an acknowledged one.
pub(super) async fn unwarned<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Failure> {
    let (outcome, warning) = hear(work).await;
    match (outcome, warning) {
        (Ok(_), Some(warning)) => Err(Failure::Unconfirmed(sqlx::Error::Protocol(format!(
            "the server warned: {warning}"
        )))),
        // The warning came before the error, and the error may be about less.
        (Err(error), Some(_)) => Err(Failure::Lost(error)),
        (outcome, None) => outcome.map_err(judge),
    }
}

async fn hear<F: Future>(work: F) -> (F::Output, Option<String>) {
    let mut work = pin!(work);
    let mut warning = None;
    let output = poll_fn(|context| {
        let others = get_default(Clone::clone);
        let outer = HEARD.replace(Some(Heard {
            others,
            warning: warning.take(),
        }));
        let polled = with_default(listener(), || work.as_mut().poll(context));
        warning = HEARD.replace(outer).and_then(|heard| heard.warning);
        polled
    })
    .await;
    (output, warning)
}

/// One for the whole process: creating one makes every logging call site register its interest again.
fn listener() -> &'static Dispatch {
    static LISTENER: OnceLock<Dispatch> = OnceLock::new();
    LISTENER.get_or_init(|| Dispatch::new(Listener))
}

/// Captures the server's warnings, and passes every event on to the previous dispatcher. Spans end here: the
/// driver opens none, and one that outlived its poll would belong to nobody.
struct Listener;

/// Whether this is a server warning, or the driver's check whether anybody wants one.
fn is_warning(metadata: &Metadata<'_>) -> bool {
    !metadata.is_span() && *metadata.level() <= Level::WARN && metadata.target() == TARGET
}

/// Asks the previous dispatcher.
fn others<T>(ask: impl FnOnce(&Dispatch) -> T) -> Option<T> {
    let others = HEARD.with_borrow(|heard| heard.as_ref().map(|heard| heard.others.clone()));
    others.as_ref().map(ask)
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match is_warning(metadata) {
            true => Interest::always(),
            // With the interest of others this makes `sometimes`: they differ by thread, and are asked.
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = || others(|others| others.enabled(metadata)) == Some(true);
        is_warning(metadata) || (!metadata.is_span() && wanted())
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        if is_warning(metadata) {
            let mut text = Text::default();
            event.record(&mut text);
            HEARD.with_borrow_mut(|heard| {
                if let Some(heard) = heard {
                    heard.warning.get_or_insert(text.0);
                }
            });
        }
        others(|others| {
            if others.enabled(metadata) {
                others.event(event);
            }
        });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The text of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    async fn warned() -> Result<(), sqlx::Error> {
        tokio::task::yield_now().await;
        // As the driver does it.
        if tracing::enabled!(target: TARGET, Level::WARN) {
            tracing::event!(target: TARGET, Level::WARN, message = "canceling wait");
        }
        tracing::info!(target: TARGET, "of no account");
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Counts events, as a log would.
    struct Log(Arc<AtomicUsize>);

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::WARN
        }

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    /// Goal: a warning is heard whatever the program logs, and the program's log still gets its events.
    #[tokio::test]
    async fn a_warning_is_heard_and_passed_on() {
        // Nobody logs.
        let outcome = unwarned(warned()).await;
        assert!(
            matches!(outcome, Err(Failure::Unconfirmed(_))),
            "{outcome:?}"
        );
        assert!(unwarned(async { Ok(()) }).await.is_ok());

        let logged = Arc::new(AtomicUsize::new(0));
        let log = Dispatch::new(Log(logged.clone()));
        let _log = tracing::dispatcher::set_default(&log);
        let work = async {
            tracing::warn!("another one");
            warned().await
        };
        assert!(unwarned(work).await.is_err());
        assert_eq!(
            logged.load(Ordering::SeqCst),
            2,
            "both warnings, and not the information"
        );
        tracing::warn!("afterwards");
        assert_eq!(logged.load(Ordering::SeqCst), 3);

        // A log that wants nothing at all.
        let silent = Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let _silent = tracing::dispatcher::set_default(&silent);
        assert!(unwarned(warned()).await.is_err());
    }
}
