//! A fence in front of HTTP and gRPC services: a tower [`FenceLayer`], which `palisade gateway` uses too.
//!
//! ```text
//!   request ──► headers ──► resource ──► body ──► lane ──► marks ──► inner service ──► answer
//!               token,      a table or   read     one per  decide,    in a task of      read to its end, then
//!               sequence    a function   to its   resource make       its own           the lane is left
//!                                        end               durable
//! ```
//!
//! | request | the fence |
//! |---|---|
//! | GET, HEAD, OPTIONS without a token | nothing: an observer's read |
//! | the same with `X-Fencing-Token` | claims, then lets the read through (rules F2 and F3) |
//! | any other method with a token | claims and checks, then lets the write through |
//! | any of these with `X-Fencing-Sequencer` | checks the signature first; see [`sequencer`](crate::sequencer) |
//! | any other method without a token | 428 `tokenless`, always or once fenced: [`Tokenless`] |
//! | any method with `X-Fencing-Operation: claim` | claims, and answers without the service |
//! | a path, a header, a query or a body that a service may read as another request | 400 `invalid`: ambiguous paths (see [`Routes`]), bodies of GET, HEAD and OPTIONS, overrides of the method or the address |
//! | TRACE, CONNECT | 405 `method_not_allowed` |
//!
//! The mark is on stable storage before the inner service gets the request.
//!
//! # Between check and effect
//!
//! Check and effect are not one step here, as rule F1 would require, because the inner service performs the effect. A
//! lane for each resource, which holds its writes in progress, closes the gap. A write stays in the lane until the
//! inner service has sent the whole answer. A request with a higher token waits until the lane is empty, and only then
//! raises the mark; nothing else enters meanwhile. So **when a claim is answered, no older admitted write is in
//! progress**. After [`Policy::wait`] the request is answered `unavailable`, and nothing was raised.
//!
//! **No request waits for another request's client** (rule F12). The body of a write is read to its end before the
//! write enters the lane, within [`Policy::request_bytes`] and [`Policy::request_time`]. The answer is read at the
//! service's pace, and up to [`Policy::answer_bytes`] of it are buffered for a client that does not read. If the client
//! disconnects, the write continues in its own task. After [`Policy::flight`] a write is always cut off.
//!
//! If the end of a write is not seen (the service hung, disconnected or panicked), the write stays in the lane
//! for another [`Policy::settle`]. The same is true if a proxy in front of the service may have answered while
//! the service continues:
//!
//! | status | the write |
//! |---|---|
//! | 408, 499, 502, 503, 504, 520 – 530 | may continue, unless [`Policy::answers_for_itself`] |
//! | every other, including 429 and 500 | has ended |
//!
//! **The promise then depends on that bound**: the service must end all work for a request within that time
//! after the connection was closed. The same bound applies after a crash of this process: with
//! [`LastRun::Unclean`] no mark is raised for that long. A service that works on a request for longer, or answers
//! before the effect (a queue, a job), is outside the promise; it must pass the token on and check it where the
//! effect happens.
//!
//! The mark stays even if the service then refuses the write: under the strict rule that was the grant's one
//! write.
//!
//! Nothing waits for reads, because they change nothing. Writes with a sequence number run one at a time, so
//! that their order is the order of their numbers. A repeated number is answered with the status of the first
//! answer and `X-Fencing-Repeat: true`, or with `unknown_outcome` if the outcome is not known; it never reaches
//! the service twice.
//!
//! Sources: fencing tokens, Burrows 2006 ("The Chubby lock service"); waiting for the previous owner's writes
//! in flight, the lease recovery of HDFS and the ledger recovery of BookKeeper.

mod answer;
mod body;
mod counts;
mod fenced_request;
mod fingerprint;
mod flight;
mod headers;
mod lane;
mod layer;
mod marks;
mod outcome;
mod overrides;
mod policy;
mod problem;
mod relay;
mod route;
mod spelling;

pub use body::IdleBody;
pub use counts::Counts;
pub use headers::{
    AUTHORITY_HEADER, LOCK_HEADER, OPERATION_HEADER, REPEAT_HEADER, SEQUENCE_HEADER, TOKEN_HEADER,
    authority_header, sequencer_header, token_header,
};
pub use layer::{FenceLayer, FenceService};
pub use marks::{Marks, RequestEffect};
pub use outcome::UpstreamOutcome;
pub use policy::{BadPolicy, LastRun, Policy, Tokenless};
pub use problem::{Problem, UnjudgedRefusal};
pub use route::{BadRoute, Resources, Routes, Target};
