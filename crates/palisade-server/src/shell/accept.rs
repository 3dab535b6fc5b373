//! Accepts connections, up to a bound, and ends them in order.

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
use super::places::{Full, Places};
use super::{Caller, Error, Meters, Peer, Phase, Service, Settings, descriptors, socket};

/// A port's bounds, ready to serve.
#[derive(Debug)]
pub struct Shell {
    settings: Settings,
    places: Arc<Places>,
    meters: Arc<Meters>,
    phase: watch::Sender<Phase>,
}

impl Shell {
    /// Checks the settings, raises the process's limit of open files to the hard one, and counts how many
    /// connections fit. Call it when everything else that stays open is open.
    ///
    /// # Errors
    /// [`Error`]; nothing is served then.
    pub fn new(settings: Settings) -> Result<Shell, Error> {
        settings.check()?;
        let connections = descriptors::connections(&settings)?;
        let meters = Arc::new(Meters::default());
        let per_address = settings.connections_per_address;
        Ok(Shell {
            places: Places::new(connections, per_address, Arc::clone(&meters)),
            settings,
            meters,
            phase: watch::Sender::new(Phase::Serving),
        })
    }

    /// Connections that are taken at the same time, by the settings and the limit of open files.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.places.most
    }

    /// Where the server is in its life, as it goes on.
    #[must_use]
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Its counters.
    #[must_use]
    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }

    /// Says that a connection was refused: the first, the second, the fourth and so on, so that a flood of them
    /// does not fill the log.
    fn say_refused(&self, full: Full, from: SocketAddr) {
        let refused = self.meters.refused.load(Relaxed);
        if !refused.is_power_of_two() {
            return;
        }
        let (most, flag) = match full {
            Full::All(most) => (most, "--connections"),
            Full::Address(most) => (most, "--connections-per-address"),
        };
        tracing::warn!(
            from = %from.ip(),
            refused,
            "a connection was refused: {most} are open, which is as many as {flag} allows"
        );
    }

    /// Serves until `shutdown`. Then the port is closed, requests in flight finish, and what is left after
    /// [`Settings::drain_timeout`] is cut. Returns whether nothing had to be cut.
    pub async fn serve<S: Service>(
        self,
        listener: TcpListener,
        service: Arc<S>,
        router: Router,
        shutdown: impl Future<Output = ()>,
    ) -> bool {
        if let Err(error) = socket::bound_unread(&listener, self.settings.unread_bytes) {
            tracing::warn!(%error, "what peers leave unread is bounded by the system alone");
        }
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
                    let place = self.places.take(address.ip());
                    match &place {
                        Ok(_) => failing = false,
                        Err(full) => self.say_refused(*full, address),
                    }
                    // Without a place it is closed at once: a client that is told so tries elsewhere, one
                    // that hangs in the backlog does not.
                    if let Ok(place) = place
                        && ready(&stream, peer_timeout)
                    {
                        let caller = Caller::Anonymous;
                        let serving = Arc::clone(&port).serve(stream, Peer { address, caller });
                        tokio::spawn(async move {
                            serving.await;
                            drop(place);
                        });
                    }
                }
                Err(error) => pause(&error, &mut failing).await,
            }
        }
        drop(listener);
        drop(port);
        let mut all_free = pin!(self.places.all_free());
        self.phase.send_replace(Phase::Draining);
        let drained = tokio::time::timeout(drain_timeout, &mut all_free).await;
        if drained.is_err() {
            self.phase.send_replace(Phase::Cutting);
            all_free.await;
        }
        drained.is_ok()
    }
}

/// Sets a socket up; `false` if its peer is gone already.
fn ready(stream: &TcpStream, peer_timeout: Duration) -> bool {
    socket::prepare(stream, peer_timeout)
        .inspect_err(|error| tracing::debug!(%error, "a connection was gone at once"))
        .is_ok()
}

/// Accepting fails for one connection (it is gone already) or for want of file descriptors or memory. Neither
/// ends the server; the pause keeps the second from turning into a busy loop. `failing` keeps the log short.
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
