//! Another system's server as an authority.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use palisade_testbed::Instance;

use crate::chaos::server::Victim;

/// A server of the test bed.
pub(super) struct Foreign<S> {
    server: S,
    url: String,
}

impl<S: Deref<Target = Instance>> Foreign<S> {
    /// Starts it.
    ///
    /// # Errors A program that is not installed or does not start.
    pub(super) fn start(
        start: impl FnOnce() -> S,
        url: impl FnOnce(&S) -> String,
    ) -> Result<Foreign<S>, String> {
        let server = guarded(start)?;
        let url = url(&server);
        Ok(Foreign { server, url })
    }
}

impl<S: Deref<Target = Instance> + Send + Sync> Victim for Foreign<S> {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn pause(&self) {
        self.server.pause();
    }

    fn resume(&self) {
        self.server.resume();
    }

    fn kill(&self) {
        self.server.kill();
    }

    fn lives(&self) -> bool {
        true
    }

    fn start_again(&self) -> Result<(), String> {
        guarded(|| self.server.start_again())
    }
}

/// Catches a panic of the test bed, which contains the reason.
fn guarded<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.unwrap_or_else(|| "a server of the test bed failed".to_owned())
    })
}

/// The output of a command.
pub(super) fn says(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
