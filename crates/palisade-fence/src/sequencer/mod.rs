//! Sequencers: fencing tokens that the authority has signed (rules Q1 to Q4).
//!
//! ```text
//!   base64url(header) . base64url(payload) . base64url(signature)        a compact JWS (RFC 7515), EdDSA with Ed25519
//!   {"alg":"EdDSA","kid":"…","typ":"palisade-sequencer"}
//!            {"iss":"AUTHORITY","lock":"orders","mode":"exclusive","token":34,"slots":[2],"sub":"backup"}
//! ```
//!
//! Anybody can make up a bare token. A sequencer proves that the authority issued the token, for which lock and to
//! which principal, and a fence verifies it without asking the authority. It does not expire: the fence orders tokens,
//! and a released holder's token stays valid until a higher one arrives.
//!
//! The checks, in this order: the length, the three parts in canonical base64url, the header (exactly these three
//! members, this algorithm and type), the key, the signature over the bytes as they came, the payload, the authority,
//! and the lock or slot. The sequencer cannot choose the algorithm: `none` and others are refused by name. Nothing in
//! the payload is read before the signature is verified.
//!
//! ```
//! use palisade_fence::sequencer::{BadSequencer, Keys};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let keys = Keys::parse(br#"{"issuer": "7a31", "keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k1",
//!     "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#)?;
//! assert!(matches!(keys.verify("a.b"), Err(BadSequencer::Malformed(_))));
//! # Ok(())
//! # }
//! ```
//!
//! Sources: sequencers, Burrows 2006 ("The Chubby lock service"), section 2.4; JWS, RFC 7515; Ed25519 in JOSE, RFC 8037.

mod check;
mod keys;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::fence::Pass;
use palisade_core::{AuthorityId, Code, LockName, Token, slot_key};
use serde::Deserialize;

pub use check::Check;
pub use keys::{BadKeys, Keys};

/// The header of a request that carries a sequencer.
pub const SEQUENCER_HEADER: &str = "x-fencing-sequencer";

/// The longest accepted sequencer, in bytes.
pub const MAX_BYTES: usize = 4_096;

/// The content of a sequencer with a verified signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequencer {
    authority: AuthorityId,
    lock: LockName,
    mode: GrantMode,
    token: Token,
    slots: Vec<u32>,
    principal: Option<String>,
}

/// The mode of a grant, by the requests that it excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GrantMode {
    /// A writer, which excludes everyone.
    Exclusive,
    /// A reader, which excludes writers. Its holder may read the resource but not write it (rule S5).
    Shared,
    /// Permits of a semaphore, which exclude other holders of the same slots.
    Permits,
}

/// The reason why a sequencer is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSequencer {
    /// It does not have the form of a sequencer.
    #[error("the sequencer is malformed: {0}")]
    Malformed(&'static str),
    /// It names another algorithm, or none.
    #[error("the sequencer's algorithm is {0:?}: only EdDSA is accepted")]
    Algorithm(String),
    /// The fence does not know its key.
    #[error(
        "the sequencer names the key {0:?}, which this fence does not know: give it the authority's \
         /.well-known/jwks.json with --keys"
    )]
    UnknownKey(String),
    /// The named key did not sign these bytes.
    #[error("the sequencer's signature is wrong: the authority did not issue it")]
    Forged,
    /// It names another authority than that of the fence's keys.
    #[error("authority {named} issued the sequencer, and the keys here belong to {expected}")]
    WrongAuthority {
        /// The authority that it names.
        named: String,
        /// The authority of the keys.
        expected: AuthorityId,
    },
    /// It is for another lock, or for another slot.
    #[error(
        "the sequencer is for {held}, and this resource is {resource}: acquire the lock of this name"
    )]
    WrongLock {
        /// The lock, or the slots, for which it was issued.
        held: String,
        /// The resource at which it was presented.
        resource: String,
    },
    /// It is a reader's, and the operation is a write.
    #[error("the sequencer is a reader's (mode shared), and this request writes")]
    ReadOnly,
    /// The fence requires a sequencer, and the request has none.
    #[error(
        "a bare fencing token is not admitted here: ask the authority for a sequencer \
         (POST /v1/locks/LOCK/sequencer) and send it as X-Fencing-Sequencer"
    )]
    Unsigned,
    /// The request also names a token, lock or authority, and it differs from the sequencer's.
    #[error("{0} differs from what the sequencer says; leave it out")]
    Contradicted(&'static str),
    /// The fence has no keys to verify it.
    #[error("this fence has no keys to check a sequencer with: start it with --keys FILE")]
    NoKeys,
}

impl BadSequencer {
    /// Returns the code of the refusal.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            BadSequencer::WrongAuthority { .. } => Code::WrongAuthority,
            BadSequencer::WrongLock { .. } => Code::WrongLock,
            BadSequencer::Unsigned => Code::Unsigned,
            BadSequencer::Malformed(_)
            | BadSequencer::Algorithm(_)
            | BadSequencer::UnknownKey(_)
            | BadSequencer::Forged
            | BadSequencer::ReadOnly
            | BadSequencer::Contradicted(_)
            | BadSequencer::NoKeys => Code::BadSequencer,
        }
    }
}

impl Sequencer {
    /// Returns the authority that signed it.
    #[must_use]
    pub const fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    /// Returns the lock of the grant.
    #[must_use]
    pub const fn lock(&self) -> &LockName {
        &self.lock
    }

    /// Returns the mode of the grant.
    #[must_use]
    pub const fn mode(&self) -> GrantMode {
        self.mode
    }

    /// The fencing token.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Returns the slots of a semaphore, ascending; empty for other locks.
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the principal that holds the grant; `None` if the sequencer names none.
    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// Checks that it is for this resource: one with the lock's name, or for permits one of `LOCK~SLOT`.
    ///
    /// # Errors
    /// [`BadSequencer::WrongLock`]. Without this check, the holder of any lock could raise every fence.
    pub fn covers(&self, resource: &str) -> Result<(), BadSequencer> {
        let covers = match self.mode {
            GrantMode::Exclusive | GrantMode::Shared => self.lock.as_str() == resource,
            GrantMode::Permits => self
                .slots
                .iter()
                .any(|slot| slot_key(&self.lock, *slot).is_ok_and(|key| key.as_str() == resource)),
        };
        if covers {
            return Ok(());
        }
        let held = match self.mode {
            GrantMode::Permits => format!("the slots {:?} of {}", self.slots, self.lock.as_str()),
            GrantMode::Exclusive | GrantMode::Shared => self.lock.as_str().to_owned(),
        };
        Err(BadSequencer::WrongLock {
            held,
            resource: resource.to_owned(),
        })
    }

    /// Returns the pass for a fence. It has no jump bound.
    #[must_use]
    pub const fn pass(&self) -> Pass<'_> {
        Pass::new(self.token).by(&self.authority).signed()
    }
}

/// The header. Unknown members are refused, including `crit`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    kid: String,
    typ: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SequencerPayload {
    iss: String,
    lock: String,
    mode: GrantMode,
    token: u64,
    #[serde(default)]
    slots: Vec<u32>,
    sub: Option<String>,
}

impl Keys {
    /// Verifies a sequencer and returns its content. Check with [`Sequencer::covers`] that it is for the resource at
    /// hand.
    ///
    /// # Errors
    /// [`BadSequencer`].
    pub fn verify(&self, text: &str) -> Result<Sequencer, BadSequencer> {
        use BadSequencer::Malformed;

        if text.len() > MAX_BYTES {
            return Err(Malformed("it is longer than 4096 bytes"));
        }
        let parts = Malformed("it must have three parts in base64url, with dots between them");
        let (signed, signature) = text.rsplit_once('.').ok_or_else(|| parts.clone())?;
        let (header, payload) = signed.split_once('.').ok_or_else(|| parts.clone())?;
        // Only the canonical form: no padding, and no bits after the last byte.
        let decode = |part| URL_SAFE_NO_PAD.decode(part).map_err(|_| parts.clone());
        let (header, payload, signature) = (decode(header)?, decode(payload)?, decode(signature)?);
        let Header { alg, kid, typ } = object(&header).ok_or(Malformed(
            "its header must have alg, kid and typ, once each",
        ))?;
        if alg != ALGORITHM {
            return Err(BadSequencer::Algorithm(short(&alg)));
        }
        if typ != TYPE {
            return Err(Malformed("its typ is not palisade-sequencer"));
        }
        let key = self
            .find(&kid)
            .ok_or_else(|| BadSequencer::UnknownKey(short(&kid)))?;
        // It refuses a signature with an unreduced scalar, so a message and a key have only one signature.
        key.verify(signed.as_bytes(), &signature)
            .map_err(|_| BadSequencer::Forged)?;
        let payload =
            object(&payload).ok_or(Malformed("its payload is not that of a sequencer"))?;
        self.read(payload)
    }

    fn read(&self, payload: SequencerPayload) -> Result<Sequencer, BadSequencer> {
        use BadSequencer::Malformed;

        if payload.iss != self.issuer().as_str() {
            return Err(BadSequencer::WrongAuthority {
                named: short(&payload.iss),
                expected: self.issuer().clone(),
            });
        }
        let slots = payload.slots;
        let rising = slots.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || slots.contains(&0) || slots.is_empty() == (payload.mode == GrantMode::Permits)
        {
            return Err(Malformed("its slots do not fit its mode"));
        }
        Ok(Sequencer {
            authority: self.issuer().clone(),
            lock: LockName::new(&payload.lock).map_err(|_| Malformed("its lock is not a name"))?,
            mode: payload.mode,
            token: Token::new(payload.token).map_err(|_| Malformed("its token is out of range"))?,
            slots,
            principal: payload.sub,
        })
    }
}

/// Parses one JSON object and nothing after it. serde alone would also accept an array for a struct.
fn object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Option<T> {
    let object = text.starts_with(b"{").then_some(text)?;
    serde_json::from_slice(object).ok()
}

/// Returns the start of a caller's text, for a message.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

const ALGORITHM: &str = "EdDSA";
const TYPE: &str = "palisade-sequencer";
