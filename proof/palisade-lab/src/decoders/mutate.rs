//! Mutations of known inputs, determined by a seed alone.

use fastrand::Rng;

/// Makes new inputs from a corpus.
pub struct Mutator {
    rng: Rng,
    corpus: Vec<Vec<u8>>,
}

/// Numbers where decoders tend to fail: the ends of ranges, and one beyond.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    (1 << 53) - 1,
    1 << 53,
    u64::MAX,
];

/// The maximum length of an input.
const LONGEST: usize = 1 << 16;

impl Mutator {
    /// Equal seeds and corpora give equal inputs.
    #[must_use]
    pub fn new(seed: u64, corpus: Vec<Vec<u8>>) -> Mutator {
        Mutator {
            rng: Rng::with_seed(seed),
            corpus,
        }
    }

    /// The next input: a member of the corpus, changed in one to eight places.
    pub fn input(&mut self) -> Vec<u8> {
        let mut bytes = self.rng.choice(&self.corpus).cloned().unwrap_or_default();
        for _ in 0..self.rng.usize(1..=8) {
            self.change(&mut bytes);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.rng.usize(0..=bytes.len());
        let to = self.rng.usize(at..=bytes.len().min(at + 64));
        match self.rng.u8(0..9) {
            0 => bytes.insert(at, self.rng.u8(..)),
            1 => drop(bytes.drain(at..to)),
            2 => bytes.truncate(at),
            3 => {
                let again = bytes[at..to].to_vec();
                bytes.splice(at..at, again);
            }
            4 => self.splice(bytes, at),
            5 => self.edge(bytes, at),
            6 => {
                for byte in &mut bytes[at..to] {
                    *byte = self.rng.u8(..);
                }
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << self.rng.u8(0..8);
                }
            }
        }
    }

    /// Continues with another member of the corpus from some position on.
    fn splice(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let Some(other) = self.rng.choice(&self.corpus) else {
            return;
        };
        let from = self.rng.usize(0..=other.len());
        bytes.truncate(at);
        bytes.extend_from_slice(&other[from..]);
    }

    /// Overwrites one to eight bytes with a number, in either byte order.
    fn edge(&mut self, bytes: &mut [u8], at: usize) {
        let number = self.rng.choice(EDGES).unwrap_or_default();
        let width = self.rng.usize(1..=8);
        let mut written = number.to_le_bytes()[..width].to_vec();
        if self.rng.bool() {
            written.reverse();
        }
        for (byte, new) in bytes[at..].iter_mut().zip(written) {
            *byte = new;
        }
    }
}
