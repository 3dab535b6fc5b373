//! Writing numbers and texts.

/// Appends to a byte buffer.
pub(super) trait Put {
    fn byte(&mut self, byte: u8);
    fn bytes<const N: usize>(&mut self, bytes: &[u8; N]);
    fn number(&mut self, number: u64);
    fn text(&mut self, text: &str);
}

impl Put for Vec<u8> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }

    #[inline]
    fn bytes<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn number(&mut self, number: u64) {
        // Nearly all numbers are short. Two bytes at once ask for room once.
        match number {
            0..0x80 => self.push(number as u8),
            0x80..0x4000 => self.bytes(&[number as u8 | 0x80, (number >> 7) as u8]),
            _ => long_number(self, number),
        }
    }

    // Always: it has enough callers for the compiler to leave it apart, which costs a log entry an eighth more.
    #[inline(always)]
    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.extend_from_slice(text.as_bytes());
    }
}

/// Apart, so that the short ones are inlined where they are written.
fn long_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
