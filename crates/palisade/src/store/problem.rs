//! Every refusal, in one shape: `{"success": false, "error": {"code", "message", …}}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use palisade_fence::store::StoreError;
use palisade_fence::{Fault, Invalid, Reject};
use serde_json::{Map, Value, json};

/// A request that was not carried out.
#[derive(Debug)]
pub(super) struct Problem {
    status: u16,
    code: &'static str,
    message: String,
    /// What the holder needs to know, next to the message.
    more: Map<String, Value>,
}

impl Problem {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            message: message.into(),
            more: Map::new(),
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(400, "invalid", message)
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        self.more.insert(name.to_owned(), value.into());
        self
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
        Problem::invalid(invalid.to_string())
    }
}

impl From<Reject> for Problem {
    fn from(reject: Reject) -> Problem {
        let problem = Problem::new(status(&reject), reject.code(), reject.to_string());
        match reject {
            Reject::Stale { highest } | Reject::Tokenless { highest } => {
                problem.with("highest", highest.get())
            }
            Reject::SequenceStale { last } | Reject::SequenceReused { last } => {
                problem.with("last", last.get())
            }
            Reject::WrongAuthority { bound } => problem.with("authority", bound.as_str()),
            Reject::WrongLock { bound } => problem.with("lock", bound.as_str()),
            Reject::Jump { highest, bound } => problem
                .with("highest", highest.map(|token| token.get()))
                .with("bound", bound),
            Reject::AlreadyWritten | Reject::Missing => problem,
        }
    }
}

const fn status(reject: &Reject) -> u16 {
    match reject {
        Reject::Stale { .. } | Reject::SequenceStale { .. } => 412,
        Reject::Tokenless { .. } => 428,
        Reject::Missing => 404,
        Reject::AlreadyWritten
        | Reject::SequenceReused { .. }
        | Reject::WrongAuthority { .. }
        | Reject::WrongLock { .. }
        | Reject::Jump { .. } => 409,
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let message = error.to_string();
        match error {
            StoreError::Fault(Fault::Invalid(_)) => Problem::invalid(message),
            StoreError::Fault(Fault::ObjectTooLarge { max, .. }) => {
                Problem::new(413, "too_large", message).with("max_bytes", max)
            }
            StoreError::Fault(Fault::StorageFull { max }) => {
                Problem::new(507, "storage_full", message).with("max_bytes", max)
            }
            StoreError::DiskFull { .. } => Problem::new(507, "storage_full", message),
            StoreError::Stopped { .. } => Problem::new(503, "unavailable", message),
            StoreError::Unknown { .. } => Problem::new(504, "unknown_outcome", message),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let mut error = Map::new();
        error.insert("code".to_owned(), self.code.into());
        error.insert("message".to_owned(), self.message.into());
        error.extend(self.more);
        let body = Json(json!({ "success": false, "error": error }));
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body).into_response()
    }
}
