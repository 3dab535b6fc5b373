//! The layer: it judges a request, lets it through and watches for its end.

use palisade_core::Code;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

use crate::audit;
use crate::checked::{Admitted, Checked};
use crate::http::answer;
use crate::http::ask::{Asked, Kind};
use crate::http::body::{Whole, read_whole};
use crate::http::counts::Counters;
use crate::http::fingerprint::fingerprint;
use crate::http::flight::{End, Flight};
use crate::http::lane::{Lane, Lanes, Place};
use crate::http::marks::Act;
use crate::http::policy::BadPolicy;
use crate::http::problem::is_grpc;
use crate::http::relay::{Relay, before};
use crate::http::{Counts, Marks, Policy, Problem, Resources, Start, TOKEN_HEADER, Tokenless};

/// Puts a fence in front of a service. Clones, and the services made by them, share lanes and counts.
#[derive(Debug)]
pub struct FenceLayer<M, R>(Arc<Gate<M, R>>);

/// A service behind a fence.
#[derive(Debug)]
pub struct FenceService<S, M, R> {
    inner: S,
    gate: Arc<Gate<M, R>>,
}

#[derive(Debug)]
struct Gate<M, R> {
    marks: M,
    resources: R,
    policy: Policy,
    lanes: Lanes,
    counters: Arc<Counters>,
    /// Room for bodies, [`Policy::held_bytes`].
    room: Arc<Semaphore>,
}

/// What becomes of a judged request.
enum Passage {
    /// The fence answers it.
    Answer(Response),
    /// Let it through; no later request waits for it.
    Read,
    /// Let it through, and watch for its end.
    Write(Flight),
}

impl<M: Marks, R: Resources> FenceLayer<M, R> {
    /// A fence that keeps its marks in `marks` and maps requests by `resources`.
    ///
    /// There must be one at a time for a store of marks: the order of the writes is kept in memory.
    ///
    /// # Errors
    /// [`BadPolicy`]: a setting out of its range, or an unclean start outside a Tokio runtime.
    pub fn new(marks: M, resources: R, policy: Policy) -> Result<FenceLayer<M, R>, BadPolicy> {
        policy.check()?;
        let unsettled = (policy.start == Start::Unclean).then_some(policy.settle);
        Ok(FenceLayer(Arc::new(Gate {
            marks,
            resources,
            policy,
            lanes: Lanes::new(unsettled).ok_or(BadPolicy::NoRuntime)?,
            counters: Arc::default(),
            room: Arc::new(Semaphore::new(policy.held_bytes)),
        })))
    }

    /// Returns what it has done so far.
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
        // This one was polled ready and is used now; its clone is polled next.
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

impl<M: Marks, R: Resources> Gate<M, R> {
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
        let asked = match Asked::read(&head, &body, &self.resources) {
            Ok(asked) => asked,
            Err(problem) => return Ok(self.refused(&head, None, problem)),
        };
        let Some(asked) = asked else {
            self.counters.passed.fetch_add(1, Ordering::Relaxed);
            return service(Request::from_parts(head, body)).await;
        };
        let (body, whole) = match self.take_in(&asked, body).await {
            Ok(taken) => taken,
            Err(problem) => return Ok(self.refused(&head, Some(&asked), problem)),
        };
        match self.judge(&asked, &head, &whole).await {
            Ok(Passage::Answer(response)) => Ok(response),
            Ok(Passage::Read) => service(Request::from_parts(head, body)).await,
            Ok(Passage::Write(flight)) => {
                let request = Request::from_parts(head, Body::from(whole.bytes.clone()));
                self.carry_out(service, request, whole, flight).await
            }
            Err(Refusal::Judged(problem)) => Ok(problem.answer(&head.headers)),
            Err(Refusal::Unjudged(problem)) => Ok(self.refused(&head, Some(&asked), problem)),
        }
    }

    /// Notes a request that is refused before it is judged (rule F13), and answers it.
    fn refused(&self, head: &Parts, asked: Option<&Asked>, problem: Problem) -> Response {
        let at = format!("{} {}", head.method, head.uri.path());
        let resource = asked.map(|asked| asked.resource.as_str());
        let token = asked.and_then(Asked::token);
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

    /// Reads the body of a write before any other request can wait for that write. The body of a read is left.
    async fn take_in(&self, asked: &Asked, body: Body) -> Result<(Body, Whole), Problem> {
        if asked.token().is_none() && self.policy.tokenless == Tokenless::Refused {
            return Err(tokenless());
        }
        match asked.kind {
            Kind::Write => {
                let whole = read_whole(body, &self.policy, &self.room).await?;
                Ok((Body::empty(), whole))
            }
            Kind::Claim | Kind::Read => Ok((body, Whole::default())),
        }
    }

    async fn judge(&self, asked: &Asked, head: &Parts, body: &Whole) -> Result<Passage, Refusal> {
        let act = match (asked.kind, asked.presented.sequence) {
            (Kind::Write, None) => Act::Write(None),
            (Kind::Write, Some(sequence)) => {
                Act::Write(Some((sequence, fingerprint(head, &body.bytes))))
            }
            (Kind::Claim | Kind::Read, _) => Act::Claim,
        };
        let lane = self.lanes.lane(&asked.resource);
        let passage = self.pass(asked, act, &lane, is_grpc(&head.headers)).await;
        drop(lane);
        if passage.is_err() {
            self.lanes.forget(&asked.resource);
        }
        passage
    }

    /// Waits for a place in the lane, and has the operation judged there.
    async fn pass(
        &self,
        asked: &Asked,
        act: Act,
        lane: &Lane,
        grpc: bool,
    ) -> Result<Passage, Refusal> {
        let marks = &self.marks;
        if lane.highest().is_none() {
            let mark = marks.highest(&asked.resource).await.map_err(fault)?;
            lane.note(mark);
        }
        let alone = matches!(act, Act::Write(Some(_)))
            || asked.kind == Kind::Write && self.policy.one_at_a_time;
        let wants_alone = |highest| match asked.token() {
            // The judge rejects it.
            token if token < highest => false,
            token => alone || token > highest,
        };
        let place = self.lanes.enter(lane, self.policy.wait, wants_alone).await;
        let place = place.map_err(|_| Refusal::Unjudged(self.busy()))?;
        let judged = marks.judge(&asked.resource, asked.presented.pass(), act);
        let admitted = match judged.await.map_err(fault)? {
            Checked::Admitted(admitted) => admitted,
            Checked::Rejected(reject) => return Err(Refusal::Judged(reject.into())),
        };
        lane.note(asked.token());
        match asked.kind {
            Kind::Claim => Ok(Passage::Answer(answer::claimed(admitted.highest, grpc))),
            Kind::Read => Ok(Passage::Read),
            Kind::Write => self.start(asked, &admitted, place, alone, grpc),
        }
    }

    fn start(
        &self,
        asked: &Asked,
        admitted: &Admitted<()>,
        place: Place,
        alone: bool,
        grpc: bool,
    ) -> Result<Passage, Refusal> {
        let number = asked.token().zip(asked.presented.sequence);
        if admitted.repeat {
            let last = place
                .last()
                .filter(|last| Some((last.token, last.sequence)) == number);
            let end = last.and_then(|last| last.end);
            if end != Some(End::NotSent) {
                return answer::repeated(end, admitted.highest, grpc)
                    .map(Passage::Answer)
                    .map_err(Refusal::Judged);
            }
        }
        let place = if alone { place } else { place.shared() };
        let (settle, counters) = (self.policy.settle, self.counters.clone());
        Ok(Passage::Write(Flight::start(
            place, number, settle, counters,
        )))
    }

    fn busy(&self) -> Problem {
        let waited = self.policy.wait;
        Problem::unavailable(format!(
            "older writes at this resource did not end within {waited:?}; nothing was raised and nothing was sent"
        ))
    }

    /// Calls the service in a task of its own, and reads its answer there to the end: a client that goes
    /// away or does not read must not leave a write half done of which nobody knows (rule F12).
    async fn carry_out<F, E: Send + 'static>(
        &self,
        service: impl FnOnce(Request<Body>) -> F + Send + 'static,
        request: Request<Body>,
        whole: Whole,
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
            // If the client has gone away, the write goes on all the same.
            let response = match before(over.as_mut(), service(request)).await {
                Some(Ok(response)) => response,
                Some(Err(error)) => return drop(answer.send(Err(error))),
                None => return drop(answer.send(Ok(cut_off(&policy).answer_as(grpc)))),
            };
            drop(whole);
            let Some(end) = End::of(&response, policy.answers_for_itself) else {
                return drop(answer.send(Ok(response)));
            };
            if end == End::NotSent || response.body().is_end_stream() {
                flight.ended(end);
                return drop(answer.send(Ok(response)));
            }
            let (head, body) = response.into_parts();
            let (relay, kept) = Relay::new(&policy, room, body.size_hint());
            drop(answer.send(Ok(Response::from_parts(head, kept))));
            if relay.drain(body, over).await {
                flight.ended(end);
            } else {
                // Dropped unended, so that it settles.
                drop(flight);
            }
            relay.deliver(policy.flight).await;
        });
        answered.await.unwrap_or_else(|_| {
            let problem = Problem::unknown_outcome("the service broke down over this request")
                .with_status(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(problem.answer_as(grpc))
        })
    }
}

/// Why a request is not let through.
enum Refusal {
    /// The marks rejected it, and recorded that.
    Judged(Problem),
    /// It was refused before it was judged, and still has to be recorded.
    Unjudged(Problem),
}

fn fault(error: impl Into<Problem>) -> Refusal {
    Refusal::Unjudged(error.into())
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
