//! The one table of codes, which name every refusal.
//!
//! Codes are divided by what the receiver does next. A name never changes. `palisade_proto::codes` maps codes to HTTP
//! and gRPC.

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

            /// Returns its name in every protocol.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Code::$code => $name,)*
                }
            }

            /// Returns its meaning, and the next step for the receiver.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Code::$code => $meaning,)*
                }
            }

            /// Returns the code with this name.
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
    /// Another client holds the lock.
    Held, "held",
    "Another client has the lock, or the wait ended before the lock was free. `holder` names the client and its remaining time; `retry_after_ms` is the rest of its lease.";
    /// The lock is closed for a time after its last grant.
    Delayed, "delayed",
    "Nobody has the lock, and nobody is granted it yet: its last grant asked for `lock_delay_ms` and expired or was revoked, or it asked for `at_least_for_ms`. `retry_after_ms` is how long that still lasts; `highest` is the token of the last grant.";
    /// The caller does not hold the lock.
    NotHeld, "not_held",
    "The caller does not hold this lock: the `lock_token` is unknown, belongs to another lock, or was released. The status is 409, not 404, because every name is a lock: the path is right, only the state does not match.";
    /// The caller's lease expired.
    Expired, "expired",
    "The lease ran out before the request was ordered. It is never revived: stop the work, and acquire the lock again, with a new, higher token.";
    /// An operator revoked the grant.
    Revoked, "revoked",
    "An operator revoked the grant (`palisade break`). Stop the work.";
    /// The same client acquired the lock again under another lease.
    Superseded, "superseded",
    "The same `client_id` acquired the lock again under a new lease, with a higher token. This is its earlier grant: stop the work.";
    /// The lock is held with another token than the named one.
    Stale, "stale",
    "Server: the lock is held with another fencing token than the given one; `highest` is the current one. Fence: a newer holder, with the token `highest`, has claimed this resource. Stop the work.";
    /// The caller abandoned the request earlier.
    Abandoned, "abandoned",
    "The caller gave this `request_id` up, and it never takes effect. Choose a new one.";
    /// The input was refused.
    Invalid, "invalid",
    "The request is malformed, out of range, or cannot be decoded. The message names the field and the range. Nothing changed.";
    /// The request is valid, but this authority is not configured for it.
    Refused, "refused",
    "The request is well-formed, but this authority is not configured for it: for example, advancing a clock without `--clock manual`. Nothing changed.";
    /// Too many requests are waiting.
    QueueFull, "queue_full",
    "The queue for this lock, or for this client, is full. Nothing changed.";
    /// The authority's settings allow no more held locks.
    TooManyLocks, "too_many_locks",
    "The authority has as many locks as its settings allow. Nothing changed.";
    /// A quota of the access file is used up.
    OverQuota, "over_quota",
    "A quota of the operator is used up; the message names the bound, whose it is, and its value. For a rate, `retry_after_ms` says when the next request fits. Nothing changed.";
    /// The token range is used up.
    TokensExhausted, "tokens_exhausted",
    "The last fencing token (2^53 - 1) was issued. The authority never grants again; call an operator.";
    /// Nothing happened.
    Unavailable, "unavailable",
    "Nothing happened: the authority is stopping, or its disk is full.";
    /// Another node of the cluster leads, or none does.
    NotLeader, "not_leader",
    "Another node of the cluster leads, or none does at this moment. Nothing happened. `leader` is its address, if it is known.";
    /// It may have happened.
    UnknownOutcome, "unknown_outcome",
    "It may have happened. Repeat the request with the same `request_id`; a renew or release can simply be repeated.";
    /// The request has no valid credentials.
    Unauthenticated, "unauthenticated",
    "This server has rules, and nothing shows who is asking: send a token (`Authorization: Bearer pal_…`) or connect with a client certificate. Also a token that is malformed, unknown or revoked. Nothing changed.";
    /// No access rule allows it.
    Forbidden, "forbidden",
    "No rule grants this; the message names the principal, the verb and the lock or prefix, and `palisade auth can` explains a decision. Or the `lock_token` is of another principal's lease. Nothing changed.";
    /// No such path.
    NotFound, "not_found",
    "This path does not exist. (A lock without a holder is not an error.)";
    /// The path exists, with another method.
    MethodNotAllowed, "method_not_allowed",
    "The path exists, but not with this method; the `Allow` header lists the allowed methods.";
    /// The request took too long to arrive.
    RequestTimeout, "request_timeout",
    "The body did not arrive in time. Nothing changed.";
    /// The request is larger than allowed.
    TooLarge, "too_large",
    "The body or the gRPC message is larger than allowed. Nothing changed.";
    /// The body is not JSON.
    UnsupportedMediaType, "unsupported_media_type",
    "The body's type is not JSON. A body without `Content-Type`, or with the form type that curl sends by default, is read as JSON, except from a web page (a request with `Origin`). Nothing changed.";
    /// The request addresses the server by a name that is not its own.
    Misdirected, "misdirected",
    "The request addresses the server by a name that is not one of its own (`Host`, `:authority`). Use its address, or start it with `--allow-host NAME`; without this check, a web page whose host name resolves to the server could use it. Nothing changed.";
    /// A web page of another host requests a change.
    CrossOrigin, "cross_origin",
    "A web page of another host (`Origin`) requested a change. To allow it, start the server with `--allow-host NAME`. Nothing changed.";
    /// A gRPC call over HTTP/1.1.
    HttpVersion, "http_version",
    "A gRPC call used HTTP/1.1. Nothing changed.";
    /// A defect of the server.
    Internal, "internal",
    "A defect of the server. Please report it.";
    /// A late duplicate of a grant's own write, at a fence.
    SequenceStale, "sequence_stale",
    "Fence: a later write of this grant was already carried out; this one is a late duplicate. Nothing changed.";
    /// A second write of a grant, at a strict fence.
    AlreadyWritten, "already_written",
    "Fence with one write for each grant: there was already a write under this token, perhaps an earlier attempt of this one. Read before you do anything else. Nothing changed.";
    /// A sequence number of another write, at a fence.
    SequenceReused, "sequence_reused",
    "Fence: `sequence` was used for another write of this grant; `last` is the highest one used. Nothing changed.";
    /// A token of another authority, at a fence.
    WrongAuthority, "wrong_authority",
    "Fence: the resource is bound to another authority than the request names, or the request names none. Tokens of two authorities are never compared. Nothing changed.";
    /// A token of another lock, at a fence.
    WrongLock, "wrong_lock",
    "Fence: the resource is bound to another lock than the request names, or the request names none, or its sequencer is for another lock or slot. Nothing changed.";
    /// An unverified token too far above the highest, at a fence.
    Jump, "jump",
    "Fence: the token is more than `bound` (`--max-jump`) above `highest`. If the lock server was restored several times since the last claim, call an operator. Nothing changed.";
    /// A write without a token, at a fence.
    Tokenless, "tokenless",
    "Fence: a write without a fencing token. Acquire the lock and send the token of the grant. Nothing changed.";
    /// Nothing to change, at a fence.
    Missing, "missing",
    "Fence: there is nothing to change. Nothing changed.";
    /// A fenced store is full.
    StorageFull, "storage_full",
    "Store: the store has reached a limit, or its disk is full. Nothing changed.";
    /// A write that no route of a gateway maps.
    NoRoute, "no_route",
    "Gateway: no `--route` maps this path to a resource, so the write would not be fenced. Nothing was forwarded.";
    /// A sequencer that failed verification, at a fence.
    BadSequencer, "bad_sequencer",
    "Fence: the signed sequencer is not valid here: it is malformed, has another algorithm than `EdDSA`, names a key that the fence does not know, its signature is wrong, or it is a reader's and the request writes. The message says which. Nothing changed.";
    /// A bare token where a signed one is required.
    Unsigned, "unsigned",
    "Fence: it was started with `--require-signed`, and the request has a bare fencing token. Ask the authority for a sequencer and send it. Nothing changed.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
