//! Hash tags, and the slots of a Redis cluster: all keys of one script must be in one slot.

/// Returns which of the 16,384 slots a key is in: CRC-16/XMODEM of its tag, or of the whole key.
#[must_use]
pub fn slot(key: &str) -> u16 {
    let bytes = tag(key).unwrap_or(key).bytes();
    let crc = bytes.fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    });
    crc % 16_384
}

/// Returns the text between the first `{` and the next `}`, unless it is empty.
pub(super) fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first is the check value of the CRC, the others are from `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("palisade:fence:{foo}"), 12_182);
        assert_eq!(slot("{foo}:{bar}"), 12_182);
        assert_eq!(tag("a{}b"), None);
        assert_eq!(tag("a{b"), None);
        assert_eq!(tag("}a{b}c}"), Some("b"));
    }
}
