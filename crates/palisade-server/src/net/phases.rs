//! Whether the server is shutting down.

use tokio::sync::watch;

use crate::shell::Phase;

/// The shell's phase, for work that must end before the shell cuts it.
#[derive(Clone)]
pub(super) struct Phases(watch::Receiver<Phase>);

impl Phases {
    pub(super) fn new(phase: watch::Receiver<Phase>) -> Phases {
        Phases(phase)
    }

    /// Waits until the server shuts down.
    pub(super) fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        self.until(|phase| *phase != Phase::Serving)
    }

    /// Waits until the shell cuts the connections that are still open.
    pub(super) fn cutting(&self) -> impl Future<Output = ()> + Send + 'static {
        self.until(|phase| *phase == Phase::Cutting)
    }

    fn until(&self, is_there: fn(&Phase) -> bool) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.0.clone();
        async move {
            // An error means that the server is gone.
            let _ = phase.wait_for(is_there).await;
        }
    }
}
