//! The etcd calls that the adapter makes.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::stream;
use palisade_core::{LockName, Token, Ttl};
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};

use super::fault::{of_read, of_write};
use super::keys;
use palisade_client::{Fault, Reason};

/// Generated from `proto/etcd/rpc.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub(super) mod pb {
    tonic::include_proto!("etcdserverpb");
}

use pb::WatchResponse;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::range_request::{SortOrder, SortTarget};
use pb::request_op::Request as Op;
use pb::response_op::Response as Done;
use pb::watch_client::WatchClient;
pub(super) use pb::{KeyValue, RangeRequest, TxnRequest};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After this much silence the client sends a ping to the peer, and waits as long again for the answer.
const PING: Duration = Duration::from_secs(3);
const WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// A channel to the cluster. Cloning is cheap.
#[derive(Clone)]
pub(super) struct Wire {
    channel: Channel,
}

/// The outcome of a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alive {
    /// The lease lasts its full time again, counted from the request.
    For(Ttl),
    /// There is no such lease, or no longer.
    Gone,
}

impl Wire {
    /// Connects, and returns the cluster's id as the first answering member reports it.
    pub(super) async fn connect(hosts: &[String]) -> Result<(Wire, u64), Fault> {
        let endpoints: Vec<Endpoint> = hosts
            .iter()
            .map(|host| endpoint(host))
            .collect::<Result<_, _>>()?;
        let mut fault = Fault::invalid("the URL names no member of the cluster");
        for endpoint in &endpoints {
            let one = match endpoint.connect().await {
                Ok(channel) => Wire { channel },
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    let words = cause.unwrap_or_else(|| error.to_string());
                    fault = Fault::unreachable(Reason::new(words).quoting(error));
                    continue;
                }
            };
            match one.cluster().await {
                Ok(cluster) if endpoints.len() == 1 => return Ok((one, cluster)),
                Ok(cluster) => {
                    let channel = Channel::balance_list(endpoints.into_iter());
                    return Ok((Wire { channel }, cluster));
                }
                Err(refused) => fault = refused,
            }
        }
        Err(fault)
    }

    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    /// The cluster's id.
    async fn cluster(&self) -> Result<u64, Fault> {
        let request = RangeRequest {
            key: b"\0".to_vec(),
            limit: 1,
            count_only: true,
            ..RangeRequest::default()
        };
        let answer = self.range(request).await?;
        let header = answer.header.ok_or_else(nonsense)?;
        Ok(header.cluster_id)
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<pb::RangeResponse, Fault> {
        let answer = self.kv().range(request).await;
        Ok(answer.map_err(of_read)?.into_inner())
    }

    /// Returns the key of a lock's holder.
    pub(super) async fn first(
        &self,
        root: &str,
        lock: &LockName,
    ) -> Result<Option<KeyValue>, Fault> {
        Ok(self.range(first_of(root, lock)).await?.kvs.pop())
    }

    pub(super) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Fault> {
        let answer = self.kv().txn(txn).await;
        TxnResponse::of(answer.map_err(of_write)?.into_inner())
    }

    /// Deletes a key if it is still the one created at this revision (or at any); returns whether it was.
    pub(super) async fn delete_as(&self, key: &[u8], token: Option<Token>) -> Result<bool, Fault> {
        let delete = pb::DeleteRangeRequest {
            key: key.to_vec(),
            ..pb::DeleteRangeRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![created(key, token)],
            success: vec![op(Op::RequestDeleteRange(delete))],
            failure: Vec::new(),
        };
        Ok(self.txn(txn).await?.succeeded)
    }

    /// Creates a lease with this id, or keeps it alive if it already exists.
    pub(super) async fn grant(&self, id: i64, seconds: i64) -> Result<Alive, Fault> {
        let request = pb::LeaseGrantRequest { ttl: seconds, id };
        match self.lease().lease_grant(request).await {
            Ok(answer) => ttl(answer.into_inner().ttl).map(Alive::For),
            Err(status) if status.code() == Code::FailedPrecondition => self.keep_alive(id).await,
            Err(status) => Err(of_write(status)),
        }
    }

    pub(super) async fn keep_alive(&self, id: i64) -> Result<Alive, Fault> {
        let once = stream::once(async move { pb::LeaseKeepAliveRequest { id } });
        let answer = self.lease().lease_keep_alive(once).await;
        let mut answers = answer.map_err(of_write)?.into_inner();
        let answer = answers.message().await.map_err(of_write)?;
        match answer {
            Some(answer) if answer.ttl > 0 => ttl(answer.ttl).map(Alive::For),
            Some(_) => Ok(Alive::Gone),
            None => Err(Fault::unknown_outcome("a keep-alive was not answered")),
        }
    }

    /// Ends a lease and deletes its keys; a missing lease is not an error.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), Fault> {
        match self
            .lease()
            .lease_revoke(pb::LeaseRevokeRequest { id })
            .await
        {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(of_write(status)),
        }
    }

    /// Returns how many whole seconds a lease lasts without renewal.
    pub(super) async fn time_to_live(&self, id: i64) -> Result<u64, Fault> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: false };
        let answer = self.lease().lease_time_to_live(request).await;
        let left = answer.map_err(of_read)?.into_inner().ttl;
        Ok(u64::try_from(left).unwrap_or(0))
    }

    /// Watches for the deletion of a key, from this revision on.
    pub(super) async fn watch(&self, key: &[u8], start_revision: i64) -> Result<KeyWatch, Fault> {
        let create = pb::WatchCreateRequest {
            key: key.to_vec(),
            start_revision,
            filters: vec![pb::watch_create_request::FilterType::Noput.into()],
            ..pb::WatchCreateRequest::default()
        };
        let create = pb::WatchRequest {
            request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
        };
        let (open, dropped) = oneshot::channel::<Infallible>();
        let requests = stream::unfold((Some(create), dropped), async |(create, dropped)| {
            let Some(create) = create else {
                let _ = dropped.await;
                return None;
            };
            Some((create, (None, dropped)))
        });
        let mut request = Request::new(requests);
        // Makes a member that has lost its leader report it instead of staying silent.
        request.metadata_mut().insert(
            "hasleader",
            tonic::metadata::MetadataValue::from_static("true"),
        );
        let answer = WatchClient::new(self.channel.clone()).watch(request).await;
        let events = answer.map_err(of_read)?.into_inner();
        Ok(KeyWatch {
            events,
            _open: open,
        })
    }
}

/// A watch, which ends when this value is dropped. The server ends a watch only when its stream of requests
/// ends, not when nobody reads the answers any more.
pub(super) struct KeyWatch {
    pub(super) events: Streaming<WatchResponse>,
    _open: oneshot::Sender<Infallible>,
}

fn endpoint(host: &str) -> Result<Endpoint, Fault> {
    let endpoint = Endpoint::from_shared(format!("http://{host}"))
        .map_err(|error| Fault::invalid(Reason::caused_by(error)))?;
    Ok(endpoint
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true))
}

/// The outcome of a transaction.
pub(super) struct TxnResponse {
    pub(super) succeeded: bool,
    pub(super) revision: i64,
    /// The results of each of its ranges, in order.
    pub(super) ranges: Vec<pb::RangeResponse>,
}

impl TxnResponse {
    fn of(answer: pb::TxnResponse) -> Result<TxnResponse, Fault> {
        let ranges = answer
            .responses
            .into_iter()
            .filter_map(|done| match done.response {
                Some(Done::ResponseRange(range)) => Some(range),
                _ => None,
            });
        Ok(TxnResponse {
            succeeded: answer.succeeded,
            revision: answer.header.ok_or_else(nonsense)?.revision,
            ranges: ranges.collect(),
        })
    }

    /// The single key that a range found.
    pub(super) fn key(&mut self, range: usize) -> Option<KeyValue> {
        self.ranges.get_mut(range)?.kvs.pop()
    }
}

/// A query for all keys of a lock, the holder's first; limited to one.
pub(super) fn first_of(root: &str, lock: &LockName) -> RangeRequest {
    let (key, range_end) = keys::range(root, lock);
    RangeRequest {
        key,
        range_end,
        limit: 1,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// A query for the key of a lock that was created last before this revision.
pub(super) fn last_before(root: &str, lock: &LockName, token: Token) -> RangeRequest {
    RangeRequest {
        sort_order: SortOrder::Descend.into(),
        max_create_revision: keys::revision(token) - 1,
        ..first_of(root, lock)
    }
}

pub(super) fn get(key: &[u8]) -> Op {
    Op::RequestRange(RangeRequest {
        key: key.to_vec(),
        ..RangeRequest::default()
    })
}

pub(super) fn op(request: Op) -> pb::RequestOp {
    pb::RequestOp {
        request: Some(request),
    }
}

/// Compares true if the key was created at this revision; with `None`, at any.
pub(super) fn created(key: &[u8], token: Option<Token>) -> pb::Compare {
    let (result, revision) = match token {
        Some(token) => (CompareResult::Equal, keys::revision(token)),
        None => (CompareResult::Greater, 0),
    };
    pb::Compare {
        result: result.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

/// Compares true if there is no such key, or none in the range.
pub(super) fn absent(key: &[u8], range_end: Vec<u8>) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        target_union: Some(TargetUnion::CreateRevision(0)),
        range_end,
    }
}

pub(super) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> Op {
    Op::RequestPut(pb::PutRequest {
        key: key.to_vec(),
        value,
        lease,
    })
}

pub(super) fn ranged(request: RangeRequest) -> Op {
    Op::RequestRange(request)
}

fn ttl(seconds: i64) -> Result<Ttl, Fault> {
    let millis = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
    Ok(Ttl::from_millis(millis)?)
}

fn nonsense() -> Fault {
    Fault::unknown_outcome("an answer without a header: the server at this address is not etcd")
}
