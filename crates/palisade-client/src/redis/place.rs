//! Where a primary is, from the URL people type.

use crate::fault::Fault;

/// What a `redis://` URL says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Without what is ours.
    pub(super) url: String,
    /// How many replicas must have a grant.
    pub(super) replicas: u32,
}

impl Place {
    pub(super) fn parse(given: &str) -> Result<Place, Fault> {
        let (url, query) = given.split_once('?').unwrap_or((given, ""));
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
                        "a redis:// address knows replicas=N, not {name:?}"
                    )));
                }
            };
        }
        Ok(Place {
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
        let place = Place::parse("redis://h:1/2?replicas=2").unwrap();
        assert_eq!((&*place.url, place.replicas), ("redis://h:1/2", 2));
        assert_eq!(Place::parse("redis://h").unwrap().replicas, 0);
        for wrong in ["?replicas=0", "?replicas=x", "?replicas=99", "?ttl=3"] {
            let message = Place::parse(&format!("redis://h{wrong}")).unwrap_err();
            assert!(message.to_string().contains("replicas"), "{message}");
        }
    }
}
