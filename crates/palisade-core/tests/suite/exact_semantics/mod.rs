//! The authority's exact semantics (docs/promise/rules.md), one test for each line.
//!
//! | file | rules that it pins |
//! |---|---|
//! | `tokens` | the counter, grant order, the end of the range |
//! | `holding` | denials, the boundary of expiry, renew, release, taking back |
//! | `waiting` | queues: order, deadlines, requests that are skipped or leave |
//! | `ended_waits` | waits that end with their lease, or at the same instant as the grant ahead |
//! | `waiting_times` | how long a request waits at most |
//! | `repeats` | request ids, late messages, abandoned requests |
//! | `leases` | one lease with many grants |
//! | `bounds` | refusals: each is a value that changes nothing |
//! | `away` | restarts and stalls |
//! | `orphans` | a change of leader: which requests keep a place, and how long |
//! | `looking` | holder, view and page |
//! | `shared` | readers and writers |
//! | `upgrade` | mode update, and the writer that comes of it |
//! | `permits` | semaphores |
//! | `sets` | several locks at once |
//! | `take_over` | a waiting set and its own client's locks |
//! | `elections` | the value of a holder |
//! | `fences` | how resources check tokens |

mod away;
mod bounds;
mod delays;
mod elections;
mod ended_waits;
mod fences;
mod holding;
mod leases;
mod looking;
mod orphans;
mod permits;
mod principals;
mod repeats;
mod sets;
mod shared;
mod take_over;
mod tokens;
mod upgrade;
mod waiting;
mod waiting_times;
