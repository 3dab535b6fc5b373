//! The engine's own suite for log stores, on this crate's store. Nobody here wrote it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::StorageError;
use openraft::impls::TokioRuntime as Tokio;
use openraft::testing::log::{StoreBuilder, Suite};
use palisade_wal::testing::SimStorage;
use palisade_wal::{CreateOptions, Options, Wal};

use super::machine::ReplicatedMachine;
use super::network::VoteGate;
use super::storage::LogStorage;
use super::{Engine, EngineStart, Role, Settings, Transport, Types, Unsound};
use crate::applier::Applier;
use crate::entry::{Entry, Leader, LogId, Members, NodeId, Payload, Vote};
use crate::message::{Reply, Request};
use crate::store::{Sink, Store, Stored, Work, Writer};
use crate::timers::Profile;

/// Does the work at once.
struct Immediate(Mutex<Writer>);

impl Sink for Immediate {
    fn submit(&self, work: Work) {
        let _ = self.0.lock().unwrap().work([work]);
    }
}

struct OnSimulatedDisk;

fn on_simulated_disk() -> (Store, Arc<Applier>) {
    let opened = Wal::open_or_create_on(
        Arc::new(SimStorage::new(1)),
        &CreateOptions::default(),
        &Options::small(4 << 10),
    );
    let Stored { writer, mut state } = Stored::read(opened.unwrap(), 1).unwrap();
    let compactor = writer.compactor();
    let log = std::mem::take(&mut state.log);
    let store = Store::new(log, Immediate(Mutex::new(writer)), compactor, 1);
    let applier = Arc::new(Applier::new(state, store.clone()));
    (store, applier)
}

impl StoreBuilder<Types<Tokio>, LogStorage, ReplicatedMachine> for OnSimulatedDisk {
    async fn build(
        &self,
    ) -> Result<((), LogStorage, ReplicatedMachine), StorageError<Types<Tokio>>> {
        let (store, applier) = on_simulated_disk();
        let machine = ReplicatedMachine::new(applier, store.clone());
        Ok(((), LogStorage::new(store), machine))
    }
}

#[tokio::test]
async fn the_store_passes_the_suite_of_the_engine() {
    Suite::test_all(OnSimulatedDisk).await.unwrap();
}

#[test]
fn a_leader_that_hears_no_quorum_pauses_and_sends_in_turns() {
    let millis = Duration::from_millis;
    let at = |heard: Option<u64>, probe: Option<u64>| {
        let gate = VoteGate::new(millis(340), probe.map(millis));
        gate.watch(move || heard.map(millis));
        gate.is_closed()
    };
    for (heard, closed) in [
        (0, false),
        (339, false),
        (340, true),
        (1_039, true),
        (1_040, false),
        (1_739, false),
        (1_740, true),
    ] {
        assert_eq!(at(Some(heard), Some(700)), closed, "{heard} ms");
        assert!(!at(Some(heard), None), "without pauses");
    }
    assert!(!at(None, Some(700)), "a new leader has heard nobody yet");
    assert!(!VoteGate::new(millis(340), Some(millis(700))).is_closed());
}

/// Nobody is there.
#[derive(Clone)]
struct Nowhere;

impl Transport for Nowhere {
    async fn call(&self, _: NodeId, _: &str, _: Vec<u8>, _: Duration) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::ConnectionRefused.into())
    }
}

/// Nodes with disks that were set back elect one of them in a later term, and it wants to replace committed entries with its
/// own. The control is an entry behind the committed ones, which gives way to that leader's.
#[tokio::test]
async fn a_leader_that_lacks_what_is_committed_is_not_followed() {
    let leader = |term, node| Leader {
        term,
        node: NodeId(node),
    };
    let (before, later) = (leader(3, 7), leader(5, 8));
    let id = |leader, index| LogId { leader, index };
    let append = |leader, previous: LogId, at: u64, commit: LogId| {
        let entry = Entry {
            id: id(leader, at),
            payload: Payload::Blank,
        };
        let vote = Vote {
            leader,
            committed: true,
        };
        let (previous, commit) = (Some(previous), Some(commit));
        let entries = vec![entry];
        let request = Request::Append {
            vote,
            previous,
            entries,
            commit,
        };
        request.encode()
    };
    let start = async || {
        let (store, applier) = on_simulated_disk();
        let entries = (0..8).map(|index| Entry {
            id: id(before, index),
            payload: Payload::Blank,
        });
        store.append(entries.collect(), drop).unwrap();
        store.commit(id(before, 5)).unwrap();
        let vote = Vote {
            leader: before,
            committed: true,
        };
        store.save_vote(vote, drop).unwrap();
        let started = Engine::<Tokio>::start(EngineStart {
            node: NodeId(1),
            store: store.clone(),
            applier,
            transport: Nowhere,
            settings: Settings::default(),
        });
        (started.await.unwrap(), store)
    };
    // Its entry replaces 5, which is committed; or it wants another entry before its own.
    for (previous, at) in [(id(before, 4), 5), (id(later, 5), 6)] {
        let (engine, store) = start().await;
        let asked = append(later, previous, at, id(before, 4));
        let reply = Reply::decode(&engine.answer(&asked).await).unwrap();
        assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
        let expect = Unsound {
            leader: later,
            committed: id(before, 5),
        };
        assert_eq!(*engine.unsound().borrow(), Some(expect));
        assert_eq!(store.look(|log| log.last()), Some(id(before, 7)));
        engine.stop().await;
    }
    let (engine, store) = start().await;
    let asked = append(later, id(before, 6), 7, id(before, 5));
    let reply = Reply::decode(&engine.answer(&asked).await).unwrap();
    assert_eq!(reply, Reply::Appended, "control");
    assert_eq!(*engine.unsound().borrow(), None);
    assert_eq!(store.look(|log| log.last()), Some(id(later, 7)));
    // An old leader does not know the entries committed since.
    let asked = append(leader(2, 9), id(before, 4), 5, id(before, 4));
    let reply = Reply::decode(&engine.answer(&asked).await).unwrap();
    assert!(matches!(reply, Reply::HigherVote(_)), "{reply:?}");
    assert_eq!(*engine.unsound().borrow(), None);
    engine.stop().await;
}

/// Node 2 grants each vote after a sync of this length, and takes each entry at once; node 3 is dead.
#[derive(Clone)]
struct Slow(Duration);

impl Transport for Slow {
    async fn call(
        &self,
        to: NodeId,
        _: &str,
        message: Vec<u8>,
        within: Duration,
    ) -> std::io::Result<Vec<u8>> {
        if to != NodeId(2) {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let request = Request::decode(&message).unwrap();
        let (reply, takes) = match &request {
            Request::PreVote(candidacy) | Request::Vote(candidacy) => {
                let reply = Reply::Vote {
                    vote: candidacy.vote,
                    last: None,
                    granted: true,
                };
                let syncs = matches!(request, Request::Vote(_));
                (reply, if syncs { self.0 } else { Duration::ZERO })
            }
            _ => (Reply::Appended, Duration::ZERO),
        };
        let _ = tokio::time::timeout(takes.min(within), std::future::pending::<()>()).await;
        if takes >= within {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(reply.encode())
    }
}

/// Starts node 1 of three, and waits until it leads.
async fn elected(transport: Slow) -> Engine<Tokio> {
    let (store, applier) = on_simulated_disk();
    let settings = Settings {
        timers: Profile::Rack.timers(),
        ..Settings::default()
    };
    let started = Engine::<Tokio>::start(EngineStart {
        node: NodeId(1),
        store,
        applier,
        transport,
        settings,
    });
    let engine = started.await.unwrap();
    let nodes = [1, 2, 3].map(|node| (NodeId(node), node.to_string()));
    let members = Members {
        voters: vec![nodes.iter().map(|(node, _)| *node).collect()],
        nodes: nodes.into(),
    };
    engine.form(&members).await.unwrap();
    let mut leader = engine.watch_leader();
    while engine.progress().role != Role::Leader {
        leader.changed().await.unwrap();
    }
    engine
}

/// A vote counts until its candidate asks again. The control: votes that take a little longer, in each round.
#[tokio::test(start_paused = true)]
async fn a_vote_may_take_as_long_as_a_round_of_votes() {
    let (soonest, _) = Profile::Rack.timers().election();
    let minute = Duration::from_secs(60);
    let engine = tokio::time::timeout(minute, elected(Slow(soonest * 9 / 10)));
    let engine = engine.await.unwrap();
    assert_eq!(engine.progress().vote.term, 1);
    engine.stop().await;
    let never = tokio::time::timeout(minute, elected(Slow(soonest * 11 / 10)));
    assert!(never.await.is_err(), "control");
}
