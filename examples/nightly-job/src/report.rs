//! The report, with and without a fence.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use palisade_core::{AuthorityId, Token};
use palisade_fence::files::Folder;
use palisade_fence::{Edit, Pass, Sequence, Write};

use crate::Failure;

const NAME: &str = "report.csv";

/// The target of the lines.
pub trait Report {
    /// Returns the existing lines. It is called first.
    ///
    /// # Errors
    /// A refusal by the fence; errors of the file system.
    fn start(&mut self) -> Result<String, Failure>;

    /// Appends a line.
    ///
    /// # Errors
    /// As [`Report::start`].
    fn append(&mut self, line: &str) -> Result<(), Failure>;
}

/// The report in a fenced folder, under the token of this run.
pub struct Fenced {
    folder: Folder,
    token: Token,
    authority: Option<AuthorityId>,
    lines: u64,
}

impl Fenced {
    /// Opens the report with the environment variables that `palisade run` set.
    ///
    /// # Errors
    /// If there is no folder, or no token.
    pub fn open(folder: &Path) -> Result<Fenced, Failure> {
        let token = std::env::var("PALISADE_FENCING_TOKEN")
            .map_err(|_| "no PALISADE_FENCING_TOKEN: start this with `palisade run LOCK -- …`")?;
        let authority = std::env::var("PALISADE_AUTHORITY_ID").ok();
        Ok(Fenced {
            folder: Folder::open(folder)?,
            token: Token::new(token.parse()?)?,
            authority: authority.map(|id| AuthorityId::new(&id)).transpose()?,
            lines: 0,
        })
    }

    fn pass(&self) -> Pass<'_> {
        Pass {
            authority: self.authority.as_ref(),
            ..Pass::new(self.token)
        }
    }
}

impl Report for Fenced {
    fn start(&mut self) -> Result<String, Failure> {
        self.folder.claim(self.pass())?; // first: raise the fence
        let read = self.folder.read(self.pass(), &format!("/{NAME}"))?;
        Ok(String::from_utf8(read.value.unwrap_or_default())?)
    }

    /// Each line has a number, so a repeat after a crash or a fault writes no line twice.
    fn append(&mut self, line: &str) -> Result<(), Failure> {
        let (key, bytes) = (format!("/{NAME}"), format!("{line}\n"));
        let number = Sequence::new(self.lines).ok_or("more lines than numbers")?;
        let write = Write::new(&key, Edit::Append(bytes.as_bytes())).numbered(number);
        self.folder.write(self.pass(), write)?;
        self.lines += 1;
        Ok(())
    }
}

/// The same report without a fence, protected only by a lock.
pub struct Unfenced(PathBuf);

impl Unfenced {
    /// Opens the report.
    #[must_use]
    pub fn open(folder: &Path) -> Unfenced {
        Unfenced(folder.join(NAME))
    }
}

impl Report for Unfenced {
    fn start(&mut self) -> Result<String, Failure> {
        match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => Ok(read?),
        }
    }

    fn append(&mut self, line: &str) -> Result<(), Failure> {
        let mut file = File::options().create(true).append(true).open(&self.0)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()?;
        Ok(())
    }
}
