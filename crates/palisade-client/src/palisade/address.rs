//! The address of an authority, parsed from its URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use tonic::transport::Endpoint;

use crate::fault::Fault;

/// The default port of a Palisade server.
const PORT: u16 = 7420;

/// The most addresses of one authority. A cluster has three or five nodes.
const MOST: usize = 16;

/// The longest path of a Unix socket: 108 bytes in the kernel, less the terminating zero.
const SOCKET_BYTES: usize = 107;

/// After this much silence the client pings the peer, and waits as long again for the answer. A lease of ordinary
/// length must outlast a connection that died silently.
const PING: Duration = Duration::from_secs(3);

/// The address of a server: a host (IPv6 in brackets) and a port, or a Unix socket. Addresses are equal if their
/// spellings are.
#[derive(Clone, Debug)]
pub(super) struct Address {
    place: String,
    host: String,
    secure: bool,
    /// The path of a Unix socket.
    socket: Option<PathBuf>,
    endpoint: Endpoint,
}

impl Address {
    /// Parses the comma-separated URLs of one authority's nodes. A URL without a scheme has the scheme of the one
    /// before it.
    pub(super) fn list(urls: &str) -> Result<Vec<Address>, Fault> {
        let (mut all, mut scheme) = (Vec::<Address>::new(), "");
        for url in urls.split(',').map(str::trim) {
            let address = match split(url) {
                Some((named, _)) => {
                    scheme = named;
                    Address::parse(url)?
                }
                None if scheme.is_empty() || url.is_empty() => Address::parse(url)?,
                None => Address::parse(&format!("{scheme}://{url}"))?,
            };
            if !all.contains(&address) {
                all.push(address);
            }
        }
        if all.len() > MOST {
            return Err(Fault::invalid(format!(
                "{} addresses are given; at most {MOST} are allowed",
                all.len()
            )));
        }
        if all.iter().any(Address::is_secure) && !all.iter().all(Address::is_secure) {
            if all.iter().any(|address| address.socket.is_some()) {
                return Err(Fault::invalid(
                    "one of the addresses has https://, and a Unix socket has no TLS: give addresses of one kind",
                ));
            }
            return Err(Fault::invalid(
                "some of the addresses have https:// and others have not; write it for all of them",
            ));
        }
        Ok(all)
    }

    /// Parses a URL.
    pub(super) fn parse(url: &str) -> Result<Address, Fault> {
        let socket = socket(url)?;
        let (host, place) = match &socket {
            // HTTP over a Unix socket names this host.
            Some(path) => ("localhost".to_owned(), format!("unix://{}", path.display())),
            None => {
                let (host, port) = host_and_port(url)?;
                let place = format!("{host}:{port}");
                (host, place)
            }
        };
        let secure = url.starts_with("https://");
        let scheme = if secure { "https" } else { "http" };
        let origin = if socket.is_some() { &host } else { &place };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{origin}"))
            .map_err(|error| wrong(url, &error.to_string()))?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true);
        Ok(Address {
            place,
            host,
            secure,
            socket,
            endpoint,
        })
    }

    /// Returns the path, if it is a Unix socket.
    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the host, which the server's certificate must contain.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Whether a secret may be sent there: it uses TLS, or it is this machine.
    pub(super) fn keeps_secrets(&self) -> bool {
        let bare = self.host.trim_matches(['[', ']']);
        let loopback = bare
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        self.secure || loopback || bare == "localhost"
    }

    /// Whether it uses TLS (`https://`).
    pub(super) fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the same address for gRPC.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Address) -> bool {
        self.place == other.place && self.secure == other.secure
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

/// Splits a URL into its scheme and the rest. A Unix socket's URL may omit `//`.
fn split(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix("unix:")
        .map(|rest| ("unix", rest))
        .or_else(|| url.split_once("://"))
}

/// Returns the path in `unix:///run/palisade.sock` or `unix:/run/palisade.sock`; `None` for another scheme.
fn socket(url: &str) -> Result<Option<PathBuf>, Fault> {
    let Some(path) = url.strip_prefix("unix:") else {
        return Ok(None);
    };
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        let why = "the path of a Unix socket is absolute: unix:///run/palisade.sock";
        return Err(wrong(url, why));
    }
    if path.len() > SOCKET_BYTES {
        let bytes = path.len();
        let why = format!(
            "its path has {bytes} bytes, and that of a Unix socket has at most {SOCKET_BYTES}"
        );
        return Err(wrong(url, &why));
    }
    Ok(Some(path.into()))
}

fn host_and_port(url: &str) -> Result<(String, u16), Fault> {
    let uri: Uri = url
        .parse()
        .map_err(|error: http::uri::InvalidUri| wrong(url, &error.to_string()))?;
    let default_port = match uri.scheme_str() {
        Some("palisade") => PORT,
        Some("http") => 80,
        Some("https") => 443,
        Some(scheme) => {
            return Err(wrong(
                url,
                &format!("there is no authority for {scheme}://"),
            ));
        }
        None => {
            return Err(wrong(
                url,
                "a scheme is missing: palisade://host, http://host:port, https://host:port or unix:///path",
            ));
        }
    };
    let authority = uri
        .authority()
        .ok_or_else(|| wrong(url, "a host is missing"))?;
    if authority.as_str().contains('@') {
        return Err(wrong(url, "an address must not contain credentials"));
    }
    if authority.host().is_empty() {
        return Err(wrong(url, "a host is missing"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong(url, "the address must not have a path"));
    }
    let port = match authority.as_str().strip_prefix(authority.host()) {
        Some("") => default_port,
        given => given
            .and_then(port)
            .ok_or_else(|| wrong(url, "the port must be 1 ..= 65535"))?,
    };
    Ok((authority.host().to_owned(), port))
}

/// Parses a port; the parser of URLs accepts any digits.
fn port(given: &str) -> Option<u16> {
    given
        .strip_prefix(':')?
        .parse()
        .ok()
        .filter(|port| *port != 0)
}

fn wrong(url: &str, why: &str) -> Fault {
    let url = crate::secrets::without_secrets(url);
    Fault::invalid(format!("{url:?} is not the address of an authority: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_host_and_a_port() {
        for (url, host, port) in [
            ("http://127.0.0.1:7420", "127.0.0.1", 7420),
            ("http://locks.example/", "locks.example", 80),
            ("https://locks.example", "locks.example", 443),
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
    fn a_unix_socket_is_an_absolute_path_with_or_without_slashes() {
        for url in ["unix:///run/p@1?.sock", "unix:/run/p@1?.sock"] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.socket(), Some(Path::new("/run/p@1?.sock")), "{url}");
            assert_eq!(address.to_string(), "unix:///run/p@1?.sock");
            assert!(address.keeps_secrets() && !address.is_secure());
        }
        assert_eq!(Address::parse("http://a").unwrap().socket(), None);
        let list = Address::list("unix:/a,/b,http://c:1,d:2").unwrap();
        let list: Vec<_> = list.iter().map(Address::to_string).collect();
        assert_eq!(list, ["unix:///a", "unix:///b", "c:1", "d:2"]);
        let long = format!("unix:/{}", "s".repeat(107));
        for (url, reason) in [
            ("unix://run/s", "absolute"),
            ("unix:s", "absolute"),
            ("unix:", "absolute"),
            (
                &*long,
                "108 bytes, and that of a Unix socket has at most 107",
            ),
            ("unix:/a,https://b", "has no TLS"),
        ] {
            let message = Address::list(url).unwrap_err().to_string();
            assert!(message.contains(reason), "{url}: {message}");
        }
    }

    #[test]
    fn several_addresses_have_commas_between_them() {
        let list = |urls: &str| -> Vec<String> {
            let list = Address::list(urls).unwrap();
            list.iter().map(Address::to_string).collect()
        };
        assert_eq!(
            list("http://a:1,palisade://b, [::1]:2,http://a:1"),
            ["a:1", "b:7420", "[::1]:2"]
        );
        let many: Vec<_> = (1..=17).map(|port| format!("http://a:{port}")).collect();
        let many = many.join(",");
        for (urls, reason) in [
            ("http://a:1,", "not the address of an authority"),
            ("a:1,http://b:1", "scheme"),
            ("http://a:1,b:0", "1 ..= 65535"),
            ("http://a:1,etcd://b:1", "etcd"),
            ("http://a:1,https://b:1", "for all of them"),
            (&*many, "at most 16"),
        ] {
            let message = Address::list(urls).unwrap_err().to_string();
            assert!(message.contains(reason), "{urls}: {message}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        for (url, reason) in [
            ("", "not the address of an authority"),
            ("127.0.0.1:7420", "scheme"),
            ("locks.example", "scheme"),
            ("etcd://127.0.0.1:2379", "etcd"),
            ("http://user:secret@host:1", "credentials"),
            ("http://host:1/v1", "path"),
            ("http://host:99999", "1 ..= 65535"),
            ("http://host:0", "1 ..= 65535"),
            ("http://host:", "1 ..= 65535"),
            ("palisade://", "not the address of an authority"),
        ] {
            let message = host_and_port(url).unwrap_err().to_string();
            assert!(message.contains(reason), "{url}: {message}");
        }
    }
}
