//! What the kinds of resources share: the size of a page, failures, and the statements of databases.

use palisade_fence::{FaultKind, FencedTable, FloorTooLow};
use palisade_proto::Code;

use super::super::failure::{FAILED, Failure};

/// How many fences one request asks for.
pub(super) const PAGE: u32 = 500;

/// Turns a fence's fault into a failure of the command.
pub(super) fn failed(kind: FaultKind, message: String) -> Failure {
    match kind {
        FaultKind::Invalid => Failure::usage(message),
        FaultKind::Retry | FaultKind::Unknown | FaultKind::Operator => Failure::local(message),
    }
}

pub(super) fn too_low(floor: FloorTooLow) -> Failure {
    let highest = floor.highest;
    Failure::new(FAILED, Code::Stale, floor.to_string()).hint(format!(
        "choose a floor above {highest}; if the authority never issued {highest} (a poisoned \
         fence), add --lower-from {highest}"
    ))
}

/// A named part of an installation.
pub(super) struct Step {
    pub(super) name: String,
    pub(super) sql: String,
}

/// A table of the user, and the resource whose fence counts for it.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) resource: String,
}

impl From<FencedTable> for Table {
    fn from(FencedTable { table, resource }: FencedTable) -> Table {
        Table {
            name: table,
            resource,
        }
    }
}
