//! The start-up test that a store honours conditional puts.

use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion,
};

use super::error::Fault;
use crate::stamped::fresh_id;

const RACERS: usize = 8;

/// Passes if creating twice, updating a stale version and racing all have exactly one winner.
pub(super) async fn probe(objects: &dyn ObjectStore, root: &Path) -> Result<(), Fault> {
    let at = root
        .clone()
        .join("probe")
        .join(fresh_id().map_err(Fault::Random)?);
    let found = tries(objects, &at).await;
    // The object is a leftover, not a fence: a failed deletion does no harm.
    let _ = objects.delete(&at).await;
    found
}

async fn tries(objects: &dyn ObjectStore, at: &Path) -> Result<(), Fault> {
    let create = || put(objects, at, PutMode::Create);
    if winners(join_all((0..RACERS).map(|_| create())).await)? > 1 {
        return Err(Fault::IgnoresConditions(
            "more than one of the racing creations of an object succeeded",
        ));
    }
    if create().await?.is_some() {
        return Err(Fault::IgnoresConditions(
            "create-if-absent was accepted twice",
        ));
    }
    let first = version(objects, at).await?;
    let update = |version: &UpdateVersion| put(objects, at, PutMode::Update(version.clone()));
    if winners(join_all((0..RACERS).map(|_| update(&first))).await)? != 1 {
        return Err(Fault::IgnoresConditions(
            "racing updates of one version had no single winner",
        ));
    }
    if update(&first).await?.is_some() {
        return Err(Fault::IgnoresConditions(
            "an update on a stale ETag was accepted",
        ));
    }
    let second = version(objects, at).await?;
    match update(&second).await? {
        Some(_) => Ok(()),
        None => Err(Fault::IgnoresConditions(
            "an update on the current ETag was refused",
        )),
    }
}

/// Puts a new object; `None` if the condition was false.
async fn put(
    objects: &dyn ObjectStore,
    at: &Path,
    mode: PutMode,
) -> Result<Option<PutResult>, Fault> {
    let payload = PutPayload::from(fresh_id().map_err(Fault::Random)?.into_bytes());
    match objects.put_opts(at, payload, PutOptions::from(mode)).await {
        Ok(done) => Ok(Some(done)),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
        Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
            Err(Fault::IgnoresConditions("it has no conditional put at all"))
        }
        Err(error) => Err(error.into()),
    }
}

async fn version(objects: &dyn ObjectStore, at: &Path) -> Result<UpdateVersion, Fault> {
    let meta = objects.head(at).await?;
    Ok(UpdateVersion {
        e_tag: meta.e_tag,
        version: meta.version,
    })
}

fn winners(puts: Vec<Result<Option<PutResult>, Fault>>) -> Result<usize, Fault> {
    let puts: Result<Vec<_>, Fault> = puts.into_iter().collect();
    Ok(puts?.iter().flatten().count())
}
