//! Accepts connections up to a bound, and shuts them down in order.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use tokio::sync::watch;

use super::connection::Port;
use super::error::Error;
use super::listen::Accepted;
use super::slots::{ConnectionSlots, NoSlot};
use super::state::{Meters, Phase};
use super::tls::Handshakes;
use super::{Listeners, Origin, Peer, Service, Settings, descriptors, socket};

/// A port's bounds, ready to serve.
#[derive(Debug)]
pub struct Shell {
    settings: Settings,
    slots: Arc<ConnectionSlots>,
    /// `None` without TLS.
    handshakes: Option<Arc<Handshakes>>,
    meters: Arc<Meters>,
    phase: watch::Sender<Phase>,
}

impl Shell {
    /// Checks the settings, raises the process's soft limit of open files to the hard one, and computes how many
    /// connections fit. Call it after all other long-lived files are open.
    ///
    /// # Errors
    /// [`Error`]; nothing is served then.
    pub fn new(settings: Settings) -> Result<Shell, Error> {
        settings.check()?;
        let connections = descriptors::connections(&settings)?;
        let meters = Arc::new(Meters::default());
        let per_address = settings.connections_per_address;
        let handshakes = Handshakes::new(&settings, &meters)?;
        Ok(Shell {
            handshakes: handshakes.map(Arc::new),
            slots: ConnectionSlots::new(connections, per_address, Arc::clone(&meters)),
            settings,
            meters,
            phase: watch::Sender::new(Phase::Serving),
        })
    }

    /// Makes the checks of [`Shell::new`] before a server begins anything permanent.
    ///
    /// # Errors
    /// As [`Shell::new`].
    pub fn check(settings: &Settings) -> Result<(), Error> {
        settings.check()?;
        descriptors::check(settings)?;
        Handshakes::new(settings, &Arc::default()).map(drop)
    }

    /// How many connections are accepted at the same time, given the settings and the limit of open files.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.slots.most
    }

    /// The server's phase, as it changes.
    #[must_use]
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Its counters.
    #[must_use]
    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }

    /// Logs that a connection was refused: the first, the second, the fourth and so on, so that a flood does not fill
    /// the log.
    fn say_refused(&self, full: NoSlot, from: Origin) {
        let refused = self.meters.refused.load(Relaxed);
        if !refused.is_power_of_two() {
            return;
        }
        let (most, flag) = match full {
            NoSlot::All(most) => (most, "--connections"),
            NoSlot::Address(most) => (most, "--connections-per-address"),
        };
        tracing::warn!(
            %from,
            refused,
            "a connection was refused: {most} are open, the most that {flag} allows"
        );
    }

    /// Serves until `shutdown`. Then the ports are closed, requests in flight finish, and the rest is cut after
    /// [`Settings::drain_timeout`]. Returns whether everything finished without a cut.
    pub async fn serve<S: Service>(
        self,
        listeners: impl Into<Listeners>,
        service: Arc<S>,
        router: Router,
        shutdown: impl Future<Output = ()>,
    ) -> bool {
        let listeners = listeners.into();
        let unread_bytes = self.settings.unread_bytes;
        if let Err(error) = listeners.bound_unread(unread_bytes) {
            tracing::warn!(%error, "cannot bound what peers leave unread; only the system's own limit applies");
        }
        let reloading = self.handshakes.clone().map(|handshakes| {
            let phase = self.phase();
            tokio::spawn(async move { handshakes.keep_reloading(phase).await })
        });
        let drain_timeout = self.settings.drain_timeout;
        let peer_timeout = self.settings.peer_timeout;
        let (meters, phase) = (self.meters(), self.phase());
        let settings = self.settings.clone();
        let port = Arc::new(Port::new(service, router, settings, meters, phase));
        let mut shutdown = pin!(shutdown);
        let (mut failing, mut turn) = (false, 0);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = listeners.accept(&mut turn) => accepted,
            };
            match accepted {
                Ok((stream, origin)) => {
                    let slot = self.slots.take(origin);
                    match &slot {
                        Ok(_) => failing = false,
                        Err(full) => self.say_refused(*full, origin),
                    }
                    // Without a slot it is closed at once: that client tries elsewhere, while one that hangs in the
                    // backlog does not.
                    if let Ok(slot) = slot
                        && ready(&stream, peer_timeout, unread_bytes)
                    {
                        let (port, peer) = (Arc::clone(&port), Peer::new(origin));
                        let handshakes = self.handshakes.clone();
                        tokio::spawn(async move {
                            match (stream, handshakes) {
                                (Accepted::Unix(stream), _) => port.serve(stream, peer).await,
                                (Accepted::Tcp(stream), None) => port.serve(stream, peer).await,
                                (Accepted::Tcp(stream), Some(handshakes)) => {
                                    port.serve_tls(handshakes, stream, peer).await;
                                }
                            }
                            drop(slot);
                        });
                    }
                }
                Err(error) => pause(&error, &mut failing).await,
            }
        }
        drop(listeners);
        drop(port);
        if let Some(reloading) = reloading {
            reloading.abort();
        }
        let mut all_free = pin!(self.slots.all_free());
        self.phase.send_replace(Phase::Draining);
        let drained = tokio::time::timeout(drain_timeout, &mut all_free).await;
        if drained.is_err() {
            self.phase.send_replace(Phase::Cutting);
            all_free.await;
        }
        drained.is_ok()
    }
}

/// Configures a socket; `false` if its peer is already gone.
fn ready(stream: &Accepted, peer_timeout: Duration, unread_bytes: usize) -> bool {
    let prepared = match stream {
        Accepted::Tcp(stream) => socket::prepare(stream, peer_timeout),
        Accepted::Unix(stream) => socket::bound_unread(stream, unread_bytes),
    };
    prepared
        .inspect_err(|error| tracing::debug!(%error, "a connection was gone before it was served"))
        .is_ok()
}

/// Accepting fails for a single connection (already gone) or for lack of descriptors or memory. Neither ends the
/// server; the pause prevents a busy loop in the second case. `failing` keeps the log short.
async fn pause(error: &io::Error, failing: &mut bool) {
    if matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    ) {
        return;
    }
    if !std::mem::replace(failing, true) {
        tracing::warn!(%error, "no connection can be accepted; trying again every 50 ms");
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::socket_send_buffer_size;
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn unread_bytes_are_bounded_on_a_unix_socket_too() {
        let (stream, _peer) = UnixStream::pair().unwrap();
        let usual = socket_send_buffer_size(&stream).unwrap();
        let stream = Accepted::Unix(stream);
        assert!(ready(&stream, Duration::from_secs(25), 20_000));
        let Accepted::Unix(stream) = stream else {
            return;
        };
        let most = socket_send_buffer_size(&stream).unwrap();
        assert!((20_000..=40_000).contains(&most), "{most}, {usual} before");
    }
}
