//! A fence around the files of a folder, on a local or shared POSIX file system.
//!
//! ```text
//!   reports/  report.csv              the user's files
//!             .palisade-lock          flock: one holder at a time
//!             .palisade-fence         token, written, digest, authority, lock, the pending write
//!             .palisade-staged-7      the new data, until it is written
//! ```
//!
//! ```
//! use palisade_fence::files::Folder;
//! use palisade_fence::{Edit, Sequence, Write};
//! # use palisade_core::Token;
//!
//! # fn main() -> palisade_fence::Result<()> {
//! # let place = tempfile::tempdir().unwrap();
//! # let path = place.path();
//! # let token = |number| Token::new(number).unwrap();
//! let reports = Folder::open(path)?;
//! reports.claim(token(34))?; // first: raise the fence
//! let line = Write::new("/report.csv", Edit::Append(b"2026-05,1204\n"));
//! let line = line.numbered(Sequence::new(1).unwrap()); // safe to repeat
//! reports.write(token(34), line)?;
//! assert!(reports.write(token(34), line)?.repeat);
//! let late = reports.write(token(33), line).unwrap_err();
//! assert!(late.to_string().contains("token 33 is stale: 33 < 34"));
//! assert_eq!(reports.observe("/report.csv")?.unwrap(), b"2026-05,1204\n");
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * Check and effect are one step (rule F1): under the lock, the new data is staged and synced; then one
//!   rename of the sidecar decides the write together with the raised fence; then the write is carried out. A
//!   crash at any call leaves the old state, or a state that the next operation completes. A torn append is
//!   completed from the staged data, never left half.
//! * Numbered writes get the right answer after any crash: if the write was decided, its repeat is recognised
//!   and the write has been carried out; if not, the repeat counts as the first.
//! * A write costs five or six syncs, a claim two, and a read under the highest token none.
//! * The fence is stored beside the data: a backup of the folder has both (rule F4). Files without it are
//!   [`Error::FenceLost`](crate::Error::FenceLost) until an operator re-arms ([`Root`]).
//!
//! # Limitations
//!
//! * **Code that writes a file without the fence is not stopped**: a file system has no trigger. Let a
//!   separate user own the folder. The fence notices only a changed length of the file that was written last:
//!   [`Error::Damaged`](crate::Error::Damaged).
//! * A holder that is paused *within* a step keeps the lock, and the next one waits for it, in the end with
//!   [`Error::Busy`](crate::Error::Busy), which names the process ([`Root::unblock`] ends it). `palisade run` kills a job whose lease has ended,
//!   which frees the lock. Never remove `.palisade-lock`: that would let two holders in.
//! * **A restored folder** goes back to its old fence: re-arm it with a token that was just issued. A copied
//!   folder is another resource with the same marks.
//! * **Observers** see whole files after a put, and possibly part of an append in progress.
//! * Several files are not written in one step; subfolders have their own fences. A file with hard links is put whole: an
//!   append would change the files of other folders.
//! * **NFS**: `flock` must reach the server: version 4 or `lockd`, not mounted with `nolock` or `local_lock`,
//!   and with a writable lock file. A client machine that is silent for the server's lease (usually 90 s)
//!   loses the lock without being stopped, and its next call within a step still succeeds: there the step is
//!   not atomic against a machine frozen for longer than that. Use a file system that fences its own clients
//!   (Ceph, GPFS, OCFS2), or a service in front of the files. `rename` and `fsync` are as durable as the
//!   server makes them; it must export with `sync`. Observers at other clients see old attributes for some
//!   seconds.
//! * Do not use this on file systems without `flock` or without atomic rename (some FUSE, SMB).

mod disk;
mod folder;
mod locked;
mod operator;
mod sidecar;
mod tasks;

#[doc(hidden)]
pub use disk::StepHook;
pub use folder::Folder;
pub use operator::Root;
pub use tasks::AsyncFolder;
