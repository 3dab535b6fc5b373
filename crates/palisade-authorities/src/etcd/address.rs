//! The address of a cluster, parsed from its URL.

use crate::url;
use palisade_client::Fault;

const PORT: u16 = 2379;
const ROOT: &str = "palisade";

/// The parts of an `etcd://` URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port` of each member in the URL.
    pub(super) hosts: Vec<String>,
    /// The prefix of every key; it ends with a slash.
    pub(super) root: String,
}

impl Address {
    pub(super) fn parse(given: &str) -> Result<Address, Fault> {
        let parts = url::UrlParts::of(given, "etcd")?;
        if parts.user.is_some() {
            return Err(parts.wrong("user names and passwords are not supported for etcd"));
        }
        let root = match parts.path.trim_matches('/') {
            "" => ROOT,
            root if root.len() <= LONGEST_ROOT
                && root.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                root
            }
            _ => return Err(parts.wrong("the root must be 1 ..= 128 bytes of printable ASCII")),
        };
        Ok(Address {
            hosts: parts.hosts(PORT)?,
            root: format!("/{root}/"),
        })
    }
}

const LONGEST_ROOT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_ports_and_a_root_may_be_named() {
        let address = Address::parse("etcd://a,b:99,[::1]/team/locks/").unwrap();
        assert_eq!(address.hosts, ["a:2379", "b:99", "[::1]:2379"]);
        assert_eq!(address.root, "/team/locks/");
        assert_eq!(Address::parse("etcd://a").unwrap().root, "/palisade/");
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason_and_without_the_secret() {
        for (url, reason) in [
            ("etcd://", "host"),
            ("etcd://a,,b", "host"),
            ("etcd://a:0", "1 ..= 65535"),
            ("etcd://user:secret@a", "not supported"),
            ("etcd://a/b c", "printable"),
        ] {
            let message = Address::parse(url).unwrap_err().to_string();
            assert!(message.contains(reason), "{url}: {message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
