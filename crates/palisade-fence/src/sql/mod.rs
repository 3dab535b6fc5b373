//! What the fences in SQL databases share: what to ask the rows, and what the answers mean. Knows of no
//! database and of no driver.
//!
//! ```text
//!   claims ──► asked ──► the backend takes the rows ──► rule_on ──► Ruled: the rows from now on
//!              (name order)                             └ Refused: nothing is written
//! ```

mod column;
mod fault;
mod ruling;

pub(crate) use column::{admit, bound, valid_id, valid_name};
pub use fault::{Fault, Refused};
pub use ruling::{Entry, Strategy};
pub(crate) use ruling::{asked, recordable, rule_on};
