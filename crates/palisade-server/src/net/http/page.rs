//! The server's page for people. It contains no data and no secret: its script requests everything through the gate,
//! like any other client.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};

pub(super) async fn html(headers: HeaderMap) -> Response {
    file(
        &headers,
        "text/html; charset=utf-8",
        include_str!("page/page.html"),
    )
}

pub(super) async fn style(headers: HeaderMap) -> Response {
    file(
        &headers,
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    )
}

pub(super) async fn script(headers: HeaderMap) -> Response {
    module(&headers, include_str!("page/page.js"))
}

pub(super) async fn script_draw(headers: HeaderMap) -> Response {
    module(&headers, include_str!("page/draw.js"))
}

pub(super) async fn script_ask(headers: HeaderMap) -> Response {
    module(&headers, include_str!("page/ask.js"))
}

pub(super) async fn script_health(headers: HeaderMap) -> Response {
    module(&headers, include_str!("page/health.js"))
}

fn module(headers: &HeaderMap, text: &'static str) -> Response {
    file(headers, "text/javascript; charset=utf-8", text)
}

/// Scripts and styles of this server only, and no requests elsewhere: not even text that got in as markup could call
/// another host. No other page may show this one in a frame and borrow its clicks.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page. Browsers ask each time whether it is still the same, so that a new server is never shown by an
/// old script.
fn file(asked: &HeaderMap, content_type: &'static str, text: &'static str) -> Response {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let unchanged = asked
        .get(IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let tag = [(ETAG, tag)];
    if unchanged {
        (StatusCode::NOT_MODIFIED, tag, headers).into_response()
    } else {
        (tag, headers, text).into_response()
    }
}
