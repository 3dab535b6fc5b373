//! A fence in front of HTTP and gRPC services: a tower [`FenceLayer`], and what `palisade gateway` is
//! made of.
//!
//! ```text
//!   request ──► headers ──► resource ──► lane ──► marks ──► inner service ──► answer
//!               token,      a table or   one a    decide,    in a task of      the lane is left when
//!               sequence    a function   resource make       its own           the body has ended
//!                                                 durable
//! ```
//!
//! | request | what the fence does |
//! |---|---|
//! | GET, HEAD, OPTIONS, TRACE without a token | nothing: an observer's read |
//! | the same with `X-Fencing-Token` | claims, then lets the read through (rules F2 and F3) |
//! | any other method with a token | claims and checks, then lets the write through |
//! | any other method without a token | 428 `tokenless`, always or once fenced: [`Tokenless`] |
//! | any method with `X-Fencing-Operation: claim` | claims and answers by itself |
//!
//! The mark is on stable storage before the inner service sees the request.
//!
//! # What lies between check and effect
//!
//! Here they are not one step, as rule F1 wants: the effect is the inner service's. The gap is closed by
//! a lane a resource. A write stays in the lane until the inner service has answered it to the end of the
//! body. A request with a higher token waits for the lane to be empty, and only then raises the mark;
//! nothing else enters meanwhile. So **when a claim is answered, no older admitted write is under way**.
//! If that takes longer than [`Policy::wait`], it is answered `unavailable`: nothing was raised.
//!
//! A write whose end is not seen (the service hung, broke off, panicked; it answered 502 or 504) stays
//! in the lane for [`Policy::settle`] more. **The promise then rests on that bound**: the service ends
//! whatever it does for a request at most that long after its connection was closed. The same holds
//! after a crash of this process: [`Start::Unclean`] lets nobody raise a mark for that long. A service
//! that keeps a request longer, or answers first and takes effect later (a queue, a job), is outside the
//! promise; it must hand the token on and check it where the effect is.
//!
//! A client that goes away changes nothing of this: the inner service runs in a task of its own.
//!
//! The mark stands even if the service then refuses the write: with the strict rule (one write per grant)
//! that was the one.
//!
//! Reads are not waited for, they change nothing. Writes with a sequence number go one at a time, or
//! their order would not be that of their numbers. A repeated number is answered with the status
//! of the first answer and `X-Fencing-Repeat: true`, or with `unknown_outcome` when it is not known what
//! became of it; it never reaches the service twice.
//!
//! Sources: fencing tokens after Burrows 2006 ("The Chubby lock service"); waiting for the writes in
//! flight of the former owner after the lease recovery of HDFS and the ledger recovery of BookKeeper.

mod answer;
mod ask;
mod body;
mod counts;
mod fingerprint;
mod flight;
mod headers;
mod lane;
mod layer;
mod marks;
mod policy;
mod problem;
mod route;

pub use body::IdleBody;
pub use counts::Counts;
pub use flight::Outcome;
pub use headers::{
    AUTHORITY_HEADER, LOCK_HEADER, OPERATION_HEADER, REPEAT_HEADER, SEQUENCE_HEADER, TOKEN_HEADER,
    authority_header, token_header,
};
pub use layer::{FenceLayer, FenceService};
pub use marks::{Act, Marks};
pub use policy::{BadPolicy, Policy, Start, Tokenless};
pub use problem::Problem;
pub use route::{BadRoute, Resources, Routes, Target};
