//! How requests and data sets are spelled: with as few bytes as a text allows, for all of them are sent,
//! kept, logged and synced.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use palisade_core::RequestId;

/// 22 letters, none of which is a blank or ends a line.
pub(super) fn spelled(id: &[u8; 16]) -> String {
    BASE64.encode(id)
}

/// `None` for what [`spelled`] did not spell.
pub(super) fn read(id: &str) -> Option<RequestId> {
    let bytes = BASE64.decode(id).ok()?;
    Some(RequestId::from_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spelled_is_read_and_nothing_else() {
        for bytes in [[0; 16], [255; 16], *b"0123456789abcdef"] {
            let spelled = spelled(&bytes);
            assert_eq!(spelled.len(), 22);
            assert_eq!(read(&spelled), Some(RequestId::from_bytes(bytes)));
        }
        for other in [
            "",
            "AAAA",
            "AAAAAAAAAAAAAAAAAAAAAB",
            "AAAAAAAAAAAAAAAAAAAAAA==",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
