//! Authentication and access rules of a lock server.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! ```text
//!   file ─► Access ── identify(token │ JWT │ certificate's names │ uid) ─► Principal ── decide(verb, lock) ─► yes │ no, and why
//! ```
//!
//! Rules only grant; an action that no rule grants is denied. A decision reads memory and nothing else;
//! [`file`](mod@file) is the only module that reads a file, and [`replace`] the only one that changes one. A token's
//! secret has 256 random bits, and only its SHA-256 is stored.

pub mod file;
pub mod replace;

mod access;
mod jwt;
mod parse;
mod quota;
mod token;
mod verb;

pub use access::{ANONYMOUS, Access, Bearer, Credential, Denied, Principal, Unknown};
pub use jwt::{BadJwt, Jwt, LEEWAY, MAX_BYTES, Quoted};
pub use parse::Error;
pub use quota::{Bound, QuotaBounds, QuotaSubject, network};
pub use token::{BadToken, BearerToken, Secret};
pub use verb::Verb;
