//! A fenced folder for asynchronous code.

use palisade_core::fence::Pass;

use super::disk::failed;
use super::folder::Folder;
use crate::admitted::Admitted;
use crate::error::Result;
use crate::fence::{Change, Fence, Write};
use crate::objects::{Alter, Credentials};

/// A [`Folder`] as a [`Fence`]: every call runs on Tokio's threads for blocking work, and continues there if
/// the future is dropped.
#[derive(Clone, Debug)]
pub struct AsyncFolder(pub Folder);

impl AsyncFolder {
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
        let by = Credentials::from(pass);
        self.run(move |folder| folder.claim(by.as_pass())).await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let (by, key) = (Credentials::from(pass), key.to_owned());
        self.run(move |folder| folder.read(by.as_pass(), &key))
            .await
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let (by, key) = (Credentials::from(pass), write.key.to_owned());
        let (alter, sequence) = (Alter::from(write.change), write.sequence);
        self.run(move |folder| folder.change(Some(by.as_pass()), &key, &alter, sequence))
            .await
    }

    async fn write_tokenless(&self, key: &str, change: Change<'_>) -> Result<Admitted<()>> {
        let (key, alter) = (key.to_owned(), Alter::from(change));
        self.run(move |folder| folder.change(None, &key, &alter, None))
            .await
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = key.to_owned();
        self.run(move |folder| folder.observe(&key)).await
    }
}
