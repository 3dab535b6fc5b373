//! URLs that name an authority: `scheme://[user[:password]@]host[:port][,host[:port]…][/path]`.

use std::fmt;

use palisade_client::Fault;

/// The parts of a URL, as written.
#[cfg_attr(
    not(any(feature = "etcd", feature = "zookeeper")),
    expect(dead_code, reason = "Redlock's address is its hosts")
)]
pub(crate) struct UrlParts<'a> {
    url: &'a str,
    pub(crate) user: Option<&'a str>,
    hosts: &'a str,
    pub(crate) path: &'a str,
}

impl<'a> UrlParts<'a> {
    /// Splits a URL of this scheme into its parts.
    pub(crate) fn of(url: &'a str, scheme: &'a str) -> Result<UrlParts<'a>, Fault> {
        let rest = url
            .strip_prefix(scheme)
            .and_then(|rest| rest.strip_prefix("://"))
            .ok_or_else(|| Fault::invalid(format!("an address must begin with {scheme}://")))?;
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        Ok(UrlParts {
            url,
            user,
            hosts,
            path,
        })
    }

    /// Each host with its port.
    pub(crate) fn hosts(&self, default_port: u16) -> Result<Vec<String>, Fault> {
        self.hosts
            .split(',')
            .map(|host| self.host(host, default_port))
            .collect()
    }

    fn host(&self, given: &str, default_port: u16) -> Result<String, Fault> {
        // An IPv6 address is in brackets and contains colons.
        let name_ends = given.rfind(']').map_or(0, |bracket| bracket + 1);
        let (host, port) = match given[name_ends..].find(':') {
            Some(colon) => {
                let (host, port) = given.split_at(name_ends + colon);
                let port = port[1..].parse().ok().filter(|port| *port != 0);
                let wrong = || self.wrong("the port must be 1 ..= 65535");
                (host, port.ok_or_else(wrong)?)
            }
            None => (given, default_port),
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        if host.is_empty() || !host.bytes().all(allowed) {
            return Err(self.wrong("a host is missing or is not valid"));
        }
        Ok(format!("{host}:{port}"))
    }

    /// The fault of an address that is not valid. It does not repeat a part that may be secret.
    pub(crate) fn wrong(&self, why: impl fmt::Display) -> Fault {
        Fault::invalid(format!(
            "{} is not the address of an authority: {why}",
            palisade_client::without_secrets(self.url)
        ))
    }
}
