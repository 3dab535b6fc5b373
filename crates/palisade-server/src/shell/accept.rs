//! Accepts connections up to a bound, and shuts them down in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connection::Port;
use super::slots::{NoSlot, Slots};
use super::tls::Handshakes;
use super::{Caller, Error, Meters, Peer, Phase, Service, Settings, descriptors, socket};

/// A port's bounds, ready to serve.
#[derive(Debug)]
pub struct Shell {
    settings: Settings,
    slots: Arc<Slots>,
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
            slots: Slots::new(connections, per_address, Arc::clone(&meters)),
            settings,
            meters,
            phase: watch::Sender::new(Phase::Serving),
        })
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
    fn say_refused(&self, full: NoSlot, from: SocketAddr) {
        let refused = self.meters.refused.load(Relaxed);
        if !refused.is_power_of_two() {
            return;
        }
        let (most, flag) = match full {
            NoSlot::All(most) => (most, "--connections"),
            NoSlot::Address(most) => (most, "--connections-per-address"),
        };
        tracing::warn!(
            from = %from.ip(),
            refused,
            "a connection was refused: {most} are open, the most that {flag} allows"
        );
    }

    /// Serves until `shutdown`. Then the port is closed, requests in flight finish, and the rest is cut after
    /// [`Settings::drain_timeout`]. Returns whether everything finished without a cut.
    pub async fn serve<S: Service>(
        self,
        listener: TcpListener,
        service: Arc<S>,
        router: Router,
        shutdown: impl Future<Output = ()>,
    ) -> bool {
        if let Err(error) = socket::bound_unread(&listener, self.settings.unread_bytes) {
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
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    let slot = self.slots.take(address.ip());
                    match &slot {
                        Ok(_) => failing = false,
                        Err(full) => self.say_refused(*full, address),
                    }
                    // Without a slot it is closed at once: that client tries elsewhere, while one that hangs in the
                    // backlog does not.
                    if let Ok(slot) = slot
                        && ready(&stream, peer_timeout)
                    {
                        let caller = Caller::Anonymous;
                        let (port, peer) = (Arc::clone(&port), Peer { address, caller });
                        let handshakes = self.handshakes.clone();
                        tokio::spawn(async move {
                            match handshakes {
                                None => port.serve(stream, peer).await,
                                Some(handshakes) => port.serve_tls(handshakes, stream, peer).await,
                            }
                            drop(slot);
                        });
                    }
                }
                Err(error) => pause(&error, &mut failing).await,
            }
        }
        drop(listener);
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
fn ready(stream: &TcpStream, peer_timeout: Duration) -> bool {
    socket::prepare(stream, peer_timeout)
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
