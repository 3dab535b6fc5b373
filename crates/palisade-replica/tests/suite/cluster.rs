//! Whole nodes on directories of this machine and TCP: forming, seeding, joining, and a leader that goes away.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use palisade_core::{
    Acquire, ClientId, Command, LeaseKey, LockName, Others, Timestamp, Ttl, Under, WallTime,
};
use palisade_pipeline::codec;
use palisade_pipeline::durable;
use palisade_replica::forming::{self, Decision, List};
use palisade_replica::peers::{HISTORY, Introduction, Peers, Settings as PeerSettings, Standing};
use palisade_replica::{
    Applier, Directory, Engine, EngineStart, LogId, NodeId, NotCommitted, Profile, Role, Settings,
    Sink, Store, Stored, Tokio, Work, Writer,
};
use palisade_wal::{CreateOptions, OpenError, Opened, Options, Purpose, Wal};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::peers::key;

type Node = Engine<Tokio>;

/// The queue to a thread that writes the log.
struct Queue(mpsc::UnboundedSender<Work>);

impl Sink for Queue {
    fn submit(&self, work: Work) {
        let _ = self.0.send(work);
    }
}

fn write_on_a_thread(mut writer: Writer) -> Queue {
    let (queue, mut works) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(first) = works.blocking_recv() {
            let more = std::iter::from_fn(|| works.try_recv().ok());
            if writer.work(std::iter::once(first).chain(more)).is_err() {
                return;
            }
        }
    });
    Queue(queue)
}

/// A process: the state that a node has in memory.
struct Process {
    node: NodeId,
    address: String,
    peers: Peers,
    serving: JoinHandle<()>,
    directory: Directory,
    engine: Option<Node>,
    store: Option<Store>,
    applier: Option<Arc<Applier>>,
}

/// Where a node is, whether it runs or not.
struct Place {
    home: tempfile::TempDir,
    address: String,
    listener: Mutex<Option<TcpListener>>,
}

impl Place {
    async fn new() -> Place {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Place {
            home: tempfile::tempdir().unwrap(),
            address: listener.local_addr().unwrap().to_string(),
            listener: Mutex::new(Some(listener)),
        }
    }

    fn data(&self) -> std::path::PathBuf {
        self.home.path().join("data")
    }

    /// The threads of the process before may still hold the lock.
    async fn lock(&self) -> Directory {
        loop {
            match Directory::lock(&self.data()) {
                Err(OpenError::Locked { .. }) => tokio::task::yield_now().await,
                locked => return locked.unwrap(),
            }
        }
    }

    /// The first process gets the port that was taken when the address was chosen.
    async fn listen(&self) -> TcpListener {
        let kept = self.listener.lock().unwrap().take();
        match kept {
            Some(listener) => listener,
            None => TcpListener::bind(&self.address).await.unwrap(),
        }
    }
}

fn options() -> Options {
    Options::small(1 << 20)
}

impl Process {
    /// Begins as a node with a list does: locks its directory, listens, and introduces itself.
    async fn begin(place: &Place, list: &List) -> (Process, Introduction) {
        let directory = place.lock().await;
        let purpose = directory.purpose().unwrap();
        let at = (place.address.as_str(), "http://client");
        let own = forming::introduction(
            directory.node(),
            purpose,
            at,
            Some(list),
            Profile::MultiRegion,
        )
        .unwrap();
        let peers = Peers::new(Some(key(1)), PeerSettings::default(), own.clone());
        let serving = tokio::spawn(peers.serve(place.listen().await));
        let process = Process {
            node: directory.node(),
            address: place.address.clone(),
            peers,
            serving,
            directory,
            engine: None,
            store: None,
            applier: None,
        };
        (process, own)
    }

    /// The whole way of `serve --cluster`.
    async fn start(place: &Place, list: &List) -> Process {
        let (mut process, own) = Process::begin(place, list).await;
        let opened = match process.directory.purpose().unwrap() {
            Purpose::Member { .. } => process.directory.open(&options()).unwrap(),
            Purpose::Blank | Purpose::Single(_) => {
                let decided = forming::meet(&process.peers, own, list, |_| ())
                    .await
                    .unwrap();
                process.carry_out(decided)
            }
        };
        process.run(opened).await;
        process
    }

    fn carry_out(&self, decided: Decision) -> Opened {
        let directory = &self.directory;
        match decided {
            Decision::Form(founding) => directory.form(&founding, &options()).unwrap(),
            Decision::Seed => directory.seed(&self.address, &options()).unwrap(),
            Decision::Join(found) => directory
                .join(found.authority, found.incarnation, &options())
                .unwrap(),
            Decision::Wait(why) => panic!("{why}"),
        }
    }

    async fn run(&mut self, opened: Opened) {
        let (identity, starts) = (*opened.identity(), opened.starts());
        let Stored { writer, mut state } = Stored::read(opened, 1).unwrap();
        let compactor = writer.compactor();
        let log = std::mem::take(&mut state.log);
        let store = Store::new(log, write_on_a_thread(writer), compactor, 1);
        let applier = Arc::new(Applier::new(state, store.clone()));
        let started = Engine::<Tokio>::start(EngineStart {
            node: self.node,
            store: store.clone(),
            applier: Arc::clone(&applier),
            transport: self.peers.clone(),
            settings: Settings {
                // The machine may be busy.
                timers: Profile::MultiRegion.timers(),
                ..Settings::default()
            },
        });
        let engine = started.await.unwrap();
        let (node, address) = (self.node, self.address.clone());
        let (of, log) = (engine.clone(), store.clone());
        self.peers.introduce(move || Introduction {
            node,
            address: address.clone(),
            url: "http://client".into(),
            reads: 1,
            timers: Profile::MultiRegion,
            starts,
            last: log.look(|log| log.last()),
            history: log.look(|log| log.history(HISTORY)),
            standing: Standing::Member {
                authority: identity.owner,
                incarnation: identity.incarnation,
                members: of.progress().members.nodes,
            },
        });
        let answering = engine.clone();
        self.peers.answer(move |_, message| {
            let engine = answering.clone();
            async move { engine.answer(&message).await }
        });
        (self.engine, self.store, self.applier) = (Some(engine), Some(store), Some(applier));
    }

    fn engine(&self) -> &Node {
        self.engine.as_ref().unwrap()
    }

    /// As a kill does, as far as others can see.
    async fn stop(self) {
        self.engine().stop().await;
        self.end().await;
    }

    async fn end(self) {
        self.peers.stop();
        self.serving.await.unwrap();
    }

    /// Waits until it has applied everything up to an entry.
    async fn applied(&self, to: LogId) {
        let mut watch = self.engine().watch();
        while self.engine().progress().applied < Some(to) {
            watch.changed().await.unwrap();
        }
    }

    /// The locks that are held, as far as this node follows.
    fn locks(&self) -> usize {
        let store = self.store.as_ref().unwrap();
        let (applied, _) = self.applier.as_ref().unwrap().applied();
        store.rebuild(applied).unwrap().machine.finish().locks()
    }
}

/// The one of them that leads, as a quorum confirms.
async fn leader<'a>(nodes: &[&'a Process]) -> &'a Process {
    loop {
        for process in nodes {
            let leads = process.engine().progress().role == Role::Leader;
            if leads && process.engine().confirm().await.is_ok() {
                return process;
            }
        }
        tokio::task::yield_now().await;
    }
}

fn list_of<const N: usize>(places: &[Place; N]) -> [List; N] {
    let addresses: Vec<String> = places.iter().map(|place| place.address.clone()).collect();
    std::array::from_fn(|own| List::new(&addresses, &addresses[own]).unwrap())
}

/// A batch that grants one lock.
pub(crate) fn grant(number: u64) -> Arc<[u8]> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(number + 1).to_le_bytes());
    let acquire = Command::Acquire(Acquire {
        lock: LockName::new(&format!("lock-{number}")).unwrap(),
        also: Others::NONE,
        client: ClientId::new("client").unwrap(),
        mode: palisade_core::LockMode::Exclusive,
        under: Under::New {
            key: LeaseKey::from_bytes(bytes),
            ttl: Ttl::from_millis(60_000).unwrap(),
        },
        wait: None,
        request: None,
        metadata: None,
        options: palisade_core::GrantOptions::NONE,
    });
    let mut batch = Vec::new();
    codec::encode_head(&mut batch, Timestamp::ZERO, WallTime(1));
    codec::encode_command(&mut batch, &acquire);
    batch.into()
}

/// Proposes them one after the other, under one leadership; returns the log position of the last.
async fn propose(leader: &Process, grants: std::ops::Range<u64>) -> LogId {
    let leadership = leader.engine().confirm().await.unwrap().leader;
    let mut last = LogId::default();
    for number in grants {
        last = leader
            .engine()
            .propose(leadership, grant(number))
            .await
            .unwrap();
    }
    last
}

async fn all_have<const N: usize>(nodes: [&Process; N], last: LogId, locks: usize) {
    for node in nodes {
        node.applied(last).await;
        assert_eq!(node.locks(), locks);
    }
}

#[tokio::test]
async fn three_blank_nodes_form_a_cluster_that_outlives_its_leader() {
    let places = [Place::new().await, Place::new().await, Place::new().await];
    let lists = list_of(&places);
    let start = |at: usize| Process::start(&places[at], &lists[at]);
    let (a, b, c) = tokio::join!(start(0), start(1), start(2));
    let members = [a.node, b.node, c.node];
    let first = leader(&[&a, &b, &c]).await;
    let last = propose(first, 0..100).await;
    all_have([&a, &b, &c], last, 100).await;

    let killed = members.iter().position(|node| *node == first.node).unwrap();
    let mut nodes = vec![a, b, c];
    nodes.remove(killed).stop().await;
    let [d, e] = [&nodes[0], &nodes[1]];
    let second = leader(&[d, e]).await;
    let last = propose(second, 100..200).await;
    all_have([d, e], last, 200).await;

    // It comes back as the node that it was, and does not look at the list.
    let back = Process::start(&places[killed], &lists[killed]).await;
    assert_eq!(back.node, members[killed]);
    all_have([&back], last, 200).await;
    let voters = back.engine().progress().members.voters;
    assert_eq!(voters, [BTreeSet::from(members)]);
}

/// Whether a watch of a follower reports changes while it is polled once.
async fn tells(changed: impl Future<Output = Result<(), NotCommitted>>) -> bool {
    tokio::select! {
        biased;
        told = changed => told.map(|()| true).unwrap(),
        () = std::future::ready(()) => false,
    }
}

#[tokio::test]
async fn who_waits_for_a_leader_is_not_woken_by_its_batches() {
    let places = [Place::new().await, Place::new().await, Place::new().await];
    let lists = list_of(&places);
    let start = |at: usize| Process::start(&places[at], &lists[at]);
    let (a, b, c) = tokio::join!(start(0), start(1), start(2));
    let mut nodes = vec![a, b, c];
    let led_by = |nodes: &[Process]| nodes[0].engine().progress().leader;
    let first = leader(&nodes.iter().collect::<Vec<_>>()).await.node;
    let at = nodes.iter().position(|node| node.node == first).unwrap();
    let killed = nodes.remove(at);
    let (mut progress, mut who) = (nodes[0].engine().watch(), nodes[0].engine().watch_leader());
    nodes[0].applied(propose(&killed, 0..1).await).await;
    while tells(progress.changed()).await || tells(who.changed()).await {}

    nodes[0].applied(propose(&killed, 1..20).await).await;
    assert!(tells(progress.changed()).await, "the control");
    assert!(!tells(who.changed()).await);

    killed.stop().await;
    let second = leader(&nodes.iter().collect::<Vec<_>>()).await.node;
    // The watch reports a candidate before it reports a leader.
    while led_by(&nodes) != Some(second) {
        who.changed().await.unwrap();
    }
}

/// A single server's directory with some locks.
pub(crate) fn single_server(data: &Path, locks: u64) {
    let opened = Wal::create(data, &CreateOptions::default(), &options()).unwrap();
    let mut wal = opened.into_wal();
    for number in 0..locks {
        wal.commit(&grant(number)).unwrap();
    }
    wal.close().unwrap();
}

#[tokio::test]
async fn a_server_with_locks_seeds_a_cluster_and_the_others_get_all_of_them() {
    let places = [Place::new().await, Place::new().await, Place::new().await];
    single_server(&places[0].data(), 50);
    let lists = list_of(&places);
    let start = |at: usize| Process::start(&places[at], &lists[at]);
    let (seed, b, c) = tokio::join!(start(0), start(1), start(2));
    assert_eq!(leader(&[&seed, &b, &c]).await.node, seed.node);
    assert_eq!(seed.locks(), 50);
    for other in [&b, &c] {
        let added = seed.engine().add_learner(other.node, &other.address).await;
        added.unwrap();
    }
    let voters = BTreeSet::from([seed.node, b.node, c.node]);
    seed.engine().set_voters(voters).await.unwrap();
    let last = propose(&seed, 50..60).await;
    all_have([&seed, &b, &c], last, 60).await;

    seed.stop().await;
    let last = propose(leader(&[&b, &c]).await, 60..70).await;
    all_have([&b, &c], last, 70).await;

    let refused = durable::open(&places[0].data(), &durable::Settings::default());
    let refused = refused.err().unwrap().to_string();
    assert!(
        refused.contains("--cluster") && refused.contains("cluster recover"),
        "{refused}"
    );
}

/// Nodes that stop between the agreement and the directory, and between the directory and the engine, come back as one
/// cluster.
#[tokio::test]
async fn nodes_that_stop_while_they_form_come_back_as_one_cluster() {
    let places = [Place::new().await, Place::new().await, Place::new().await];
    let lists = list_of(&places);
    let agree = |at: usize| {
        let (place, list) = (&places[at], &lists[at]);
        async move {
            let (process, own) = Process::begin(place, list).await;
            let decided = forming::meet(&process.peers, own, list, |_| ())
                .await
                .unwrap();
            (process, decided)
        }
    };
    let (a, b, c) = tokio::join!(agree(0), agree(1), agree(2));
    let members = BTreeSet::from([a.0.node, b.0.node, c.0.node]);
    // One has its directory; the others have nothing but their ids.
    drop(a.0.carry_out(a.1));
    for process in [a.0, b.0, c.0] {
        process.end().await;
    }
    let start = |at: usize| Process::start(&places[at], &lists[at]);
    let (a, b, c) = tokio::join!(start(0), start(1), start(2));
    let last = propose(leader(&[&a, &b, &c]).await, 0..10).await;
    all_have([&a, &b, &c], last, 10).await;
    assert_eq!(c.engine().progress().members.voters, [members]);
}

#[tokio::test]
async fn nodes_with_different_lists_are_both_told_so_and_become_nothing() {
    let places = [Place::new().await, Place::new().await];
    let [short, _] = list_of(&places);
    let mut addresses = short.addresses().to_vec();
    addresses.push("elsewhere:7421".into());
    let longer = List::new(&addresses, &places[1].address).unwrap();
    let meet = |at: usize, list: List| {
        let place = &places[at];
        async move {
            let (process, own) = Process::begin(place, &list).await;
            let refused = forming::meet(&process.peers, own, &list, |_| ()).await;
            let purpose = process.directory.purpose().unwrap();
            (refused.unwrap_err(), purpose)
        }
    };
    let (a, b) = tokio::join!(meet(0, short.clone()), meet(1, longer.clone()));
    for (refused, purpose) in [a, b] {
        assert!(refused.contains(&short.to_string()), "{refused}");
        assert!(refused.contains(&longer.to_string()), "{refused}");
        assert_eq!(purpose, Purpose::Blank);
    }
}
