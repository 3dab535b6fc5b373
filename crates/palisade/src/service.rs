//! A server and its supervisor: the signals that stop it or reload its files, and the notifications to systemd
//! (`Type=notify`, `WatchdogSec=`).

use std::time::Duration;

use palisade_pipeline::{Handle, Request};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

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
        let _ = tokio::time::timeout(PATIENCE, tell(NotifyState::Stopping)).await;
    })
}

/// This server takes requests in from now on.
pub(crate) fn ready() {
    drop(tell(NotifyState::Ready));
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
            let _ = tell(NotifyState::Watchdog).await;
            tokio::time::sleep(within / 2).await;
        }
    });
}

/// How long a server that stops waits until its manager knows.
const PATIENCE: Duration = Duration::from_millis(100);

/// Does nothing where no service manager listens. A manager that does not read blocks the call for ever, so it runs on its
/// own thread; the receiver ends when the manager was notified.
fn tell(state: NotifyState<'static>) -> oneshot::Receiver<()> {
    let (told, done) = oneshot::channel();
    let telling = std::thread::Builder::new().name("sd_notify".into());
    let spawned = telling.spawn(move || {
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::warn!(%error, "the service manager cannot be told");
        }
        let _ = told.send(());
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "the service manager cannot be told");
    }
    done
}
