//! The lab: where a sceptical expert comes to break Palisade.
//!
//! Each part is a module and a command of the binary of the same name.

pub mod attack;
pub mod chaos;
pub mod decoders;
pub mod exhaust;
pub mod history;
pub mod sim;
