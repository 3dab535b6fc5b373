//! etcd: creating a key takes the lock, and the revision of its creation is the token. With waiters, clients queue
//! keys, and each watches the key before its own.
//!
//! As with etcd's own library, a client has one lease for all its keys: a lease for each grant would double the writes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tonic::transport::Channel;

use super::{Connection as Any, Terms};
use crate::bare::etcd::pb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::bare::etcd::pb::kv_client::KvClient;
use crate::bare::etcd::pb::lease_client::LeaseClient;
use crate::bare::etcd::pb::request_op::Request as Op;
use crate::bare::etcd::{Queue, channel, pb};
use crate::lane::{Error, LaneFuture, Renewing, random};

pub(crate) struct Connection {
    channel: Channel,
    lease: Arc<Lease>,
    contended: bool,
}

/// The lease of a connection, and the stream that keeps it alive.
struct Lease {
    id: i64,
    asking: mpsc::UnboundedSender<pb::LeaseKeepAliveRequest>,
    open: Open,
}

type Open = Arc<Mutex<VecDeque<oneshot::Sender<i64>>>>;

/// A lock without contention.
struct Own {
    keys: KvClient<Channel>,
    lease: Arc<Lease>,
    key: Vec<u8>,
}

/// A position in the queue.
struct Queued {
    queue: Queue,
    lease: Arc<Lease>,
    name: String,
    held: Option<Vec<u8>>,
}

impl Connection {
    pub(crate) async fn open(port: u16, terms: Terms) -> Result<Connection, Error> {
        let channel = channel(port).await?;
        let mut leases = LeaseClient::new(channel.clone());
        let id = i64::from_le_bytes(random()?[..8].try_into()?) & i64::MAX;
        let ttl = (terms.ttl_ms / 1_000).max(1) as i64;
        leases
            .lease_grant(pb::LeaseGrantRequest { id, ttl })
            .await?;
        Ok(Connection {
            lease: Arc::new(Lease::keep(leases, id).await?),
            channel,
            contended: terms.contended,
        })
    }
}

impl Lease {
    async fn keep(mut leases: LeaseClient<Channel>, id: i64) -> Result<Lease, Error> {
        let (asking, mut asked) = mpsc::unbounded_channel();
        // The server answers the opening of a stream with its first reply.
        asking.send(pb::LeaseKeepAliveRequest { id })?;
        let outbound = futures_util::stream::poll_fn(move |cx| asked.poll_recv(cx));
        let mut replies = leases.lease_keep_alive(outbound).await?.into_inner();
        replies.message().await?.ok_or("no keep-alive")?;
        let open = Open::default();
        let waiting = Arc::clone(&open);
        tokio::spawn(async move {
            while let Ok(Some(reply)) = replies.message().await {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(caller) = waiting.pop_front() {
                    let _ = caller.send(reply.ttl);
                }
            }
        });
        Ok(Lease { id, asking, open })
    }

    async fn renew(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.push_back(reply);
            self.asking
                .send(pb::LeaseKeepAliveRequest { id: self.id })?;
        }
        match answer.await? {
            0 => Err("the lease is over".into()),
            _ => Ok(()),
        }
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let lease = Arc::clone(&self.lease);
            Ok(if self.contended {
                Box::new(Queued {
                    queue: Queue::new(self.channel.clone(), lock),
                    lease,
                    name: format!("{:032x}", u128::from_le_bytes(random()?)),
                    held: None,
                }) as Box<dyn Renewing>
            } else {
                Box::new(Own {
                    keys: KvClient::new(self.channel.clone()),
                    lease,
                    key: format!("peers/{lock}").into_bytes(),
                })
            })
        })
    }
}

impl Own {
    /// Executes `operation` if the key was created at this revision; 0: if it does not exist.
    async fn swap(&mut self, created: Option<i64>, operation: Op) -> Result<i64, Error> {
        let compare = created.map(|revision| pb::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: self.key.clone(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
            ..Default::default()
        });
        let txn = pb::TxnRequest {
            compare: compare.into_iter().collect(),
            success: vec![pb::RequestOp {
                request: Some(operation),
            }],
            ..Default::default()
        };
        let done = self.keys.txn(txn).await?.into_inner();
        if !done.succeeded {
            return Err("a lane's own lock is in another state".into());
        }
        Ok(done.header.ok_or("no header")?.revision)
    }
}

impl crate::lane::Lane for Own {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let put = pb::PutRequest {
                key: self.key.clone(),
                value: Vec::new(),
                lease: self.lease.id,
            };
            Ok(self
                .swap(Some(0), Op::RequestPut(put))
                .await?
                .unsigned_abs())
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let delete = pb::DeleteRangeRequest {
                key: self.key.clone(),
                ..Default::default()
            };
            self.swap(None, Op::RequestDeleteRange(delete)).await?;
            Ok(())
        })
    }
}

impl Renewing for Own {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move { self.lease.renew().await })
    }
}

impl crate::lane::Lane for Queued {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let (key, token) = self.queue.enter(&self.name, self.lease.id).await?;
            self.held = Some(key);
            Ok(token)
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let key = self.held.take().ok_or("nothing is held")?;
            self.queue.leave(key).await
        })
    }
}

impl Renewing for Queued {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move { self.lease.renew().await })
    }
}
