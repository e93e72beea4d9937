//! Calls of the service: their timeouts and retries, and what a failure says about a write.
//!
//! The SDK does not retry. A write whose answer was lost may have happened, and only a retry can tell: every
//! write here is conditional or repeatable, so the second try finds out.

use std::{error::Error, future::Future, io, pin::Pin, time::Duration};

use aws_sdk_dynamodb::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    operation::transact_write_items::TransactWriteItemsError,
};
use tokio::time::Instant;

use super::Inner;
use crate::{BoxError, StoreError, random_bytes};

/// The pause before a refused call is retried; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Transient refusals: too many calls, or a conflicting transaction.
const PASSING: [&str; 7] = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "Throttling",
    "LimitExceededException",
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
];
/// The one refusal that does not mean that nothing was written.
const IN_PROGRESS: &str = "TransactionInProgressException";

/// A call under way. Boxed, since the SDK's futures are large.
pub(super) type Calling<T, E> =
    Pin<Box<dyn Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send>>;

/// The result of a call.
pub(super) enum Came<T, E> {
    /// The call succeeded.
    Done(T),
    /// The service refused it, for a reason that the caller handles.
    Refused {
        /// The reason.
        error: E,
        /// Whether an earlier try, whose answer was lost, may have succeeded.
        in_doubt: bool,
    },
}

/// How one try failed.
enum Failed<E> {
    /// Nothing was done, and a retry would not help.
    Refused(E),
    /// Nothing was done; a retry may help.
    NotNow(BoxError),
    /// The outcome is not known.
    Lost(BoxError),
}

/// An error that the service answers with.
pub(super) trait Refusal: ProvideErrorMetadata + Error + Send + Sync + 'static {
    /// Whether the error is transient.
    fn passes(&self) -> bool {
        self.code().is_some_and(|code| PASSING.contains(&code))
    }
}

macro_rules! refusals {
    ($($operation:ident :: $error:ident;)*) => {
        $(impl Refusal for aws_sdk_dynamodb::operation::$operation::$error {})*
    };
}

refusals! {
    put_item::PutItemError;
    update_item::UpdateItemError;
    delete_item::DeleteItemError;
    get_item::GetItemError;
    batch_get_item::BatchGetItemError;
    query::QueryError;
    describe_table::DescribeTableError;
    create_table::CreateTableError;
    update_time_to_live::UpdateTimeToLiveError;
}

impl Refusal for TransactWriteItemsError {
    fn passes(&self) -> bool {
        let passing = |code: &str| {
            matches!(
                code,
                "TransactionConflict" | "ProvisionedThroughputExceeded" | "ThrottlingError"
            )
        };
        match self {
            // A failed condition is the answer, whatever else conflicted.
            Self::TransactionCanceledException(cancelled) => {
                let mut codes = cancelled.cancellation_reasons().iter();
                let codes: Vec<&str> = codes.by_ref().filter_map(|reason| reason.code()).collect();
                !codes.contains(&"ConditionalCheckFailed") && codes.into_iter().any(passing)
            }
            _ => self.code().is_some_and(|code| PASSING.contains(&code)),
        }
    }
}

impl Inner {
    /// Retries a call until it succeeds, is refused, or times out.
    pub(super) async fn call<T, E: Refusal>(
        &self,
        mut start: impl FnMut() -> Calling<T, E> + Send,
    ) -> Result<Came<T, E>, StoreError> {
        let end = Instant::now() + self.timeout;
        // Half of the time per try, so that a lost answer leaves time for a second one.
        let share = self.timeout / 2;
        let mut in_doubt = false;
        let mut pause = FIRST_PAUSE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let failed = match tokio::time::timeout(left.min(share), start()).await {
                Ok(Ok(done)) => return Ok(Came::Done(done)),
                Ok(Err(error)) => judge(error),
                Err(_) => Failed::Lost("no answer in time".into()),
            };
            let why = match failed {
                Failed::Refused(error) => return Ok(Came::Refused { error, in_doubt }),
                Failed::NotNow(why) => why,
                Failed::Lost(why) => {
                    in_doubt = true;
                    why
                }
            };
            if Instant::now() + pause >= end {
                return Err(failure(why, in_doubt));
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// A writing call that no condition can refuse.
    pub(super) async fn write<T, E: Refusal>(
        &self,
        start: impl FnMut() -> Calling<T, E> + Send,
    ) -> Result<T, StoreError> {
        match self.call(start).await? {
            Came::Done(done) => Ok(done),
            Came::Refused { error, in_doubt } => Err(refused(&error, in_doubt)),
        }
    }

    /// A reading call.
    pub(super) async fn read<T, E: Refusal>(
        &self,
        start: impl FnMut() -> Calling<T, E> + Send,
    ) -> Result<T, StoreError> {
        match self.write(start).await {
            Err(StoreError::Ambiguous(why)) => Err(StoreError::Unavailable(why)),
            done => done,
        }
    }
}

/// The error for a refusal that the caller does not handle.
pub(super) fn refused<E: Refusal>(error: &E, in_doubt: bool) -> StoreError {
    failure(said(error).into(), in_doubt)
}

fn failure(why: BoxError, in_doubt: bool) -> StoreError {
    match in_doubt {
        true => StoreError::Ambiguous(why),
        false => StoreError::Unavailable(why),
    }
}

/// The service's own message. Never the whole error, which may contain a record.
pub(super) fn said<E: Refusal>(error: &E) -> String {
    let code = error.code().unwrap_or("an error without a name");
    match error.message() {
        Some(message) => format!("DynamoDB says {code}: {message}"),
        None => format!("DynamoDB says {code}"),
    }
}

fn judge<E: Refusal>(error: SdkError<E, HttpResponse>) -> Failed<E> {
    match error {
        SdkError::ConstructionFailure(_) => Failed::NotNow(chain(&error).into()),
        SdkError::ServiceError(answer) => {
            let is_client_error = answer.raw().status().is_client_error();
            let error = answer.into_err();
            let text: BoxError = said(&error).into();
            match is_client_error {
                _ if error.code() == Some(IN_PROGRESS) => Failed::Lost(text),
                true if error.passes() => Failed::NotNow(text),
                true => Failed::Refused(error),
                false => Failed::Lost(text),
            }
        }
        _ if never_left(&error) => Failed::NotNow(chain(&error).into()),
        _ => Failed::Lost(chain(&error).into()),
    }
}

/// Whether there was no connection to send the request on, because nobody listens.
fn never_left(error: &(dyn Error + 'static)) -> bool {
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The messages of all causes. None of them contains what was sent or answered.
fn chain(error: &(dyn Error + 'static)) -> String {
    let words: Vec<String> = causes(error).map(ToString::to_string).collect();
    words.join(": ")
}

/// Half of the pause plus a random part of the other half, so that refused callers do not return together.
fn jittered(pause: Duration) -> Duration {
    let [part] = random_bytes::<1>();
    pause / 2 + pause * u32::from(part) / 512
}
