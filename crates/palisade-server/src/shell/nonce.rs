//! The nonce of a request, which its answer carries back: the header `Palisade-Nonce`.
//!
//! HTTP/1.1 has no number that says which request an answer belongs to. A connection that two processes share after a
//! `fork`, or a proxy that lost count, delivers somebody else's answer, and the body alone cannot always tell. With the nonce a
//! client knows. It is not a secret, and no decision of a server depends on it.

use http::{HeaderMap, HeaderName, HeaderValue};
use palisade_proto::Code;

/// The nonce that a request carries, to be carried by its answer; `None` if it carries none.
///
/// # Errors
/// It is malformed, or there is more than one.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<HeaderValue>, (Code, String)> {
    let mut all = headers.get_all(NONCE).iter();
    let Some(nonce) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() || !is_well_formed(nonce.as_bytes()) {
        let message = format!(
            "Palisade-Nonce must be there once, with 1 to {MOST_BYTES} characters out of A-Z, a-z, 0-9, - and _"
        );
        return Err((Code::Invalid, message));
    }
    Ok(Some(nonce.clone()))
}

fn is_well_formed(nonce: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=MOST_BYTES).contains(&nonce.len()) && nonce.iter().all(allowed)
}

/// The header of request and answer.
pub(super) const NONCE: HeaderName = HeaderName::from_static("palisade-nonce");

const MOST_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn nonces(values: &[&'static str]) -> HeaderMap {
        let values = values
            .iter()
            .map(|value| (NONCE, HeaderValue::from_static(value)));
        values.collect()
    }

    #[test]
    fn a_nonce_is_one_short_word() {
        let longest = "x".repeat(MOST_BYTES);
        for fine in ["0", "aZ09-_", longest.leak()] {
            let nonce = of(&nonces(&[fine])).unwrap();
            assert_eq!(nonce.unwrap().as_bytes(), fine.as_bytes());
        }
        assert_eq!(of(&nonces(&[])), Ok(None));
        let too_long = "x".repeat(MOST_BYTES + 1);
        for bad in ["", "a b", "a,b", "a=", "\"a\"", too_long.leak()] {
            assert!(of(&nonces(&[bad])).is_err(), "{bad:?}");
        }
        assert!(of(&nonces(&["a", "a"])).is_err(), "two of them");
    }
}
