//! A fence that is not one step: read the mark, compare, write the mark, write the file. It must fail.

use std::fs;
use std::path::PathBuf;

use palisade_fence::conformance::Subject;
use palisade_fence::{
    Admitted, Edit, Error, Fence, FenceState, Op, Pass, Reject, Result, Rule, Verdict, Write,
};
use tempfile::TempDir;
use tokio::task::yield_now;

use super::{t, temporary_dir};

pub(crate) struct Naive(TempDir);

impl Default for Naive {
    fn default() -> Naive {
        Naive(temporary_dir())
    }
}

impl Subject for Naive {
    type Fence = NaiveFolder;

    async fn fresh(&self, name: &str) -> Result<NaiveFolder> {
        let path = self.0.path().join(name);
        fs::create_dir(&path).unwrap();
        Ok(NaiveFolder(path))
    }
}

pub(crate) struct NaiveFolder(PathBuf);

impl NaiveFolder {
    fn state(&self) -> FenceState {
        let text = fs::read_to_string(self.0.join("mark")).ok();
        let highest = text.map(|text| t(text.parse().unwrap()));
        highest.map_or_else(FenceState::default, FenceState::floor)
    }

    /// A pause may happen between the check and the next step.
    async fn check(&self, pass: Pass<'_>, op: Op) -> Result<Admitted<()>> {
        match Rule::CLAIM.decide(&self.state(), Pass::new(pass.token), op) {
            Verdict::Admit(_) => {
                yield_now().await;
                fs::write(self.0.join("mark"), pass.token.to_string()).unwrap();
                Ok(Admitted::new((), Some(pass.token)))
            }
            Verdict::Reject(reject) => Err(Error::Rejected(reject)),
            Verdict::Repeat => unreachable!("it keeps no numbers"),
        }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.0.join(key.trim_start_matches('/'))
    }
}

impl Fence for NaiveFolder {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.check(pass, Op::Claim).await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let admitted = self.check(pass, Op::Read).await?;
        Ok(admitted.map(|()| fs::read(self.file(key)).ok()))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let admitted = self.check(pass, Op::Write(None)).await?;
        let file = self.file(write.key);
        match write.change {
            Edit::Put(bytes) => fs::write(file, bytes).unwrap(),
            Edit::Append(bytes) => {
                let before = fs::read(&file).unwrap_or_default();
                fs::write(file, [&before, bytes].concat()).unwrap();
            }
            Edit::Delete if fs::remove_file(file).is_err() => {
                return Err(Error::Rejected(Reject::Missing));
            }
            Edit::Delete => {}
        }
        Ok(admitted)
    }

    async fn write_tokenless(&self, _: &str, _: Edit<'_>) -> Result<Admitted<()>> {
        let highest = self.state().highest().unwrap();
        Err(Error::Rejected(Reject::Tokenless { highest }))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(fs::read(self.file(key)).ok())
    }
}
