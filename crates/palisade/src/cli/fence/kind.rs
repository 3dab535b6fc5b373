//! Shared by all kinds of resources: the size of a page, failures, and the statements of databases.

use palisade_fence::{Error, ErrorKind, FencedTable};
use palisade_proto::Code;

use super::super::failure::{FAILED, Failure};

/// How many fences one request asks for.
pub(super) const PAGE: u32 = 500;

/// Turns a fence's error into a failure of the command.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::FloorTooLow(floor) => {
                let highest = floor.highest;
                Failure::new(FAILED, Code::Stale, floor.to_string()).hint(format!(
                    "choose a floor above {highest}; if its authority never issued {highest} (a poisoned fence), or if another \
                     authority's tokens count from now on (--authority-id), add --lower-from {highest}"
                ))
            }
            Error::NotInstalled(_) => Failure::new(
                FAILED,
                Code::Invalid,
                "no fence, or an older one, is installed in this database",
            )
            .hint("palisade fence install postgres|mysql|sqlite URL TABLE"),
            error if error.kind() == ErrorKind::Invalid => Failure::usage(error.report()),
            error => Failure::local(error.report()),
        }
    }
}

/// A named part of an installation.
pub(super) struct InstallStep {
    pub(super) name: String,
    pub(super) sql: String,
}

/// A table of the user, and the resource whose fence counts for it.
#[derive(Clone, Debug)]
pub(super) struct UserTable {
    pub(super) name: String,
    pub(super) resource: String,
}

impl From<FencedTable> for UserTable {
    fn from(FencedTable { table, resource }: FencedTable) -> UserTable {
        UserTable {
            name: table,
            resource,
        }
    }
}
