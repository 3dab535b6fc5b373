//! Writing numbers and texts.

/// Appends to a byte buffer.
pub(super) trait Put {
    fn byte(&mut self, byte: u8);
    fn number(&mut self, number: u64);
    fn text(&mut self, text: &str);
    fn id(&mut self, id: &[u8; 16]);
}

impl Put for Vec<u8> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.push(number as u8);
    }

    #[inline]
    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.extend_from_slice(text.as_bytes());
    }

    #[inline]
    fn id(&mut self, id: &[u8; 16]) {
        self.extend_from_slice(id);
    }
}
