//! Queries: the holder of a lock, and the locks that are held.

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use palisade_core::{LeaseId, LockName, LockView};

use super::wire::{KeyValue, RangeRequest, first_of};
use super::{Etcd, keys, queue};
use palisade_client::service::{Cursor, Page};
use palisade_client::{Fault, Reason};

pub(super) async fn show(etcd: &Etcd, lock: LockName) -> Result<LockView, Fault> {
    let mut found = etcd.wire.range(first_of(&etcd.root, &lock)).await?;
    let Some(first) = found.kvs.pop() else {
        return Ok(LockView::free(lock));
    };
    let waiters = u32::try_from(found.count - 1).unwrap_or(u32::MAX);
    view(etcd, lock, &first, waiters).await
}

async fn view(
    etcd: &Etcd,
    lock: LockName,
    first: &KeyValue,
    waiters: u32,
) -> Result<LockView, Fault> {
    let (_, metadata) = queue::value(first)?;
    Ok(LockView {
        holder: Some(queue::holder(etcd, first).await?),
        lease: Some(LeaseId(queue::token(first)?)),
        acquired_at: None,
        metadata,
        waiters,
        ..LockView::free(lock)
    })
}

/// The keys of one lock are adjacent; a page ends between two locks.
pub(super) async fn list(
    etcd: &Etcd,
    prefix: String,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page, Fault> {
    let start = [etcd.root.as_bytes(), prefix.as_bytes()].concat();
    let mut end = start.clone();
    // Names are ASCII, so this is above every name with this prefix.
    end.push(0x7f);
    let key = after.map_or(start, |cursor| cursor.0.as_bytes().to_vec());
    let range = RangeRequest {
        key,
        range_end: end,
        limit: i64::from(limit.max(1)),
        keys_only: true,
        ..RangeRequest::default()
    };
    let found = etcd.wire.range(range).await?;
    let mut names: Vec<LockName> = Vec::new();
    for key in &found.kvs {
        let name = name(etcd, &key.key)?;
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    // More keys of the last lock may follow; the next page begins after all of them.
    let next = match (found.more, names.last()) {
        (true, Some(last)) => Some(cursor(etcd, last)?),
        _ => None,
    };
    let locks = stream::iter(names)
        .map(|name| show(etcd, name))
        .buffered(16)
        .try_filter(|view| std::future::ready(view.holder.is_some()))
        .try_collect()
        .await?;
    Ok(Page { locks, next })
}

fn name(etcd: &Etcd, key: &[u8]) -> Result<LockName, Fault> {
    let foreign = || Fault::invalid("a key under the root was not written by Palisade");
    let rest = key.get(etcd.root.len()..).unwrap_or_default();
    let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| foreign())?;
    LockName::new(name).map_err(|_| foreign())
}

fn cursor(etcd: &Etcd, last: &LockName) -> Result<Cursor, Fault> {
    let (_, end) = keys::range(&etcd.root, last);
    let end = String::from_utf8(end).map_err(|error| Fault::invalid(Reason::caused_by(error)))?;
    Ok(Cursor(end.into()))
}
