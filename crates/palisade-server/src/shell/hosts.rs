//! The host names that a request may use, and the pages that may change something through a browser.
//!
//! A page of another host can point its own name to this server (DNS rebinding). The browser then treats the two as one
//! site and lets the page read and write here. The name in `Host` reveals it.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::uri::{Authority, Uri};
use http::{HeaderValue, Method};
use palisade_proto::Code;

/// The host names that a request may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Any name: for a proxy, because only its upstream knows the names.
    Any,
    /// `localhost`, IP addresses, the machine's own name, and these.
    Named(Vec<String>),
}

/// The names in force.
#[derive(Clone, Debug)]
pub(super) enum Names {
    Any,
    Known {
        /// The configured names: pages of these hosts may change something too.
        given: Vec<String>,
        /// The machine's name.
        own: String,
    },
}

type HostRefused = (Code, String);

impl Names {
    pub(super) fn new(hosts: &Hosts) -> Names {
        let Hosts::Named(given) = hosts else {
            return Names::Any;
        };
        let system = rustix::system::uname();
        Names::Known {
            given: given.iter().map(|name| plain(name)).collect(),
            own: plain(&system.nodename().to_string_lossy()),
        }
    }

    /// Whether a request may be answered. A request without a host name does not come from a browser.
    pub(super) fn check(&self, head: &Parts) -> Result<(), HostRefused> {
        let Names::Known { given, own } = self else {
            return Ok(());
        };
        let mut called = head.uri.authority().cloned();
        for header in head.headers.get_all(HOST) {
            let named = authority(header)?;
            if called.as_ref().is_some_and(|called| *called != named) {
                let message = "the request names two different hosts".to_owned();
                return Err((Code::Invalid, message));
            }
            called = Some(named);
        }
        let Some(called) = called else {
            return Ok(());
        };
        let host = plain(called.host());
        let known = is_address(&host) || host == "localhost" || host == *own;
        if !known && !given.contains(&host) {
            return Err((
                Code::Misdirected,
                format!(
                    "{host} is not a name of this server, and a web page whose name points here must \
                     not reach it; if the name is right, start the server with --allow-host {host}"
                ),
            ));
        }
        match head.headers.get(ORIGIN) {
            Some(origin) if changes(&head.method) => same_site(origin, &called, given),
            _ => Ok(()),
        }
    }
}

/// Whether the page that sends this belongs to this server or to a configured name.
fn same_site(
    origin: &HeaderValue,
    called: &Authority,
    given: &[String],
) -> Result<(), HostRefused> {
    let page = Uri::try_from(origin.as_bytes()).unwrap_or_default();
    let default = if page.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    let slot = |at: &Authority| (plain(at.host()), at.port_u16().unwrap_or(default));
    let allowed = page
        .authority()
        .is_some_and(|page| slot(page) == slot(called) || given.contains(&plain(page.host())));
    if allowed {
        return Ok(());
    }
    let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
    let host = page.host().unwrap_or("NAME");
    Err((
        Code::CrossOrigin,
        format!(
            "a web page of {origin} may not change anything here; to allow it, start the server with \
             --allow-host {host}"
        ),
    ))
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn authority(host: &HeaderValue) -> Result<Authority, HostRefused> {
    let parsed = Authority::try_from(host.as_bytes()).ok();
    let fit = parsed.filter(|authority| !authority.as_str().contains('@'));
    fit.ok_or_else(|| (Code::Invalid, "Host: this is not a host name".to_owned()))
}

fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Whether this is an IP address as written in URLs. It was not looked up by name, so nobody can redirect it.
fn is_address(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(v6) => v6
            .strip_suffix(']')
            .is_some_and(|v6| v6.parse::<Ipv6Addr>().is_ok()),
        None => host.parse::<Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn verdict(method: &str, headers: &[(&str, &str)]) -> Option<Code> {
        let mut request = Request::builder().method(method).uri("/v1/locks");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let names = Names::Known {
            given: vec!["locks.example.org".into()],
            own: "box7".into(),
        };
        names.check(&head).err().map(|(code, _)| code)
    }

    #[test]
    fn an_unknown_host_name_is_misdirected() {
        for known in [
            "127.0.0.1:7420",
            "[::1]:7420",
            "[::1]",
            "LocalHost:1",
            "localhost.",
            "box7:7420",
            "locks.example.org",
            "192.0.2.7",
        ] {
            assert_eq!(verdict("POST", &[("host", known)]), None, "{known}");
        }
        for foreign in [
            "evil.example:7420",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0x7f000001",
            "2130706433",
            "box7.evil.example",
        ] {
            let verdict = verdict("GET", &[("host", foreign)]);
            assert_eq!(verdict, Some(Code::Misdirected), "{foreign}");
        }
        assert!(verdict("GET", &[("host", "[evil.example]")]).is_some());
        for nonsense in ["a b", "u@localhost", ""] {
            let verdict = verdict("GET", &[("host", nonsense)]);
            assert_eq!(verdict, Some(Code::Invalid), "{nonsense:?}");
        }
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(verdict("GET", &two), Some(Code::Invalid));
        assert_eq!(verdict("GET", &[]), None, "HTTP/1.0, not a browser");
    }

    #[test]
    fn a_page_of_another_host_cannot_change_anything() {
        let sent = |method: &str, origin: &str| {
            verdict(method, &[("host", "127.0.0.1:7420"), ("origin", origin)])
        };
        for own in ["http://127.0.0.1:7420", "https://locks.example.org"] {
            assert_eq!(sent("POST", own), None, "{own}");
        }
        for foreign in [
            "https://evil.example",
            "http://127.0.0.1:8000",
            "http://localhost:7420",
            "null",
            "",
        ] {
            assert_eq!(sent("POST", foreign), Some(Code::CrossOrigin), "{foreign}");
            assert_eq!(sent("GET", foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_proxy_accepts_any_name() {
        let request = Request::post("/").header("host", "evil.example");
        let (head, ()) = request.body(()).unwrap().into_parts();
        assert!(Names::new(&Hosts::Any).check(&head).is_ok());
        assert!(Names::new(&Hosts::Named(Vec::new())).check(&head).is_err());
    }
}
