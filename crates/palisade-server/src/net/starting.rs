//! The answers of the ports while a server starts: it is alive, and the step that it waits for.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use http::request::Parts;
use palisade_proto::json::HealthReply;
use palisade_proto::{Code, frames};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::convert::Refusal;
use super::error::ServeError;
use super::lease_keys::LeaseKeys;
use super::sequencer::SequencerKeys;
use super::settings::Settings;
use super::{audit, rules, session};
use crate::shell::{
    self, ExchangeKind, Listeners, Peer, Phase, Service, Shell, Transport, refusal,
};

/// A shorter start is not noticed: its clients wait until they are served.
const UNNOTICED: Duration = Duration::from_secs(1);

/// Checks what [`serve`](super::serve()) would refuse only once the log is open: bounds, certificates, the access file, the
/// audit file, and the files of keys. Nothing is made or changed. `new` says that the authority is yet to begin.
///
/// # Errors
/// As [`serve`](super::serve()).
pub fn check(settings: &Settings, new: bool) -> Result<(), ServeError> {
    settings.check()?;
    Shell::check(&settings.shell)?;
    if let Some(path) = &settings.access {
        rules::read(path, settings.audit.is_some())?;
    }
    if let Some(file) = &settings.audit {
        let usable = audit::check(file, settings.data.as_deref());
        usable.map_err(|source| ServeError::Audit {
            file: file.clone(),
            source,
        })?;
    }
    if let Some(file) = &settings.lease_keys {
        let read = LeaseKeys::read(file);
        read.map_err(|source| ServeError::LeaseKeys {
            file: file.clone(),
            source,
        })?;
    }
    if let Some(path) = &settings.sequencer_keys
        && let Some(keys) = SequencerKeys::read(path)?
        && new
    {
        return Err(keys.of_another(path).into());
    }
    Ok(())
}

/// Waits for `starting`. When that takes longer than a second, the TCP ports of `listeners` answer meanwhile: `/healthz` with
/// 200, everything else with `unavailable` and `why`. A Unix socket answers nothing. Afterwards nobody accepts on them.
///
/// # Errors
/// The bounds of connections cannot be kept, or the operating system's error; `starting` is dropped then.
pub async fn while_starting<T>(
    listeners: &Listeners,
    settings: &shell::Settings,
    why: &'static str,
    starting: impl Future<Output = T>,
) -> Result<T, shell::Error> {
    let mut starting = pin!(starting);
    if let Ok(started) = timeout(UNNOTICED, &mut starting).await {
        return Ok(started);
    }
    let shell = Shell::new(settings.clone())?;
    let mut phase = shell.phase();
    let ports = listeners.ports()?;
    let router = Router::new()
        .route("/healthz", get(async || Json(health())))
        .fallback(async move || refusal(Code::Unavailable, why.to_owned()));
    let (stop, stopped) = oneshot::channel::<()>();
    // It finishes its open requests beside the server that follows.
    tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        shell
            .serve(ports, Arc::new(Starting(why)), router, stopped)
            .await
    });
    let started = starting.await;
    drop(stop);
    // An error means that it is gone already.
    let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
    Ok(started)
}

fn health() -> HealthReply {
    HealthReply {
        status: "starting".to_owned(),
        log_full: false,
        certificate_expires_at: None,
    }
}

/// A server that does nothing yet, for this reason.
struct Starting(&'static str);

impl Service for Starting {
    const OWN_PROTOCOL: Option<u8> = Some(frames::PREFACE[0]);

    fn exchange(&self, _: &Parts) -> ExchangeKind {
        ExchangeKind::Unary
    }

    fn refuse_own(&self, code: Code, message: String) -> Vec<u8> {
        session::refused(&Refusal::new(code, message))
    }

    async fn serve_own<T: Transport>(self: Arc<Self>, mut stream: T, _: Bytes, _: Peer) {
        let refused = self.refuse_own(Code::Unavailable, self.0.to_owned());
        // A client that is gone needs no answer.
        let _ = timeout(shell::FAREWELL, shell::farewell(&mut stream, &refused)).await;
    }
}
