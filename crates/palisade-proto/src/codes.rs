//! The one table of error codes: gRPC, HTTP, the command line and the docs all read it.
//!
//! A code is chosen by what its receiver does next, and its name never changes. `docs/errors.md` is
//! [`markdown`], kept equal by a test.

use std::fmt;

use tonic::Code as Grpc;

/// What a refusal is called on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Somebody else has the lock.
    Held,
    /// The caller does not hold the lock.
    NotHeld,
    /// The caller's lease ran out.
    Expired,
    /// An operator took the lock away.
    Revoked,
    /// The same client acquired the lock again under another lease.
    Superseded,
    /// The lock is held with another token than the one named.
    Stale,
    /// The request was given up before.
    Abandoned,
    /// The input was refused.
    Invalid,
    /// Understood, but this authority is not set up for it.
    Refused,
    /// Too many requests wait already.
    QueueFull,
    /// The authority holds as many locks as it may.
    TooManyLocks,
    /// The token range is used up.
    TokensExhausted,
    /// Nothing happened.
    Unavailable,
    /// It may have happened.
    UnknownOutcome,
    /// No such path.
    NotFound,
    /// The path exists, with another method.
    MethodNotAllowed,
    /// The request took too long to arrive.
    RequestTimeout,
    /// The request is larger than allowed.
    TooLarge,
    /// A body of another type than JSON.
    UnsupportedMediaType,
    /// The request calls the server by a name that it does not go by.
    Misdirected,
    /// A web page of another host wants to change something.
    CrossOrigin,
    /// A gRPC call over HTTP/1.1.
    HttpVersion,
    /// A defect of the server.
    Internal,
    /// A late duplicate of a grant's own write, at a fence.
    SequenceStale,
    /// A second write of a grant, at a strict fence.
    AlreadyWritten,
    /// A sequence number of another write, at a fence.
    SequenceReused,
    /// A token of another authority, at a fence.
    WrongAuthority,
    /// A token of another lock, at a fence.
    WrongLock,
    /// A token too far above the highest, at a fence.
    Jump,
    /// A write without a token, at a fence.
    Tokenless,
    /// Nothing to change, at a fence.
    Missing,
    /// A fenced store is full.
    StorageFull,
    /// A write that no route of a gateway maps.
    NoRoute,
}

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

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The code.
    pub code: Code,
    /// Its name on the wire.
    pub name: &'static str,
    /// The HTTP status it comes with.
    pub http: u16,
    /// How a unary gRPC call that meets it ends. `Ok` means that the code is in the reply: a denial
    /// is an answer, not a failed call.
    pub grpc: Grpc,
    /// Whether asking again helps.
    pub retry: Retry,
    /// What it means, and what to do.
    pub meaning: &'static str,
}

const fn row(
    code: Code,
    name: &'static str,
    http: u16,
    grpc: Grpc,
    retry: Retry,
    meaning: &'static str,
) -> Row {
    Row {
        code,
        name,
        http,
        grpc,
        retry,
        meaning,
    }
}

/// Every code, in the order of [`Code`].
pub const TABLE: [Row; 33] = [
    row(
        Code::Held,
        "held",
        409,
        Grpc::Ok,
        Retry::Later,
        "Another client has the lock, or the wait ended before the lock was free. `holder` names the client and its remaining time; `retry_after_ms` is the rest of its lease.",
    ),
    row(
        Code::NotHeld,
        "not_held",
        409,
        Grpc::Ok,
        Retry::No,
        "The caller does not hold this lock: the `lock_token` is unknown, belongs to another lock, or was released. The status is 409, not 404, because every name is a lock: the path is right, only the state does not match.",
    ),
    row(
        Code::Expired,
        "expired",
        410,
        Grpc::Ok,
        Retry::No,
        "The lease ran out before the request was ordered. It is never revived: stop the work, and acquire the lock again, with a new, higher token.",
    ),
    row(
        Code::Revoked,
        "revoked",
        410,
        Grpc::Ok,
        Retry::No,
        "An operator revoked the grant (`palisade break`). Stop the work.",
    ),
    row(
        Code::Superseded,
        "superseded",
        410,
        Grpc::Ok,
        Retry::No,
        "The same `client_id` acquired the lock again under a new lease, with a higher token. This is its earlier grant: stop the work.",
    ),
    row(
        Code::Stale,
        "stale",
        412,
        Grpc::Ok,
        Retry::No,
        "Server: the lock is held with another fencing token than the given one; `highest` is the current one. Fence: a newer holder, with the token `highest`, has claimed this resource. Stop the work.",
    ),
    row(
        Code::Abandoned,
        "abandoned",
        409,
        Grpc::Ok,
        Retry::No,
        "The caller gave this `request_id` up, and it never takes effect. Choose a new one.",
    ),
    row(
        Code::Invalid,
        "invalid",
        400,
        Grpc::InvalidArgument,
        Retry::No,
        "The request is malformed, out of range, or cannot be decoded. The message names the field and the range. Nothing changed.",
    ),
    row(
        Code::Refused,
        "refused",
        409,
        Grpc::FailedPrecondition,
        Retry::No,
        "The request is well-formed, but this authority is not configured for it: for example, advancing a clock without `--clock manual`. Nothing changed.",
    ),
    row(
        Code::QueueFull,
        "queue_full",
        429,
        Grpc::Ok,
        Retry::Later,
        "The queue for this lock, or for this client, is full. Nothing changed.",
    ),
    row(
        Code::TooManyLocks,
        "too_many_locks",
        429,
        Grpc::Ok,
        Retry::Later,
        "The authority has as many locks as its settings allow. Nothing changed.",
    ),
    row(
        Code::TokensExhausted,
        "tokens_exhausted",
        507,
        Grpc::Ok,
        Retry::No,
        "The last fencing token (2^53 - 1) was issued. The authority never grants again; call an operator.",
    ),
    row(
        Code::Unavailable,
        "unavailable",
        503,
        Grpc::Unavailable,
        Retry::Later,
        "Nothing happened: the authority is stopping, or its disk is full.",
    ),
    row(
        Code::UnknownOutcome,
        "unknown_outcome",
        504,
        Grpc::Unknown,
        Retry::SameRequest,
        "It may have happened. Repeat the request with the same `request_id`; a renew or release can simply be repeated.",
    ),
    row(
        Code::NotFound,
        "not_found",
        404,
        Grpc::Unimplemented,
        Retry::No,
        "This path does not exist. (A lock without a holder is not an error.)",
    ),
    row(
        Code::MethodNotAllowed,
        "method_not_allowed",
        405,
        Grpc::Unimplemented,
        Retry::No,
        "The path exists, but not with this method; the `Allow` header lists the allowed methods.",
    ),
    row(
        Code::RequestTimeout,
        "request_timeout",
        408,
        Grpc::DeadlineExceeded,
        Retry::Later,
        "The body did not arrive in time. Nothing changed.",
    ),
    row(
        Code::TooLarge,
        "too_large",
        413,
        Grpc::OutOfRange,
        Retry::No,
        "The body or the gRPC message is larger than allowed. Nothing changed.",
    ),
    row(
        Code::UnsupportedMediaType,
        "unsupported_media_type",
        415,
        Grpc::Unimplemented,
        Retry::No,
        "The body's type is not JSON. A body without `Content-Type`, or with the form type that curl sends by default, is read as JSON, except from a web page (a request with `Origin`). Nothing changed.",
    ),
    row(
        Code::Misdirected,
        "misdirected",
        421,
        Grpc::PermissionDenied,
        Retry::No,
        "The request addresses the server by a name that is not one of its own (`Host`, `:authority`). Use its address, or start it with `--allow-host NAME`; without this check, a web page whose host name resolves to the server could use it. Nothing changed.",
    ),
    row(
        Code::CrossOrigin,
        "cross_origin",
        403,
        Grpc::PermissionDenied,
        Retry::No,
        "A web page of another host (`Origin`) requested a change. To allow it, start the server with `--allow-host NAME`. Nothing changed.",
    ),
    row(
        Code::HttpVersion,
        "http_version",
        505,
        Grpc::Unimplemented,
        Retry::No,
        "A gRPC call used HTTP/1.1. Nothing changed.",
    ),
    row(
        Code::Internal,
        "internal",
        500,
        Grpc::Internal,
        Retry::SameRequest,
        "A defect of the server. Please report it.",
    ),
    row(
        Code::SequenceStale,
        "sequence_stale",
        412,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence: a later write of this grant was already carried out; this one is a late duplicate. Nothing changed.",
    ),
    row(
        Code::AlreadyWritten,
        "already_written",
        409,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence with one write for each grant: there was already a write under this token, perhaps an earlier attempt of this one. Read before you do anything else. Nothing changed.",
    ),
    row(
        Code::SequenceReused,
        "sequence_reused",
        409,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence: `sequence` was used for another write of this grant; `last` is the highest one used. Nothing changed.",
    ),
    row(
        Code::WrongAuthority,
        "wrong_authority",
        409,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence: the resource is bound to another authority than the request names, or the request names none. Tokens of two authorities are never compared. Nothing changed.",
    ),
    row(
        Code::WrongLock,
        "wrong_lock",
        409,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence: the resource is bound to another lock than the request names, or the request names none. Nothing changed.",
    ),
    row(
        Code::Jump,
        "jump",
        409,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence: the token is more than `bound` (`--max-jump`) above `highest`. If the lock server was restored several times since the last claim, call an operator. Nothing changed.",
    ),
    row(
        Code::Tokenless,
        "tokenless",
        428,
        Grpc::FailedPrecondition,
        Retry::No,
        "Fence: a write without a fencing token. Acquire the lock and send the token of the grant. Nothing changed.",
    ),
    row(
        Code::Missing,
        "missing",
        404,
        Grpc::NotFound,
        Retry::No,
        "Fence: there is nothing to change. Nothing changed.",
    ),
    row(
        Code::StorageFull,
        "storage_full",
        507,
        Grpc::ResourceExhausted,
        Retry::Later,
        "Store: the store has reached a limit, or its disk is full. Nothing changed.",
    ),
    row(
        Code::NoRoute,
        "no_route",
        404,
        Grpc::NotFound,
        Retry::No,
        "Gateway: no `--route` maps this path to a resource, so the write would not be fenced. Nothing was forwarded.",
    ),
];

impl Code {
    /// Its line of the table.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The code with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Code> {
        TABLE
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.code)
    }

    /// The HTTP status it comes with.
    #[must_use]
    pub const fn http(self) -> u16 {
        self.row().http
    }

    /// How a unary gRPC call that meets it ends; `Ok`: the code is in the reply.
    #[must_use]
    pub const fn grpc(self) -> Grpc {
        self.row().grpc
    }

    /// Whether asking again helps.
    #[must_use]
    pub const fn retry(self) -> Retry {
        self.row().retry
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Retry::Later => "yes, later",
            Retry::SameRequest => "yes, with the same `request_id`",
            Retry::No => "no",
        })
    }
}

/// The table as `docs/errors.md` shows it.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    for row in &TABLE {
        let grpc = match row.grpc {
            Grpc::Ok => "in the reply".to_owned(),
            code => format!("`{}`", screaming(code)),
        };
        let (name, http, retry, meaning) = (row.name, row.http, row.retry, row.meaning);
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
call has the code's name in the metadata `palisade-code`. In a session every code is in the reply of its
own operation, and the stream continues.

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
            assert_eq!(row.code.row().name, row.name);
            assert_eq!(Code::from_name(row.name), Some(row.code));
        }
        assert_eq!(Code::from_name("nonsense"), None);
    }

    #[test]
    fn what_succeeds_in_grpc_is_a_denial_in_http() {
        for row in &TABLE {
            assert!((400..=599).contains(&row.http), "{}", row.name);
        }
    }

    #[test]
    fn the_page_in_the_docs_is_this_table() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        if std::env::var_os("PALISADE_BLESS").is_some() {
            std::fs::write(file, markdown()).unwrap();
        }
        let page = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/errors.md is out of date: run with PALISADE_BLESS=1"
        );
    }
}
