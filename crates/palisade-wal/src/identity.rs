//! The identity of a directory, and the opening that wrote to it last.
//!
//! ```text
//!   identity ──────────────► opening-…7        an empty file that nobody touches; its device, inode and change
//!     opening 7, id x        (change time c)   time are in the identity
//!     inode i, change time c
//!        ▲
//!        └── the same opening ──► log: PfrO 7, x
//! ```
//!
//! A copied directory carries the same counter and would issue the same tokens again, and so would an older copy
//! put back in place. Every opening draws a new id, makes a new `opening-…` file, records that file's change time
//! in the identity and repeats the id in the log. A copied file has another change time, also where it is written
//! over the old one; an older identity contradicts a newer log, and the other way round. `mv` of the directory
//! changes none of them. A clone below the file system looks the same from inside and cannot be noticed.
//!
//! Each step leaves a directory that opens: the new file first, then the identity (by rename), then the log, and then
//! the former file goes. As long as that one is there the log may still name the opening before, which the identity
//! therefore names, too.

use std::io;
use std::num::NonZeroU64;

use crate::error::{Damage, OpenError, ReadError};
use crate::id::Id;
use crate::opening::{Opening, is_opening};
use crate::recover::Scan;
use crate::segment;
use crate::storage::{File, FileId, OpenMode, Storage, locked_by, read_all};

pub(crate) const NAME: &str = "identity";
pub(crate) const TMP: &str = "identity.tmp";
const VERSION: u32 = 1;

/// The purpose of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryKind {
    /// A single server or a store opens it and writes to it.
    Live,
    /// The node of a cluster with this id opens it and writes to it. The id is drawn once and never used again.
    Member(NonZeroU64),
    /// It is only the source of a restore.
    Backup,
}

/// The identity of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The owner (the authority or the store) the log belongs to; survives backup and restore.
    pub owner: Id,
    /// This life of the log; a restore begins a new one. It is in every segment and snapshot.
    pub incarnation: Id,
    /// Live, of a member, or backup.
    pub kind: DirectoryKind,
}

/// The way in which a directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    Single,
    Member,
}

impl As {
    /// Refuses a directory of another kind.
    pub(crate) fn check(self, storage: &dyn Storage, kind: DirectoryKind) -> Result<(), OpenError> {
        let dir = storage.path();
        match (self, kind) {
            (As::Single, DirectoryKind::Live) | (As::Member, DirectoryKind::Member(_)) => Ok(()),
            (As::Single, DirectoryKind::Member(node)) => Err(OpenError::Member { dir, node }),
            (As::Member, DirectoryKind::Live) => Err(OpenError::NotMember { dir }),
            (_, DirectoryKind::Backup) => Err(OpenError::Backup { dir }),
        }
    }
}

/// The files that an identity file vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VouchedFiles {
    /// None: a backup may be copied and moved.
    Nothing,
    Opening {
        opening: Opening,
        /// The last one that the log knew.
        before: Option<Opening>,
        file: FileId,
    },
}

/// An identity as found on disk.
pub(crate) struct IdentityOnDisk {
    pub(crate) identity: Identity,
    recorded: VouchedFiles,
}

impl IdentityOnDisk {
    /// Refuses a directory that may not be opened for writing: of another kind, a copy, or one with files that were
    /// touched.
    pub(crate) fn check_live(&self, storage: &dyn Storage, opened: As) -> Result<(), OpenError> {
        let dir = storage.path();
        opened.check(storage, self.identity.kind)?;
        let what = || OpenError::io(format!("look at the files of {}", dir.display()));
        match self.recorded {
            VouchedFiles::Nothing => Err(OpenError::Backup { dir }),
            VouchedFiles::Opening { opening, file, .. } => {
                let name = opening.file();
                let why = match storage.id_of(&name) {
                    Ok(found) if found == file => return Ok(()),
                    Ok(found) => format!("its file {name} was left as {file} and is {found} here"),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        format!("its file {name} is gone")
                    }
                    Err(error) => return Err(what()(error)),
                };
                Err(self.copied(storage, why))
            }
        }
    }

    fn copied(&self, storage: &dyn Storage, why: String) -> OpenError {
        let node = match self.identity.kind {
            DirectoryKind::Member(node) => Some(node),
            DirectoryKind::Live | DirectoryKind::Backup => None,
        };
        OpenError::Copied {
            dir: storage.path(),
            why,
            node,
        }
    }

    /// Refuses a log of another opening than the identity's, and a log with a last segment that was touched since it
    /// was written.
    pub(crate) fn check_log(&self, storage: &dyn Storage, scan: &Scan) -> Result<(), OpenError> {
        let (opening, before) = match self.recorded {
            VouchedFiles::Opening {
                opening, before, ..
            } => (Some(opening), before),
            VouchedFiles::Nothing => (None, None),
        };
        let refuse = |why| Err(self.copied(storage, why));
        let last = scan.opening;
        let interrupted = last == before
            && match before {
                None => true,
                Some(before) => storage.id_of(&before.file()).is_ok(),
            };
        if last != opening && !interrupted {
            return refuse(format!(
                "its identity file is of opening {} and its log of opening {}",
                or_none(opening),
                or_none(last)
            ));
        }
        let segment = segment::name(scan.tail.first);
        let touched = || {
            OpenError::io(format!(
                "look at {}",
                storage.path().join(&segment).display()
            ))
        };
        if opening.is_some()
            && !scan.tail.is_blank()
            && was_touched(storage, &segment).map_err(touched())?
        {
            return refuse(format!(
                "the change time of {segment} is not the time of its last write"
            ));
        }
        Ok(())
    }

    fn number(&self) -> u64 {
        match self.recorded {
            VouchedFiles::Opening { opening, .. } => opening.number,
            VouchedFiles::Nothing => 0,
        }
    }

    /// Begins the next opening in the identity; durable on return. `before` is the last one in the log.
    pub(crate) fn renew(
        &self,
        storage: &dyn Storage,
        before: Option<Opening>,
    ) -> io::Result<Current> {
        write_live(storage, &self.identity, self.number() + 1, before)
    }

    /// Prepares the identity of a new life in the same directory. It counts when it is installed.
    pub(crate) fn prepare_life(
        &self,
        storage: &dyn Storage,
        identity: &Identity,
    ) -> io::Result<Current> {
        prepare_live(storage, identity, self.number() + 1, None)
    }
}

fn or_none(opening: Option<Opening>) -> String {
    opening.map_or_else(|| "none".to_owned(), |opening| opening.to_string())
}

/// Whether the last change of a file was something other than a write; `false` on a file system that does not show
/// it.
fn was_touched(storage: &dyn Storage, name: &str) -> io::Result<bool> {
    if storage.open(name, OpenMode::Read)?.was_written_last()? {
        return Ok(false);
    }
    let probe = storage.open(TMP, OpenMode::Create)?;
    probe.write_at(0, b"which times does a write set here?")?;
    let tells = probe.was_written_last()?;
    storage.remove(TMP)?;
    Ok(tells)
}

/// Locks the identity file until the result is dropped.
pub(crate) fn lock(storage: &dyn Storage) -> Result<Box<dyn File>, OpenError> {
    let what = || OpenError::io(format!("lock {}", storage.path().join(NAME).display()));
    let file = storage.open(NAME, OpenMode::Write).map_err(what())?;
    match file.try_lock() {
        Ok(true) => Ok(file),
        Ok(false) => Err(locked_by(&storage.path())),
        Err(error) => Err(what()(error)),
    }
}

/// The identity of an open directory.
pub(crate) struct Current {
    pub(crate) opening: Opening,
    /// Held for its lock, and to notice that another file has its name.
    pub(crate) file: Box<dyn File>,
}

/// Writes the identity of a directory that is opened and written to; durable on return.
pub(crate) fn write_live(
    storage: &dyn Storage,
    identity: &Identity,
    number: u64,
    before: Option<Opening>,
) -> io::Result<Current> {
    let current = prepare_live(storage, identity, number, before)?;
    install(storage)?;
    Ok(current)
}

/// [`write_live`] up to the rename, which makes the new identity count.
pub(crate) fn prepare_live(
    storage: &dyn Storage,
    identity: &Identity,
    number: u64,
    before: Option<Opening>,
) -> io::Result<Current> {
    let id = Id::random(storage)?;
    let opening = Opening { number, id };
    let file = storage.open(&opening.file(), OpenMode::Create)?;
    file.sync_all()?;
    storage.sync_dir()?;
    let recorded = VouchedFiles::Opening {
        opening,
        before,
        file: file.id()?,
    };
    let file = write_tmp(storage, identity, &recorded)?;
    Ok(Current { opening, file })
}

/// Puts a prepared identity in its place; durable on return.
pub(crate) fn install(storage: &dyn Storage) -> io::Result<()> {
    storage.rename(TMP, NAME)?;
    storage.sync_dir()
}

/// Ends an opening that is in the log by now: removes the files of earlier openings, durably.
pub(crate) fn complete(storage: &dyn Storage, current: Opening) -> io::Result<()> {
    let kept = current.file();
    let names = storage.list()?;
    let older = |name: &&String| is_opening(name) && **name != kept;
    names
        .iter()
        .filter(older)
        .try_for_each(|name| storage.remove(name))?;
    storage.sync_dir()
}

/// Writes the identity of a backup; durable on return, and the last step of making one.
pub(crate) fn write_backup(storage: &dyn Storage, identity: &Identity) -> io::Result<()> {
    write_tmp(storage, identity, &VouchedFiles::Nothing)?;
    install(storage)
}

fn write_tmp(
    storage: &dyn Storage,
    identity: &Identity,
    recorded: &VouchedFiles,
) -> io::Result<Box<dyn File>> {
    let file = storage.open(TMP, OpenMode::Create)?;
    if !file.try_lock()? {
        return Err(io::Error::other(
            "another process has the new identity file",
        ));
    }
    file.write_at(0, encode(identity, recorded).as_bytes())?;
    file.sync_data()?;
    storage.sync_dir()?;
    Ok(file)
}

/// Reads the identity file, or nothing when there is none.
pub(crate) fn read(storage: &dyn Storage) -> Result<Option<IdentityOnDisk>, ReadError> {
    read_as(storage, NAME)
}

/// Reads the identity under this name.
pub(crate) fn read_as(
    storage: &dyn Storage,
    name: &str,
) -> Result<Option<IdentityOnDisk>, ReadError> {
    let path = || storage.path().join(name);
    let io = |source| ReadError::Io {
        file: path(),
        source,
    };
    let file = match storage.open(name, OpenMode::Read) {
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
    let malformed = || damaged("a line is missing or malformed");
    let version = version(body).ok_or_else(malformed)?;
    if version != VERSION {
        return Err(ReadError::Unsupported {
            file: path(),
            found: version,
            supported: VERSION,
        });
    }
    let (identity, recorded) = parse(body).ok_or_else(malformed)?;
    Ok(Some(IdentityOnDisk { identity, recorded }))
}

fn encode(identity: &Identity, recorded: &VouchedFiles) -> String {
    let kind = match identity.kind {
        DirectoryKind::Live => "live".to_owned(),
        DirectoryKind::Member(node) => format!("member\nnode {node:016x}"),
        DirectoryKind::Backup => "backup".to_owned(),
    };
    let mut body = format!(
        "palisade-identity {VERSION}\nowner {}\nincarnation {}\nkind {kind}\n",
        identity.owner, identity.incarnation
    );
    if let VouchedFiles::Opening {
        opening,
        before,
        file,
    } = recorded
    {
        let before = before.map_or_else(|| "none".to_owned(), |before| before.to_string());
        body += &format!(
            "opening {opening}\nbefore {before}\ndevice {}\ninode {}\nchanged {}\n",
            file.device, file.inode, file.changed_ns
        );
    }
    checked(&body)
}

/// These lines, with their checksum behind them.
pub(crate) fn checked(body: &str) -> String {
    let sum = crc32fast::hash(body.as_bytes());
    format!("{body}checksum {sum:08x}\n")
}

/// A node id: 16 hexadecimal digits, not all of them 0.
pub(crate) fn parse_node(text: &str) -> Option<NonZeroU64> {
    let is_hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = is_hex.then(|| u64::from_str_radix(text, 16).ok())??;
    NonZeroU64::new(number)
}

/// The lines before the checksum, when the checksum is theirs.
pub(crate) fn checked_body(text: &str) -> Option<&str> {
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

fn parse(body: &str) -> Option<(Identity, VouchedFiles)> {
    let mut lines = body.lines().skip(1);
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let owner = field("owner")?.parse().ok()?;
    let incarnation = field("incarnation")?.parse().ok()?;
    let kind = match field("kind")? {
        "live" => DirectoryKind::Live,
        "member" => DirectoryKind::Member(parse_node(field("node")?)?),
        "backup" => DirectoryKind::Backup,
        _ => return None,
    };
    let recorded = if kind == DirectoryKind::Backup {
        VouchedFiles::Nothing
    } else {
        VouchedFiles::Opening {
            opening: field("opening")?.parse().ok()?,
            before: match field("before")? {
                "none" => None,
                before => Some(before.parse().ok()?),
            },
            file: FileId {
                device: field("device")?.parse().ok()?,
                inode: field("inode")?.parse().ok()?,
                changed_ns: field("changed")?.parse().ok()?,
            },
        }
    };
    let identity = Identity {
        owner,
        incarnation,
        kind,
    };
    Some((identity, recorded))
}
