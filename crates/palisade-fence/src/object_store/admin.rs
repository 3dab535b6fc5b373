//! Operations for operators: look, list, re-arm, sweep.

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use palisade_core::fence::{FenceRecord, FenceState, Rearm};

use super::Store;
use super::document::{Document, damaged};
use super::files::Files;
use crate::admin::{Admin, Listed};
use crate::error::Result;
use crate::name::ResourceId;
use crate::stamped::{ATTEMPTS, back_off, contended};

/// Re-arming keeps the keys of the manifest. If the manifest was lost, the mapping from keys to data objects
/// is lost with it.
impl Admin for Store {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        self.fence_of(resource).await
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let folder = self.resources();
        let listed = self.objects.list_with_delimiter(Some(&folder)).await?;
        let names: BTreeSet<String> = listed
            .common_prefixes
            .iter()
            .filter_map(decoded)
            .filter(|name| name.starts_with(prefix) && after.is_none_or(|a| name.as_str() > a))
            .collect();
        let mut found = Vec::new();
        for resource in names {
            if found.len() >= limit as usize {
                break;
            }
            if let Some(state) = self.fence_of(&resource).await? {
                found.push(Listed { resource, state });
            }
        }
        Ok(found)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        let files = self.files(&ResourceId::new(resource)?);
        for attempt in 0..ATTEMPTS {
            back_off(attempt).await?;
            let seen = files.load().await?;
            let document = seen.as_ref().map(|seen| seen.document.clone());
            let mut next = document.unwrap_or_default();
            let armed = fence(&files, &next)?.rearmed(with)?;
            next.fence.guard = FenceRecord::from(armed).into();
            if files.replace_manifest(seen.as_ref(), next).await? {
                return Ok(());
            }
        }
        Err(contended())
    }
}

impl Store {
    async fn fence_of(&self, resource: &str) -> Result<Option<FenceState>> {
        let files = self.files(&ResourceId::new(resource)?);
        match files.load().await? {
            Some(seen) => fence(&files, &seen.document).map(Some),
            None => Ok(None),
        }
    }

    /// Deletes data objects that no manifest can name any more; returns their number.
    ///
    /// It is safe at any time: only objects of tokens below the fence are deleted, and such a token cannot
    /// write the manifest again. Objects that the present holder left over are deleted after the next claim.
    /// If the manifest is lost, nothing is deleted. After re-arming a resource whose manifest was lost, do
    /// not sweep before its data is restored: no manifest names the data, so it would be deleted.
    ///
    /// # Errors
    /// The name is not valid, or the store fails; objects already deleted stay deleted.
    pub async fn sweep(&self, name: &str) -> Result<u64> {
        let files = self.files(&ResourceId::new(name)?);
        let Some(seen) = files.load().await? else {
            return Ok(0);
        };
        let Some(highest) = fence(&files, &seen.document)?.highest() else {
            return Ok(0);
        };
        let named: BTreeSet<&str> = seen
            .document
            .keys
            .values()
            .flatten()
            .map(String::as_str)
            .collect();
        let data = files.data_folder();
        let listed: Vec<_> = self.objects.list(Some(&data)).boxed().try_collect().await?;
        let mut deleted = 0;
        for object in listed {
            let part = object.location.filename().unwrap_or_default();
            let token = part
                .split_once('-')
                .and_then(|(t, _)| t.parse::<u64>().ok());
            if named.contains(part) || token.is_none_or(|token| token >= highest.get()) {
                continue;
            }
            match self.objects.delete(&object.location).await {
                Ok(()) => deleted += 1,
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(deleted)
    }
}

/// Decodes the resource's name from its folder, whose last segment is percent-encoded.
fn decoded(folder: &Path) -> Option<String> {
    let segment = folder.as_ref().rsplit('/').next()?;
    let name = percent_encoding::percent_decode_str(segment).decode_utf8();
    name.ok().map(Cow::into_owned)
}

fn fence(files: &Files, document: &Document) -> Result<FenceState> {
    let state = document.fence.guard.state();
    state.map_err(|corrupt| damaged(&files.name, corrupt))
}
