//! The natural first call: claim, and only then have something to read from.

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
