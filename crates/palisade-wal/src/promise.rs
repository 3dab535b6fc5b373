//! The id of a node, which is durable before the node has a log.
//!
//! A node has its id before it has a log: it announces the id to the other nodes, and only when they agree are owner and
//! incarnation known. So the id is made durable first, in a file of its own, and goes into the identity when the log is
//! made. The next opening removes the file. A crash in between leaves a directory with the same id, which goes on from
//! there.

use std::io;
use std::num::NonZeroU64;

use crate::error::{Damage, OpenError, ReadError};
use crate::identity::{self, DirectoryKind};
use crate::storage::{OpenMode, Storage, read_all};

/// The id of a node that has no log yet.
pub(crate) const NAME: &str = "node";
pub(crate) const TMP: &str = "node.tmp";
const VERSION: u32 = 1;

/// The node that owns this directory, or will.
///
/// # Errors
/// [`ReadError`].
pub fn node(storage: &dyn Storage) -> Result<Option<NonZeroU64>, ReadError> {
    if let Some(found) = identity::read(storage)?
        && let DirectoryKind::Member(node) = found.identity.kind
    {
        return Ok(Some(node));
    }
    promised(storage)
}

/// The id of the node that owns this directory, or will. Drawn if there is none yet; durable on return, so that other
/// nodes may learn it.
///
/// # Errors
/// [`OpenError::Io`]; damage.
pub fn promise_node(storage: &dyn Storage) -> Result<NonZeroU64, OpenError> {
    if let Some(node) = node(storage)? {
        return Ok(node);
    }
    let what = format!("write {}", storage.path().join(NAME).display());
    write_promise(storage).map_err(OpenError::io(what))
}

fn write_promise(storage: &dyn Storage) -> io::Result<NonZeroU64> {
    let node = loop {
        let random = storage.random()?;
        let (half, _) = random.split_at(8);
        let number = half
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        if let Some(node) = NonZeroU64::new(number) {
            break node;
        }
    };
    let file = storage.open(TMP, OpenMode::Create)?;
    let text = identity::checked(&format!("palisade-node {VERSION}\nnode {node:016x}\n"));
    file.write_at(0, text.as_bytes())?;
    file.sync_data()?;
    storage.rename(TMP, NAME)?;
    storage.sync_dir()?;
    Ok(node)
}

fn promised(storage: &dyn Storage) -> Result<Option<NonZeroU64>, ReadError> {
    let path = || storage.path().join(NAME);
    let io = |source| ReadError::Io {
        file: path(),
        source,
    };
    let file = match storage.open(NAME, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut bytes = Vec::new();
    read_all(&*file, &mut bytes).map_err(io)?;
    let read = || {
        let mut lines = identity::checked_body(std::str::from_utf8(&bytes).ok()?)?.lines();
        (lines.next()? == format!("palisade-node {VERSION}")).then_some(())?;
        identity::parse_node(lines.next()?.strip_prefix("node ")?)
    };
    let damaged = || Damage {
        file: path(),
        offset: 0,
        why: "it is not the id of a node".to_owned(),
    };
    Ok(Some(read().ok_or_else(damaged)?))
}

/// Refuses a directory that waits to become a member's: a server of its own in it would be a second authority.
pub(crate) fn refuse_promised(storage: &dyn Storage) -> Result<(), OpenError> {
    match promised(storage)? {
        None => Ok(()),
        Some(node) => Err(OpenError::Promised {
            dir: storage.path(),
            node,
        }),
    }
}

/// Removes the file of the id, now that the identity records it.
pub(crate) fn forget_promise(storage: &dyn Storage) -> io::Result<()> {
    match storage.remove(NAME) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => storage.sync_dir(),
    }
}
