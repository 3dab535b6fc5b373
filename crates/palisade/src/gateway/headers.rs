//! How the proxy changes the headers of a message.

use std::net::IpAddr;

use axum::http::header::{EXPECT, FORWARDED, HOST, VIA};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use palisade_server::shell::remove_hop_by_hop;

/// The client of a request, for the upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginalClient {
    /// `None`: a program of this machine, over a Unix socket.
    pub(super) address: Option<IpAddr>,
    /// `http` or `https`.
    pub(super) scheme: &'static str,
}

/// Turns a client's headers into those for the upstream.
///
/// The gateway replaces the client's claims about its own address by the address that it sees, because services use the first
/// address, the last one or that of another header. A program at the gateway's Unix socket is a proxy on this machine, and is
/// trusted.
pub(super) fn for_upstream(
    headers: &mut HeaderMap,
    upstream: &HeaderValue,
    client: OriginalClient,
) {
    remove_hop_by_hop(headers);
    // The gateway has already answered it.
    headers.remove(EXPECT);
    let host = headers.insert(HOST, upstream.clone());
    headers.append(VIA, HeaderValue::from_static("1.1 palisade"));
    let Some(address) = client.address.map(|address| address.to_canonical()) else {
        if let Some(host) = host {
            headers.entry(FORWARDED_HOST).or_insert(host);
        }
        return;
    };
    let told: Vec<HeaderName> = headers.keys().filter(|name| tells(name)).cloned().collect();
    for name in told {
        headers.remove(name);
    }
    if let Some(host) = host {
        headers.insert(FORWARDED_HOST, host);
    }
    let proto = HeaderValue::from_static(client.scheme);
    headers.insert(FORWARDED_PROTO, proto);
    let node = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("\"[{address}]\""),
    };
    let forwarded = format!("for={node};proto={}", client.scheme);
    for (name, value) in [
        (FORWARDED_FOR, address.to_string()),
        (REAL_IP, address.to_string()),
        (FORWARDED, forwarded),
    ] {
        let Ok(value) = HeaderValue::try_from(value) else {
            unreachable!("an address is not printable ASCII")
        };
        headers.insert(name, value);
    }
}

/// Whether a header tells a service where a request comes from.
fn tells(name: &HeaderName) -> bool {
    const NAMES: [&str; 7] = [
        "cf-connecting-ip",
        "fastly-client-ip",
        "forwarded",
        "true-client-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-real-ip",
    ];
    NAMES.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded")
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers that the upstream gets for these, in order.
    fn sent(
        given: &[(&'static str, &'static str)],
        client: OriginalClient,
    ) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, HeaderValue::from_static(value));
        }
        for_upstream(
            &mut headers,
            &HeaderValue::from_static("127.0.0.1:9"),
            client,
        );
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut left: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect();
        left.sort_unstable();
        left
    }

    fn owned(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = expected.iter();
        pairs
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    const LOCAL: OriginalClient = OriginalClient {
        address: None,
        scheme: "http",
    };

    #[test]
    fn only_hop_by_hop_headers_are_removed() {
        let given = [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("x-fencing-token", "5"),
            ("host", "shop.example"),
            ("x-yours", "2"),
        ];
        let expected = [
            ("host", "127.0.0.1:9"),
            ("via", "1.1 palisade"),
            ("x-fencing-token", "5"),
            ("x-forwarded-host", "shop.example"),
            ("x-yours", "2"),
        ];
        assert_eq!(sent(&given, LOCAL), owned(&expected));
    }

    /// A second fence behind the gateway, and the service's own log-in, get the client's headers.
    #[test]
    fn connection_cannot_strip_what_is_meant_for_the_service() {
        let named = "x-fencing-token, x-fencing-sequencer, Authorization, cookie, content-type, host, x-mine";
        let given = [
            ("connection", named),
            ("x-fencing-token", "5"),
            ("x-fencing-sequencer", "s"),
            ("authorization", "Bearer x"),
            ("cookie", "a=1"),
            ("content-type", "text/plain"),
            ("x-mine", "1"),
        ];
        let left = sent(&given, LOCAL);
        for (name, value) in &given[1..] {
            let kept = left.contains(&((*name).to_owned(), (*value).to_owned()));
            assert_eq!(kept, *name != "x-mine", "{name}");
        }
    }

    #[test]
    fn the_address_of_a_client_is_the_real_one() {
        let forged = [
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-for", "1.2.3.5"),
            ("x-real-ip", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-prefix", "/drafts"),
            ("x-client-ip", "1.2.3.4"),
            ("true-client-ip", "1.2.3.4"),
            ("host", "shop.example"),
        ];
        for (address, shown, node) in [
            ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
            ("::ffff:10.0.0.7", "10.0.0.7", "10.0.0.7"),
            ("2001:db8::1", "2001:db8::1", "\"[2001:db8::1]\""),
        ] {
            let client = OriginalClient {
                address: Some(address.parse().unwrap()),
                scheme: "http",
            };
            let expected = [
                ("forwarded", &*format!("for={node};proto=http")),
                ("host", "127.0.0.1:9"),
                ("via", "1.1 palisade"),
                ("x-forwarded-for", shown),
                ("x-forwarded-host", "shop.example"),
                ("x-forwarded-proto", "http"),
                ("x-real-ip", shown),
            ];
            assert_eq!(sent(&forged, client), owned(&expected), "{address}");
        }
        // A proxy on this machine is trusted.
        let left = sent(&forged, LOCAL);
        assert!(left.contains(&("x-real-ip".to_owned(), "1.2.3.4".to_owned())));
    }
}
