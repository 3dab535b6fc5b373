//! The other nodes, over TCP.
//!
//! ```text
//!   call(to, message) ──► Line to that node: Short or Long ──► handshake ──► requests, by number
//!                                                                              │
//!   answer(from, message) ◄── inbound connection of that node ◄── handshake ◄──┘
//! ```
//!
//! A node dials each other one for its own calls, with one connection for short messages and one for long ones, so that
//! a heartbeat never waits behind a part of a snapshot. Connections are made when a call needs one.
//!
//! With certificates ([`Security`]) the connections are TLS, and both sides show one. A stranger without a certificate
//! has [`Settings::handshake`] for a TLS handshake, on a bounded number of connections, and learns nothing. A stranger
//! that gets further without the cluster's key has the rest of that time for 256 bytes of a hello and, after that, 32
//! KiB of a claim, and learns a node id and the version. Without a key nobody else may be able to reach the port: every
//! caller that reaches it counts as a node.

mod clock;
mod frame;
mod handshake;
mod history;
mod inbound;
mod introduction;
mod line;
mod liveness;
mod loss;
mod refusal;
mod secure;
mod trips;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade_pipeline::orderer::ROOM;
use palisade_tls::Certificate;
use tokio::sync::watch;

use crate::engine::{MESSAGE_BYTES, Transport};
use crate::entry::NodeId;
use handshake::{Failed, Lane, Meeting};
use line::PeerLink;
use secure::{Connection, certified, explain};

pub use crate::message::Offer;
pub use handshake::Key;
pub use history::PeerHistory;
pub use introduction::{HISTORY, Introduction, Known, MOST_NODES, Standing, judge};
pub use liveness::SILENT;
pub use refusal::{AdmissionRefusal, LostState};
pub use secure::{PROTOCOL, Security, host};

/// The longest message: the largest batch, or as many entries as the engine puts into one message, with the envelope.
const LONGEST_MESSAGE: usize = MESSAGE_BYTES + ROOM + (64 << 10);

/// A message up to this length goes with the short ones.
const SHORT: usize = 32 << 10;

/// How long things may take. The defaults suit nodes in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A connection is there within this time, or the node counts as unreachable.
    pub connect: Duration,
    /// Both sides have introduced themselves within this time.
    pub handshake: Duration,
    /// A peer that acknowledges nothing for this long is gone.
    pub silence: Duration,
    /// After a failure nothing is tried for the first of these times, then twice that, up to the second.
    pub backoff: (Duration, Duration),
    /// Connections that have not introduced themselves yet: from one address, and in total.
    pub strangers: (usize, usize),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connect: Duration::from_millis(500),
            handshake: Duration::from_secs(5),
            silence: Duration::from_secs(2),
            backoff: (Duration::from_millis(50), Duration::from_millis(500)),
            strangers: (16, 64),
        }
    }
}

/// The status of another node, for people and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerStatus {
    /// Where it is reached.
    pub address: String,
    /// Where clients reach it, once it has introduced itself.
    pub url: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// How long this has been the case.
    pub since: Duration,
    /// Why the last attempt failed, or was refused by either side; nothing once one succeeds.
    pub refusal: Option<String>,
    /// The newest version of a batch that it reads (rule R21), once it has announced it.
    pub reads: Option<u8>,
    /// How long the last answered call took.
    pub round_trip: Option<Duration>,
    /// The shortest one of the last five to ten seconds, of those that need no disk; nothing if there were too few to tell.
    pub shortest_round_trip: Option<Duration>,
    /// For how long it has answered nothing, or nothing that needs its disk; nothing if it never answered.
    pub silent: Option<Duration>,
}

type Answering = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;
type Answer = Arc<dyn Fn(NodeId, Vec<u8>) -> Answering + Send + Sync>;
type Introduce = Arc<dyn Fn() -> Introduction + Send + Sync>;

/// See the module. Clones share everything.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    security: Security,
    settings: Settings,
    introduce: Mutex<Introduce>,
    answer: Mutex<Option<Answer>>,
    links: Mutex<HashMap<(NodeId, Lane), Arc<PeerLink>>>,
    nodes: Mutex<BTreeMap<NodeId, Seen>>,
    history: Mutex<PeerHistory>,
    /// The messages logged about each address, so that each is logged once.
    logged: Mutex<BTreeSet<(String, String)>>,
    stopped: watch::Sender<bool>,
    /// Why this node must not vote (`loss`).
    lost: watch::Sender<Option<String>>,
}

/// The observations of a node.
#[derive(Clone, Debug, Default)]
struct Seen {
    status: PeerStatus,
    /// When `connected` changed.
    changed: Duration,
    /// When it answered last.
    answered: Option<Duration>,
    /// The entries that it did not answer.
    owed: Option<liveness::Owed>,
    trips: trips::Trips,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Everything is changed in single steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    /// Peers of a node with this introduction, protected by certificates, by the key that all of them share, by both or
    /// by nothing.
    #[must_use]
    pub fn new(security: impl Into<Security>, settings: Settings, own: Introduction) -> Peers {
        Peers {
            shared: Arc::new(Shared {
                security: security.into(),
                settings,
                introduce: Mutex::new(Arc::new(move || own.clone())),
                answer: Mutex::default(),
                links: Mutex::default(),
                nodes: Mutex::default(),
                history: Mutex::default(),
                logged: Mutex::default(),
                stopped: watch::Sender::new(false),
                lost: watch::Sender::default(),
            }),
        }
    }

    /// From now on this node introduces itself with the result of this function, called at each handshake.
    pub fn introduce(&self, introduce: impl Fn() -> Introduction + Send + Sync + 'static) {
        *hold(&self.shared.introduce) = Arc::new(introduce);
    }

    /// How this node introduces itself now.
    #[must_use]
    pub fn own(&self) -> Introduction {
        self.shared.own()
    }

    /// From now on `answer` answers the messages of other nodes. Until then their calls fail: this node is unreachable.
    pub fn answer<F>(&self, answer: impl Fn(NodeId, Vec<u8>) -> F + Send + Sync + 'static)
    where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        let boxed = move |from, message| -> Answering { Box::pin(answer(from, message)) };
        *hold(&self.shared.answer) = Some(Arc::new(boxed));
    }

    /// Meets the node at an address, then disconnects: for nodes that do not form a cluster yet.
    ///
    /// # Errors
    /// Why it could not be met, or was refused, for people.
    pub async fn meet(&self, address: &str) -> Result<Introduction, String> {
        let (_, theirs) = self.shared.dial(None, address, Lane::Meeting).await?;
        Ok(theirs)
    }

    /// The status of each node that was called, or that has called.
    #[must_use]
    pub fn status(&self) -> BTreeMap<NodeId, PeerStatus> {
        let now = clock::now();
        let nodes = hold(&self.shared.nodes);
        let status = |seen: &Seen| PeerStatus {
            since: now.saturating_sub(seen.changed),
            silent: seen.silent(now),
            shortest_round_trip: seen.trips.shortest(now),
            ..seen.status.clone()
        };
        nodes
            .iter()
            .map(|(node, seen)| (*node, status(seen)))
            .collect()
    }

    /// Where clients reach a node, as it said itself.
    #[must_use]
    pub fn client_url(&self, node: NodeId) -> Option<String> {
        let nodes = hold(&self.shared.nodes);
        let url = nodes.get(&node).map(|seen| seen.status.url.clone());
        url.filter(|url| !url.is_empty())
    }

    /// Closes all connections for good, and drops the functions given to [`introduce`](Peers::introduce) and
    /// [`answer`](Peers::answer). The port is closed when the task of [`serve`](Peers::serve) has ended.
    pub fn stop(&self) {
        let own = self.shared.own();
        self.introduce(move || own.clone());
        *hold(&self.shared.answer) = None;
        self.shared.stopped.send_replace(true);
    }
}

impl Transport for Peers {
    async fn call(
        &self,
        to: NodeId,
        address: &str,
        message: Vec<u8>,
        within: Duration,
    ) -> io::Result<Vec<u8>> {
        let shared = &self.shared;
        let offer = Offer::of(&message);
        if let Some(offer) = offer {
            hold(&shared.history).offered(offer);
        }
        let lane = match message.len() {
            ..=SHORT => Lane::Short,
            _ => Lane::Long,
        };
        let begun = clock::now();
        let entries = offer.is_some_and(|offer| offer.has_entries());
        if entries {
            shared.with(to, |seen| seen.owes(begun));
        }
        let link = shared.link(to, address, lane);
        let answer = tokio::time::timeout(within, link.call(shared, message));
        let answer = answer.await.map_err(|_| io::ErrorKind::TimedOut)??;
        let now = clock::now();
        shared.with(to, |seen| {
            let took = now.saturating_sub(begun);
            seen.status.round_trip = Some(took);
            if !entries && lane == Lane::Short {
                seen.trips.add(now, took);
            }
            seen.answers(now, entries);
        });
        if let Some(offer) = offer {
            hold(&shared.history).answered(to, offer, &answer);
        }
        Ok(answer)
    }
}

impl Shared {
    fn own(&self) -> Introduction {
        let introduce = Arc::clone(&hold(&self.introduce));
        introduce()
    }

    fn with<T>(&self, node: NodeId, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(hold(&self.nodes).entry(node).or_default())
    }

    fn link(&self, to: NodeId, address: &str, lane: Lane) -> Arc<PeerLink> {
        let mut links = hold(&self.links);
        match links.get(&(to, lane)) {
            Some(link) if link.address() == address => Arc::clone(link),
            _ => {
                let link = Arc::new(PeerLink::new(to, address, lane));
                links.insert((to, lane), Arc::clone(&link));
                link
            }
        }
    }

    async fn until_stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as this.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// Connects and introduces both; gives the reason of a failure for people, and logs it once.
    async fn dial(
        &self,
        expected: Option<NodeId>,
        address: &str,
        lane: Lane,
    ) -> Result<(Connection, Introduction), String> {
        let Settings {
            connect, handshake, ..
        } = self.settings;
        let dialed = async {
            let slow = |_| Failed::Io(io::ErrorKind::TimedOut.into());
            let stream = tokio::time::timeout(connect, trips::connect(address));
            let (stream, trip) = stream.await.map_err(slow)??;
            line::prepare(&stream, self.settings.silence)?;
            let meet = async {
                let mut connection = self.security.dial(stream, address).await?;
                let own = self.own();
                let meeting = Meeting {
                    stream: connection.stream(),
                    key: self.security.key.as_ref(),
                    own: own.clone(),
                };
                let judge = |theirs: &Introduction| self.judge(&own, expected, None, theirs);
                let theirs = meeting.dial(lane, judge).await?;
                Ok((connection, theirs, trip))
            };
            tokio::time::timeout(handshake, meet).await.map_err(slow)?
        };
        let dialed = dialed.await.map_err(|failed: Failed| match failed {
            Failed::Refused(why) => why,
            Failed::Refuses(refusal) => refusal.why,
            Failed::Told(by, refusal) => self.told(by, refusal),
            Failed::Io(error) => match explain(&error) {
                Some(why) => format!("no TLS with the node at {address}: {why}"),
                None => format!("{address} cannot be reached: {error}"),
            },
        });
        match &dialed {
            Ok((_, theirs, trip)) => {
                hold(&self.logged).retain(|(place, _)| place != address);
                self.met(theirs);
                self.with(theirs.node, |seen| {
                    let now = clock::now();
                    seen.answers(now, false);
                    seen.trips.add(now, *trip);
                });
                self.notice_removal(&self.own(), theirs);
            }
            Err(why) => {
                self.log(address, why);
                if let Some(node) = expected {
                    self.with(node, |seen| {
                        seen.status.address = address.to_owned();
                        seen.status.refusal = Some(why.clone());
                    });
                }
            }
        }
        dialed.map(|(connection, theirs, _)| (connection, theirs))
    }

    fn judge(
        &self,
        own: &Introduction,
        expected: Option<NodeId>,
        certificate: Option<&Certificate>,
        theirs: &Introduction,
    ) -> Result<(), AdmissionRefusal> {
        // Only a node with the right certificate may change its record here.
        certified(certificate, own, theirs).map_err(AdmissionRefusal::from)?;
        let judged = hold(&self.history).judge(own, expected, theirs);
        if let (Err(refusal), Some(seen)) = (&judged, hold(&self.nodes).get_mut(&theirs.node)) {
            seen.status.refusal = Some(refusal.why.clone());
        }
        judged
    }

    /// Informs the operator of a node that was removed while it was down: nobody else will.
    fn notice_removal(&self, own: &Introduction, theirs: &Introduction) {
        let (Standing::Member { members: here, .. }, Standing::Member { members: there, .. }) =
            (&own.standing, &theirs.standing)
        else {
            return;
        };
        let (node, address) = (own.node, &theirs.address);
        if here.contains_key(&node) && !there.is_empty() && !there.contains_key(&node) {
            let why = format!(
                "node {} at {address} does not count this node ({node}) among the members. If it was removed, stop it; to \
                 bring it back, start it with --join and another --data",
                theirs.node
            );
            self.log(address, &why);
        }
    }

    /// Remembers a node that was accepted.
    fn met(&self, theirs: &Introduction) {
        let mut nodes = hold(&self.nodes);
        let is_new = !nodes.contains_key(&theirs.node);
        if is_new && nodes.len() >= 4 * MOST_NODES {
            return;
        }
        let seen = nodes.entry(theirs.node).or_default();
        seen.status.address.clone_from(&theirs.address);
        seen.status.url.clone_from(&theirs.url);
        seen.status.reads = Some(theirs.reads);
        seen.status.refusal = None;
        hold(&self.history).met(theirs);
    }

    fn set_connected(&self, node: NodeId, connected: bool) {
        self.with(node, |seen| {
            if seen.status.connected != connected {
                (seen.status.connected, seen.changed) = (connected, clock::now());
            }
        });
    }

    /// Logs a reason, unless it was already logged for this place since the place was last reached.
    fn log(&self, place: &str, why: &str) {
        let mut logged = hold(&self.logged);
        if logged.len() >= 4 * MOST_NODES {
            logged.clear();
        }
        if logged.insert((place.to_owned(), why.to_owned())) {
            tracing::warn!(peer = place, "{why}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::introduction::tests::{entry, member};
    use super::*;
    use crate::entry::Vote;
    use crate::message::{Reply, Request};

    /// One node of this build, and one of the next.
    #[tokio::test]
    async fn a_node_says_which_batches_it_reads() {
        let own = Peers::new(None, Settings::default(), member(1));
        for (node, reads) in [(2, 1), (3, 2)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let introduction = Introduction {
                reads,
                ..member(node)
            };
            let other = Peers::new(None, Settings::default(), introduction);
            tokio::spawn(other.serve(listener));
            own.meet(&address).await.unwrap();
            assert_eq!(own.status()[&NodeId(node)].reads, Some(reads));
        }
    }

    /// A connection for long messages is made when one is sent, and its end says nothing about the node.
    #[tokio::test]
    async fn a_node_is_connected_as_long_as_short_messages_reach_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let long = Arc::new(watch::Sender::new(0));
        let accepted = Arc::clone(&long);
        // It closes each connection for long messages at once.
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let meeting = Meeting {
                    stream: &mut stream,
                    key: None,
                    own: member(2),
                };
                if meeting.accept(|_| Ok(())).await.unwrap().0 == Lane::Long {
                    accepted.send_modify(|count| *count += 1);
                    continue;
                }
                tokio::spawn(async move {
                    while let Ok(Some(question)) = frame::read(&mut stream, LONGEST_MESSAGE).await {
                        let answer = [line::ANSWERED];
                        let written = frame::write(&mut stream, &question[..8], &answer);
                        written.await.unwrap();
                    }
                });
            }
        });
        let own = Peers::new(None, Settings::default(), member(1));
        let soon = Duration::from_secs(30);
        own.call(NodeId(2), &address, vec![0], soon).await.unwrap();
        let ends_twice = async {
            while *long.borrow() < 2 {
                let sent = own.call(NodeId(2), &address, vec![0; SHORT + 1], soon);
                assert!(sent.await.is_err());
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(soon, ends_twice).await.unwrap();
        assert!(own.status()[&NodeId(2)].connected);
    }

    /// The other side of an append that was answered must not come back with a log that ends before it.
    #[tokio::test]
    async fn a_node_that_lost_what_it_acknowledged_is_refused_when_it_comes_back() {
        // A node that is refused has looked into its log, and goes silent: another process replaces it.
        let start = async || {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let other = Peers::new(None, Settings::default(), member(2));
            other.answer(|_, _| async { Reply::Appended.encode() });
            tokio::spawn(other.serve(listener));
            (other, address)
        };
        let own = Peers::new(None, Settings::default(), member(1));
        let append = |commit| Request::Append {
            vote: Vote {
                leader: entry(0).leader,
                committed: true,
            },
            previous: Some(entry(9)),
            entries: Vec::new(),
            commit: Some(entry(commit)),
        };
        for (commit, last, accepted) in [(7, 7, true), (8, 7, false), (8, 8, true)] {
            let (other, address) = start().await;
            let call = own.call(
                NodeId(2),
                &address,
                append(commit).encode(),
                Duration::from_secs(30),
            );
            call.await.unwrap();
            other.introduce(move || Introduction {
                last: Some(entry(last)),
                ..member(2)
            });
            let met = own.meet(&address).await;
            assert_eq!(met.is_ok(), accepted, "{met:?}");
            if let Err(why) = met {
                assert!(why.contains("entry 8") && why.contains("entry 7"), "{why}");
                assert_eq!(own.status()[&NodeId(2)].refusal, Some(why));
            }
        }
        // It had acknowledged entry 9, and this node has committed that since, as it says to another one.
        let nobody = Duration::from_millis(1);
        let call = own.call(NodeId(3), "127.0.0.1:1", append(9).encode(), nobody);
        assert!(call.await.is_err());
        let (other, address) = start().await;
        other.introduce(|| Introduction {
            last: Some(entry(8)),
            ..member(2)
        });
        let why = own.meet(&address).await.unwrap_err();
        assert!(why.contains("entry 9") && why.contains("entry 8"), "{why}");
    }
}
