//! Connections of other nodes: their handshake, their calls.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use super::handshake::{Failed, Lane, Meeting};
use super::introduction::{Introduction, MOST_NODES};
use super::line::{ANSWERED, NOT_READY, numbered, prepare, write_all};
use super::secure::{Connection, Halves, explain};
use super::{LONGEST_MESSAGE, Peers, Shared, frame, hold};
use crate::entry::NodeId;

/// Calls of one connection that are being answered.
const AT_ONCE: usize = 64;

/// The time between two TLS handshakes: a flood of them must leave this thread, which consensus runs on, most of its time.
const PACE: Duration = Duration::from_millis(2);

/// The open connections.
#[derive(Default)]
struct Open {
    /// Strangers, by address.
    strangers: HashMap<IpAddr, usize>,
    /// One connection for each node and lane: dropping the sender ends it.
    nodes: HashMap<(NodeId, Lane), watch::Sender<()>>,
}

/// A place for a connection that has not introduced itself; dropping it gives it back.
struct Stranger {
    open: Arc<Mutex<Open>>,
    address: IpAddr,
}

impl Stranger {
    fn take(
        open: &Arc<Mutex<Open>>,
        address: IpAddr,
        (of_address, total): (usize, usize),
    ) -> Option<Stranger> {
        let strangers = &mut hold(open).strangers;
        let here = strangers.get(&address).copied().unwrap_or_default();
        if here >= of_address || strangers.values().sum::<usize>() >= total {
            return None;
        }
        strangers.insert(address, here + 1);
        Some(Stranger {
            open: Arc::clone(open),
            address,
        })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let strangers = &mut hold(&self.open).strangers;
        if let Some(here) = strangers.get_mut(&self.address) {
            *here -= 1;
            if *here == 0 {
                strangers.remove(&self.address);
            }
        }
    }
}

impl Peers {
    /// Accepts connections of other nodes until [`stop`](Peers::stop). Spawn it once, before this node announces its
    /// address to others.
    pub fn serve(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        async move {
            tokio::select! {
                () = accept(&shared, &listener) => {}
                () = shared.until_stopped() => {}
            }
        }
    }
}

async fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let open = Arc::default();
    loop {
        match listener.accept().await {
            // Without a place it is closed at once.
            Ok((stream, from)) => {
                if shared.security.tls.is_some() {
                    tokio::time::sleep(PACE).await;
                }
                if let Some(stranger) = Stranger::take(&open, from.ip(), shared.settings.strangers)
                {
                    let (shared, open) = (Arc::clone(shared), Arc::clone(&open));
                    tokio::spawn(async move {
                        tokio::select! {
                            () = take_in(&shared, &open, stream, from, stranger) => {}
                            () = shared.until_stopped() => {}
                        }
                    });
                }
            }
            // One that is gone already, or no descriptor is free: neither may end this, nor keep it busy.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn take_in(
    shared: &Arc<Shared>,
    open: &Arc<Mutex<Open>>,
    stream: TcpStream,
    from: SocketAddr,
    stranger: Stranger,
) {
    let met = tokio::time::timeout(shared.settings.handshake, meet(shared, stream)).await;
    let met = met.unwrap_or_else(|_| Err(Failed::Io(io::ErrorKind::TimedOut.into())));
    let (connection, lane, theirs) = match met {
        Ok(met) => met,
        Err(Failed::Refused(why)) => return shared.log(&from.ip().to_string(), &why),
        Err(Failed::Refuses(refusal)) => return shared.log(&from.ip().to_string(), &refusal.why),
        Err(Failed::Told(by, refusal)) => {
            let why = shared.told(by, refusal);
            return shared.log(&from.ip().to_string(), &why);
        }
        Err(Failed::Io(error)) => {
            let why = explain(&error).unwrap_or(error.to_string());
            return shared.log(&from.ip().to_string(), &format!("no handshake: {why}"));
        }
    };
    drop(stranger);
    shared.met(&theirs);
    if lane == Lane::Meeting {
        return;
    }
    let (ours, mut replaced) = watch::channel(());
    {
        let nodes = &mut hold(open).nodes;
        let key = (theirs.node, lane);
        nodes.retain(|_, connection| !connection.is_closed());
        if nodes.len() >= 2 * MOST_NODES && !nodes.contains_key(&key) {
            return;
        }
        // The one before is of a process that is gone, or that has given it up.
        nodes.insert(key, ours);
    }
    tokio::select! {
        _ = answer_all(shared, theirs.node, connection.split()) => {}
        _ = replaced.changed() => {}
    }
}

async fn meet(
    shared: &Shared,
    stream: TcpStream,
) -> Result<(Connection, Lane, Introduction), Failed> {
    prepare(&stream, shared.settings.silence)?;
    let mut connection = shared.security.accept(stream).await?;
    let (own, certificate) = (shared.own(), connection.certificate());
    let meeting = Meeting {
        stream: connection.stream(),
        key: shared.security.key.as_ref(),
        own: own.clone(),
    };
    let judge = |theirs: &Introduction| shared.judge(&own, None, certificate.as_ref(), theirs);
    let (lane, theirs) = meeting.accept(judge).await?;
    Ok((connection, lane, theirs))
}

/// Answers calls until the connection ends.
async fn answer_all(shared: &Arc<Shared>, node: NodeId, (mut from, to): Halves) -> io::Result<()> {
    let (answers, queue) = mpsc::channel(AT_ONCE);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let read = async {
        while let Some(frame) = frame::read(&mut from, LONGEST_MESSAGE).await? {
            let (number, message) = numbered(frame)?;
            let place = Arc::clone(&places).acquire_owned().await;
            let (answer, answers) = (hold(&shared.answer).clone(), answers.clone());
            tokio::spawn(async move {
                let mut bytes = vec![NOT_READY];
                if let Some(answer) = answer {
                    bytes = answer(node, message).await;
                    bytes.insert(0, ANSWERED);
                }
                // The connection may be gone.
                let _ = answers.send((number, bytes)).await;
                drop(place);
            });
        }
        Ok(())
    };
    tokio::select! {
        read = read => read,
        written = write_all(queue, to) => written,
    }
}
