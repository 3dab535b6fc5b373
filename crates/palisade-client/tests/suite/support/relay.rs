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
    /// Whether nothing is passed on, while connections stay open.
    frozen: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Relay {
    pub(crate) async fn to(upstream: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = Arc::new(Mutex::new(Some(upstream)));
        let cuts = watch::channel(0).0;
        let frozen = watch::channel(false).0;
        let accepting = accept(listener, upstream.clone(), cuts.clone(), frozen.clone());
        let accepting = tokio::spawn(accepting);
        Relay {
            address,
            upstream,
            cuts,
            frozen,
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

    /// Passes nothing on from now on, as a machine that has stopped: connections stay open, and new ones are accepted.
    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
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
    frozen: watch::Sender<bool>,
) {
    while let Ok((mut near, _)) = listener.accept().await {
        let Some(upstream) = *upstream.lock().unwrap() else {
            continue;
        };
        let (mut cut, mut frozen) = (cuts.subscribe(), frozen.subscribe());
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(upstream).await else {
                return;
            };
            tokio::select! {
                biased;
                _ = cut.changed() => return,
                _ = frozen.wait_for(|frozen| *frozen) => {}
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
            }
            let _ = cut.changed().await;
        });
    }
}
