//! The one table of codes: the names of refusals, everywhere.
//!
//! A code is chosen by what its receiver does next, and its name never changes. How HTTP and gRPC carry it is
//! in `palisade_proto::codes`.

use core::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident, $name:literal, $meaning:literal;)*) => {
        /// The name of a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $code,)*
        }

        impl Code {
            /// Every code, once, in the order of their declaration.
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// Its name, on every wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Code::$code => $name,)*
                }
            }

            /// Its meaning, and what to do about it.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Code::$code => $meaning,)*
                }
            }

            /// The code with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Code> {
                match name {
                    $($name => Some(Code::$code),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Somebody else has the lock.
    Held, "held",
    "Somebody else has the lock, or the wait ended before it was free. `holder` says who and for how long; `retry_after_ms` is what is left of its lease.";
    /// The caller does not hold the lock.
    NotHeld, "not_held",
    "The caller does not hold this lock: the `lock_token` is unknown, belongs to another lock, or was released. 409 and not 404, because every name is a lock and the path is right; it is the state that does not fit.";
    /// The caller's lease ran out.
    Expired, "expired",
    "The lease ran out before the request was ordered. It is never revived: stop the work, and acquire again for a new, higher token.";
    /// An operator took the lock away.
    Revoked, "revoked",
    "An operator took the lock away (`palisade break`). Stop the work.";
    /// The same client acquired the lock again under another lease.
    Superseded, "superseded",
    "The same `client_id` acquired the lock again under a new lease, with a higher token: this is its former life. Stop the work.";
    /// The lock is held with another token than the one named.
    Stale, "stale",
    "Server: the lock is held with another fencing token than the one given; `highest` is the one it is held with. Fence: a newer holder, with the token `highest`, has been at this resource. Give up: stop the work.";
    /// The request was given up before.
    Abandoned, "abandoned",
    "This `request_id` was given up by its caller and never takes effect. Choose a new one.";
    /// The input was refused.
    Invalid, "invalid",
    "The request is malformed or out of range, or cannot be decoded at all. The message names the field and the range; nothing changed.";
    /// Understood, but this authority is not set up for it.
    Refused, "refused",
    "Well-formed, but this authority is not set up for it, for example advancing a clock without `--clock manual`. Nothing changed.";
    /// Too many requests wait already.
    QueueFull, "queue_full",
    "As many requests wait, for this lock or of this client, as may wait. Nothing changed.";
    /// The authority holds as many locks as it may.
    TooManyLocks, "too_many_locks",
    "The authority holds as many locks as its settings allow. Nothing changed.";
    /// The token range is used up.
    TokensExhausted, "tokens_exhausted",
    "The last fencing token is out (2^53 - 1). The authority never grants again; call an operator.";
    /// Nothing happened.
    Unavailable, "unavailable",
    "Nothing happened: the authority is stopping, or its disk is full.";
    /// It may have happened.
    UnknownOutcome, "unknown_outcome",
    "It may have happened. Repeat the request with the same `request_id`; a renew or release can simply be repeated.";
    /// No such path.
    NotFound, "not_found",
    "There is nothing at this path. A lock that nobody holds is not an error.";
    /// The path exists, with another method.
    MethodNotAllowed, "method_not_allowed",
    "The path exists, but not with this method; the `Allow` header lists what it takes.";
    /// The request took too long to arrive.
    RequestTimeout, "request_timeout",
    "The body did not arrive in time. Nothing changed.";
    /// The request is larger than allowed.
    TooLarge, "too_large",
    "The body, or the gRPC message, is larger than allowed. Nothing changed.";
    /// A body of another type than JSON.
    UnsupportedMediaType, "unsupported_media_type",
    "The body is declared as something other than JSON. No `Content-Type`, and the form type that curl sends by itself, are taken as JSON, except from a web page (a request with `Origin`). Nothing changed.";
    /// The request calls the server by a name that it does not go by.
    Misdirected, "misdirected",
    "The request calls the server by a name that it does not go by (`Host`, `:authority`). Use its address, or start it with `--allow-host NAME`; without this check a web page whose name points at the server could use it. Nothing changed.";
    /// A web page of another host wants to change something.
    CrossOrigin, "cross_origin",
    "A web page of another host (`Origin`) wants to change something. Start the server with `--allow-host NAME` if it should. Nothing changed.";
    /// A gRPC call over HTTP/1.1.
    HttpVersion, "http_version",
    "A gRPC call came over HTTP/1.1. Nothing changed.";
    /// A defect of the server.
    Internal, "internal",
    "A defect of the server. Please report it.";
    /// A late duplicate of a grant's own write, at a fence.
    SequenceStale, "sequence_stale",
    "Fence: a later write of this very grant was carried out; this one is a late duplicate. Nothing changed.";
    /// A second write of a grant, at a strict fence.
    AlreadyWritten, "already_written",
    "Fence with one write for each grant: something was written under this token, perhaps by an earlier attempt. Read before anything else. Nothing changed.";
    /// A sequence number of another write, at a fence.
    SequenceReused, "sequence_reused",
    "Fence: `sequence` was used for another write of this grant; `last` is the highest one used. Nothing changed.";
    /// A token of another authority, at a fence.
    WrongAuthority, "wrong_authority",
    "Fence: tokens of another authority count here, and the request names none or a different one. Tokens of two authorities are never compared. Nothing changed.";
    /// A token of another lock, at a fence.
    WrongLock, "wrong_lock",
    "Fence: tokens of another lock count here, and the request names none or a different one. Nothing changed.";
    /// A token too far above the highest, at a fence.
    Jump, "jump",
    "Fence: the token is farther above `highest` than an unsigned token is believed (`bound`, the flag `--max-jump`). If the lock server was restored several times since, call an operator. Nothing changed.";
    /// A write without a token, at a fence.
    Tokenless, "tokenless",
    "Fence: a write without a fencing token. Acquire the lock and send the token of the grant. Nothing changed.";
    /// Nothing to change, at a fence.
    Missing, "missing",
    "Fence: there is nothing to change. Nothing changed.";
    /// A fenced store is full.
    StorageFull, "storage_full",
    "Store: a limit of the store, or its disk, is full. Nothing changed.";
    /// A write that no route of a gateway maps.
    NoRoute, "no_route",
    "Gateway: no `--route` says which resource a write to this path changes, so it would not be fenced. Nothing was sent on.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
