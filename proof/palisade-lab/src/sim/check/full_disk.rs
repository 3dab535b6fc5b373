//! A full disk (A3): requests are refused before they are applied, so the log never gets more than it has room for, and
//! the authority continues.

use super::rule::{self, Check};
use crate::sim::fact::Fact;

/// See the module.
#[derive(Default)]
pub(crate) struct FullDisk;

impl Check for FullDisk {
    fn name(&self) -> &'static str {
        rule::FULL_DISK
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::LogFailed { full: true } => {
                Err("the authority stopped because its disk was full".into())
            }
            _ => Ok(()),
        }
    }
}
