//! The claim as the first call, without which a program cannot read.

use std::collections::BTreeMap;

use palisade_core::fence::Pass;

use crate::admitted::Admitted;
use crate::error::Result;
use crate::fence::{Fence, Write};

/// A resource that was claimed under one token. Only a claim creates this handle.
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
/// [`Error::Rejected`](crate::Error::Rejected) for a stale token; errors of the resource.
pub async fn enter<'a, F: Fence>(fence: &'a F, pass: Pass<'a>) -> Result<Claimed<'a, F>> {
    fence.claim(pass).await?;
    Ok(Claimed { fence, pass })
}

/// Claims several resources before any of them is read, in name order, so that two holders of several
/// resources do not block each other. Returns them by name.
///
/// It is not a transaction: if one claim is rejected, the fences before it stay raised. That excludes only older
/// holders. (Within one database, use `claim_all` of its module, which is all or nothing.)
///
/// # Errors
/// As [`enter`]; the log names the resource.
pub async fn enter_all<'a, F: Fence + 'a>(
    claims: impl IntoIterator<Item = (&'a str, &'a F, Pass<'a>)>,
) -> Result<BTreeMap<&'a str, Claimed<'a, F>>> {
    let mut claims: Vec<_> = claims.into_iter().collect();
    claims.sort_by_key(|(name, ..)| *name);
    let mut entered = BTreeMap::new();
    for (name, fence, pass) in claims {
        entered.insert(name, enter(fence, pass).await?);
    }
    Ok(entered)
}

impl<F: Fence> Claimed<'_, F> {
    /// Reads the bytes under a key.
    ///
    /// # Errors
    /// As [`Fence::read`].
    pub async fn read(&self, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        self.fence.read(self.pass, key).await
    }

    /// Changes the bytes under a key.
    ///
    /// # Errors
    /// As [`Fence::write`].
    pub async fn write(&self, write: Write<'_>) -> Result<Admitted<()>> {
        self.fence.write(self.pass, write).await
    }
}
