//! Refusals as gRPC statuses.

use palisade_proto::codes::CodeRow;
use tonic::Status;
use tonic::metadata::MetadataValue;

use super::convert::Refusal;

/// The metadata key of the code in every failed call.
pub(super) const CODE: &str = "palisade-code";

/// The metadata key of the leader's URL in a call that failed as `not_leader`.
const LEADER: &str = "palisade-leader";

pub(super) fn status(refusal: &Refusal) -> Status {
    let mut status = Status::new(CodeRow::of(refusal.code).grpc, refusal.message.clone());
    let name = MetadataValue::from_static(refusal.code.name());
    status.metadata_mut().insert(CODE, name);
    if let Some(leader) = &refusal.leader
        && let Ok(leader) = MetadataValue::try_from(&**leader)
    {
        status.metadata_mut().insert(LEADER, leader);
    }
    status
}
