//! The steps from which the checks are built.

use std::sync::{Mutex, PoisonError};

use palisade_core::fence::{Late, Pass, Reject, Reporter, Sequence};
use palisade_core::{AuthorityId, Token};

use crate::admitted::Admitted;
use crate::conformance::Subject;
use crate::error::{Error, Result as Answered};
use crate::fence::{Edit, Fence, Write};

/// Keeps what is reported: the refused token, the highest one, and the operation.
#[derive(Debug, Default)]
pub(super) struct RejectionRecorder(Mutex<Vec<(u64, u64, String)>>);

impl RejectionRecorder {
    pub(super) fn take(&self) -> Vec<(u64, u64, String)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Reporter for RejectionRecorder {
    fn late(&self, write: &Late<'_>) {
        let (token, highest) = (write.token.get(), write.highest.get());
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push((token, highest, write.operation.to_owned()));
    }
}

/// The reason why a check failed: the observation that contradicts the rule.
pub(super) type Failure = String;

/// An answer of the resource. A check looks at both outcomes.
pub(super) type Answer<T> = Result<Admitted<T>, Reject>;

/// The key that most checks use.
pub(super) const KEY: &str = "/ledger";

/// A resource, driven one step at a time. A fault ends the check.
pub(super) struct Probe<F> {
    fence: F,
}

impl<F: Fence> Probe<F> {
    pub(super) async fn fresh<S: Subject<Fence = F>>(
        subject: &S,
        name: &str,
    ) -> Result<Self, Failure> {
        subject
            .fresh(name)
            .await
            .map(|fence| Probe { fence })
            .map_err(|error| error.report())
    }

    pub(super) async fn claim(&self, token: u64) -> Result<Answer<()>, Failure> {
        self.claim_as(Pass::new(t(token)?)).await
    }

    pub(super) async fn claim_as(&self, pass: Pass<'_>) -> Result<Answer<()>, Failure> {
        answer(self.fence.claim(pass).await)
    }

    pub(super) async fn read(&self, token: u64) -> Result<Answer<Option<Vec<u8>>>, Failure> {
        answer(self.fence.read(Pass::new(t(token)?), KEY).await)
    }

    pub(super) async fn put(&self, token: u64, text: &str) -> Result<Answer<()>, Failure> {
        let write = Write::new(KEY, Edit::Put(text.as_bytes()));
        self.write(token, write).await
    }

    pub(super) async fn numbered(
        &self,
        token: u64,
        number: u64,
        change: Edit<'_>,
    ) -> Result<Answer<()>, Failure> {
        let sequence = Sequence::new(number).ok_or("the check's own number")?;
        self.write(token, Write::new(KEY, change).numbered(sequence))
            .await
    }

    pub(super) async fn write(&self, token: u64, write: Write<'_>) -> Result<Answer<()>, Failure> {
        self.write_as(Pass::new(t(token)?), write).await
    }

    pub(super) async fn write_as(
        &self,
        pass: Pass<'_>,
        write: Write<'_>,
    ) -> Result<Answer<()>, Failure> {
        answer(self.fence.write(pass, write).await)
    }

    pub(super) async fn tokenless(&self, text: &str) -> Result<Answer<()>, Failure> {
        let change = Edit::Put(text.as_bytes());
        answer(self.fence.write_tokenless(KEY, change).await)
    }

    /// Fails unless an observer reads exactly this.
    pub(super) async fn holds(&self, expect: Option<&str>) -> Result<(), Failure> {
        let seen = self.fence.observe(KEY).await;
        let seen = seen.map_err(|error| fault(&error))?;
        if seen.as_deref() == expect.map(str::as_bytes) {
            Ok(())
        } else {
            Err(format!(
                "the resource holds {}, not {expect:?}",
                show(seen.as_deref())
            ))
        }
    }
}

pub(super) fn t(number: u64) -> Result<Token, Failure> {
    Token::new(number).map_err(|invalid| invalid.to_string())
}

pub(super) fn authority(name: &str) -> Result<AuthorityId, Failure> {
    AuthorityId::new(name).map_err(|invalid| invalid.to_string())
}

/// Fails unless the operation was carried out just now; returns the value.
pub(super) fn admitted<T>(answer: Answer<T>) -> Result<T, Failure> {
    match answer {
        Ok(admitted) if !admitted.repeat => Ok(admitted.value),
        Ok(_) => Err("a first write was answered as a repeat".to_owned()),
        Err(reject) => Err(format!("rejected: {reject}")),
    }
}

/// Fails unless the operation was recognised as a repeat.
pub(super) fn repeated<T>(answer: Answer<T>) -> Result<(), Failure> {
    match answer {
        Ok(admitted) if admitted.repeat => Ok(()),
        Ok(_) => Err("a repeat was carried out a second time".to_owned()),
        Err(reject) => Err(format!("rejected: {reject}")),
    }
}

/// Fails unless the operation was rejected for exactly this reason.
pub(super) fn rejected<T>(answer: Answer<T>, expect: &Reject) -> Result<(), Failure> {
    match answer {
        Err(reject) if reject == *expect => Ok(()),
        Err(reject) => Err(format!("rejected as {reject:?}, not as {expect:?}")),
        Ok(_) => Err(format!("admitted; the answer should have been {expect:?}")),
    }
}

/// Fails unless the operation was rejected because of a newer token, in words that name both numbers.
pub(super) fn stale<T>(answer: Answer<T>, presented: u64, highest: u64) -> Result<(), Failure> {
    if let Err(reject) = &answer {
        let (said, both) = (
            reject.to_string(),
            format!("token {presented} is stale: {presented} < {highest}"),
        );
        if !said.contains(&both) {
            return Err(format!("the rejection says {said:?}, and not {both:?}"));
        }
    }
    let (presented, highest) = (t(presented)?, t(highest)?);
    rejected(answer, &Reject::Stale { presented, highest })
}

/// Fails unless a read with a token returned exactly this.
pub(super) fn reads(answer: Answer<Option<Vec<u8>>>, expect: Option<&str>) -> Result<(), Failure> {
    let seen = admitted(answer)?;
    if seen.as_deref() == expect.map(str::as_bytes) {
        Ok(())
    } else {
        Err(format!("read {}, not {expect:?}", show(seen.as_deref())))
    }
}

fn show(bytes: Option<&[u8]>) -> String {
    bytes.map_or("nothing".to_owned(), |bytes| {
        format!("{:?}", String::from_utf8_lossy(bytes))
    })
}

/// Tells a rejection from a fault.
fn answer<T>(answered: Answered<Admitted<T>>) -> Result<Answer<T>, Failure> {
    match answered {
        Ok(admitted) => Ok(Ok(admitted)),
        Err(Error::Rejected(reject)) => Ok(Err(reject)),
        Err(error) => Err(fault(&error)),
    }
}

fn fault(error: &Error) -> Failure {
    format!("fault: {}", error.report())
}
