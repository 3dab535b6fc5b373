//! What an authority's address may look like.

use std::fmt;
use std::time::Duration;

use http::Uri;
use tonic::transport::Endpoint;

use crate::fault::Fault;

/// The port a Palisade server listens on unless told otherwise.
const PORT: u16 = 7420;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that is silent for this long is asked whether it is there, and given as long to answer: a
/// connection that died without a word must not cost a lease of ordinary length.
const PING: Duration = Duration::from_secs(3);

/// Where a server is: a host (IPv6 in brackets) and a port.
#[derive(Clone, Debug)]
pub(super) struct Address {
    place: String,
    endpoint: Endpoint,
}

impl Address {
    /// Reads a URL.
    pub(super) fn parse(url: &str) -> Result<Address, Fault> {
        let (host, port) = host_and_port(url)?;
        let place = format!("{host}:{port}");
        let endpoint = Endpoint::from_shared(format!("http://{place}"))
            .map_err(|error| wrong(url, &error.to_string()))?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true);
        Ok(Address { place, endpoint })
    }

    /// The same place for gRPC.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

fn host_and_port(url: &str) -> Result<(String, u16), Fault> {
    let uri: Uri = url
        .parse()
        .map_err(|error: http::uri::InvalidUri| wrong(url, &error.to_string()))?;
    let default_port = match uri.scheme_str() {
        Some("palisade") => PORT,
        Some("http") => 80,
        Some("https") => {
            return Err(wrong(
                url,
                "TLS is not built in; use http:// behind a proxy",
            ));
        }
        Some(scheme) => {
            return Err(wrong(
                url,
                &format!("there is no authority for {scheme}://"),
            ));
        }
        None => {
            return Err(wrong(
                url,
                "a scheme is missing: palisade://host or http://host:port",
            ));
        }
    };
    let authority = uri
        .authority()
        .ok_or_else(|| wrong(url, "a host is missing"))?;
    if authority.as_str().contains('@') {
        return Err(wrong(url, "credentials do not belong into an address"));
    }
    if authority.host().is_empty() {
        return Err(wrong(url, "a host is missing"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong(url, "a path has no meaning here"));
    }
    let port = match authority.as_str().strip_prefix(authority.host()) {
        Some("") => default_port,
        given => given
            .and_then(port)
            .ok_or_else(|| wrong(url, "the port must be 1 ..= 65535"))?,
    };
    Ok((authority.host().to_owned(), port))
}

/// The parser of addresses takes any digits for a port.
fn port(given: &str) -> Option<u16> {
    given
        .strip_prefix(':')?
        .parse()
        .ok()
        .filter(|port| *port != 0)
}

fn wrong(url: &str, why: &str) -> Fault {
    Fault::invalid(format!("{url:?} is no authority's address: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_host_and_a_port() {
        for (url, host, port) in [
            ("http://127.0.0.1:7420", "127.0.0.1", 7420),
            ("http://locks.example/", "locks.example", 80),
            ("palisade://locks.example", "locks.example", 7420),
            ("palisade://[::1]:99", "[::1]", 99),
        ] {
            assert_eq!(
                host_and_port(url).unwrap(),
                (host.to_owned(), port),
                "{url}"
            );
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_reason() {
        for (url, reason) in [
            ("", "no authority's address"),
            ("127.0.0.1:7420", "scheme"),
            ("locks.example", "scheme"),
            ("https://locks.example", "TLS"),
            ("etcd://127.0.0.1:2379", "etcd"),
            ("http://user:secret@host:1", "credentials"),
            ("http://host:1/v1", "path"),
            ("http://host:99999", "1 ..= 65535"),
            ("http://host:0", "1 ..= 65535"),
            ("http://host:", "1 ..= 65535"),
            ("palisade://", "no authority's address"),
        ] {
            let message = host_and_port(url).unwrap_err().to_string();
            assert!(message.contains(reason), "{url}: {message}");
        }
    }
}
