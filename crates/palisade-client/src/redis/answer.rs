//! What `locks.lua` answers, in the seam's words.

use palisade_core::{
    ClientId, Ending, Holder, LeaseId, LockName, LockView, Span, Token, Ttl, WallTime,
};

use crate::fault::Fault;

/// One answer: a word for what came out, and what is known of the holder.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) how: String,
    fields: Vec<String>,
}

/// Where the fields stand.
const CLIENT: usize = 0;
const TOKEN: usize = 1;
const LEFT: usize = 2;
const AT: usize = 3;
const TTL: usize = 4;
const METADATA: usize = 5;
const WAITERS: usize = 6;

impl Answer {
    pub(super) fn read(said: Vec<String>) -> Result<Answer, Fault> {
        let mut said = said.into_iter();
        let how = said.next().ok_or_else(|| odd("nothing"))?;
        if how == "elsewhere" {
            return Err(Fault::unavailable(
                "the server was emptied or replaced and is another authority now: tokens of two authorities are never mixed",
            ));
        }
        Ok(Answer {
            how,
            fields: said.collect(),
        })
    }

    pub(super) fn token(&self) -> Result<Token, Fault> {
        Token::new(self.number(TOKEN)?).map_err(odd)
    }

    /// From when the server carried it out.
    pub(super) fn left(&self) -> Span {
        Span::from_millis(self.number(LEFT).unwrap_or(0))
    }

    pub(super) fn ttl(&self) -> Result<Ttl, Fault> {
        Ttl::from_millis(self.number(TTL)?).map_err(odd)
    }

    pub(super) fn acquired_at(&self) -> Result<WallTime, Fault> {
        Ok(WallTime(self.number(AT)?))
    }

    pub(super) fn holder(&self) -> Result<Holder, Fault> {
        Ok(Holder {
            client: ClientId::new(self.field(CLIENT)?).map_err(odd)?,
            token: self.token()?,
            remaining: self.left(),
        })
    }

    pub(super) fn ending(&self) -> Result<Ending, Fault> {
        match &*self.how {
            // Who abandoned it gave it up.
            "released" | "abandoned" => Ok(Ending::Released),
            "expired" => Ok(Ending::Expired),
            "revoked" => Ok(Ending::Revoked),
            "superseded" => Ok(Ending::Superseded),
            other => Err(odd(other)),
        }
    }

    pub(super) fn view(&self, lock: LockName) -> Result<LockView, Fault> {
        let held = self.how == "held";
        let metadata = self.field(METADATA)?;
        Ok(LockView {
            lock,
            lease: held.then(|| self.token().map(LeaseId)).transpose()?,
            acquired_at: held.then(|| self.acquired_at()).transpose()?,
            holder: held.then(|| self.holder()).transpose()?,
            metadata: (held && !metadata.is_empty()).then(|| metadata.into()),
            waiters: u32::try_from(self.number(WAITERS)?).unwrap_or(u32::MAX),
        })
    }

    fn number(&self, at: usize) -> Result<u64, Fault> {
        self.field(at)?.parse().map_err(odd)
    }

    fn field(&self, at: usize) -> Result<&str, Fault> {
        let field = self.fields.get(at);
        field.map(String::as_str).ok_or_else(|| odd(&self.how))
    }
}

/// An answer that the script cannot have given.
fn odd(what: impl std::fmt::Display) -> Fault {
    Fault::unknown_outcome(format!("the lock script answered oddly: {what}"))
}
