//! Machines, and the messages between them: delayed, lost, doubled, reordered, cut off in one direction or both.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_pipeline::{Answer, Request, codec};
use palisade_replica::peers::{
    AdmissionRefusal, HISTORY, Introduction, Offer, PeerHistory, Standing,
};
use palisade_replica::{Applier, Engine, Leader, Log, LogId, NodeId, Profile, Store, Transport};
use palisade_wal::testing::SimStorage;
use palisade_wal::{Compactor, Id};
use tokio::sync::{mpsc, oneshot};

use super::mutants::Mutant;
use super::runtime::{LabRuntime, MS, Process, hold, now, sleep, within};
use crate::sim::rng::Rng;

/// A machine: a node by its number, or a client by [`CLIENT`] and its number.
pub(super) type Place = u8;

/// The first client's place.
pub(super) const CLIENT: Place = 100;

/// The cluster's authority, and the life of its log.
pub(super) fn cluster() -> (Id, Id) {
    (Id::from_bytes([7; 16]), Id::from_bytes([1; 16]))
}

/// A node's machine.
pub(super) struct Host {
    pub(super) disk: SimStorage,
    pub(super) process: Option<Arc<Process>>,
    pub(super) inbox: Option<mpsc::UnboundedSender<Ask>>,
    pub(super) engine: Option<Engine<LabRuntime>>,
    pub(super) store: Option<Store>,
    pub(super) compactor: Option<Compactor>,
    pub(super) applier: Option<Arc<Applier>>,
    /// Its log finds no room, and waits for some.
    pub(super) full: bool,
    pub(super) boots: u32,
    /// How often its log was opened.
    pub(super) starts: u64,
    /// This process's memory of the other nodes.
    pub(super) history: PeerHistory,
    /// The part of it that was written down.
    pub(super) remembered: String,
    /// The nodes that it has a connection to, each with the boot of that one.
    pub(super) connected: BTreeMap<Place, u32>,
    /// Why another node did not let it in.
    pub(super) refused: Option<String>,
    /// When each other node answered it last.
    pub(super) answered: BTreeMap<Place, u64>,
    /// It came back with less than it had acknowledged, so the others must refuse it.
    pub(super) lost: bool,
    /// The first index whose committed entry was not compared with the other nodes' yet.
    pub(super) compared: u64,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            disk: SimStorage::new(0),
            process: None,
            inbox: None,
            engine: None,
            store: None,
            compactor: None,
            applier: None,
            full: false,
            boots: 0,
            starts: 0,
            history: PeerHistory::default(),
            remembered: String::new(),
            connected: BTreeMap::new(),
            refused: None,
            answered: BTreeMap::new(),
            lost: false,
            compared: 0,
        }
    }
}

/// A question of a client to a node.
pub(super) struct Ask {
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Said>,
}

/// A node's answer to it.
pub(super) enum Said {
    Answer(Answer),
    /// Another node leads, this one as far as it knows.
    NotLeader(Option<Place>),
}

/// The timers of all nodes, and how long a message between them usually takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The timers.
    pub timers: Profile,
    /// The shortest and the longest time.
    pub usual: (u64, u64),
}

impl Default for Terms {
    fn default() -> Terms {
        Terms::of(Profile::Region)
    }
}

impl Terms {
    /// Messages as far apart as these timers allow; a millisecond at most in one region.
    #[must_use]
    pub fn of(timers: Profile) -> Terms {
        let usual = match timers {
            Profile::Rack | Profile::Region => (MS / 20, MS),
            Profile::MultiRegion => (40 * MS, 100 * MS),
        };
        Terms { timers, usual }
    }
}

/// See the module.
pub(super) struct Network {
    state: Mutex<State>,
    hosts: Vec<Mutex<Host>>,
    mutant: Option<Mutant>,
    timers: Profile,
    /// How long a message usually takes.
    usual: (u64, u64),
}

struct State {
    rng: Rng,
    cuts: BTreeSet<(Place, Place)>,
    /// In a thousand.
    lost: u64,
    doubled: u64,
    /// How much longer than usual a message may take, at most.
    slow: u64,
}

impl Network {
    pub(super) fn new(nodes: u8, mutant: Option<Mutant>, terms: Terms, rng: Rng) -> Network {
        Network {
            state: Mutex::new(State {
                rng,
                cuts: BTreeSet::new(),
                lost: 0,
                doubled: 0,
                slow: 0,
            }),
            hosts: (0..nodes).map(|_| Mutex::default()).collect(),
            mutant,
            timers: terms.timers,
            usual: terms.usual,
        }
    }

    pub(super) fn host(&self, node: Place) -> std::sync::MutexGuard<'_, Host> {
        hold(&self.hosts[usize::from(node)])
    }

    pub(super) fn nodes(&self) -> Place {
        self.hosts.len() as Place
    }

    /// From now on nothing arrives that goes this way.
    pub(super) fn cut(&self, from: Place, to: Place) {
        hold(&self.state).cuts.insert((from, to));
    }

    /// How bad the network is from now on.
    pub(super) fn degrade(&self, lost: u64, doubled: u64, slow: u64) {
        let mut state = hold(&self.state);
        (state.lost, state.doubled, state.slow) = (lost, doubled, slow);
    }

    /// All cuts are healed.
    pub(super) fn heal(&self) {
        hold(&self.state).cuts.clear();
    }

    /// A message is on its way; whether it arrives.
    pub(super) async fn travel(&self, from: Place, to: Place) -> bool {
        let (delay, lost) = {
            let mut state = hold(&self.state);
            let (lost, slow) = (state.lost, state.slow);
            let usual = state.rng.between(self.usual.0, self.usual.1);
            let longer = if slow > 0 { state.rng.below(slow) } else { 0 };
            (usual + longer, state.rng.chance(lost))
        };
        sleep(delay).await;
        !lost && !hold(&self.state).cuts.contains(&(from, to))
    }

    /// Makes a connection, unless there is one; `None` if one of the two refuses the other (rule R14).
    fn connect(&self, from: Place, to: Place) -> Option<()> {
        let boots = self.host(to).boots;
        if self.host(from).connected.get(&to) == Some(&boots) {
            return Some(());
        }
        let (caller, called) = (self.introduction(from)?, self.introduction(to)?);
        self.judge(to, &called, None, (from, &caller))?;
        self.judge(from, &caller, Some(called.node), (to, &called))?;
        self.host(to).history.met(&caller);
        self.host(from).history.met(&called);
        self.host(from).connected.insert(to, boots);
        Some(())
    }

    fn judge(
        &self,
        place: Place,
        own: &Introduction,
        expected: Option<NodeId>,
        (other, theirs): (Place, &Introduction),
    ) -> Option<()> {
        // The others would refuse a node whose disk lies.
        if let Some(Mutant::HandshakeOff | Mutant::LyingDisk) = self.mutant {
            return Some(());
        }
        let judged = self.host(place).history.judge(own, expected, theirs);
        let told = |refusal: AdmissionRefusal| {
            let mut host = self.host(other);
            // It looks into its own log, and ends.
            let goes_on = self.mutant == Some(Mutant::ToldGoesOn);
            let lost = refusal.loss.is_some_and(|loss| loss.is_of(theirs));
            if let Some(process) = host.process.as_ref().filter(|_| lost && !goes_on) {
                process.kill();
            }
            host.refused = Some(refusal.why);
        };
        judged.map_err(told).ok()
    }

    /// A node that starts meets the others before it votes: one of them may know that it lost something.
    pub(super) async fn ask_members(&self, place: Place) {
        for other in (0..self.nodes()).filter(|other| *other != place) {
            let process = self.host(other).process.clone();
            let there = self.travel(place, other).await && process.is_some_and(|it| it.runs());
            if there && self.travel(other, place).await {
                self.connect(place, other);
            }
        }
    }

    fn introduction(&self, place: Place) -> Option<Introduction> {
        let host = self.host(place);
        let (authority, incarnation) = cluster();
        let last = host.store.as_ref()?.look(Log::last);
        let later = LogId {
            leader: Leader {
                term: u64::MAX,
                node: NodeId(place.into()),
            },
            index: u64::MAX,
        };
        Some(Introduction {
            node: NodeId(place.into()),
            address: place.to_string(),
            url: String::new(),
            reads: codec::VERSION,
            timers: self.timers,
            starts: host.starts,
            last: match self.mutant {
                Some(Mutant::TornReturns) => Some(later),
                _ => last,
            },
            history: match self.mutant {
                Some(Mutant::TornReturns) => Vec::new(),
                _ => host.store.as_ref()?.look(|log| log.history(HISTORY)),
            },
            standing: Standing::Member {
                authority,
                incarnation,
                members: BTreeMap::new(),
            },
        })
    }

    fn is_doubled(&self) -> bool {
        let mut state = hold(&self.state);
        let doubled = state.doubled;
        state.rng.chance(doubled)
    }
}

/// A node's way to the others.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) from: Place,
    pub(super) network: Arc<Network>,
}

impl Link {
    /// Has the message handled by the process of the node that it goes to, in that process.
    fn deliver(&self, to: Place, message: Vec<u8>) -> Option<oneshot::Receiver<Vec<u8>>> {
        let host = self.network.host(to);
        let engine = host.engine.clone()?;
        let process = host.process.clone().filter(|process| !process.is_dead())?;
        drop(host);
        self.network.connect(self.from, to)?;
        let (reply, answer) = oneshot::channel();
        process.spawn(async move {
            let _ = reply.send(engine.answer(&message).await);
        });
        Some(answer)
    }
}

impl Transport for Link {
    async fn call(
        &self,
        to: NodeId,
        _: &str,
        message: Vec<u8>,
        patience: Duration,
    ) -> io::Result<Vec<u8>> {
        let (from, to) = (self.from, to.0 as Place);
        let offer = Offer::of(&message);
        if let Some(offer) = offer {
            self.network.host(from).history.offered(offer);
        }
        let exchange = async {
            if !self.network.travel(from, to).await {
                std::future::pending::<()>().await;
            }
            if self.network.is_doubled() {
                drop(self.deliver(to, message.clone()));
            }
            let Some(answer) = self.deliver(to, message) else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let Ok(answer) = answer.await else {
                return Err(io::ErrorKind::ConnectionReset.into());
            };
            if !self.network.travel(to, from).await {
                std::future::pending::<()>().await;
            }
            let mut host = self.network.host(from);
            host.answered.insert(to, now());
            if let Some(offer) = offer {
                host.history.answered(NodeId(to.into()), offer, &answer);
            }
            drop(host);
            Ok(answer)
        };
        let patience = patience.as_nanos() as u64;
        let timed_out = || Err(io::ErrorKind::TimedOut.into());
        within(patience, exchange).await.unwrap_or_else(timed_out)
    }
}
