//! HTTP between the processes: one request on each connection, JSON in both directions, everything bounded.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use palisade_core::Code;
use palisade_server::shell::{self, ExchangeKind, Shell};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;
use crate::wire::{MAX_CHUNK, Problem, ProblemCode};

/// The longest request and the longest answer: a whole chunk in JSON, where a line end takes two bytes.
pub(crate) const MAX_BODY: usize = 2 * MAX_CHUNK + (64 << 10);

/// The longest wait for an answer of a server: a grant waits for the end of a lease.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Calls a server. Without an answer within `limit`, the outcome is [`ProblemCode::NoAnswer`].
///
/// # Errors
/// The server's refusal, or that there was no answer.
pub(crate) async fn call<A: DeserializeOwned>(
    address: SocketAddr,
    path: &str,
    request: &impl Serialize,
    limit: Duration,
) -> Result<A, Problem> {
    let no_answer = |why: String| {
        let message = format!("no answer from http://{address}{path}: {why}");
        Problem::new(ProblemCode::NoAnswer, message)
    };
    let body = serde_json::to_vec(request)
        .map_err(|error| Problem::new(ProblemCode::Invalid, error.to_string()))?;
    let exchange = tokio::time::timeout(limit, exchange(address, path, body));
    let (status, body) = exchange
        .await
        .map_err(|_| no_answer(format!("none within {limit:?}")))?
        .map_err(|error| no_answer(error.to_string()))?;
    if status.is_success() {
        return serde_json::from_slice(&body).map_err(|error| no_answer(error.to_string()));
    }
    Err(serde_json::from_slice(&body).unwrap_or_else(|_| no_answer(format!("status {status}"))))
}

async fn exchange(
    address: SocketAddr,
    path: &str,
    body: Vec<u8>,
) -> Result<(StatusCode, Bytes), Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::post(path)
        .header(http::header::HOST, address.to_string())
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let answered = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BODY).collect().await?;
        Ok((status, body.to_bytes()))
    };
    // The connection does the I/O, and ends with the answer.
    let driven = async {
        let ended = connection.await;
        ended.map_or_else(|error| error.to_string(), |()| "it was closed".to_owned())
    };
    tokio::select! {
        biased;
        answered = answered => answered,
        why = driven => Err(why.into()),
    }
}

/// Serves a router until the process ends.
///
/// # Errors
/// Why it cannot serve.
pub(crate) async fn serve(listener: TcpListener, router: axum::Router) -> Result<(), Failure> {
    let settings = shell::Settings {
        connections: 1_024,
        http2: false,
        body_bytes: MAX_BODY,
        answer_timeout: ANSWER_TIMEOUT,
        held_bytes_per_connection: 2 * MAX_BODY,
        unread_bytes: 1 << 20,
        ..shell::Settings::default()
    };
    Shell::new(settings)?
        .serve(listener, Arc::new(Service), router, std::future::pending())
        .await;
    Ok(())
}

struct Service;

impl shell::Service for Service {
    fn exchange(&self, _: &Parts) -> ExchangeKind {
        ExchangeKind::Unary
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        let code = match code {
            Code::Unavailable => ProblemCode::Unavailable,
            _ => ProblemCode::Invalid,
        };
        Problem::new(code, message).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, axum::Json(self)).into_response()
    }
}

/// Reads a request and answers it. If the client disconnects, its request is still completed.
pub(crate) async fn answer<Q, A, F>(
    body: Result<Bytes, BytesRejection>,
    handle: impl FnOnce(Q) -> F,
) -> Response
where
    Q: DeserializeOwned,
    A: Serialize + Send + 'static,
    F: Future<Output = Result<A, Problem>> + Send + 'static,
{
    let invalid = |message: String| Problem::new(ProblemCode::Invalid, message).into_response();
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return invalid(rejection.body_text()),
    };
    match serde_json::from_slice(&body) {
        Err(error) => invalid(format!("not a valid request: {error}")),
        Ok(request) => match tokio::spawn(handle(request)).await {
            Ok(Ok(answer)) => axum::Json(answer).into_response(),
            Ok(Err(problem)) => problem.into_response(),
            Err(error) => Problem::new(ProblemCode::NoAnswer, error.to_string()).into_response(),
        },
    }
}

/// A router with one POST route for each method of a server.
macro_rules! routes {
    ($server:expr, { $($path:literal => $method:ident),+ $(,)? }) => {
        axum::Router::new()
            $(.route($path, {
                let server = std::sync::Arc::clone(&$server);
                axum::routing::post(move |body: Result<bytes::Bytes, axum::extract::rejection::BytesRejection>| {
                    crate::http::answer(body, move |request| async move { server.$method(request).await })
                })
            }))+
            .fallback(|| async {
                crate::wire::Problem::new(crate::wire::ProblemCode::NotFound, "there is no such path")
            })
            .method_not_allowed_fallback(|| async {
                crate::wire::Problem::new(crate::wire::ProblemCode::Invalid, "send the request with POST")
            })
    };
}
pub(crate) use routes;
