//! TLS between accepting a connection and serving it: handshakes, bounded in time and in number, and reloads.
//!
//! A handshake runs in its connection's task on the network threads, never on the pipeline's.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use palisade_pipeline::clock::wall;
use palisade_tls::{Accepted, PORT, Reloaded, Server, explain_to};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout};

use super::error::Error;
use super::slots::{ConnectionSlot, ConnectionSlots};
use super::state::{Meters, Phase};
use super::{Lifetime, Origin, Settings, Transport};

/// The handshakes of a port.
#[derive(Debug)]
pub(super) struct Handshakes {
    server: Server,
    /// Those in progress.
    slots: Arc<ConnectionSlots>,
    limit: Duration,
    meters: Arc<Meters>,
    shown: Mutex<Vec<ShownCertificate>>,
}

/// The certificate of an open connection, and which files let it in.
#[derive(Debug)]
struct ShownCertificate {
    lifetime: Weak<Lifetime>,
    generation: u64,
}

/// How a connection opened.
pub(super) enum OpenedConnection {
    /// With TLS, by the files of this generation.
    Ready(Box<Accepted<TcpStream>>, u64),
    /// Without; the first byte, which is not read yet.
    PlainText(TcpStream, u8),
    /// Not at all.
    Failed,
}

impl Handshakes {
    /// `None` for a port without TLS.
    pub(super) fn new(
        settings: &Settings,
        meters: &Arc<Meters>,
    ) -> Result<Option<Handshakes>, Error> {
        let Some(files) = settings.tls.clone() else {
            return Ok(None);
        };
        let most = settings.handshakes;
        let server = Server::new(files, settings.http2)?;
        show_ends(&server, meters);
        Ok(Some(Handshakes {
            server,
            // Their counters are not those of connections.
            slots: ConnectionSlots::new(most, None, Arc::default()),
            limit: settings.handshake_timeout,
            meters: Arc::clone(meters),
            shown: Mutex::default(),
        }))
    }

    /// Opens a connection that was accepted.
    pub(super) async fn open(&self, stream: TcpStream, from: Origin) -> OpenedConnection {
        match timeout(self.limit, self.handshake(stream, from)).await {
            Ok(opened) => opened,
            Err(_) => {
                self.failed(from, "it took too long");
                OpenedConnection::Failed
            }
        }
    }

    async fn handshake(&self, stream: TcpStream, from: Origin) -> OpenedConnection {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1) if first[0] == palisade_tls::FIRST_BYTE => {}
            Ok(1) => return OpenedConnection::PlainText(stream, first[0]),
            Ok(_) | Err(_) => return OpenedConnection::Failed,
        }
        let slot = self.slot(from).await;
        // Read before the handshake, which may already be by newer files: then it is looked at once more.
        let generation = self.server.generation();
        match self.server.accept(stream).await {
            Ok(stream) => OpenedConnection::Ready(Box::new(stream), generation),
            Err((error, mut stream)) => {
                drop(slot);
                let why = explain_to(&error, &PORT);
                self.failed(from, &why.unwrap_or(error.to_string()));
                let _ = timeout(FAREWELL, farewell(&mut stream, &[])).await;
                OpenedConnection::Failed
            }
        }
    }

    /// Waits for a turn. Only an address with half of all handshakes, or a full port, waits.
    async fn slot(&self, from: Origin) -> ConnectionSlot {
        loop {
            match self.slots.take(from) {
                Ok(slot) => return slot,
                Err(_) => sleep(TURN).await,
            }
        }
    }

    /// Logs the first failure, the second, the fourth and so on, so that a flood does not fill the log.
    fn failed(&self, from: Origin, why: &str) {
        let failed = self.meters.handshakes_failed.fetch_add(1, Relaxed) + 1;
        if failed.is_power_of_two() {
            tracing::warn!(%from, failed, "a TLS handshake failed: {why}");
        }
    }

    /// From now on, a certificate ends when it would be refused.
    pub(super) fn watch(&self, lifetime: &Arc<Lifetime>, generation: u64) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.len() == shown.capacity() {
            shown.retain(|shown| shown.lifetime.strong_count() > 0);
        }
        shown.push(ShownCertificate {
            lifetime: Arc::downgrade(lifetime),
            generation,
        });
    }

    /// Ends the certificates of open connections that would be refused now.
    async fn look_again(&self) {
        let generation = self.server.generation();
        let mut due = Vec::new();
        for shown in &mut *self.shown.lock().unwrap_or_else(PoisonError::into_inner) {
            if shown.generation != generation {
                shown.generation = generation;
                due.extend(shown.lifetime.upgrade());
            }
        }
        let mut refused = 0_u32;
        for lifetime in due {
            let now = wall();
            let admitted = lifetime.certificate().is_none_or(|certificate| {
                lifetime.remaining(now).is_zero()
                    || self.server.would_admit(certificate, now.0 / 1_000)
            });
            if !admitted {
                lifetime.refuse();
                refused += 1;
            }
            // One takes a signature's time, and there may be as many as connections.
            tokio::task::yield_now().await;
        }
        if refused > 0 {
            tracing::warn!(
                connections = refused,
                "open connections take no new requests: their certificates would be refused now"
            );
        }
    }

    /// Reloads certificates until the server stops, and says when the one in force is out of date: at the start, after a
    /// reload, or once its time is over.
    pub(super) async fn keep_reloading(&self, mut phase: watch::Receiver<Phase>) {
        let show = async {
            let mut look = interval(LOOK);
            let mut said = None;
            loop {
                look.tick().await;
                let now = wall().0 / 1_000;
                let wrong = self.server.out_of_date(now);
                let wrong = wrong.map(|why| (self.server.generation(), why));
                // Once for each certificate.
                if let Some((_, why)) = wrong.as_ref().filter(|_| wrong != said) {
                    tracing::warn!("{why}");
                }
                said = wrong;
                show_ends(&self.server, &self.meters);
                self.look_again().await;
            }
        };
        tokio::select! {
            () = keep_reloading(&self.server) => {}
            () = show => {}
            // An error means that the server is gone.
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => {}
        }
    }
}

fn show_ends(server: &Server, meters: &Meters) {
    let ends = server.ends();
    for (meter, end) in [
        (&meters.certificate_expires, ends.certificate),
        (&meters.client_ca_expires, ends.client_ca),
        (&meters.client_crl_expires, ends.client_crl),
    ] {
        meter.store(end.unwrap_or(0), Relaxed);
    }
}

/// Takes new certificates at SIGHUP, and when the files have changed. Does not end, unless signals cannot be received.
pub async fn keep_reloading(server: &Server) {
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => {
            tracing::warn!(%error, "certificates are not reloaded: SIGHUP cannot be received");
            return;
        }
    };
    let mut look = interval(LOOK);
    let certificate = server.certificate().display();
    loop {
        let reloaded = tokio::select! {
            _ = hangup.recv() => server.reload(),
            _ = look.tick() => server.reload_if_changed(),
        };
        match reloaded {
            Ok(Reloaded::Unchanged) => {}
            Ok(Reloaded::Taken) => {
                tracing::info!(%certificate, "new certificates are in force for new connections");
            }
            Err(error) => tracing::error!(
                "new certificates were refused, and the old ones stay in force: {error}"
            ),
        }
    }
}

/// Sends the last bytes and reads what the peer still sends: closing with unread bytes would discard the last bytes that
/// were sent.
pub(crate) async fn farewell(stream: &mut impl Transport, last: &[u8]) -> io::Result<()> {
    stream.write_all(last).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1_024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// How often the files are compared.
const LOOK: Duration = Duration::from_secs(2);

/// How long a peer that was refused may still send.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// How often a connection asks for its turn.
const TURN: Duration = Duration::from_millis(20);
