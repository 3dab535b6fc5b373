//! An authority that grants every request at once. Behind the claim fence this must cost no data as long as tokens
//! rise; if a token repeats, no fence can distinguish the two holders, and the verdict must say so.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::chaos::lock::lock;
use crate::chaos::server::Victim;

/// The broken authority. Its thread lives as long as the process.
pub(super) struct Broken {
    address: SocketAddr,
}

#[derive(Default)]
struct Tokens {
    last: u64,
    /// The latest token of each lock.
    of: BTreeMap<String, u64>,
    /// Whether a token still has to repeat.
    repeats: bool,
}

impl Broken {
    pub(super) fn start(repeats: bool) -> Result<Broken, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let tokens = Arc::new(Mutex::new(Tokens {
            repeats,
            ..Tokens::default()
        }));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &tokens);
            }
        });
        Ok(Broken { address })
    }
}

/// Reads a line with the lock's name, and answers a line with a token.
fn answer(mut stream: TcpStream, tokens: &Mutex<Tokens>) -> io::Result<()> {
    let mut name = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut name)?;
    let token = lock(tokens).draw(name.trim());
    stream.write_all(format!("{token}\n").as_bytes())
}

impl Tokens {
    fn draw(&mut self, lock: &str) -> u64 {
        let before = self.of.get(lock).copied();
        if let Some(before) = before.filter(|_| self.repeats && self.last >= FIRST_RISING) {
            self.repeats = false;
            return before;
        }
        self.last += 1;
        self.of.insert(lock.to_owned(), self.last);
        self.last
    }
}

impl Victim for Broken {
    fn url(&self) -> String {
        format!("broken://{}", self.address)
    }

    // Nothing to pause: it is broken enough.
    fn pause(&self) {}

    fn resume(&self) {}

    fn kill(&self) {}

    fn lives(&self) -> bool {
        true
    }

    fn start_again(&self) -> Result<(), String> {
        Ok(())
    }
}

/// After how many tokens one repeats.
const FIRST_RISING: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_token_repeats() {
        let mut tokens = Tokens {
            repeats: true,
            ..Tokens::default()
        };
        let drawn: Vec<u64> = (0..300).map(|_| tokens.draw("a")).collect();
        let repeats = drawn.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert_eq!(repeats, 1);
        assert!(drawn.is_sorted());
    }
}
