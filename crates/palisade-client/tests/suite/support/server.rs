//! A real server on a free port, in this process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use palisade_core::Span;
use palisade_pipeline::durable::{self, Authority};
use palisade_pipeline::{Answer, Handle, Request};
use palisade_server::net::{HistorySettings, ServeError, Settings, serve};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    authority: Authority,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// Serves the authority in `dir` on a free port.
    pub(crate) async fn start(dir: &Path) -> Server {
        Server::start_with(dir, false).await
    }

    /// Starts a server that keeps a history.
    pub(crate) async fn start_with_history(dir: &Path) -> Server {
        let history = HistorySettings {
            file: dir.join("history.redb"),
            age: Duration::from_secs(86_400),
            bytes: 1 << 30,
            leaves_free: Some(0),
            past: None,
        };
        Server::start_as(dir, false, Some(history)).await
    }

    /// Starts a server whose clock may be manual.
    pub(crate) async fn start_with(dir: &Path, manual_clock: bool) -> Server {
        Server::start_as(dir, manual_clock, None).await
    }

    async fn start_as(dir: &Path, manual_clock: bool, history: Option<HistorySettings>) -> Server {
        let settings = durable::Settings {
            manual_clock,
            ..durable::Settings::default()
        };
        let authority = durable::open(dir, &settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let handle = authority.pipeline.handle.clone();
        let shutdown = Box::pin(async { drop(stopped.await) });
        let settings = Settings {
            history,
            ..Settings::default()
        };
        let serving = tokio::spawn(serve(listener.into(), handle, None, settings, shutdown));
        Server {
            address,
            authority,
            stop,
            serving,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("palisade://{}", self.address)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.authority.pipeline.handle
    }

    /// Moves a manual clock.
    pub(crate) async fn advance(&self, by: Span) {
        let answer = self.handle().call(Request::Advance(by)).await;
        assert!(matches!(answer, Answer::Clock(_)), "{answer:?}");
    }

    /// Stops in order, and releases the directory.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.serving.await.unwrap().unwrap();
        self.authority.pipeline.handle.stop();
        tokio::task::spawn_blocking(|| self.authority.join())
            .await
            .unwrap();
    }
}
