//! The headers of a message that is handed on.

use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName};

/// Removes hop-by-hop headers (RFC 9110, section 7.6.1), including those that `Connection` names. A header that is meant
/// for the receiver of the whole message stays, whatever `Connection` says: a caller must not hide its token from it.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| !is_end_to_end(name))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn is_end_to_end(name: &HeaderName) -> bool {
    const FAMILIES: [&str; 4] = ["content-", "if-", "x-fencing-", "x-forwarded-"];
    const NAMES: [HeaderName; 6] = [
        AUTHORIZATION,
        COOKIE,
        FORWARDED,
        HOST,
        VIA,
        HeaderName::from_static("x-real-ip"),
    ];
    NAMES.contains(name)
        || FAMILIES
            .iter()
            .any(|family| name.as_str().starts_with(family))
}

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
