//! The words the checks are written in.

use palisade_core::fence::{Pass, Reject, Sequence};
use palisade_core::{AuthorityId, Token};

use crate::checked::Checked;
use crate::conformance::Subject;
use crate::fence::{Change, Fence, Write};

/// What a check saw that it should not have seen.
pub(super) type Saw = String;

/// The key that most checks use.
pub(super) const KEY: &str = "/ledger";

/// A resource, driven one step at a time. Faults end the check.
pub(super) struct Probe<F> {
    fence: F,
}

impl<F: Fence> Probe<F> {
    pub(super) async fn fresh<S: Subject<Fence = F>>(subject: &S, name: &str) -> Result<Self, Saw> {
        subject
            .fresh(name)
            .await
            .map(|fence| Probe { fence })
            .map_err(|fault| fault.to_string())
    }

    pub(super) async fn claim(&self, token: u64) -> Result<Checked<()>, Saw> {
        self.claim_as(Pass::new(t(token)?)).await
    }

    pub(super) async fn claim_as(&self, pass: Pass<'_>) -> Result<Checked<()>, Saw> {
        self.fence.claim(pass).await.map_err(fault)
    }

    pub(super) async fn read(&self, token: u64) -> Result<Checked<Option<Vec<u8>>>, Saw> {
        self.fence
            .read(Pass::new(t(token)?), KEY)
            .await
            .map_err(fault)
    }

    pub(super) async fn put(&self, token: u64, text: &str) -> Result<Checked<()>, Saw> {
        let write = Write::new(KEY, Change::Put(text.as_bytes()));
        self.write(token, write).await
    }

    pub(super) async fn numbered(
        &self,
        token: u64,
        number: u64,
        change: Change<'_>,
    ) -> Result<Checked<()>, Saw> {
        let sequence = Sequence::new(number).ok_or("the check's own number")?;
        self.write(token, Write::new(KEY, change).numbered(sequence))
            .await
    }

    pub(super) async fn write(&self, token: u64, write: Write<'_>) -> Result<Checked<()>, Saw> {
        self.fence
            .write(Pass::new(t(token)?), write)
            .await
            .map_err(fault)
    }

    pub(super) async fn tokenless(&self, text: &str) -> Result<Checked<()>, Saw> {
        let change = Change::Put(text.as_bytes());
        self.fence.write_tokenless(KEY, change).await.map_err(fault)
    }

    /// Fails unless an observer sees exactly this.
    pub(super) async fn holds(&self, expect: Option<&str>) -> Result<(), Saw> {
        let seen = self.fence.observe(KEY).await.map_err(fault)?;
        match seen.as_deref() == expect.map(str::as_bytes) {
            true => Ok(()),
            false => Err(format!(
                "the resource holds {}, not {expect:?}",
                show(seen.as_deref())
            )),
        }
    }
}

pub(super) fn t(number: u64) -> Result<Token, Saw> {
    Token::new(number).map_err(|invalid| invalid.to_string())
}

pub(super) fn authority(name: &str) -> Result<AuthorityId, Saw> {
    AuthorityId::new(name).map_err(|invalid| invalid.to_string())
}

/// Fails unless it was carried out just now; gives the value.
pub(super) fn admitted<T>(answer: Checked<T>) -> Result<T, Saw> {
    match answer {
        Checked::Admitted(admitted) if !admitted.repeat => Ok(admitted.value),
        Checked::Admitted(_) => Err("answered as a repeat; it is the first".to_owned()),
        Checked::Rejected(reject) => Err(format!("rejected: {reject}")),
    }
}

/// Fails unless it was recognised as a repeat.
pub(super) fn repeated<T>(answer: Checked<T>) -> Result<(), Saw> {
    match answer {
        Checked::Admitted(admitted) if admitted.repeat => Ok(()),
        Checked::Admitted(_) => Err("carried out a second time".to_owned()),
        Checked::Rejected(reject) => Err(format!("rejected: {reject}")),
    }
}

/// Fails unless it was rejected for exactly this reason.
pub(super) fn rejected<T>(answer: Checked<T>, expect: &Reject) -> Result<(), Saw> {
    match answer {
        Checked::Rejected(reject) if reject == *expect => Ok(()),
        Checked::Rejected(reject) => Err(format!("rejected as {reject:?}, not as {expect:?}")),
        Checked::Admitted(_) => Err(format!("admitted; it should have been {expect:?}")),
    }
}

/// Fails unless it was rejected because of a newer token.
pub(super) fn stale<T>(answer: Checked<T>, highest: u64) -> Result<(), Saw> {
    rejected(
        answer,
        &Reject::Stale {
            highest: t(highest)?,
        },
    )
}

/// Fails unless a tokened read gave exactly this.
pub(super) fn reads(answer: Checked<Option<Vec<u8>>>, expect: Option<&str>) -> Result<(), Saw> {
    let seen = admitted(answer)?;
    match seen.as_deref() == expect.map(str::as_bytes) {
        true => Ok(()),
        false => Err(format!("read {}, not {expect:?}", show(seen.as_deref()))),
    }
}

fn show(bytes: Option<&[u8]>) -> String {
    bytes.map_or("nothing".to_owned(), |bytes| {
        format!("{:?}", String::from_utf8_lossy(bytes))
    })
}

fn fault(fault: impl std::error::Error) -> Saw {
    format!("fault: {fault}")
}
