//! The layer: judge, let through, watch for the end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use axum_core::BoxError;
use axum_core::body::Body;
use axum_core::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body::Body as HttpBody;
use tower_layer::Layer;
use tower_service::Service;

use crate::checked::{Admitted, Checked};
use crate::http::answer;
use crate::http::ask::{Asked, Kind};
use crate::http::body::FlightBody;
use crate::http::counts::Counters;
use crate::http::fingerprint::fingerprint;
use crate::http::flight::{End, Flight};
use crate::http::lane::{Lane, Lanes, Place};
use crate::http::marks::Act;
use crate::http::policy::BadPolicy;
use crate::http::problem::is_grpc;
use crate::http::{
    Counts, Marks, Outcome, Policy, Problem, Resources, Start, TOKEN_HEADER, Tokenless,
};

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
}

/// What becomes of a judged request.
enum Passage {
    /// The fence answers it.
    Answer(Response),
    /// Let it through; nobody waits for it.
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
        })))
    }

    /// What it has done.
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
        // The one that was polled ready is used; its clone is polled next.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let gate = self.gate.clone();
        Box::pin(async move { gate.serve(request.map(Body::new), inner).await })
    }
}

impl<M: Marks, R: Resources> Gate<M, R> {
    async fn serve<S, C>(&self, request: Request<Body>, mut inner: S) -> Result<Response, S::Error>
    where
        S: Service<Request<Body>, Response = http::Response<C>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        C: HttpBody<Data = Bytes> + Send + 'static,
        C::Error: Into<BoxError>,
    {
        let (head, mut body) = request.into_parts();
        let passage = match Asked::read(&head, &self.resources) {
            Ok(Some(asked)) => self.judge(&asked, &head, &mut body).await,
            Ok(None) => {
                self.counters.passed.fetch_add(1, Ordering::Relaxed);
                Ok(Passage::Read)
            }
            Err(problem) => Err(self.refused(problem)),
        };
        let flight = match passage {
            Ok(Passage::Answer(response)) => return Ok(response),
            Err(problem) => return Ok(problem.answer(&head.headers)),
            Ok(Passage::Read) => None,
            Ok(Passage::Write(flight)) => Some(flight),
        };
        let request = Request::from_parts(head, body);
        match flight {
            None => Ok(inner.call(request).await?.map(Body::new)),
            Some(flight) => carry_out(inner, request, flight).await,
        }
    }

    fn refused(&self, problem: Problem) -> Problem {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        problem
    }

    async fn judge(
        &self,
        asked: &Asked,
        head: &Parts,
        body: &mut Body,
    ) -> Result<Passage, Problem> {
        if asked.token().is_none() && self.policy.tokenless == Tokenless::Refused {
            return Err(self.refused(tokenless()));
        }
        let act = match (asked.kind, asked.presented.sequence) {
            (Kind::Write, None) => Act::Write(None),
            (Kind::Write, Some(sequence)) => {
                let Policy {
                    compared_bytes,
                    wait,
                    ..
                } = self.policy;
                let digest = fingerprint(head, body, compared_bytes, wait).await?;
                Act::Write(Some((sequence, digest)))
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

    /// Waits for its place, and has the operation judged there.
    async fn pass(
        &self,
        asked: &Asked,
        act: Act,
        lane: &Lane,
        grpc: bool,
    ) -> Result<Passage, Problem> {
        let marks = &self.marks;
        if lane.highest().is_none() {
            let mark = marks.highest(&asked.resource).await.map_err(Into::into)?;
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
        let place = place.map_err(|_| self.busy())?;
        let judged = marks.judge(&asked.resource, asked.presented.pass(), act);
        let admitted = match judged.await.map_err(Into::into)? {
            Checked::Admitted(admitted) => admitted,
            Checked::Rejected(reject) => return Err(reject.into()),
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
    ) -> Result<Passage, Problem> {
        let number = asked.token().zip(asked.presented.sequence);
        if admitted.repeat {
            let last = place
                .last()
                .filter(|last| Some((last.token, last.sequence)) == number);
            let end = last.and_then(|last| last.end);
            if end != Some(End::NotSent) {
                return answer::repeated(end, admitted.highest, grpc).map(Passage::Answer);
            }
        }
        let place = if alone { place } else { place.shared() };
        let (settle, counters) = (self.policy.settle, self.counters.clone());
        Ok(Passage::Write(Flight::start(
            place, number, settle, counters,
        )))
    }

    fn busy(&self) -> Problem {
        self.counters.busy.fetch_add(1, Ordering::Relaxed);
        let waited = self.policy.wait;
        Problem::unavailable(format!(
            "older writes at this resource did not end within {waited:?}; nothing was raised and nothing was sent"
        ))
    }
}

/// Calls the service in a task of its own: a client that goes away must not leave a write half done of
/// which nobody knows.
async fn carry_out<S, C>(
    mut inner: S,
    request: Request<Body>,
    flight: Flight,
) -> Result<Response, S::Error>
where
    S: Service<Request<Body>, Response = http::Response<C>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    C: HttpBody<Data = Bytes> + Send + 'static,
    C::Error: Into<BoxError>,
{
    let grpc = is_grpc(request.headers());
    let task = tokio::spawn(async move {
        let response = inner.call(request).await?;
        Ok(watched(response.map(Body::new), flight))
    });
    match task.await {
        Ok(answered) => answered,
        Err(_) => {
            let problem = Problem::unknown_outcome("the service broke down over this request")
                .with_status(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(problem.answer_as(grpc))
        }
    }
}

/// The answer, with the flight in it until it has ended.
fn watched(response: Response, flight: Flight) -> Response {
    let status = response.status();
    match response.extensions().get::<Outcome>() {
        Some(Outcome::NotSent) => flight.ended(End::NotSent),
        // Dropped unended, so that it settles.
        Some(Outcome::Unknown) => drop(flight),
        None if matches!(status.as_u16(), 502 | 504) => drop(flight),
        None => {
            return response.map(|body| FlightBody::around(body, flight, End::Answered(status)));
        }
    }
    response
}

fn tokenless() -> Problem {
    let message = format!(
        "{TOKEN_HEADER} is missing: a write here must carry the token of its holder's grant"
    );
    Problem::new(StatusCode::PRECONDITION_REQUIRED, "tokenless", message)
}
