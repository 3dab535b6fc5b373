//! A data directory is looked at before a server begins anything in it: it may be somebody else's, or not the one that was
//! meant.

use std::fs;
use std::path::{Path, PathBuf};

use palisade_server::net;
use palisade_server::shell::Listen;

/// A directory in which nothing is begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableDirectory {
    #[error(
        "{} contains {name}, which is not Palisade's, and no log: a server needs a directory of its own. Name an empty or \
         a new one: --data {}", dir.display(), dir.join("palisade").display()
    )]
    Foreign { dir: PathBuf, name: String },
    #[error(
        "there is no authority in {}, and --existing begins none: name the right directory with --data, or leave out \
         --existing to begin a new authority there", dir.display()
    )]
    Nothing { dir: PathBuf },
    #[error("cannot read {}: {source}", dir.display())]
    Io {
        dir: PathBuf,
        source: std::io::Error,
    },
}

/// Files of this server that may be in its directory before its log is.
pub(crate) fn own_files<'a>(
    listen: &'a [Listen],
    named: impl IntoIterator<Item = &'a Path>,
) -> Vec<PathBuf> {
    let mut own: Vec<PathBuf> = named.into_iter().map(absolute).collect();
    for at in listen {
        if let Listen::Unix(socket) = at {
            let mut lock = socket.as_os_str().to_owned();
            lock.push(".lock");
            own.extend([absolute(socket), absolute(Path::new(&lock))]);
        }
    }
    own
}

/// Refuses a directory without a log in which others keep files, and with `existing` each one without a log. Returns
/// whether there is none.
///
/// # Errors
/// [`UnusableDirectory`]; nothing has changed.
pub(crate) fn check(
    dir: &Path,
    own: &[PathBuf],
    existing: bool,
) -> Result<bool, UnusableDirectory> {
    let dir = absolute(dir);
    let foreign = palisade_wal::foreign_names(&dir).map_err(|source| UnusableDirectory::Io {
        dir: dir.clone(),
        source,
    })?;
    let Some(foreign) = foreign else {
        return Ok(false);
    };
    let ours = [net::KEY_FILE, net::LOCK_TOKEN_FILE, "peers"];
    let foreign = foreign
        .into_iter()
        .find(|name| !ours.contains(&name.as_str()) && !own.contains(&dir.join(name)));
    match foreign {
        Some(name) => Err(UnusableDirectory::Foreign { dir, name }),
        None if existing => Err(UnusableDirectory::Nothing { dir }),
        None => Ok(true),
    }
}

/// Says that a new authority has begun, which may be another one than was meant.
pub(crate) fn warn_of_new(dir: &Path) {
    tracing::warn!(
        "began a NEW authority in {0}, because there was none. If you expected an older one, stop this server now, because \
         the fences refuse the tokens of this one, and start it with --data and the right directory. With --existing a \
         server never begins an authority",
        absolute(dir).display()
    );
}

/// A path that means the same in every working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}
