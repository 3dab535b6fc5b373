//! The address of an ensemble, parsed from its URL.

use crate::url;
use palisade_client::Fault;

const PORT: u16 = 2181;
const ROOT: &str = "palisade";

/// The parts of a `zookeeper://` URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port,host:port`, the form that the client library takes.
    pub(super) cluster: String,
    /// The root node of all locks; it begins with a slash and does not end with one.
    pub(super) root: String,
}

impl Address {
    pub(super) fn parse(given: &str) -> Result<Address, Fault> {
        let parts = url::UrlParts::of(given, "zookeeper")?;
        if parts.user.is_some() {
            return Err(parts.wrong("user names and passwords are not supported for ZooKeeper"));
        }
        let root = match parts.path.trim_matches('/') {
            "" => ROOT,
            root => root,
        };
        let name = |name: &str| {
            !matches!(name, "" | "." | ".." | "zookeeper")
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if root.len() > LONGEST_ROOT || !root.split('/').all(name) {
            return Err(
                parts.wrong("the root must be 1 ..= 128 bytes of names with / between them")
            );
        }
        Ok(Address {
            cluster: parts.hosts(PORT)?.join(","),
            root: format!("/{root}"),
        })
    }
}

const LONGEST_ROOT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_ports_and_a_root_may_be_named() {
        let address = Address::parse("zookeeper://a,b:99/team/locks/").unwrap();
        assert_eq!(address.cluster, "a:2181,b:99");
        assert_eq!(address.root, "/team/locks");
        assert_eq!(Address::parse("zookeeper://a").unwrap().root, "/palisade");
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_reason() {
        for (url, reason) in [
            ("zookeeper://", "host"),
            ("zookeeper://a:x", "1 ..= 65535"),
            ("zookeeper://u:p@a", "not supported"),
            ("zookeeper://a/b//c", "root"),
            ("zookeeper://a/zookeeper", "root"),
            ("zookeeper://a/..", "root"),
        ] {
            let message = Address::parse(url).unwrap_err().to_string();
            assert!(message.contains(reason), "{url}: {message}");
        }
    }
}
