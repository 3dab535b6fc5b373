//! The location of a resource in the store, and its operations.

use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};

use super::document::{Document, damaged};
use crate::error::{Error, Result};
use crate::name::ResourceId;
use crate::stamped::{StampOutcome, fresh_id};

const MANIFEST: &str = "fence.json";
const SAME_PUT_TRIES: u32 = 5;

/// The objects of one resource.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) name: String,
    folder: Path,
}

/// A manifest as it was read; the next put replaces exactly this version.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) document: Document,
    version: UpdateVersion,
}

impl Files {
    pub(super) fn new(objects: Arc<dyn ObjectStore>, root: &Path, id: &ResourceId) -> Files {
        Files {
            objects,
            name: id.as_str().to_owned(),
            folder: root.clone().join(id.as_str()),
        }
    }

    pub(super) fn data_folder(&self) -> Path {
        self.folder.clone().join("data")
    }

    pub(super) fn data(&self, part: &str) -> Path {
        self.data_folder().join(part)
    }

    fn manifest(&self) -> Path {
        self.folder.clone().join(MANIFEST)
    }

    pub(super) async fn load(&self) -> Result<Option<Loaded>> {
        let got = match self.objects.get(&self.manifest()).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let version = UpdateVersion {
            e_tag: got.meta.e_tag.clone(),
            version: got.meta.version.clone(),
        };
        let document =
            Document::decode(&got.bytes().await?).map_err(|why| damaged(&self.name, why))?;
        Ok(Some(Loaded { document, version }))
    }

    /// Replaces the manifest that was read; returns whether that took effect.
    pub(super) async fn replace_manifest(
        &self,
        seen: Option<&Loaded>,
        mut next: Document,
    ) -> Result<bool> {
        let id = next.fence.stamp()?;
        let payload = PutPayload::from(next.encode(&self.name)?);
        let at = self.manifest();
        let mut tries = 0;
        loop {
            let mode = seen.map_or(PutMode::Create, |seen| {
                PutMode::Update(seen.version.clone())
            });
            let options = PutOptions::from(mode);
            let failed = match self.objects.put_opts(&at, payload.clone(), options).await {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            let now = self.load().await?;
            // While the base is still there, the put may still arrive: only repeating the same put settles
            // the outcome. Once the base is gone, the put cannot arrive any more.
            let base_is_there =
                now.as_ref().map(|now| &now.version) == seen.map(|seen| &seen.version);
            match now {
                Some(now) if !base_is_there => {
                    let base = seen.map(|seen| &seen.document.fence);
                    return match now.document.fence.outcome(&id, base) {
                        StampOutcome::TookEffect => Ok(true),
                        StampOutcome::DidNot => Ok(false),
                        StampOutcome::Unknown => Err(Error::UnknownOutcome(
                            "unknown outcome: the put may have taken effect; repeat it with its sequence number"
                                .to_owned(),
                        )),
                    };
                }
                _ if tries == SAME_PUT_TRIES => return Err(failed.into()),
                _ => tries += 1,
            }
        }
    }

    /// Puts a data object under an unused name.
    pub(super) async fn upload(&self, token: u64, bytes: &[u8]) -> Result<String> {
        let part = format!("{token}-{}", fresh_id()?);
        let payload = PutPayload::from(bytes.to_vec());
        self.objects.put(&self.data(&part), payload).await?;
        Ok(part)
    }
}
