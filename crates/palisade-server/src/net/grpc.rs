//! The gRPC service: unary calls, the session stream, the watch, health and reflection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::routing::any;
use palisade_core::Outcome;
use palisade_proto::codes::CodeRow;
use palisade_proto::v1::locks_server::{Locks, LocksServer};
use palisade_proto::{Code, FILE_DESCRIPTOR_SET, v1};
use tokio_stream::Stream;
use tonic::server::NamedService;
use tonic::{Response, Status, Streaming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::calls::Calls;
use super::convert::{self, Refusal, grpc as messages};
use super::error::ServeError;
use super::forward;
use super::gate;
use super::grpc_status::{CODE, status};
use super::grpc_stream;
use super::interfaces::Interfaces;
use super::issuer::SequencerIssuer;
use super::listings;
use super::notice::{Notice, NoticeBatch};
use super::session;
use super::traces::{TracedRequest, Traces};
use super::watch::{Batches, Watches};
use palisade_pipeline::{Answer, Request};

/// The gRPC routes and their health service.
pub(super) fn routes(interfaces: &Interfaces) -> Result<(Router, Health), ServeError> {
    let locks = LocksServer::new(Service {
        calls: Arc::clone(&interfaces.calls),
        watches: Arc::clone(&interfaces.watches),
        issuer: Arc::clone(&interfaces.issuer),
        traces: Arc::clone(&interfaces.traces),
    })
    .max_decoding_message_size(interfaces.sessions.frame_bytes)
    .max_encoding_message_size(usize::MAX);
    let (reporter, health) = tonic_health::server::health_reporter();
    let sessions = Arc::clone(&interfaces.sessions);
    let to_leader = || from_fn_with_state(Arc::clone(&interfaces.forwarder), forward::to_leader);
    let listing = Router::new()
        .route_service(LIST, locks.clone())
        .route_layer(to_leader());
    let open = any(move |request| session::open(Arc::clone(&sessions), request));
    let bounded = || from_fn_with_state(Arc::clone(&interfaces.streams), grpc_stream::bounded);
    let calls = listings::bounded(&interfaces.listings, listing);
    let calls = calls.merge(Router::new().route(SESSION, open).route_layer(bounded()));
    let unary = mount(Router::new(), locks).route_layer(to_leader());
    let calls = calls.merge(unary).layer(map_response(coded));
    let others = mount(Router::new(), health);
    let others = mount(others, reflection().build_v1().map_err(descriptor)?);
    let others = mount(others, reflection().build_v1alpha().map_err(descriptor)?);
    let ending = from_fn_with_state(interfaces.phases.clone(), grpc_stream::until_draining);
    let router = others
        .route_layer(ending)
        .route_layer(bounded())
        .merge(calls);
    let router = router.route_layer(from_fn(grpc_stream::over_http2));
    Ok((router, Health(reporter)))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn descriptor(error: tonic_reflection::server::Error) -> ServeError {
    ServeError::Descriptor(error.to_string())
}

/// Mounts a service at the path that gRPC prescribes.
fn mount<S>(router: Router, service: S) -> Router
where
    S: tower::Service<
            http::Request<axum::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
        > + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    router.route_service(&format!("/{}/{{*method}}", S::NAME), service)
}

/// The status of the health service.
pub(super) struct Health(HealthReporter);

impl Health {
    pub(super) async fn serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    pub(super) async fn not_serving(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    async fn set(&self, status: ServingStatus) {
        self.0.set_service_status("", status).await;
        self.0
            .set_service_status(LocksServer::<Service>::NAME, status)
            .await;
    }
}

/// `palisade.v1.Locks`.
struct Service {
    calls: Arc<Calls>,
    watches: Arc<Watches>,
    issuer: Arc<SequencerIssuer>,
    traces: Arc<Traces>,
}

type Replied = Result<Response<v1::Reply>, Status>;

impl Service {
    async fn ask<T>(&self, call: &tonic::Request<T>, request: Result<Request, Refusal>) -> Replied {
        let asked = request.as_ref().ok();
        let asked = asked.and_then(|request| TracedRequest::of(call.extensions(), request));
        let permitted = request.and_then(|request| {
            let who = gate::who(call.extensions())?;
            self.calls.gate.permit(&who, request)
        });
        let permitted = permitted.map_err(|refusal| status(&refusal))?;
        let answer = self.calls.ask(permitted).await;
        if let Answer::Outcome(Outcome::Granted(granted)) = &answer {
            self.traces.keep(asked, granted);
        }
        said(messages::reply(0, answer, self.calls.pipeline.identity()))
    }
}

/// A reply, or the failure of the call.
fn said(reply: v1::Reply) -> Replied {
    match failed(&reply) {
        Some(refusal) => Err(status(&refusal)),
        None => Ok(Response::new(reply)),
    }
}

/// The refusal in a reply whose code ends a unary call, by the table of codes.
fn failed(reply: &v1::Reply) -> Option<Refusal> {
    let Some(v1::reply::Outcome::Error(error)) = &reply.outcome else {
        return None;
    };
    let code = Code::from_name(&error.code).unwrap_or(Code::Internal);
    (CodeRow::of(code).grpc != tonic::Code::Ok).then(|| Refusal {
        leader: (!error.leader.is_empty()).then(|| error.leader.as_str().into()),
        ..Refusal::new(code, error.message.clone())
    })
}

/// The code for a call that failed in the gRPC library. INTERNAL there means a message that cannot be decoded, which is
/// the sender's fault.
fn code_below(code: tonic::Code) -> Option<Code> {
    match code {
        tonic::Code::Internal => Some(Code::Invalid),
        tonic::Code::OutOfRange => Some(Code::TooLarge),
        tonic::Code::Unimplemented => Some(Code::NotFound),
        _ => None,
    }
}

/// Gives every failed call a code of our table.
fn with_code(failed: Status) -> Status {
    match code_below(failed.code()) {
        Some(code) if !failed.metadata().contains_key(CODE) => {
            status(&Refusal::new(code, failed.message()))
        }
        _ => failed,
    }
}

/// Does this for a response that has failed from its headers on.
async fn coded(mut response: http::Response<axum::body::Body>) -> http::Response<axum::body::Body> {
    if let Some(failed) = Status::from_header_map(response.headers())
        && failed.code() != tonic::Code::Ok
    {
        // Only a message that no header can carry is an error, and this one came from a header.
        let _ = with_code(failed).add_header(response.headers_mut());
    }
    response
}

#[tonic::async_trait]
impl Locks for Service {
    async fn acquire(&self, call: tonic::Request<v1::AcquireRequest>) -> Replied {
        self.ask(&call, messages::acquire(call.get_ref())).await
    }

    async fn renew(&self, call: tonic::Request<v1::RenewRequest>) -> Replied {
        self.ask(&call, messages::renew(call.get_ref())).await
    }

    async fn release(&self, call: tonic::Request<v1::ReleaseRequest>) -> Replied {
        self.ask(&call, messages::release(call.get_ref())).await
    }

    async fn abandon(&self, call: tonic::Request<v1::AbandonRequest>) -> Replied {
        self.ask(&call, messages::abandon(call.get_ref())).await
    }

    async fn r#break(&self, call: tonic::Request<v1::BreakRequest>) -> Replied {
        self.ask(&call, messages::revoke(call.get_ref())).await
    }

    async fn proclaim(&self, call: tonic::Request<v1::ProclaimRequest>) -> Replied {
        self.ask(&call, messages::proclaim(call.get_ref())).await
    }

    async fn sequencer(&self, call: tonic::Request<v1::SequencerRequest>) -> Replied {
        let asked = || {
            let lock = convert::lock_name("lock", &call.get_ref().lock)?;
            let renew = messages::sequencer(call.get_ref())?;
            Ok((gate::who(call.extensions())?, lock, renew))
        };
        let (who, lock, renew) = asked().map_err(|refusal| status(&refusal))?;
        said(match self.issuer.issue(&who, &lock, renew).await {
            Ok((token, signed)) => messages::sequenced(token, signed),
            Err(refusal) => messages::refused(0, &refusal),
        })
    }

    async fn open(&self, call: tonic::Request<v1::OpenRequest>) -> Replied {
        self.ask(&call, messages::open(call.get_ref())).await
    }

    async fn resize(&self, call: tonic::Request<v1::ResizeRequest>) -> Replied {
        self.ask(&call, messages::resize(call.get_ref())).await
    }

    async fn show(&self, call: tonic::Request<v1::ShowRequest>) -> Replied {
        self.ask(&call, messages::show(call.get_ref())).await
    }

    async fn list(&self, call: tonic::Request<v1::ListRequest>) -> Replied {
        self.ask(&call, messages::list(call.get_ref())).await
    }

    async fn status(&self, call: tonic::Request<v1::StatusRequest>) -> Replied {
        self.ask(&call, Ok(Request::Status)).await
    }

    type WatchStream = Events;

    async fn watch(
        &self,
        call: tonic::Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let message = call.get_ref();
        let prefix = convert::prefix(&message.prefix).map_err(|refusal| status(&refusal))?;
        let after = message.after_revision;
        let batches = gate::who(call.extensions())
            .and_then(|who| self.calls.gate.observe(&who, &prefix))
            .and_then(|observed| self.watches.watch(observed, after));
        let batches = batches.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(Events {
            batches,
            batch: None,
        }))
    }

    type SessionStream = tokio_stream::Empty<Result<v1::Replies, Status>>;

    /// A session is served where its path is routed.
    async fn session(
        &self,
        _: tonic::Request<Streaming<v1::Requests>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Err(Status::unimplemented("a session is not a call"))
    }
}

const LIST: &str = "/palisade.v1.Locks/List";
const SESSION: &str = "/palisade.v1.Locks/Session";

/// The stream of a watch's messages.
struct Events {
    batches: Batches,
    /// The current batch, and how many of its notices were sent.
    batch: Option<(Arc<NoticeBatch>, usize)>,
}

impl Stream for Events {
    type Item = Result<v1::Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some((batch, sent)) = &mut self.batch
                && let Some(notice) = batch.notices.get(*sent)
            {
                *sent += 1;
                return Poll::Ready(Some(Ok(message(notice))));
            }
            match ready!(Pin::new(&mut self.batches).poll_next(cx)) {
                Some(batch) => self.batch = Some((batch, 0)),
                None => return Poll::Ready(None),
            }
        }
    }
}

fn message(notice: &Notice) -> v1::Event {
    match notice {
        Notice::Change(event) => messages::event(event),
        Notice::Missed { missed, upto } => v1::Event {
            missed: *missed,
            revision: *upto,
            ..v1::Event::default()
        },
    }
}
