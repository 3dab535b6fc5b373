//! The common part of the fences in SQL databases: which rows to lock, and what their content means. It is
//! independent of any database and driver.
//!
//! ```text
//!   claims ──► asked ──► the backend takes the rows ──► rule_on ──► Ruled: the rows from now on
//!              (name order)                             └ rejected: nothing is written
//! ```

mod column;
mod fault;
mod ruling;

pub(crate) use column::{bound, judge, valid_id, valid_name};
pub use fault::Fault;
pub use ruling::Strategy;
pub(crate) use ruling::{asked, recordable, rule_on};
