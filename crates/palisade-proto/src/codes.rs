//! How HTTP and gRPC carry the codes of [`palisade_core::Code`], and whether to ask again. `docs/reference/errors.md` is
//! [`markdown`], kept equal by a test.

use std::fmt;

use palisade_core::Code;
use tonic::Code as Grpc;

/// Whether asking again is safe, and when it helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Safe, and may succeed later.
    Later,
    /// Safe with the same `request_id`; without one it is a new request.
    SameRequest,
    /// Pointless: the answer stays the same, or the caller must first do something else.
    No,
}

/// How HTTP and gRPC carry a code.
#[derive(Clone, Copy, Debug)]
pub struct CodeRow {
    /// The code.
    pub code: Code,
    /// The HTTP status it comes with.
    pub http: u16,
    /// How a unary gRPC call that meets it ends. `Ok` means that the code is in the reply: a denial
    /// is an answer, not a failed call.
    pub grpc: Grpc,
    /// Whether asking again helps.
    pub retry: Retry,
}

const fn row(code: Code, http: u16, grpc: Grpc, retry: Retry) -> CodeRow {
    CodeRow {
        code,
        http,
        grpc,
        retry,
    }
}

impl CodeRow {
    /// The line of a code.
    #[must_use]
    pub const fn of(code: Code) -> &'static CodeRow {
        &TABLE[code as usize]
    }
}

/// Every code, in the order of [`Code`].
pub const TABLE: [CodeRow; Code::ALL.len()] = [
    row(Code::Held, 409, Grpc::Ok, Retry::Later),
    row(Code::Delayed, 409, Grpc::Ok, Retry::Later),
    row(Code::NotHeld, 409, Grpc::Ok, Retry::No),
    row(Code::Expired, 410, Grpc::Ok, Retry::No),
    row(Code::Revoked, 410, Grpc::Ok, Retry::No),
    row(Code::Superseded, 410, Grpc::Ok, Retry::No),
    row(Code::Stale, 412, Grpc::Ok, Retry::No),
    row(Code::Abandoned, 409, Grpc::Ok, Retry::No),
    row(Code::Invalid, 400, Grpc::InvalidArgument, Retry::No),
    row(Code::Refused, 409, Grpc::FailedPrecondition, Retry::No),
    row(Code::QueueFull, 429, Grpc::Ok, Retry::Later),
    row(Code::TooManyLocks, 429, Grpc::Ok, Retry::Later),
    row(Code::OverQuota, 429, Grpc::ResourceExhausted, Retry::Later),
    row(Code::TokensExhausted, 507, Grpc::Ok, Retry::No),
    row(Code::Unavailable, 503, Grpc::Unavailable, Retry::Later),
    row(Code::NotLeader, 503, Grpc::Unavailable, Retry::Later),
    row(Code::UnknownOutcome, 504, Grpc::Unknown, Retry::SameRequest),
    row(Code::Unauthenticated, 401, Grpc::Unauthenticated, Retry::No),
    row(Code::Forbidden, 403, Grpc::PermissionDenied, Retry::No),
    row(Code::NotFound, 404, Grpc::Unimplemented, Retry::No),
    row(Code::MethodNotAllowed, 405, Grpc::Unimplemented, Retry::No),
    row(
        Code::RequestTimeout,
        408,
        Grpc::DeadlineExceeded,
        Retry::Later,
    ),
    row(Code::TooLarge, 413, Grpc::OutOfRange, Retry::No),
    row(
        Code::UnsupportedMediaType,
        415,
        Grpc::Unimplemented,
        Retry::No,
    ),
    row(Code::Misdirected, 421, Grpc::PermissionDenied, Retry::No),
    row(Code::CrossOrigin, 403, Grpc::PermissionDenied, Retry::No),
    row(Code::HttpVersion, 505, Grpc::Unimplemented, Retry::No),
    row(Code::Internal, 500, Grpc::Internal, Retry::SameRequest),
    row(
        Code::SequenceStale,
        412,
        Grpc::FailedPrecondition,
        Retry::No,
    ),
    row(
        Code::AlreadyWritten,
        409,
        Grpc::FailedPrecondition,
        Retry::No,
    ),
    row(
        Code::SequenceReused,
        409,
        Grpc::FailedPrecondition,
        Retry::No,
    ),
    row(
        Code::WrongAuthority,
        409,
        Grpc::FailedPrecondition,
        Retry::No,
    ),
    row(Code::WrongLock, 409, Grpc::FailedPrecondition, Retry::No),
    row(Code::Jump, 409, Grpc::FailedPrecondition, Retry::No),
    row(Code::Tokenless, 428, Grpc::FailedPrecondition, Retry::No),
    row(Code::Missing, 404, Grpc::NotFound, Retry::No),
    row(
        Code::StorageFull,
        507,
        Grpc::ResourceExhausted,
        Retry::Later,
    ),
    row(Code::NoRoute, 404, Grpc::NotFound, Retry::No),
    row(Code::BadSequencer, 403, Grpc::PermissionDenied, Retry::No),
    row(Code::Unsigned, 428, Grpc::FailedPrecondition, Retry::No),
];

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Retry::Later => "yes, later",
            Retry::SameRequest => "yes, with the same `request_id`",
            Retry::No => "no",
        })
    }
}

/// The table as `docs/reference/errors.md` shows it.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    for row in &TABLE {
        let grpc = match row.grpc {
            Grpc::Ok => "in the reply".to_owned(),
            code => format!("`{}`", screaming(code)),
        };
        let (name, meaning) = (row.code, row.code.meaning());
        let (http, retry) = (row.http, row.retry);
        page.push_str(&format!(
            "| `{name}` | {http} | {grpc} | {retry} | {meaning} |\n"
        ));
    }
    page
}

/// `InvalidArgument` as the gRPC documents spell it: `INVALID_ARGUMENT`.
fn screaming(code: Grpc) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_uppercase());
    }
    name
}

const INTRODUCTION: &str = "\
# Error codes

<!-- Written by palisade_proto::codes::markdown; a test keeps this file equal to it. -->

A denial is an answer, not a failure: over gRPC it is in the reply of a successful call (in the reply's
`error`, or as `held` and `ended`), and a call fails only if this table names a gRPC code. A failed gRPC
call has the code's name in the metadata `palisade-code`, and the leader's address, if that is why it failed, in
`palisade-leader`. In a session every code is in the reply of its own operation, and the stream continues.

Over HTTP every error has the same body, and a refused request changes nothing unless the table says
otherwise:

```json
{\"error\": {\"code\": \"invalid\", \"message\": \"lease_duration_ms must be an integer in 100 ..= 86400000\"}}
```

A refused acquire has `resource_id`, `lock_acquired` and, if another client has the lock, `holder` beside
`error`. Only a request that is not HTTP, or whose head is larger than 8 KiB, gets an answer without a
body (400 or 431).

| code | HTTP | gRPC | retry? | meaning |
|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_finds_its_own_row_by_number_and_by_name() {
        for row in &TABLE {
            assert_eq!(CodeRow::of(row.code).code, row.code);
            assert_eq!(Code::from_name(row.code.name()), Some(row.code));
        }
        assert_eq!(Code::from_name("nonsense"), None);
    }

    #[test]
    fn what_succeeds_in_grpc_is_a_denial_in_http() {
        for row in &TABLE {
            assert!((400..=599).contains(&row.http), "{}", row.code);
        }
    }

    #[test]
    fn the_page_in_the_docs_is_this_table() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/errors.md"
        );
        if std::env::var_os("PALISADE_BLESS").is_some() {
            std::fs::write(file, markdown()).unwrap();
        }
        let page = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/reference/errors.md is out of date: run with PALISADE_BLESS=1"
        );
    }
}
