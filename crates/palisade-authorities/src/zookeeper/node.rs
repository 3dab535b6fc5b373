//! The names of nodes, and their data.

use palisade_core::{ClientId, LockName, RequestId, Token, Ttl};
use zookeeper_client::Stat;

use palisade_client::Fault;

/// The text between the request id and the sequence.
const INFIX: &str = "-lock-";

/// A node in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueNode {
    pub(super) path: String,
    pub(super) token: Token,
}

/// One child of a lock, by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Child {
    /// The first field, because it orders the queue.
    pub(super) sequence: i64,
    pub(super) name: String,
}

impl Child {
    /// Parses a node's name; `None` for a node that Palisade did not create.
    fn parse(name: String) -> Option<Child> {
        let (_, sequence) = name.split_once(INFIX)?;
        let sequence = sequence.parse().ok()?;
        Some(Child { sequence, name })
    }

    pub(super) fn is_of(&self, request: &str) -> bool {
        self.name
            .strip_prefix(request)
            .is_some_and(|rest| rest.starts_with(INFIX))
    }
}

/// The queue in order, from the first to the last.
pub(super) fn in_order(names: Vec<String>) -> Vec<Child> {
    let mut children: Vec<_> = names.into_iter().filter_map(Child::parse).collect();
    // The ensemble counts with signed 32-bit numbers: the lowest number follows the highest.
    if children.iter().any(|child| child.sequence > HALF) {
        for child in children.iter_mut().filter(|child| child.sequence < -HALF) {
            child.sequence += 1 << 32;
        }
    }
    children.sort_unstable();
    children
}

/// A bound that no queue reaches.
const HALF: i64 = 1 << 30;

/// The name of a request's node, without its sequence.
pub(super) fn name_of(request: &str) -> String {
    format!("{request}{INFIX}")
}

pub(super) fn hex(request: &[u8; 16]) -> String {
    RequestId::from_bytes(*request).to_hex()
}

/// Encodes a lock's name as the name of one node: a slash, a percent sign and the names that ZooKeeper
/// reserves are escaped.
pub(super) fn escape(lock: &str) -> String {
    let mut escaped = String::with_capacity(lock.len());
    for (place, letter) in lock.char_indices() {
        match letter {
            '/' | '%' => escaped.push_str(&format!("%{:02x}", u32::from(letter))),
            // No node may be called "." or "..", and ".authority" is Palisade's own node.
            '.' if place == 0 => escaped.push_str("%2e"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// The lock that a node stands for; `None` for any other node.
pub(super) fn unescape(name: &str) -> Option<LockName> {
    let mut lock = String::with_capacity(name.len());
    let mut rest = name.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '.' if lock.is_empty() => return None,
            '%' => {
                let digits: String = rest.by_ref().take(2).collect();
                let byte = u8::from_str_radix(&digits, 16).ok()?;
                lock.push(char::from(byte));
            }
            _ => lock.push(letter),
        }
    }
    LockName::new(&lock).ok()
}

/// The transaction that created a node; `None` if it is larger than the largest token.
pub(super) fn token(stat: &Stat) -> Option<Token> {
    Token::new(u64::try_from(stat.czxid).unwrap_or(0)).ok()
}

/// The data of a node: its request's properties.
pub(super) struct Data {
    pub(super) client: ClientId,
    pub(super) ttl: Ttl,
    pub(super) metadata: Option<Box<str>>,
}

impl Data {
    pub(super) fn write(client: &ClientId, ttl: Ttl, metadata: Option<&str>) -> Vec<u8> {
        let metadata = metadata.unwrap_or("");
        format!("{client}\n{}\n{metadata}", ttl.as_millis()).into_bytes()
    }

    pub(super) fn read(data: &[u8]) -> Result<Data, Fault> {
        let foreign = || Fault::invalid("a node under the root was not written by Palisade");
        let text = std::str::from_utf8(data).map_err(|_| foreign())?;
        let mut lines = text.splitn(3, '\n');
        let mut line = || lines.next().ok_or_else(foreign);
        let (client, ttl, metadata) = (line()?, line()?, line()?);
        let ttl = ttl.parse().map_err(|_| foreign())?;
        Ok(Data {
            client: ClientId::new(client).map_err(|_| foreign())?,
            ttl: Ttl::from_millis(ttl).map_err(|_| foreign())?,
            metadata: (!metadata.is_empty()).then(|| metadata.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_has_a_node_of_its_own() {
        for lock in [
            "orders",
            "a/b",
            "a%2fb",
            "..",
            ".",
            ".authority",
            "%",
            "a.b",
        ] {
            let name = escape(lock);
            assert!(!name.contains('/') && !name.starts_with('.'), "{name}");
            assert_eq!(unescape(&name).unwrap().as_str(), lock);
        }
        assert_eq!(unescape(".authority"), None);
    }

    #[test]
    fn the_sequence_orders_requests_of_any_name() {
        let names = ["ff-lock-0000000001", "aa-lock-0000000010", "strange"];
        let order = in_order(names.map(str::to_owned).to_vec());
        assert_eq!(
            order.iter().map(|c| c.sequence).collect::<Vec<_>>(),
            [1, 10]
        );
        assert!(order[0].is_of("ff") && !order[0].is_of("f"));
    }

    #[test]
    fn a_request_that_joins_after_the_highest_sequence_is_behind_it() {
        let names = [
            "c-lock--2147483648",
            "a-lock-2147483646",
            "d-lock--2147483647",
            "b-lock-2147483647",
        ];
        let order = in_order(names.map(str::to_owned).to_vec());
        for (child, request) in order.iter().zip(["a", "b", "c", "d"]) {
            assert!(child.is_of(request), "{order:?}");
        }
        let names = ["d-lock--2147483647", "c-lock--2147483648"];
        let order = in_order(names.map(str::to_owned).to_vec());
        assert!(order[0].is_of("c") && order[1].is_of("d"), "{order:?}");
    }
}
