//! The claim as the first call: reading is possible only after it.

use std::collections::BTreeMap;

use palisade_core::fence::Pass;

use crate::checked::Checked;
use crate::fence::{Fence, Write};

/// A resource that was claimed under one token. It cannot be read without a claim.
#[derive(Debug)]
pub struct Claimed<'a, F> {
    fence: &'a F,
    pass: Pass<'a>,
}

/// Claims a resource and returns the handle that reads and writes under that token.
///
/// The claim is durable when this returns; from then on no older token is admitted.
///
/// # Errors
/// Faults of the resource; a stale token is [`Checked::Rejected`].
pub async fn enter<'a, F: Fence>(
    fence: &'a F,
    pass: Pass<'a>,
) -> Result<Checked<Claimed<'a, F>>, F::Error> {
    Ok(fence.claim(pass).await?.map(|()| Claimed { fence, pass }))
}

/// Claims several resources before any of them is read, in name order, so that two holders of several
/// resources do not block each other. Returns them by name.
///
/// It is not a transaction: if one claim is rejected, the fences before it are already raised, which shuts
/// out only older holders. (In one database, `claim_all` of its module is all or nothing.)
///
/// # Errors
/// Faults of the resources; a stale token is [`Checked::Rejected`], and the log names the resource.
pub async fn enter_all<'a, F: Fence + 'a>(
    claims: impl IntoIterator<Item = (&'a str, &'a F, Pass<'a>)>,
) -> Result<Checked<BTreeMap<&'a str, Claimed<'a, F>>>, F::Error> {
    let mut claims: Vec<_> = claims.into_iter().collect();
    claims.sort_by_key(|(name, ..)| *name);
    let (mut entered, mut highest) = (BTreeMap::new(), None);
    for (name, fence, pass) in claims {
        match enter(fence, pass).await? {
            Checked::Admitted(admitted) => {
                highest = highest.max(admitted.highest);
                entered.insert(name, admitted.value);
            }
            Checked::Rejected(reject) => return Ok(Checked::Rejected(reject)),
        }
    }
    Ok(Checked::admitted(entered, highest))
}

impl<F: Fence> Claimed<'_, F> {
    /// Reads the bytes under a key.
    ///
    /// # Errors
    /// As [`Fence::read`].
    pub async fn read(&self, key: &str) -> Result<Checked<Option<Vec<u8>>>, F::Error> {
        self.fence.read(self.pass, key).await
    }

    /// Changes the bytes under a key.
    ///
    /// # Errors
    /// As [`Fence::write`].
    pub async fn write(&self, write: Write<'_>) -> Result<Checked<()>, F::Error> {
        self.fence.write(self.pass, write).await
    }
}
