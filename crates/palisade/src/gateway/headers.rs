//! How the proxy changes the headers of a message.

use axum::http::header::{EXPECT, HOST, VIA};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use palisade_server::shell::remove_hop_by_hop;

/// Turns a client's headers into those for the upstream.
pub(super) fn for_upstream(headers: &mut HeaderMap, upstream: &HeaderValue) {
    remove_hop_by_hop(headers);
    // The gateway has already answered it.
    headers.remove(EXPECT);
    if let Some(host) = headers.insert(HOST, upstream.clone()) {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.append(VIA, HeaderValue::from_static("1.1 palisade"));
}

const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hop_by_hop_headers_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("x-fencing-token", "5"),
            ("host", "shop.example"),
            ("x-yours", "2"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        for_upstream(&mut headers, &HeaderValue::from_static("127.0.0.1:9"));
        let mut left: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        let expected = [
            ("host", "127.0.0.1:9"),
            ("via", "1.1 palisade"),
            ("x-fencing-token", "5"),
            ("x-forwarded-host", "shop.example"),
            ("x-yours", "2"),
        ];
        assert_eq!(left, expected);
    }
}
