//! The answer to a node that is not let in.

use std::fmt;

use crate::codec::{Malformed, Put, Take};
use crate::entry::LogId;

/// Why a node is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRefusal {
    /// For people, on both sides.
    pub why: String,
    /// The state that it had and has no longer, if that is why.
    pub loss: Option<LostState>,
}

impl From<String> for AdmissionRefusal {
    fn from(why: String) -> AdmissionRefusal {
        AdmissionRefusal { why, loss: None }
    }
}

impl fmt::Display for AdmissionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// The state that a node was known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostState {
    /// How many times its log had been opened.
    pub starts: u64,
    /// The entry that it had acknowledged, which is committed.
    pub agreed: Option<LogId>,
}

impl LostState {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.u64(self.starts);
        out.option(self.agreed, Vec::log_id);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<LostState, Malformed> {
        let mut from = Take(bytes);
        let loss = LostState {
            starts: from.u64()?,
            agreed: from.option(Take::log_id)?,
        };
        from.end()?;
        Ok(loss)
    }
}

impl fmt::Display for LostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "was started {} times", self.starts)?;
        match self.agreed {
            Some(agreed) => write!(f, " and acknowledged {agreed}"),
            None => Ok(()),
        }
    }
}
