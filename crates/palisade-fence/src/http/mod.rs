//! A fence in front of HTTP and gRPC services: a tower [`FenceLayer`], and what `palisade gateway` is
//! made of.
//!
//! ```text
//!   request ──► headers ──► resource ──► body ──► lane ──► marks ──► inner service ──► answer
//!               token,      a table or   read     one a    decide,    in a task of      read to its end, then
//!               sequence    a function   to its   resource make       its own           the lane is left
//!                                        end               durable
//! ```
//!
//! | request | what the fence does |
//! |---|---|
//! | GET, HEAD, OPTIONS without a token | nothing: an observer's read |
//! | the same with `X-Fencing-Token` | claims, then lets the read through (rules F2 and F3) |
//! | any other method with a token | claims and checks, then lets the write through |
//! | any other method without a token | 428 `tokenless`, always or once fenced: [`Tokenless`] |
//! | any method with `X-Fencing-Operation: claim` | claims and answers by itself |
//! | a path, a header, a query or a body that a service may read as another request | 400 `invalid`: [`Routes`] says which paths; also bodies of GET, HEAD and OPTIONS, overrides of the method or the address |
//! | TRACE, CONNECT | 405 `method_not_allowed` |
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
//! **Nobody waits for a client** (rule F12). The body of a write is read to its end before the write enters
//! the lane, within [`Policy::request_bytes`] and [`Policy::request_time`]. The answer is read at the
//! service's pace, and up to [`Policy::answer_bytes`] of it are kept for a client that does not read; a
//! client that goes away changes nothing, because all of it happens in a task of its own. After
//! [`Policy::flight`] a write is cut off, whatever it waits for.
//!
//! A write whose end is not seen (the service hung, broke off, panicked) stays in the lane for
//! [`Policy::settle`] more. So does one that a proxy before the service may have answered while the
//! service goes on:
//!
//! | status | the write |
//! |---|---|
//! | 408, 499, 502, 503, 504, 520 – 530 | may go on, unless [`Policy::answers_for_itself`] |
//! | every other, also 429 and 500 | has ended |
//!
//! **The promise then rests on that bound**: the service ends whatever it does for a request at most that
//! long after its connection was closed. The same holds after a crash of this process: [`Start::Unclean`]
//! lets nobody raise a mark for that long. A service that keeps a request longer, or answers first and takes
//! effect later (a queue, a job), is outside the promise; it must hand the token on and check it where the
//! effect is.
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
mod overrides;
mod policy;
mod problem;
mod relay;
mod route;
mod spelling;

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
pub use problem::{Problem, Refused};
pub use route::{BadRoute, Resources, Routes, Target};
