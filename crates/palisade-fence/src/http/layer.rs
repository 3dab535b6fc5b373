//! The layer: it judges a request, passes it on and watches for its end.

use palisade_core::Code;
use palisade_core::fence::{Op, Reporter};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum_core::BoxError;
use axum_core::body::Body;
use axum_core::response::Response;
use bytes::Bytes;
use http::header::ALLOW;
use http::request::Parts;
use http::{HeaderValue, Request, StatusCode};
use http_body::Body as HttpBody;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::admitted::Admitted;
use crate::audit;
use crate::error::Error;
use crate::http::answer;
use crate::http::body::{WriteBody, read_whole};
use crate::http::counts::Counters;
use crate::http::fenced_request::{FencedRequest, RequestKind};
use crate::http::fingerprint::fingerprint;
use crate::http::flight::Flight;
use crate::http::lane::{LanePermit, Lanes, ResourceLane};
use crate::http::marks::RequestEffect;
use crate::http::outcome::WriteEnd;
use crate::http::policy::BadPolicy;
use crate::http::problem::is_grpc;
use crate::http::relay::{Relay, before};
use crate::http::{Counts, LastRun, Marks, Policy, Problem, Resources, TOKEN_HEADER, Tokenless};
use crate::sequencer::Check;

/// Puts a fence in front of a service. Clones, and the services that they create, share lanes and counts.
#[derive(Debug)]
pub struct FenceLayer<M, R>(Arc<LayerState<M, R>>);

/// A service behind a fence.
#[derive(Debug)]
pub struct FenceService<S, M, R> {
    inner: S,
    gate: Arc<LayerState<M, R>>,
}

#[derive(Debug)]
struct LayerState<M, R> {
    marks: M,
    resources: R,
    policy: Policy,
    sequencers: Check,
    lanes: Lanes,
    counters: Arc<Counters>,
    /// Hears of refused late writes.
    reporter: OnceLock<Arc<dyn Reporter>>,
    /// One permit for each byte of [`Policy::held_bytes`].
    room: Arc<Semaphore>,
}

/// The next step for an admitted request.
enum NextStep {
    /// The fence answers it.
    Answer(Response),
    /// It passes; no later request waits for it.
    Read,
    /// It passes, and later requests may have to wait for its end.
    Write(Flight),
}

impl<M: Marks, R: Resources> FenceLayer<M, R> {
    /// Creates a fence that keeps its marks in `marks` and maps requests by `resources`.
    ///
    /// Only one layer may use a store of marks at a time, because the order of the writes is in memory.
    ///
    /// # Errors
    /// [`BadPolicy`]: a setting is out of its range, or an unclean start outside a Tokio runtime.
    pub fn new(marks: M, resources: R, policy: Policy) -> Result<FenceLayer<M, R>, BadPolicy> {
        FenceLayer::with_sequencers(marks, resources, policy, Check::default())
    }

    /// As [`FenceLayer::new`], for holders whose tokens are signed.
    ///
    /// A sequencer is admitted at the resource with the name of its lock, or of its slot (`LOCK~SLOT`).
    ///
    /// # Errors
    /// As [`FenceLayer::new`].
    pub fn with_sequencers(
        marks: M,
        resources: R,
        policy: Policy,
        sequencers: Check,
    ) -> Result<FenceLayer<M, R>, BadPolicy> {
        policy.check()?;
        let unsettled = (policy.start == LastRun::Unclean).then_some(policy.settle);
        Ok(FenceLayer(Arc::new(LayerState {
            marks,
            resources,
            policy,
            sequencers,
            lanes: Lanes::new(unsettled).ok_or(BadPolicy::NoRuntime)?,
            counters: Arc::default(),
            reporter: OnceLock::new(),
            room: Arc::new(Semaphore::new(policy.held_bytes)),
        })))
    }

    /// Reports each refused late write to `reporter`: a `palisade_client::Client` tells its authority. The lock is the one that
    /// the request names, the operation its method and path. The first reporter stays.
    #[must_use]
    pub fn reporting_to(self, reporter: Arc<dyn Reporter>) -> FenceLayer<M, R> {
        let _ = self.0.reporter.set(reporter);
        self
    }

    /// Returns the counts since it was created.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counters.read()
    }
}

impl<M, R> Clone for FenceLayer<M, R> {
    fn clone(&self) -> FenceLayer<M, R> {
        FenceLayer(self.0.clone())
    }
}

impl<S, M, R> Layer<S> for FenceLayer<M, R> {
    type Service = FenceService<S, M, R>;

    fn layer(&self, inner: S) -> FenceService<S, M, R> {
        FenceService {
            inner,
            gate: self.0.clone(),
        }
    }
}

impl<S: Clone, M, R> Clone for FenceService<S, M, R> {
    fn clone(&self) -> FenceService<S, M, R> {
        FenceService {
            inner: self.inner.clone(),
            gate: self.gate.clone(),
        }
    }
}

impl<S, M, R, B, C> Service<Request<B>> for FenceService<S, M, R>
where
    S: Service<Request<Body>, Response = http::Response<C>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    M: Marks,
    R: Resources,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    C: HttpBody<Data = Bytes> + Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // This service was polled ready and is used now; the clone has to be polled first.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let gate = self.gate.clone();
        let service = move |request| {
            let answer = inner.call(request);
            async move { Ok(answer.await?.map(Body::new)) }
        };
        Box::pin(async move { gate.serve(request.map(Body::new), service).await })
    }
}

impl<M: Marks, R: Resources> LayerState<M, R> {
    /// Judges a request, and passes it to the inner service at most once.
    async fn serve<F, E: Send + 'static>(
        &self,
        request: Request<Body>,
        service: impl FnOnce(Request<Body>) -> F + Send + 'static,
    ) -> Result<Response, E>
    where
        F: Future<Output = Result<Response, E>> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let fenced = match FencedRequest::parse(&head, &body, &self.resources, &self.sequencers) {
            Ok(fenced) => fenced,
            Err(problem) => return Ok(self.refused(&head, None, problem)),
        };
        let Some(fenced) = fenced else {
            self.counters.passed.fetch_add(1, Ordering::Relaxed);
            return service(Request::from_parts(head, body)).await;
        };
        let (body, whole) = match self.take_in(&fenced, body).await {
            Ok(taken) => taken,
            Err(problem) => return Ok(self.refused(&head, Some(&fenced), problem)),
        };
        match self.judge(&fenced, &head, &whole).await {
            Ok(NextStep::Answer(response)) => Ok(response),
            Ok(NextStep::Read) => service(Request::from_parts(head, body)).await,
            Ok(NextStep::Write(flight)) => {
                let request = Request::from_parts(head, Body::from(whole.bytes.clone()));
                self.carry_out(service, request, whole, flight).await
            }
            Err(NotPassed::Judged(problem)) => Ok(problem.answer(&head.headers)),
            Err(NotPassed::Unjudged(problem)) => Ok(self.refused(&head, Some(&fenced), problem)),
        }
    }

    /// Records a request that is refused before it is judged (rule F13), and answers it.
    fn refused(&self, head: &Parts, fenced: Option<&FencedRequest>, problem: Problem) -> Response {
        let at = format!("{} {}", head.method, head.uri.path());
        let resource = fenced.map(|fenced| fenced.resource.as_str());
        let token = fenced.and_then(FencedRequest::token);
        let reason = problem.code();
        self.counters.refused.count(reason);
        audit::refused(&at, resource, token, reason, problem.message());
        let mut response = problem.answer(&head.headers);
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            let allowed = HeaderValue::from_static("GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE");
            response.headers_mut().insert(ALLOW, allowed);
        }
        response
    }

    /// Reads the body of a write before any other request can wait for that write. The body of a read is not read.
    async fn take_in(
        &self,
        fenced: &FencedRequest,
        body: Body,
    ) -> Result<(Body, WriteBody), Problem> {
        if fenced.token().is_none() && self.policy.tokenless == Tokenless::Refused {
            return Err(tokenless());
        }
        match fenced.kind {
            RequestKind::Write => {
                let whole = read_whole(body, &self.policy, &self.room).await?;
                Ok((Body::empty(), whole))
            }
            RequestKind::Claim | RequestKind::Read => Ok((body, WriteBody::default())),
        }
    }

    async fn judge(
        &self,
        fenced: &FencedRequest,
        head: &Parts,
        body: &WriteBody,
    ) -> Result<NextStep, NotPassed> {
        let act = match (fenced.kind, fenced.presented.sequence) {
            (RequestKind::Write, None) => RequestEffect::Write(None),
            (RequestKind::Write, Some(sequence)) => {
                RequestEffect::Write(Some((sequence, fingerprint(head, &body.bytes))))
            }
            (RequestKind::Claim | RequestKind::Read, _) => RequestEffect::Claim,
        };
        let lane = self.lanes.lane(&fenced.resource);
        let judged = self.judge_in(&lane, fenced, act, head).await;
        drop(lane);
        if judged.is_err() {
            self.lanes.forget(&fenced.resource);
        }
        judged
    }

    /// Waits for the permit of the lane, and then judges the operation.
    async fn judge_in(
        &self,
        lane: &ResourceLane,
        fenced: &FencedRequest,
        act: RequestEffect,
        head: &Parts,
    ) -> Result<NextStep, NotPassed> {
        let (marks, grpc) = (&self.marks, is_grpc(&head.headers));
        if lane.highest().is_none() {
            let mark = marks.highest(&fenced.resource).await.map_err(refusal)?;
            lane.note(mark);
        }
        let alone = matches!(act, RequestEffect::Write(Some(_)))
            || fenced.kind == RequestKind::Write && self.policy.one_at_a_time;
        let wants_alone = |highest| match fenced.token() {
            // The marks reject it.
            token if token < highest => false,
            token => alone || token > highest,
        };
        let permit = self.lanes.enter(lane, self.policy.wait, wants_alone).await;
        let permit = permit.map_err(|_| NotPassed::Unjudged(self.busy()))?;
        let judged = marks.judge(&fenced.resource, fenced.presented.pass(), act);
        let admitted = judged.await.map_err(|error| {
            self.report(fenced, head, &error);
            refusal(error)
        })?;
        lane.note(fenced.token());
        match fenced.kind {
            RequestKind::Claim => Ok(NextStep::Answer(answer::claimed(admitted.highest, grpc))),
            RequestKind::Read => Ok(NextStep::Read),
            RequestKind::Write => self.start(fenced, &admitted, permit, alone, grpc),
        }
    }

    fn start(
        &self,
        fenced: &FencedRequest,
        admitted: &Admitted<()>,
        permit: LanePermit,
        alone: bool,
        grpc: bool,
    ) -> Result<NextStep, NotPassed> {
        let number = fenced.token().zip(fenced.presented.sequence);
        if admitted.repeat {
            let last = permit
                .last()
                .filter(|last| Some((last.token, last.sequence)) == number);
            let end = last.and_then(|last| last.end);
            if end != Some(WriteEnd::NotSent) {
                return answer::repeated(end, admitted.highest, grpc)
                    .map(NextStep::Answer)
                    .map_err(NotPassed::Judged);
            }
        }
        let permit = if alone { permit } else { permit.shared() };
        let (settle, counters) = (self.policy.settle, self.counters.clone());
        Ok(NextStep::Write(Flight::start(
            permit, number, settle, counters,
        )))
    }

    /// Reports a late write. The marks get no reporter, because they may judge on another thread.
    fn report(&self, fenced: &FencedRequest, head: &Parts, error: &Error) {
        let (reporter, pass) = (self.reporter.get(), fenced.presented.pass());
        let (Some(reporter), Some(pass), Some(reject)) = (reporter, pass, error.rejected()) else {
            return;
        };
        let operation = match fenced.kind {
            RequestKind::Claim => Op::Claim.word().to_owned(),
            // Not the query, which may contain secrets.
            _ => format!("{} {}", head.method, head.uri.path()),
        };
        let pass = pass.doing(&operation).reporting_to(&**reporter);
        pass.rejected(fenced.resource.as_str(), reject);
    }

    fn busy(&self) -> Problem {
        let waited = self.policy.wait;
        Problem::unavailable(format!(
            "older writes at this resource did not end within {waited:?}; nothing was raised and nothing was sent"
        ))
    }

    /// Calls the service in a task of its own and reads its answer there to the end, so that the end of the write
    /// is seen even if its client disconnects or does not read (rule F12).
    async fn carry_out<F, E: Send + 'static>(
        &self,
        service: impl FnOnce(Request<Body>) -> F + Send + 'static,
        request: Request<Body>,
        whole: WriteBody,
        flight: Flight,
    ) -> Result<Response, E>
    where
        F: Future<Output = Result<Response, E>> + Send + 'static,
    {
        let grpc = is_grpc(request.headers());
        let (policy, room) = (self.policy, self.room.clone());
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let mut over = pin!(sleep(policy.flight));
            // If the client has disconnected, the write continues.
            let response = match before(over.as_mut(), service(request)).await {
                Some(Ok(response)) => response,
                Some(Err(error)) => return drop(answer.send(Err(error))),
                None => return drop(answer.send(Ok(cut_off(&policy).answer_as(grpc)))),
            };
            drop(whole);
            let Some(end) = WriteEnd::of(&response, policy.answers_for_itself) else {
                return drop(answer.send(Ok(response)));
            };
            if end == WriteEnd::NotSent || response.body().is_end_stream() {
                flight.ended(end);
                return drop(answer.send(Ok(response)));
            }
            let (head, body) = response.into_parts();
            let (relay, kept) = Relay::new(&policy, room, body.size_hint());
            drop(answer.send(Ok(Response::from_parts(head, kept))));
            if relay.drain(body, over).await {
                flight.ended(end);
            } else {
                // Its end was not seen, so it settles.
                drop(flight);
            }
            relay.deliver(policy.flight).await;
        });
        answered.await.unwrap_or_else(|_| {
            let problem = Problem::unknown_outcome("the service panicked during this request")
                .with_status(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(problem.answer_as(grpc))
        })
    }
}

/// The reason why a request does not pass.
enum NotPassed {
    /// The marks rejected it and recorded that.
    Judged(Problem),
    /// It was refused before it was judged, and still has to be recorded.
    Unjudged(Problem),
}

fn refusal(error: Error) -> NotPassed {
    match error.rejected() {
        Some(_) => NotPassed::Judged(error.into()),
        None => NotPassed::Unjudged(error.into()),
    }
}

fn cut_off(policy: &Policy) -> Problem {
    let flight = policy.flight;
    Problem::unknown_outcome(format!(
        "the service did not end this write within {flight:?}"
    ))
}

fn tokenless() -> Problem {
    let message = format!(
        "{TOKEN_HEADER} is missing: a write here must carry the token of its holder's grant"
    );
    Problem::new(StatusCode::PRECONDITION_REQUIRED, Code::Tokenless, message)
}
