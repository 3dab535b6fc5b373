//! Who a directory is: a small text file that knows its own device and inode.
//!
//! A copied directory carries the same counter and would issue the same tokens again. The identity file
//! records which file it is, so that `cp -r` is noticed and `mv` in one file system is not. A machine
//! clone below the file system looks the same from inside and cannot be noticed.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::error::{Damage, OpenError, ReadError};
use crate::storage::{Access, FileId, Storage, read_all};

pub(crate) const NAME: &str = "identity";
const TMP: &str = "identity.tmp";
const VERSION: u32 = 1;

/// 128 random bits, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id([u8; 16]);

impl Id {
    /// The id with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Id {
        Id(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A new id from the system's randomness.
    pub(crate) fn random() -> io::Result<Id> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Id(bytes))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({self})")
    }
}

impl FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Id, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("an id is 32 hexadecimal digits");
        }
        let number =
            u128::from_str_radix(text, 16).map_err(|_| "an id is 32 hexadecimal digits")?;
        Ok(Id(number.to_be_bytes()))
    }
}

/// What a directory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is opened and written to.
    Live,
    /// It is only ever restored from.
    Backup,
}

/// Who a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The owner (the authority or the store) the log belongs to; survives backup and restore.
    pub owner: Id,
    /// This life of the log; a restore begins a new one. It is in every segment and snapshot.
    pub incarnation: Id,
    /// Live or backup.
    pub kind: Kind,
}

/// An identity as found on disk.
pub(crate) struct Found {
    pub(crate) identity: Identity,
    recorded: FileId,
    actual: FileId,
}

impl Found {
    /// Refuses what may not be opened for writing: a backup, a copy.
    pub(crate) fn check_live(&self, storage: &dyn Storage) -> Result<(), OpenError> {
        let dir = storage.path();
        if self.identity.kind == Kind::Backup {
            return Err(OpenError::Backup { dir });
        }
        if self.recorded != self.actual {
            return Err(OpenError::Copied {
                dir,
                recorded: self.recorded,
                found: self.actual,
            });
        }
        Ok(())
    }
}

/// Writes the identity file; durable on return, and the last step of making a directory.
pub(crate) fn write(storage: &dyn Storage, identity: &Identity) -> io::Result<()> {
    let file = storage.open(TMP, Access::Create)?;
    // The rename keeps the inode, so the final file has the id that this one has.
    let text = encode(identity, file.id()?);
    file.write_at(0, text.as_bytes())?;
    file.sync_data()?;
    storage.rename(TMP, NAME)?;
    storage.sync_dir()
}

/// Reads the identity file, or nothing when there is none.
pub(crate) fn read(storage: &dyn Storage) -> Result<Option<Found>, ReadError> {
    let path = || storage.path().join(NAME);
    let io = |source| ReadError::Io {
        file: path(),
        source,
    };
    let file = match storage.open(NAME, Access::Read) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    let mut bytes = Vec::new();
    read_all(&*file, &mut bytes).map_err(io)?;
    let damaged = |why: &str| Damage {
        file: path(),
        offset: 0,
        why: why.to_owned(),
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
    let body = checked_body(text).ok_or_else(|| damaged("its checksum line does not match"))?;
    if let Some(found) = version(body).filter(|v| *v != VERSION) {
        return Err(ReadError::Unsupported {
            file: path(),
            found,
            supported: VERSION,
        });
    }
    let (identity, recorded) =
        parse(body).ok_or_else(|| damaged("a line is missing or malformed"))?;
    let actual = file.id().map_err(io)?;
    Ok(Some(Found {
        identity,
        recorded,
        actual,
    }))
}

fn encode(identity: &Identity, id: FileId) -> String {
    let kind = match identity.kind {
        Kind::Live => "live",
        Kind::Backup => "backup",
    };
    let body = format!(
        "palisade-identity {VERSION}\nowner {}\nincarnation {}\nkind {kind}\ndevice {}\ninode {}\n",
        identity.owner, identity.incarnation, id.device, id.inode
    );
    let sum = crc32fast::hash(body.as_bytes());
    format!("{body}checksum {sum:08x}\n")
}

/// The lines before the checksum, when the checksum is theirs.
fn checked_body(text: &str) -> Option<&str> {
    let at = text.rfind("checksum ")?;
    let (body, sum) = text.split_at(at);
    (sum == format!("checksum {:08x}\n", crc32fast::hash(body.as_bytes()))).then_some(body)
}

fn version(body: &str) -> Option<u32> {
    body.lines()
        .next()?
        .strip_prefix("palisade-identity ")?
        .parse()
        .ok()
}

fn parse(body: &str) -> Option<(Identity, FileId)> {
    let mut lines = body.lines().skip(1);
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let owner = field("owner")?.parse().ok()?;
    let incarnation = field("incarnation")?.parse().ok()?;
    let kind = match field("kind")? {
        "live" => Kind::Live,
        "backup" => Kind::Backup,
        _ => return None,
    };
    let device = field("device")?.parse().ok()?;
    let inode = field("inode")?.parse().ok()?;
    Some((
        Identity {
            owner,
            incarnation,
            kind,
        },
        FileId { device, inode },
    ))
}
