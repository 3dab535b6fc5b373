//! etcd: a lease, a queue key under it, a watch on the key before it.

use tonic::transport::{Channel, Endpoint};

use crate::lane::{Error, Lane as Any, Step, TTL_MS, random};

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod pb {
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
    keys: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    watches: WatchClient<Channel>,
    prefix: Vec<u8>,
    held: Option<(Vec<u8>, i64)>,
}

impl Lane {
    pub(crate) async fn connect(port: u16, lock: &str) -> Result<Lane, Error> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        let channel = endpoint.tcp_nodelay(true).connect().await?;
        Ok(Lane {
            keys: KvClient::new(channel.clone()),
            leases: LeaseClient::new(channel.clone()),
            watches: WatchClient::new(channel),
            prefix: format!("bare/{lock}\0").into_bytes(),
            held: None,
        })
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
            // All that happens to a key of the queue after its creation is that it goes.
            if !change.events.is_empty() {
                return Ok(());
            }
        }
        Err("the watch ended".into())
    }
}

impl Any for Lane {
    fn acquire(&mut self) -> Step<'_, u64> {
        Box::pin(async move {
            let id = i64::from_le_bytes(random()?[..8].try_into()?) & i64::MAX;
            let grant = pb::LeaseGrantRequest {
                id,
                ttl: (TTL_MS / 1_000) as i64,
            };
            self.leases.lease_grant(grant).await?;
            let mut key = self.prefix.clone();
            key.extend_from_slice(format!("{id:016x}").as_bytes());
            let put = pb::PutRequest {
                key: key.clone(),
                value: b"lane".to_vec(),
                lease: id,
            };
            let txn = pb::TxnRequest {
                success: vec![pb::RequestOp {
                    request: Some(Op::RequestPut(put)),
                }],
                ..Default::default()
            };
            let put = self.keys.txn(txn).await?.into_inner();
            let revision = put.header.ok_or("no header")?.revision;
            self.held = Some((key.clone(), id));
            loop {
                // Own key and the one before it, in one look.
                let own = pb::RangeRequest {
                    key: key.clone(),
                    ..Default::default()
                };
                let ranges = [own, self.before(revision)].map(|range| pb::RequestOp {
                    request: Some(Op::RequestRange(range)),
                });
                let txn = pb::TxnRequest {
                    success: ranges.to_vec(),
                    ..Default::default()
                };
                let looked = self.keys.txn(txn).await?.into_inner();
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
                    return Ok(own.create_revision.unsigned_abs());
                };
                self.gone(before.key, now + 1).await?;
            }
        })
    }

    fn release(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            let (key, id) = self.held.take().ok_or("nothing is held")?;
            let delete = pb::DeleteRangeRequest {
                key,
                ..Default::default()
            };
            let txn = pb::TxnRequest {
                success: vec![pb::RequestOp {
                    request: Some(Op::RequestDeleteRange(delete)),
                }],
                ..Default::default()
            };
            self.keys.txn(txn).await?;
            self.leases
                .lease_revoke(pb::LeaseRevokeRequest { id })
                .await?;
            Ok(())
        })
    }
}
