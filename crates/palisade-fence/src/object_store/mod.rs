//! A fence for object stores: S3-compatible ones, GCS, Azure.
//!
//! A conditional put is atomic on *one* object, and a claim must stop late writes to *every* key of a
//! resource. So a resource has one small object, its manifest, which is the only one that is ever
//! changed; it holds the fence and names the immutable data objects of its keys:
//!
//! ```text
//!   root/resources/RESOURCE/fence.json ─ fence: authority, lock, token, sequence, digest,
//!                                      │        and the ids of the last puts of this manifest
//!                                      └ keys:  "/orders.csv" ─► [data/7-a1…, data/8-c3…]   an append adds a part
//!
//!   write:  1 get manifest, decide ── reject ──► answer, nothing was uploaded
//!           2 put data/TOKEN-ID, a new name: not visible yet
//!           3 put manifest if its ETag is that of step 1 ── check and effect, one atomic step (F1)
//!              └ another writer was faster: again from 1, a bounded number of times, then `Contended`
//! ```
//!
//! * **Ambiguous puts.** A put may time out after it took effect, and the client's own retry then gets
//!   "precondition failed". Every put carries a new id, and the manifest keeps the last ones: a writer that
//!   finds its own id knows that its put took effect.
//! * **Deleting** removes the key from the manifest; the manifest itself stays forever (F4).
//! * **A lost manifest** with data objects beside it is [`Error::FenceLost`] (F7): data is only uploaded once
//!   the manifest exists.
//! * **Garbage** is data that no manifest names: overwritten data, and data of writers that lost a race. The
//!   name of a data object contains its token, and a token below the fence can never be put into the manifest
//!   again, so [`Store::sweep`] deletes unnamed objects of lower tokens, without a clock.
//! * **Stores that ignore the condition.** [`Store::open`] tests for it and refuses such a store.
//! * **Metadata is no place for a fence.** It does not affect the ETag: a claim that only changed an object's
//!   metadata would leave the ETag as it is, and a late put on that ETag would succeed.
//!
//! Each write puts the manifest again, so a resource suits thousands of keys, not millions. A key takes 1,000
//! appends; then it must be put whole.
//!
//! Not covered: writes below `root` by other code; a cache in front of the bucket, which may answer a read
//! after a claim with a state from before it; and a restored old manifest (also by bucket versioning), which
//! brings back an old fence: [re-arm](crate::Admin::rearm) it before any write.
//!
//! ```
//! use std::sync::Arc;
//!
//! use object_store::{memory::InMemory, path::Path};
//! use palisade_fence::object_store::Store;
//! use palisade_fence::{Edit, Fence, Pass, Rule, Write, enter};
//!
//! # use palisade_core::Token;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (older, lease_token) = (Token::new(33)?, Token::new(34)?);
//! let bucket = Arc::new(InMemory::new()); // or an AmazonS3, a GoogleCloudStorage, a MicrosoftAzure
//! let store = Store::open(bucket, Path::from("fenced"), Rule::CLAIM).await?;
//! let orders = store.resource("orders")?;
//!
//! let claimed = enter(&orders, Pass::new(lease_token)).await?; // first: raise the fence
//! assert_eq!(claimed.read("/total").await?.value, None);
//! claimed.write(Write::new("/total", Edit::Put(b"12"))).await?;
//!
//! // The holder before, back from a pause:
//! let late = orders.write(Pass::new(older), Write::new("/total", Edit::Put(b"11"))).await;
//! assert!(late.unwrap_err().rejected().is_some());
//! assert_eq!(orders.observe("/total").await?.as_deref(), Some(b"12".as_slice()));
//! # Ok(())
//! # }
//! ```

mod admin;
mod document;
mod files;
mod probe;
mod resource;

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;
use palisade_core::fence::Rule;

use crate::error::{Error, ErrorKind, Result};
use crate::name::ResourceId;

pub use resource::Resource;

use files::Files;

/// The store failed; it is unknown whether a write took effect.
impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Error {
        Error::failed(ErrorKind::Unknown, "the object store failed", error)
    }
}

/// The fenced part of an object store: everything below one root.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    root: Path,
    rule: Rule,
}

impl Store {
    /// Tests whether the store honours conditional puts, and opens it.
    ///
    /// The test writes and deletes one object below `root/probe`.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] for a store that ignores the conditions of puts, [`Error::Failed`] if it fails.
    pub async fn open(objects: Arc<dyn ObjectStore>, root: Path, rule: Rule) -> Result<Store> {
        probe::probe(objects.as_ref(), &root).await?;
        Ok(Store::open_unprobed(objects, root, rule))
    }

    /// Opens a store without the test of conditional puts. On a store that ignores conditions, the fence
    /// stops nothing.
    #[must_use]
    pub fn open_unprobed(objects: Arc<dyn ObjectStore>, root: Path, rule: Rule) -> Store {
        Store {
            objects,
            root,
            rule,
        }
    }

    /// Returns one resource; nothing is read or written yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the name is not valid.
    pub fn resource(&self, name: &str) -> Result<Resource> {
        let id = ResourceId::new(name)?;
        Ok(Resource::new(self.files(&id), self.rule))
    }

    fn files(&self, id: &ResourceId) -> Files {
        Files::new(Arc::clone(&self.objects), &self.resources(), id)
    }

    fn resources(&self) -> Path {
        self.root.clone().join("resources")
    }
}
