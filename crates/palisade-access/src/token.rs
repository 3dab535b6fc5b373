//! Bearer tokens: `pal_<id>_<64 hexadecimal digits>`.

use std::fmt::{self, Write as _};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A token as its bearer has it. Its text is secret.
#[derive(Clone)]
pub struct BearerToken {
    id: Box<str>,
    secret: Secret,
}

/// The SHA-256 of a token's secret.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// A text that is not a token. The message does not repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a token; one begins with pal_, an id and an underscore, and has 64 hexadecimal digits after it"
)]
pub struct BadToken;

impl BearerToken {
    /// Makes a token of random bytes: the text for its bearer, and the token.
    #[must_use]
    pub fn make(random: [u8; 36]) -> (String, BearerToken) {
        let (id, secret) = random.split_at(4);
        let (id, secret) = (hex(id), hex(secret));
        let text = format!("{START}{id}_{secret}");
        let token = BearerToken {
            id: id.into(),
            secret: Secret::of(&secret),
        };
        (text, token)
    }

    /// Reads a token.
    ///
    /// # Errors
    /// [`BadToken`].
    pub fn parse(text: &str) -> Result<BearerToken, BadToken> {
        let (id, secret) = text
            .strip_prefix(START)
            .and_then(|rest| rest.split_once('_'))
            .ok_or(BadToken)?;
        let fits = is_id(id) && secret.len() == 64 && secret.bytes().all(is_digit);
        fits.then(|| BearerToken {
            id: id.into(),
            secret: Secret::of(secret),
        })
        .ok_or(BadToken)
    }

    /// Its id, which is not secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The stored form of its secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl Secret {
    fn of(secret: &str) -> Secret {
        Secret(Sha256::digest(secret.as_bytes()).into())
    }

    /// Reads the form that is stored, 64 hexadecimal digits.
    #[must_use]
    pub fn parse(stored: &str) -> Option<Secret> {
        let mut bytes = [0; 32];
        if stored.len() != 64 || !stored.bytes().all(is_digit) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&stored[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Secret(bytes))
    }

    /// The form that is stored.
    #[must_use]
    pub fn stored(&self) -> String {
        hex(&self.0)
    }

    /// Whether both are of one secret; takes as long for each difference.
    #[must_use]
    pub fn is(&self, other: &Secret) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

pub(crate) fn is_id(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to memory cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

pub(crate) const START: &str = "pal_";
