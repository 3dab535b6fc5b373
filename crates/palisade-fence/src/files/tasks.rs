//! A fenced folder for asynchronous code.

use palisade_core::fence::{Op, Pass};

use super::disk::failed;
use super::folder::Folder;
use crate::admitted::Admitted;
use crate::audit;
use crate::error::Result;
use crate::fence::{Edit, Fence, Write};
use crate::objects::{Alter, Credentials};

/// A [`Folder`] as a [`Fence`]: every call runs on Tokio's threads for blocking work, and continues there if
/// the future is dropped.
#[derive(Clone, Debug)]
pub struct AsyncFolder(pub Folder);

impl AsyncFolder {
    /// Runs a call for a holder, and reports a rejection: the pass's reporter stays on this side.
    async fn run_for<T: Send + 'static>(
        &self,
        pass: Pass<'_>,
        op: Op,
        job: impl FnOnce(&Folder, Pass<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let by = Credentials::from(pass);
        let answer = self.run(move |folder| job(folder, by.as_pass())).await;
        audit::told(self.0.name(), Some(pass), op, answer)
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = self.0.clone();
        let done = tokio::task::spawn_blocking(move || job(&folder)).await;
        done.unwrap_or_else(|error| {
            let doing = "run a blocking call".to_owned();
            Err(failed(doing, std::io::Error::other(error)))
        })
    }
}

impl Fence for AsyncFolder {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.run_for(pass, Op::Claim, |folder, pass| folder.claim(pass))
            .await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let key = key.to_owned();
        self.run_for(pass, Op::Read, move |folder, pass| folder.read(pass, &key))
            .await
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let (key, sequence) = (write.key.to_owned(), write.sequence);
        let alter = Alter::from(write.change);
        self.run_for(pass, Op::Write(sequence), move |folder, pass| {
            folder.change(Some(pass), &key, &alter, sequence)
        })
        .await
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        let (key, alter) = (key.to_owned(), Alter::from(change));
        self.run(move |folder| folder.change(None, &key, &alter, None))
            .await
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = key.to_owned();
        self.run(move |folder| folder.observe(&key)).await
    }
}
