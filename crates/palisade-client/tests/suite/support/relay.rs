//! A TCP relay between client and server, for cutting and moving connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    upstream: Arc<Mutex<Option<SocketAddr>>>,
    /// The number of cuts: every connection ends when it changes.
    cuts: watch::Sender<u32>,
    accepting: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn to(upstream: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = Arc::new(Mutex::new(Some(upstream)));
        let cuts = watch::channel(0).0;
        let accepting = tokio::spawn(accept(listener, upstream.clone(), cuts.clone()));
        Relay {
            address,
            upstream,
            cuts,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks every connection; new connections work.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Breaks every connection and sends new ones to another server, or nowhere.
    pub(crate) fn move_to(&self, upstream: Option<SocketAddr>) {
        *self.upstream.lock().unwrap() = upstream;
        self.cut();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: Arc<Mutex<Option<SocketAddr>>>,
    cuts: watch::Sender<u32>,
) {
    while let Ok((mut near, _)) = listener.accept().await {
        let Some(upstream) = *upstream.lock().unwrap() else {
            continue;
        };
        let mut cut = cuts.subscribe();
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(upstream).await else {
                return;
            };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = cut.changed() => {}
            }
        });
    }
}
