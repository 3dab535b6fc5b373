//! The lab: tools that try to break Palisade.
//!
//! Each module is a command of the binary with the same name.

pub mod attack;
pub mod chaos;
pub mod cluster;
pub mod decoders;
pub mod exhaust;
pub mod history;
pub mod sim;
