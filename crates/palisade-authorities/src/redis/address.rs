//! The address of a primary, parsed from its URL.

use palisade_client::Fault;

/// The parts of a `redis://` URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The URL without Palisade's own parameters.
    pub(super) url: String,
    /// The number of replicas that must have a grant.
    pub(super) replicas: u32,
}

impl Address {
    pub(super) fn parse(given: &str) -> Result<Address, Fault> {
        let (url, query) = given.split_once('?').unwrap_or((given, ""));
        if query.contains('@') {
            // Perhaps the end of a password: not repeated.
            return Err(Fault::invalid(
                "in a redis:// address a ? in a password is written %3F",
            ));
        }
        let mut replicas = 0;
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            replicas = match setting.split_once('=') {
                Some(("replicas", number)) => number
                    .parse()
                    .ok()
                    .filter(|number| (1..=MOST_REPLICAS).contains(number))
                    .ok_or_else(|| Fault::invalid("replicas must be 1 ..= 16"))?,
                _ => {
                    let name = setting.split('=').next().unwrap_or_default();
                    return Err(Fault::invalid(format!(
                        "a redis:// address accepts the parameter replicas=N, not {name:?}"
                    )));
                }
            };
        }
        Ok(Address {
            url: url.to_owned(),
            replicas,
        })
    }
}

const MOST_REPLICAS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_may_be_asked_for_and_nothing_else() {
        let address = Address::parse("redis://h:1/2?replicas=2").unwrap();
        assert_eq!((&*address.url, address.replicas), ("redis://h:1/2", 2));
        assert_eq!(Address::parse("redis://h").unwrap().replicas, 0);
        for wrong in ["?replicas=0", "?replicas=x", "?replicas=99", "?ttl=3"] {
            let message = Address::parse(&format!("redis://h{wrong}")).unwrap_err();
            assert!(message.to_string().contains("replicas"), "{message}");
        }
        let message = Address::parse("redis://:sec?ret@h")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("%3F") && !message.contains("ret@"),
            "{message}"
        );
    }
}
