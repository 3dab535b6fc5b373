//! How the proxy changes the headers of a message.

use axum::http::header::{
    CONNECTION, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// Removes hop-by-hop headers (RFC 9110, section 7.6.1), including those that `Connection` names.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

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
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

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
