//! The upstream: it executes what reaches it, counts that, and then answers, fails or falls silent
//! as the seed says. What was begun has taken effect, whatever becomes of the node that asked.

use std::{pin::Pin, sync::Arc, task::Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use onlyonce::{Body, BoxError, DispatchGuard, NotSent};
use onlyonce_store::{Store, memory::MemoryStore};
use parking_lot::Mutex;

use crate::{
    history::{History, Process},
    script::{End, Script, pause, token},
    setup::{CallId, Setup, variant_in},
};

/// The upstream as one process reaches it.
#[derive(Clone)]
pub struct Upstream {
    pub history: Arc<Mutex<History>>,
    pub store: Arc<MemoryStore>,
    pub process: Process,
    /// When the store's clock last jumped.
    pub jumped_at: Arc<std::sync::atomic::AtomicU64>,
}

impl tower_service::Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(serve(self.clone(), request))
    }
}

async fn serve(upstream: Upstream, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let Some((id, attempt)) = token(&parts.headers) else {
        upstream
            .history
            .lock()
            .violated("14: a request without a reservation came through".into());
        return Err("no token".into());
    };
    let script = {
        let mut history = upstream.history.lock();
        let script = Script::draw(&mut history.rng);
        history.say(&format!(
            "asked {} {attempt:032x} {script:?}",
            upstream.process.node
        ));
        let call = parts.extensions.get::<CallId>().map(|call| call.0);
        history.asked(attempt, call, variant_in(&body));
        script
    };
    pause(script.connect).await;
    if script.end == End::Refused {
        return Err(NotSent::new("connection refused").into());
    }
    if let Some(guard) = parts.extensions.get::<DispatchGuard>() {
        guard.check().map_err(NotSent::new)?;
    }
    {
        let record = upstream.store.peek(id).map(|reply| reply.value);
        let jumped_at = upstream.jumped_at.load(std::sync::atomic::Ordering::SeqCst);
        upstream
            .history
            .lock()
            .started(attempt, record.as_ref(), jumped_at);
    }
    pause(script.work).await;
    answer(&upstream, attempt, script)
}

fn answer(upstream: &Upstream, attempt: u128, script: Script) -> Result<Response<Body>, BoxError> {
    let mark = upstream.history.lock().mark(attempt);
    let (response, given) = script.respond(attempt, &mark)?;
    if let Some(body) = given {
        let (status, mut history) = (script.status()?, upstream.history.lock());
        history.given(attempt, status, script.declared, body);
    }
    Ok(response)
}

/// How long after its reservation an attempt can certainly not be begun any more: its guard counts
/// from before that, by a clock that only goes on.
pub fn certain_after(setup: &Setup) -> u64 {
    Setup::millis(setup.policy.lease) + 1
}
