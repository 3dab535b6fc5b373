//! etcd: a lease, a queue key under it, a watch on the key before it.

use tonic::transport::{Channel, Endpoint};

use crate::lane::{Error, Lane as Any, LaneFuture, TTL_MS, random};

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub(crate) mod pb {
    tonic::include_proto!("etcdserverpb");
}

use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::range_request::{SortOrder, SortTarget};
use pb::request_op::Request as Op;
use pb::response_op::Response as Done;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;

pub(crate) struct Lane {
    leases: LeaseClient<Channel>,
    queue: Queue,
    held: Option<(Vec<u8>, i64)>,
}

/// The keys of the clients that want a lock, in order of arrival.
pub(crate) struct Queue {
    keys: KvClient<Channel>,
    watches: WatchClient<Channel>,
    prefix: Vec<u8>,
}

pub(crate) async fn channel(port: u16) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
    Ok(endpoint.tcp_nodelay(true).connect().await?)
}

impl Lane {
    pub(crate) async fn connect(port: u16, lock: &str) -> Result<Lane, Error> {
        let channel = channel(port).await?;
        Ok(Lane {
            leases: LeaseClient::new(channel.clone()),
            queue: Queue::new(channel, lock),
            held: None,
        })
    }
}

impl Queue {
    pub(crate) fn new(channel: Channel, lock: &str) -> Queue {
        Queue {
            keys: KvClient::new(channel.clone()),
            watches: WatchClient::new(channel),
            prefix: format!("bare/{lock}\0").into_bytes(),
        }
    }

    /// Queues a key under this lease and waits until it is the first. Returns the key and its token.
    pub(crate) async fn enter(&mut self, name: &str, lease: i64) -> Result<(Vec<u8>, u64), Error> {
        let mut key = self.prefix.clone();
        key.extend_from_slice(name.as_bytes());
        let put = pb::PutRequest {
            key: key.clone(),
            value: b"lane".to_vec(),
            lease,
        };
        let put = self.commit([Op::RequestPut(put)]).await?;
        let revision = put.header.ok_or("no header")?.revision;
        loop {
            // The own key and the one before it, in one read.
            let own = pb::RangeRequest {
                key: key.clone(),
                ..Default::default()
            };
            let ranges = [own, self.before(revision)].map(Op::RequestRange);
            let looked = self.commit(ranges).await?;
            let now = looked.header.ok_or("no header")?.revision;
            let mut found = looked
                .responses
                .into_iter()
                .map(|done| match done.response {
                    Some(Done::ResponseRange(range)) => range.kvs.into_iter().next(),
                    _ => None,
                });
            let own = found.next().flatten().ok_or("the key is gone")?;
            let Some(before) = found.next().flatten() else {
                return Ok((key, own.create_revision.unsigned_abs()));
            };
            self.gone(before.key, now + 1).await?;
        }
    }

    /// Removes a key.
    pub(crate) async fn leave(&mut self, key: Vec<u8>) -> Result<(), Error> {
        let delete = pb::DeleteRangeRequest {
            key,
            ..Default::default()
        };
        self.commit([Op::RequestDeleteRange(delete)]).await?;
        Ok(())
    }

    async fn commit<const N: usize>(&mut self, all: [Op; N]) -> Result<pb::TxnResponse, Error> {
        let success = all.map(|operation| pb::RequestOp {
            request: Some(operation),
        });
        let txn = pb::TxnRequest {
            success: success.to_vec(),
            ..Default::default()
        };
        Ok(self.keys.txn(txn).await?.into_inner())
    }

    /// The last key of the queue that was created before this revision.
    fn before(&self, revision: i64) -> pb::RangeRequest {
        let mut end = self.prefix.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        pb::RangeRequest {
            key: self.prefix.clone(),
            range_end: end,
            max_create_revision: revision - 1,
            sort_order: SortOrder::Descend.into(),
            sort_target: SortTarget::Create.into(),
            limit: 1,
            ..Default::default()
        }
    }

    async fn gone(&mut self, key: Vec<u8>, revision: i64) -> Result<(), Error> {
        let create = pb::WatchCreateRequest {
            key,
            start_revision: revision,
            ..Default::default()
        };
        let request = pb::WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        let open = futures_util::StreamExt::chain(
            futures_util::stream::iter([request]),
            futures_util::stream::pending(),
        );
        let mut changes = self.watches.watch(open).await?.into_inner();
        while let Some(change) = changes.message().await? {
            // After its creation, a key of the queue can only be deleted.
            if !change.events.is_empty() {
                return Ok(());
            }
        }
        Err("the watch ended".into())
    }
}

impl Any for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let id = i64::from_le_bytes(random()?[..8].try_into()?) & i64::MAX;
            let grant = pb::LeaseGrantRequest {
                id,
                ttl: (TTL_MS / 1_000) as i64,
            };
            self.leases.lease_grant(grant).await?;
            let (key, token) = self.queue.enter(&format!("{id:016x}"), id).await?;
            self.held = Some((key, id));
            Ok(token)
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let (key, id) = self.held.take().ok_or("nothing is held")?;
            self.queue.leave(key).await?;
            self.leases
                .lease_revoke(pb::LeaseRevokeRequest { id })
                .await?;
            Ok(())
        })
    }
}
