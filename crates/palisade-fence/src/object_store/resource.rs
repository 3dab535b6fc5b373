//! One resource: decides on the manifest that was read, and replaces it.

use futures_util::TryStreamExt;
use object_store::ObjectStoreExt;
use palisade_core::fence::{Op, Pass, Reject, Rule, Verdict};

use super::document::{Document, damaged};
use super::files::{Files, Loaded};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::fence::{Edit, Fence, Write};
use crate::guard_row::{CorruptRow, GuardRow};
use crate::name::ObjectPath;
use crate::objects::{Alter, Operation};
use crate::stamped::{ATTEMPTS, back_off, contended};

const MAX_PARTS: usize = 1_000;

/// One resource of a [`Store`](super::Store): keys in the form of absolute paths, under one fence.
#[derive(Clone, Debug)]
pub struct Resource {
    files: Files,
    rule: Rule,
}

/// The outcome of one read of the manifest.
enum ReadAttempt {
    Done(Admitted<Option<Vec<u8>>>),
    Again,
}

impl Resource {
    pub(super) const fn new(files: Files, rule: Rule) -> Resource {
        Resource { files, rule }
    }

    async fn carry_out(
        &self,
        pass: Option<Pass<'_>>,
        operation: Operation,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let mut uploaded = None;
        for attempt in 0..ATTEMPTS {
            back_off(attempt).await?;
            match self.try_once(pass, &operation, &mut uploaded).await? {
                ReadAttempt::Done(admitted) => return Ok(admitted),
                ReadAttempt::Again => {}
            }
        }
        Err(contended())
    }

    async fn try_once(
        &self,
        pass: Option<Pass<'_>>,
        operation: &Operation,
        uploaded: &mut Option<String>,
    ) -> Result<ReadAttempt> {
        let Some(seen) = self.files.load().await? else {
            return self.first(pass, operation.op()).await;
        };
        let digest = operation.numbered().map(|numbered| numbered.digest);
        let guard = &seen.document.fence.guard;
        match self.or_damaged(guard.decide(self.rule, pass, operation.op(), digest))? {
            Verdict::Admit(next) => self.admit(&seen, next, operation, pass, uploaded).await,
            Verdict::Repeat => Ok(ReadAttempt::Done(Admitted {
                value: None,
                highest: self.or_damaged(guard.state())?.highest(),
                repeat: true,
            })),
            Verdict::Reject(reject) => Err(self.rejected(pass, operation.op(), reject)),
        }
    }

    /// Creates the manifest of a resource without one, with the claim in it, before any data is uploaded.
    async fn first(&self, pass: Option<Pass<'_>>, asked: Op) -> Result<ReadAttempt> {
        if self.appeared_meanwhile().await? {
            return Ok(ReadAttempt::Again);
        }
        let mut document = Document::default();
        let op = match pass {
            Some(_) => Op::Claim,
            None => Op::Write(None),
        };
        match self.or_damaged(document.fence.guard.decide(self.rule, pass, op, None))? {
            Verdict::Reject(reject) => return Err(self.rejected(pass, asked, reject)),
            Verdict::Admit(Some(claimed)) => document.fence.guard = claimed,
            Verdict::Admit(None) | Verdict::Repeat => {}
        }
        self.files.replace_manifest(None, document).await?;
        Ok(ReadAttempt::Again)
    }

    /// Whether another client has created the manifest meanwhile; an error if there is data without it.
    async fn appeared_meanwhile(&self) -> Result<bool> {
        let data = self.files.data_folder();
        let mut listed = self.files.objects.list(Some(&data));
        if listed.try_next().await?.is_none() {
            return Ok(false);
        }
        match self.files.load().await? {
            Some(_) => Ok(true),
            None => Err(Error::FenceLost(format!(
                "the fence of {} is lost, but its data exists: restore it or re-arm it with a floor",
                self.files.name
            ))),
        }
    }

    async fn admit(
        &self,
        seen: &Loaded,
        next: Option<GuardRow>,
        operation: &Operation,
        pass: Option<Pass<'_>>,
        uploaded: &mut Option<String>,
    ) -> Result<ReadAttempt> {
        let mut document = seen.document.clone();
        let raises = next.is_some();
        if let Some(next) = next {
            document.fence.guard = next;
        }
        let highest = self.or_damaged(document.fence.guard.state())?.highest();
        if let Operation::Write { path, alter, .. } = operation {
            if matches!(alter, Alter::Delete) && document.keys.remove(path.as_str()).is_none() {
                return Err(self.rejected(pass, operation.op(), Reject::Missing));
            }
            let token = pass.map_or(0, |pass| pass.token.get());
            self.place(&mut document, path, alter, token, uploaded)
                .await?;
        }
        let writes = matches!(operation, Operation::Write { .. });
        if (writes || raises) && !self.files.replace_manifest(Some(seen), document).await? {
            return Ok(ReadAttempt::Again);
        }
        match operation {
            Operation::Read(path) => match self.fetch(&seen.document, path).await? {
                Some(value) => Ok(ReadAttempt::Done(Admitted::new(value, highest))),
                None => Ok(ReadAttempt::Again),
            },
            _ => Ok(ReadAttempt::Done(Admitted::new(None, highest))),
        }
    }

    /// Uploads the new data once, and names it in the manifest.
    async fn place(
        &self,
        document: &mut Document,
        path: &ObjectPath,
        alter: &Alter,
        token: u64,
        uploaded: &mut Option<String>,
    ) -> Result<()> {
        let append = match alter {
            Alter::Delete => return Ok(()),
            Alter::Append(_) => true,
            Alter::Put(_) => false,
        };
        let parts = document.keys.entry(path.as_str().to_owned()).or_default();
        if append && parts.len() >= MAX_PARTS {
            return Err(Error::Argument(format!(
                "{path} has {} parts; at most {MAX_PARTS} are allowed: put it whole",
                parts.len()
            )));
        }
        let part = match uploaded {
            Some(part) => part.clone(),
            None => uploaded
                .insert(self.files.upload(token, alter.bytes()).await?)
                .clone(),
        };
        if !append {
            parts.clear();
        }
        parts.push(part);
        Ok(())
    }

    /// Returns the bytes of a key; the outer `None` means that the manifest has changed meanwhile.
    async fn fetch(
        &self,
        document: &Document,
        path: &ObjectPath,
    ) -> Result<Option<Option<Vec<u8>>>> {
        let Some(parts) = document.keys.get(path.as_str()) else {
            return Ok(Some(None));
        };
        let mut whole = Vec::new();
        for part in parts {
            match self.files.objects.get(&self.files.data(part)).await {
                Ok(got) => whole.extend_from_slice(&got.bytes().await?),
                Err(object_store::Error::NotFound { .. }) => return self.gone(parts, path).await,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Some(whole)))
    }

    /// Handles a missing part: it was swept because the key was written again, or it was lost.
    async fn gone(&self, parts: &[String], path: &ObjectPath) -> Result<Option<Option<Vec<u8>>>> {
        let now = self.files.load().await?;
        let same = now.is_some_and(|now| {
            now.document.keys.get(path.as_str()).map(Vec::as_slice) == Some(parts)
        });
        if same {
            let text = format!("the data of {path} is missing from the store");
            return Err(Error::Damaged(text));
        }
        Ok(None)
    }

    fn or_damaged<T>(&self, read: Result<T, CorruptRow>) -> Result<T> {
        read.map_err(|corrupt| damaged(&self.files.name, corrupt))
    }

    fn rejected(&self, pass: Option<Pass<'_>>, op: Op, reject: Reject) -> Error {
        let pass = pass.map(|pass| pass.doing(op.word()));
        audit::reject(&self.files.name, pass, reject)
    }
}

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        Ok(self
            .carry_out(Some(pass), Operation::Claim)
            .await?
            .map(|_| ()))
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        self.carry_out(Some(pass), Operation::Read(ObjectPath::new(key)?))
            .await
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let path = ObjectPath::new(write.key)?;
        let operation = Operation::write(path, write.change.into(), write.sequence);
        Ok(self.carry_out(Some(pass), operation).await?.map(|_| ()))
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        let operation = Operation::write(ObjectPath::new(key)?, change.into(), None);
        Ok(self.carry_out(None, operation).await?.map(|_| ()))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = ObjectPath::new(key)?;
        for _ in 0..ATTEMPTS {
            let Some(seen) = self.files.load().await? else {
                if self.appeared_meanwhile().await? {
                    continue;
                }
                return Ok(None);
            };
            if let Some(value) = self.fetch(&seen.document, &path).await? {
                return Ok(value);
            }
        }
        Err(contended())
    }
}
