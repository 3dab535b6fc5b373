//! The natural first call: claim, and only then have something to read from.

use std::collections::BTreeMap;

use palisade_core::fence::Pass;

use crate::checked::Checked;
use crate::fence::{Fence, Write};

/// A resource that was claimed under one token. To read without having claimed is not possible here.
#[derive(Debug)]
pub struct Claimed<'a, F> {
    fence: &'a F,
    pass: Pass<'a>,
}

/// Claims a resource and hands out what reads and writes under that token.
///
/// The claim is durable when this returns; from then on nothing older is admitted.
///
/// # Errors
/// The resource's own faults; a stale token is [`Checked::Rejected`].
pub async fn enter<'a, F: Fence>(
    fence: &'a F,
    pass: Pass<'a>,
) -> Result<Checked<Claimed<'a, F>>, F::Error> {
    Ok(fence.claim(pass).await?.map(|()| Claimed { fence, pass }))
}

/// Claims several resources before any of them is read, in name order, so that two holders of several
/// do not stand in each other's way. Gives them under their names.
///
/// It is no transaction: if one is rejected, those before it have been raised already, which shuts out
/// nobody but older holders. (In one database, `claim_all` of its module is all or nothing.)
///
/// # Errors
/// The resources' own faults; a stale token is [`Checked::Rejected`], and the log says where.
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
    /// Reads what is under a key.
    ///
    /// # Errors
    /// As [`Fence::read`].
    pub async fn read(&self, key: &str) -> Result<Checked<Option<Vec<u8>>>, F::Error> {
        self.fence.read(self.pass, key).await
    }

    /// Writes.
    ///
    /// # Errors
    /// As [`Fence::write`].
    pub async fn write(&self, write: Write<'_>) -> Result<Checked<()>, F::Error> {
        self.fence.write(self.pass, write).await
    }
}
