//! Queries: the holder of a lock, and the locks that are held.

use palisade_core::{LeaseId, LockName, LockView};

use super::ensemble::children;
use super::{ZooKeeper, fault, node, queue};
use palisade_client::Fault;
use palisade_client::service::{Cursor, Page};

pub(super) async fn show(zookeeper: &ZooKeeper, lock: LockName) -> Result<LockView, Fault> {
    let session = zookeeper.ensemble.query_session().await?;
    let directory = zookeeper.ensemble.directory(&lock);
    // A lagging member must not hide a change that this client has already seen.
    session.sync(&directory).await.map_err(fault::of)?;
    let mut view = LockView::free(lock);
    loop {
        let queue = children(&session, &directory).await?;
        let Some(first) = queue.first() else {
            return Ok(view);
        };
        if let Some((holder, metadata)) = queue::data(&session, &directory, first).await? {
            view.lease = Some(LeaseId(holder.token));
            view.holder = Some(holder);
            view.metadata = metadata;
            view.waiters = u32::try_from(queue.len() - 1).unwrap_or(u32::MAX);
            return Ok(view);
        }
    }
}

/// Returns pages ordered by name; the ensemble itself lists all locks at once.
pub(super) async fn list(
    zookeeper: &ZooKeeper,
    prefix: String,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page, Fault> {
    let session = zookeeper.ensemble.query_session().await?;
    let listed = session.list_children(zookeeper.ensemble.root()).await;
    let mut names: Vec<LockName> = listed
        .map_err(fault::of)?
        .iter()
        .filter_map(|name| node::unescape(name))
        .filter(|lock| lock.starts_with(&prefix))
        .filter(|lock| after.as_ref().is_none_or(|after| *lock.as_str() > *after.0))
        .collect();
    names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    let next = (names.len() > limit).then(|| Cursor(names[limit - 1].as_str().into()));
    let mut locks = Vec::new();
    for lock in names.into_iter().take(limit) {
        let view = show(zookeeper, lock).await?;
        // An empty container waits to be removed.
        if view.holder.is_some() {
            locks.push(view);
        }
    }
    Ok(Page { locks, next })
}
