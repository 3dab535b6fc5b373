//! The one form of every refusal: `{"success": false, "error": {"code", "message", …}}`.

use axum_core::body::Body;
use axum_core::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use palisade_core::Code;
use palisade_core::fence::Reject;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::error::{Error, ErrorKind};
use crate::name::Invalid;
use crate::sequencer::BadSequencer;

/// The error for a request that took no effect, or has an unknown outcome.
///
/// An HTTP caller gets it as JSON; a gRPC caller gets a status, with the code in the metadata `palisade-code`
/// and the whole error as JSON in `palisade-error`.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    status: StatusCode,
    code: Code,
    message: String,
    /// Further fields for the holder, beside the message.
    more: Map<String, Value>,
    /// A fence rejected it and recorded that.
    judged: bool,
}

/// An extension of the response to a [`Problem`] that no fence has judged, so that it can be recorded (rule F13)
/// with [`audit::refused`](crate::audit::refused).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnjudgedRefusal {
    /// Its code.
    pub reason: Code,
    /// Its message.
    pub why: String,
}

impl Problem {
    /// Creates a refusal with a status, a code and a message.
    pub fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            message: message.into(),
            more: Map::new(),
            judged: false,
        }
    }

    /// 400: the request is not valid, and nothing happened.
    pub fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, Code::Invalid, message)
    }

    /// 503: nothing happened.
    pub fn unavailable(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, message)
    }

    /// 504: it may have happened.
    pub fn unknown_outcome(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::GATEWAY_TIMEOUT, Code::UnknownOutcome, message)
    }

    /// Returns the same problem with another status, for a gateway's 502.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Problem {
        Problem { status, ..self }
    }

    /// Returns the same problem with one more field.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Returns its code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Returns the message for people, which says what happened and what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    fn error(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".to_owned(), self.code.name().into());
        error.insert("message".to_owned(), self.message.clone().into());
        error.extend(self.more.clone());
        error.into()
    }

    /// Converts it to the answer to a gRPC call: a status without a message.
    #[must_use]
    pub fn into_grpc(self) -> Response {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", self.grpc_status().into());
        headers.insert("palisade-code", HeaderValue::from_static(self.code.name()));
        let message = utf8_percent_encode(&self.message, NOT_IN_MESSAGE).to_string();
        for (name, text) in [
            ("grpc-message", message),
            ("palisade-error", self.error().to_string()),
        ] {
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        }
        response
    }

    /// The gRPC status that asks the caller to do the same as the HTTP status does.
    fn grpc_status(&self) -> u16 {
        match (self.code, self.status.as_u16()) {
            (Code::UnknownOutcome, _) => 2,
            (_, 400) => 3,
            (_, 403) => 7,
            (_, 404) => 5,
            (_, 405) => 12,
            (_, 408) => 4,
            (_, 409 | 412 | 428) => 9,
            (_, 413) => 11,
            (_, 507) => 8,
            (_, 502..=504) => 14,
            _ => 13,
        }
    }

    /// Converts it to an answer in the caller's protocol.
    pub(super) fn answer(self, called_by: &HeaderMap) -> Response {
        self.answer_as(is_grpc(called_by))
    }

    pub(super) fn answer_as(self, grpc: bool) -> Response {
        if grpc {
            self.into_grpc()
        } else {
            self.into_response()
        }
    }
}

/// Whether a request is a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

impl From<BadSequencer> for Problem {
    fn from(bad: BadSequencer) -> Problem {
        let status = match bad.code() {
            Code::Unsigned => StatusCode::PRECONDITION_REQUIRED,
            Code::WrongAuthority | Code::WrongLock => StatusCode::CONFLICT,
            _ => StatusCode::FORBIDDEN,
        };
        Problem::new(status, bad.code(), bad.to_string())
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
        Problem::invalid(invalid.to_string())
    }
}

impl From<Reject> for Problem {
    fn from(reject: Reject) -> Problem {
        let mut problem = Problem::new(status(&reject), reject.code(), reject.to_string());
        problem.judged = true;
        match reject {
            Reject::Stale { presented, highest } => problem
                .with("token", presented.get())
                .with("highest", highest.get()),
            Reject::Tokenless { highest } => problem.with("highest", highest.get()),
            Reject::SequenceStale { last } | Reject::SequenceReused { last } => {
                problem.with("last", last.get())
            }
            Reject::WrongAuthority { bound } => problem.with("authority", bound.as_str()),
            Reject::WrongLock { bound } => problem.with("lock", bound.as_str()),
            Reject::Jump { highest, bound } => problem
                .with("highest", highest.map(|token| token.get()))
                .with("bound", bound),
            _ => problem,
        }
    }
}

/// The status of each refusal. The enum is another crate's and may grow, so no `match` here can name all of it; a code
/// without a line of its own does not compile, by the length of this list and by the assertion below it.
const STATUSES: [(Code, StatusCode); Reject::CODES.len()] = [
    (Code::Stale, StatusCode::PRECONDITION_FAILED),
    (Code::SequenceStale, StatusCode::PRECONDITION_FAILED),
    (Code::AlreadyWritten, StatusCode::CONFLICT),
    (Code::SequenceReused, StatusCode::CONFLICT),
    (Code::WrongAuthority, StatusCode::CONFLICT),
    (Code::WrongLock, StatusCode::CONFLICT),
    (Code::Jump, StatusCode::CONFLICT),
    (Code::Tokenless, StatusCode::PRECONDITION_REQUIRED),
    (Code::Missing, StatusCode::NOT_FOUND),
];

const _: () = {
    let mut at = 0;
    while at < STATUSES.len() {
        assert!(STATUSES[at].0 as usize == Reject::CODES[at] as usize);
        at += 1;
    }
};

const fn status(reject: &Reject) -> StatusCode {
    let code = reject.code() as usize;
    let mut at = 0;
    // A reject's code is one of `Reject::CODES`, and all of them are here.
    while STATUSES[at].0 as usize != code {
        at += 1;
    }
    STATUSES[at].1
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let message = error.report();
        match error {
            Error::Rejected(reject) => reject.into(),
            Error::ObjectTooLarge { max, .. } => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge, message)
                    .with("max_bytes", max)
            }
            Error::StorageFull { max } => storage_full(message).with("max_bytes", max),
            Error::DiskFull(_) => storage_full(message),
            other => match other.kind() {
                ErrorKind::Invalid => Problem::invalid(message),
                ErrorKind::Unknown => Problem::unknown_outcome(message),
                ErrorKind::Rejected | ErrorKind::Retry | ErrorKind::Operator => {
                    Problem::unavailable(message)
                }
            },
        }
    }
}

fn storage_full(message: String) -> Problem {
    Problem::new(StatusCode::INSUFFICIENT_STORAGE, Code::StorageFull, message)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({ "success": false, "error": self.error() }).to_string();
        let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut response = (self.status, json, body).into_response();
        if !self.judged {
            response.extensions_mut().insert(UnjudgedRefusal {
                reason: self.code,
                why: self.message,
            });
        }
        response
    }
}

/// The bytes that a `grpc-message` must encode.
const NOT_IN_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
