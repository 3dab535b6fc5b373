//! A server and who runs it: the signals that stop it or have it read its files again, and what systemd is told
//! (`Type=notify`, `WatchdogSec=`).

use palisade_server::pipeline::{Handle, Request};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

/// Completes at SIGTERM or SIGINT. From now on SIGHUP ends the server no longer: it has the certificates and the access file
/// read again, where there are any, and the settings compared with those at the start.
///
/// # Errors
/// If the operating system does not let this process handle them.
pub(crate) fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(crate::cli::compare_settings(signal(SignalKind::hangup())?));
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: no new requests, finishing those in flight");
        tell(NotifyState::Stopping);
    })
}

/// This server takes requests in from now on.
pub(crate) fn ready() {
    tell(NotifyState::Ready);
}

/// Says at half of each watchdog time that the ordering thread answers. Where it does not, systemd restarts the server.
pub(crate) fn watch_over(handle: &Handle) {
    let Some(within) = sd_notify::watchdog_enabled() else {
        return;
    };
    let handle = handle.clone();
    tokio::spawn(async move {
        loop {
            // A refusal is an answer, too: a follower refuses, and so does a server whose disk is full.
            let _ = handle.call(Request::Status).await;
            tell(NotifyState::Watchdog);
            tokio::time::sleep(within / 2).await;
        }
    });
}

/// Does nothing where no service manager listens.
fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
