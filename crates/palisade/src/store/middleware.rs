//! Middleware for every request: checks that the address is unambiguous, and records each refusal (rule F13).

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use palisade_fence::audit;
use palisade_fence::http::{Problem, UnjudgedRefusal};

use crate::store::app::App;

/// Checks the address, and records refusals that happen before a fence decides.
pub(super) async fn check_address(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    let at = format!("{} {}", request.method(), request.uri().path());
    let response = match address(request.uri()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(UnjudgedRefusal { reason, why }) = response.extensions().get()
        && audit::REASONS.contains(reason)
    {
        app.store.refused(&at, None, *reason, why);
    }
    response
}

/// Only the listing takes parameters; its handler refuses unknown ones.
fn address(uri: &Uri) -> Result<(), Problem> {
    percent_encoded(uri)?;
    match uri.query() {
        Some(_) if uri.path().starts_with("/v1/storage/") => {
            let message = format!("{} takes no parameters in its query", uri.path());
            Err(Problem::invalid(message))
        }
        _ => Ok(()),
    }
}

/// A percent sign must be followed by two hexadecimal digits; other meanings are not guessed.
pub(crate) fn percent_encoded(uri: &Uri) -> Result<(), Problem> {
    let whole = uri.path_and_query().map_or("", |both| both.as_str());
    let is_hex = |part: &str| {
        let digits = part.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    match whole.split('%').skip(1).find(|part| !is_hex(part)) {
        None => Ok(()),
        Some(part) => {
            let shown: String = part.chars().take(2).collect();
            Err(Problem::invalid(format!(
                "%{shown} in the address is not a percent-encoded byte; write a percent sign as %25"
            )))
        }
    }
}
