//! Conversion of the answers of `locks.lua` into the client's types.

use palisade_core::{
    ClientId, Ending, Holder, LeaseId, LockName, LockView, Span, Token, Ttl, WallTime,
};

use palisade_client::Fault;

/// One answer: lines of text. The first is a word for the outcome, the others describe the holder. Or a token
/// alone: that of a grant made just now.
#[derive(Debug)]
pub(super) struct Answer(String);

/// The outcome that a token alone stands for.
pub(super) const OPENED: &str = "opened";

/// The index of each line.
const HOW: usize = 0;
const CLIENT: usize = 1;
const TOKEN: usize = 2;
const LEFT: usize = 3;
const AT: usize = 4;
const TTL: usize = 5;
const WAITERS: usize = 6;
/// The last line, because it may contain line breaks.
const METADATA: usize = 7;

impl Answer {
    pub(super) fn read(said: String) -> Result<Answer, Fault> {
        let answer = Answer(said);
        if answer.how() == "elsewhere" {
            return Err(Fault::unavailable(
                "the server was emptied or replaced and is now another authority: tokens of two authorities are never mixed",
            ));
        }
        Ok(answer)
    }

    pub(super) fn how(&self) -> &str {
        match self.0.as_bytes().first() {
            Some(b'0'..=b'9') => OPENED,
            _ => self.line(HOW).unwrap_or_default(),
        }
    }

    pub(super) fn token(&self) -> Result<Token, Fault> {
        let line = if self.how() == OPENED { HOW } else { TOKEN };
        Token::new(self.number(line)?).map_err(unexpected)
    }

    /// The remaining time, counted from when the server executed the script.
    pub(super) fn left(&self) -> Span {
        Span::from_millis(self.number(LEFT).unwrap_or(0))
    }

    pub(super) fn ttl(&self) -> Result<Ttl, Fault> {
        Ttl::from_millis(self.number(TTL)?).map_err(unexpected)
    }

    pub(super) fn acquired_at(&self) -> Result<WallTime, Fault> {
        Ok(WallTime(self.number(AT)?))
    }

    pub(super) fn holder(&self) -> Result<Holder, Fault> {
        Ok(Holder {
            client: ClientId::new(self.field(CLIENT)?).map_err(unexpected)?,
            token: self.token()?,
            remaining: self.left(),
        })
    }

    pub(super) fn ending(&self) -> Result<Ending, Fault> {
        match self.how() {
            // An abandoned grant counts as released.
            "released" | "abandoned" => Ok(Ending::Released),
            "expired" => Ok(Ending::Expired),
            "revoked" => Ok(Ending::Revoked),
            "superseded" => Ok(Ending::Superseded),
            other => Err(unexpected(other)),
        }
    }

    pub(super) fn view(&self, lock: LockName) -> Result<LockView, Fault> {
        if self.how() != "held" {
            return Ok(LockView::free(lock));
        }
        let metadata = self.field(METADATA)?;
        Ok(LockView {
            lease: Some(LeaseId(self.token()?)),
            acquired_at: Some(self.acquired_at()?),
            holder: Some(self.holder()?),
            metadata: (!metadata.is_empty()).then(|| metadata.into()),
            waiters: u32::try_from(self.number(WAITERS)?).unwrap_or(u32::MAX),
            ..LockView::free(lock)
        })
    }

    fn number(&self, which: usize) -> Result<u64, Fault> {
        self.field(which)?.parse().map_err(unexpected)
    }

    fn field(&self, which: usize) -> Result<&str, Fault> {
        self.line(which).ok_or_else(|| unexpected(self.how()))
    }

    fn line(&self, which: usize) -> Option<&str> {
        self.0.splitn(METADATA + 1, '\n').nth(which)
    }
}

/// The fault of an answer that the script cannot have given.
fn unexpected(what: impl std::fmt::Display) -> Fault {
    Fault::unknown_outcome(format!("the lock script gave an unexpected answer: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_keeps_its_lines_and_a_missing_line_is_an_error() {
        let said = "held\nme\n7\n900\n5\n1000\n2\na: 1\nb: 2\n";
        let view = Answer::read(said.to_owned()).unwrap();
        let view = view.view(LockName::new("a").unwrap()).unwrap();
        assert_eq!(view.metadata.as_deref(), Some("a: 1\nb: 2\n"));
        assert_eq!(view.waiters, 2);
        for (said, how) in [("released\n\n7", "released"), ("7", OPENED)] {
            let short = Answer::read(said.to_owned()).unwrap();
            assert_eq!(short.how(), how);
            assert_eq!(short.token().unwrap(), Token::new(7).unwrap());
            assert!(short.ttl().is_err());
        }
        assert!(Answer::read("elsewhere".to_owned()).is_err());
    }
}
