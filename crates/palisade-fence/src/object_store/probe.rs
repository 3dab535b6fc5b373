//! The start-up test that a store honours conditional puts.

use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion,
};

use crate::error::{Error, Result};
use crate::stamped::fresh_id;

const RACERS: usize = 8;

/// Passes if creating twice, updating a stale version and racing all have exactly one winner.
pub(super) async fn probe(objects: &dyn ObjectStore, root: &Path) -> Result<()> {
    let at = root.clone().join("probe").join(fresh_id()?);
    let found = tries(objects, &at).await;
    // The object is a leftover, not a fence: a failed deletion does no harm.
    let _ = objects.delete(&at).await;
    found
}

async fn tries(objects: &dyn ObjectStore, at: &Path) -> Result<()> {
    let create = || put(objects, at, PutMode::Create);
    if winners(join_all((0..RACERS).map(|_| create())).await)? > 1 {
        return Err(ignores_conditions(
            "more than one of the racing creations of an object succeeded",
        ));
    }
    if create().await?.is_some() {
        return Err(ignores_conditions("create-if-absent was accepted twice"));
    }
    let first = version(objects, at).await?;
    let update = |version: &UpdateVersion| put(objects, at, PutMode::Update(version.clone()));
    if winners(join_all((0..RACERS).map(|_| update(&first))).await)? != 1 {
        return Err(ignores_conditions(
            "racing updates of one version had no single winner",
        ));
    }
    if update(&first).await?.is_some() {
        return Err(ignores_conditions("an update on a stale ETag was accepted"));
    }
    let second = version(objects, at).await?;
    match update(&second).await? {
        Some(_) => Ok(()),
        None => Err(ignores_conditions(
            "an update on the current ETag was refused",
        )),
    }
}

/// Puts a new object; `None` if the condition was false.
async fn put(objects: &dyn ObjectStore, at: &Path, mode: PutMode) -> Result<Option<PutResult>> {
    use object_store::Error::{AlreadyExists, NotImplemented, NotSupported, Precondition};

    let payload = PutPayload::from(fresh_id()?.into_bytes());
    match objects.put_opts(at, payload, PutOptions::from(mode)).await {
        Ok(done) => Ok(Some(done)),
        Err(AlreadyExists { .. } | Precondition { .. }) => Ok(None),
        Err(NotImplemented { .. } | NotSupported { .. }) => {
            Err(ignores_conditions("it has no conditional put at all"))
        }
        Err(error) => Err(error.into()),
    }
}

async fn version(objects: &dyn ObjectStore, at: &Path) -> Result<UpdateVersion> {
    let meta = objects.head(at).await?;
    Ok(UpdateVersion {
        e_tag: meta.e_tag,
        version: meta.version,
    })
}

fn ignores_conditions(how: &str) -> Error {
    Error::Unsuitable(format!(
        "this object store does not honour conditional puts: {how}"
    ))
}

fn winners(puts: Vec<Result<Option<PutResult>>>) -> Result<usize> {
    let puts: Result<Vec<_>> = puts.into_iter().collect();
    Ok(puts?.iter().flatten().count())
}
