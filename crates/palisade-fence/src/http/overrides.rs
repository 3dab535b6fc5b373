//! Refuses requests that could write although they look like reads, or that could reach another address than
//! the one that is judged (rule F11).
//!
//! | request | how it would get past the fence |
//! |---|---|
//! | GET, HEAD, OPTIONS with a body | a service that does not read the body parses it as the next request |
//! | `X-HTTP-Method-Override` and similar headers, `_method` in the query | a GET is carried out as a PUT |
//! | `X-Original-URL`, `X-Rewrite-URL`, `X-Script-Name` | the service acts on that address instead |
//! | `Content-Length` with `Transfer-Encoding` | two parsers find different ends |
//! | every name with `_` | CGI and WSGI read it as the name with `-`, or as a variable of theirs (`SCRIPT_NAME`) |
//! | TRACE, CONNECT | a fence cannot judge them |

use axum_core::body::Body;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, StatusCode};
use http_body::Body as _;
use palisade_core::Code;
use percent_encoding::percent_decode_str;

use crate::http::Problem;
use crate::http::route::is_safe;

/// Refuses a request that the service could read as another request.
pub(super) fn refuse(head: &Parts, body: &Body) -> Result<(), Problem> {
    let method = &head.method;
    if matches!(*method, Method::TRACE | Method::CONNECT) {
        let message = format!("{method} does not pass a fence");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        return Err(Problem::new(status, Code::MethodNotAllowed, message));
    }
    for name in head.headers.keys() {
        if let Some(what) = overridden(name.as_str()) {
            return Err(Problem::invalid(format!(
                "{name} is refused: it could change {what} after the fence's check; leave it out"
            )));
        }
    }
    let headers = &head.headers;
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::invalid(
            "content-length and transfer-encoding contradict each other: send one of them",
        ));
    }
    if head.uri.query().is_some_and(names_a_method) {
        return Err(Problem::invalid(
            "_method in the query is refused: it could change the method after the fence's check; \
             send the method itself",
        ));
    }
    if is_safe(method) && !body.is_end_stream() {
        return Err(Problem::invalid(format!(
            "a {method} with a body is refused: the service could read the body as another request"
        )));
    }
    Ok(())
}

/// Returns what a header could change; `None` if nothing.
fn overridden(name: &str) -> Option<&'static str> {
    match name {
        "x-http-method-override" | "x-http-method" | "x-method-override" => Some("the method"),
        "x-original-url" | "x-rewrite-url" | "x-script-name" => Some("the address"),
        underscored if underscored.contains('_') => Some("what the service reads"),
        _ => None,
    }
}

/// Whether a query has the parameter `_method`, with which HTML forms select their method.
fn names_a_method(query: &str) -> bool {
    query.split(['&', ';']).any(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        let decoded = percent_decode_str(name).decode_utf8_lossy();
        decoded.trim().eq_ignore_ascii_case("_method")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(method: &str, uri: &str, headers: &[(&str, &str)], body: &'static str) -> bool {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = request.body(Body::from(body)).unwrap().into_parts();
        refuse(&head, &body).is_err()
    }

    #[test]
    fn a_request_that_could_write_does_not_pass_as_a_read() {
        for method in [
            "GET", "HEAD", "OPTIONS", "PUT", "POST", "DELETE", "PATCH", "BREW",
        ] {
            assert!(
                !refused(method, "/a?method=x&b", &[("x-method", "1")], ""),
                "{method}"
            );
            for name in [
                "X-HTTP-Method-Override",
                "x-http-method",
                "X-Method-Override",
                "x_http_method_override",
                "X-Original-URL",
                "x-rewrite-url",
                "x_fencing_token",
                "content_length",
                "Transfer_Encoding",
                "SCRIPT_NAME",
                "x_forwarded_for",
                "_",
            ] {
                assert!(
                    refused(method, "/a", &[(name, "GET")], ""),
                    "{method} {name}"
                );
            }
            for query in [
                "_method=PUT",
                "a=1&_method",
                "a;_METHOD=put",
                "%5fmethod=PUT",
                "%20_method=PUT",
            ] {
                assert!(
                    refused(method, &format!("/a?{query}"), &[], ""),
                    "{method} {query}"
                );
            }
            let both = [("content-length", "1"), ("transfer-encoding", "chunked")];
            assert!(refused(method, "/a", &both, "x"), "{method}");
            let is_read = ["GET", "HEAD", "OPTIONS"].contains(&method);
            assert_eq!(
                refused(method, "/a", &[], "PUT /b HTTP/1.1"),
                is_read,
                "{method}"
            );
        }
        for method in ["TRACE", "CONNECT"] {
            assert!(refused(method, "/a", &[], ""), "{method}");
        }
    }
}
