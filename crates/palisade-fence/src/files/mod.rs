//! A fence around the files of a folder, on a local or shared POSIX file system.
//!
//! ```text
//!   reports/  report.csv              the user's files
//!             .palisade-lock          flock: one at a time within the fence
//!             .palisade-fence         token, written, digest, authority, lock, what is pending
//!             .palisade-staged-7      what is pending, until it is carried out
//! ```
//!
//! ```
//! use palisade_fence::files::{Fault, Folder};
//! use palisade_fence::{Change, Reject, Sequence, Write};
//! # use palisade_core::Token;
//!
//! # fn main() -> Result<(), Fault> {
//! # let place = tempfile::tempdir().unwrap();
//! # let path = place.path();
//! # let token = |number| Token::new(number).unwrap();
//! let reports = Folder::open(path)?;
//! if let Some(reject) = reports.claim(token(34))?.rejected() {
//!     println!("give up: {reject}"); // first: raise the fence
//! }
//! let line = Write::new("/report.csv", Change::Append(b"2026-05,1204\n"));
//! let line = line.numbered(Sequence::new(1).unwrap()); // safe to repeat
//! assert!(reports.write(token(34), line)?.is_admitted());
//! assert!(reports.write(token(34), line)?.is_admitted());
//! let late = reports.write(token(33), line)?;
//! assert_eq!(late.rejected(), Some(&Reject::Stale { highest: token(34) }));
//! assert_eq!(reports.observe("/report.csv")?.unwrap(), b"2026-05,1204\n");
//! # Ok(())
//! # }
//! ```
//!
//! # What it gives
//!
//! * Check and effect are one step (rule F1): under the lock, what is to be written is staged and synced;
//!   then one rename of the sidecar decides it together with the raised fence; then it is carried out. A
//!   crash at any call leaves the old state or one that the next operation completes. A torn append is
//!   completed from what was staged, never left half.
//! * Numbered writes are answered right after any crash: if the write was decided, its repeat is known and it
//!   has been carried out; if not, it is a first time.
//! * A write costs five or six syncs, a claim two, a read under the highest token none.
//! * The fence lies beside the data: a backup of the folder has both (rule F4). Files without it are
//!   [`Fault::Lost`] until an operator re-arms ([`Root`]).
//!
//! # What it cannot give
//!
//! * **Who writes a file without asking is not stopped**: a file system has no trigger. Give the folder to a
//!   user of its own. What is noticed is another length of the file that was written last:
//!   [`Fault::Changed`].
//! * A holder that is paused *within* a step keeps the lock, and the next one waits for it
//!   ([`Fault::Busy`] in the end). `palisade run` kills a job whose lease is over, and the lock with it.
//! * **A restored folder** goes back to its old fence: re-arm it with a token issued just now. A copied
//!   one is another resource with the same marks.
//! * **Observers** see whole files after a put, and perhaps part of an append that is under way.
//! * Several files are not written in one step; subfolders have fences of their own.
//! * **NFS**: `flock` must reach the server: version 4 or `lockd`, not mounted with `nolock` or
//!   `local_lock`, the lock file writable. A client machine that is silent for the server's lease (90 s
//!   usually) loses the lock without being stopped, and its next call within a step still goes through:
//!   there the step is not atomic against a machine frozen for longer than that. Use a file system that
//!   fences its own clients (Ceph, GPFS, OCFS2), or a service in front of the files. `rename` and `fsync`
//!   are the server's, which must be exported `sync`. Observers at other clients see old attributes for
//!   some seconds.
//! * On file systems without `flock` or without atomic rename (some FUSE, SMB) do not use this.

mod disk;
mod fault;
mod folder;
mod operator;
mod sidecar;
mod tasks;
mod within;

#[doc(hidden)]
pub use disk::Watch;
pub use fault::Fault;
pub use folder::Folder;
pub use operator::Root;
pub use tasks::AsyncFolder;
