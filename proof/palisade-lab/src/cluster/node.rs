//! A node's process: the production engine, store, applier and loop, driven in virtual time.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read as _, Write as _};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures_util::future::{Either, select};
use palisade_core::{Command, LeaseKey, Limits, Machine, Span, Timestamp, WallTime};
use palisade_pipeline::codec::decode_batch;
use palisade_pipeline::orderer::{DurableOutput, Moment, Orderer, ReplyAddress};
use palisade_pipeline::round::{Inbox, Round, RoundInput, ToWrite, UntilNext};
use palisade_pipeline::{Answer, Failure, Writable, take_over};
use palisade_replica::peers::PeerHistory;
use palisade_replica::{
    Applier, Directory, Engine, EngineStart, Leadership, Lent, Log, Members, NodeId, NotCommitted,
    Role, Settings, Sink, State, StateError, Store, Stored, Work,
};
use palisade_wal::testing::SimStorage;
use palisade_wal::{
    Fold, OpenError, Opened, Options, Purpose, Seq, SnapshotReader, SnapshotWriter,
};
use tokio::sync::{mpsc, oneshot};

use super::mutants::Mutant;
use super::network::{Ask, Link, Place, Said, cluster};
use super::runtime::{LabRuntime, MS, Process, hold, now, sleep, within};
use super::world::World;
use crate::sim::rng::Rng;

/// Where an answer goes.
struct Caller(oneshot::Sender<Said>);

impl ReplyAddress for Caller {
    fn session(&self) -> Option<u64> {
        None
    }

    fn is_gone(&self) -> bool {
        self.0.is_closed()
    }
}

/// The requests that have reached a leader.
struct NodeInbox<'a> {
    gathered: &'a mut VecDeque<Ask>,
    now: Timestamp,
    rng: &'a mut Rng,
}

impl Inbox<Caller> for NodeInbox<'_> {
    fn next(&mut self, _: &Orderer<Caller>) -> Option<RoundInput<Caller>> {
        let Ask { request, reply } = self.gathered.pop_front()?;
        Some(RoundInput::Ask(request.into(), Caller(reply)))
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn key(&mut self) -> LeaseKey {
        LeaseKey::from_bytes(self.rng.bytes())
    }
}

/// The sealed log that is worth a snapshot, and the entries that stay behind one.
const SNAPSHOT_AFTER: u64 = 8 << 10;
const KEEP: u64 = 8;

/// Queue to the task that writes the log.
struct Queue(mpsc::UnboundedSender<Work>);

impl Sink for Queue {
    fn submit(&self, work: Work) {
        let _ = self.0.send(work);
    }
}

/// Opens a node's log, which is empty at its first start.
pub(super) fn open(disk: &SimStorage) -> Result<Opened, OpenError> {
    let directory = Directory::on(Arc::new(disk.clone()))?;
    let ((authority, incarnation), options) = (cluster(), Options::small(4 << 10));
    match directory.purpose()? {
        Purpose::Blank => directory.join(authority, incarnation, &options),
        Purpose::Single(_) | Purpose::Member { .. } => directory.open(&options),
    }
}

/// Starts a node's process on its machine's disk.
pub(super) fn start(world: &Arc<World>, place: Place) -> Result<(), String> {
    let mut host = world.network.host(place);
    host.boots += 1;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let opened = open(&host.disk).map_err(|error| text(&error))?;
    let starts = opened.starts();
    let stored = Stored::read(opened, u64::from(place));
    let Stored { writer, mut state } = stored.map_err(|error| text(&error))?;
    let process = Arc::new(Process::default());
    let (queue, mut works) = mpsc::unbounded_channel();
    let store = Store::new(
        std::mem::take(&mut state.log),
        Queue(queue),
        writer.compactor(),
        u64::from(place),
    );
    host.compactor = Some(writer.compactor());
    let applier = Arc::new(Applier::new(state, store.clone()));
    let writer = Arc::new(Mutex::new(writer));
    let disk_rng = Arc::new(Mutex::new(world.fork(500 + u64::from(place))));
    let asking = Arc::clone(world);
    let lying = host.disk.clone();
    process.spawn(async move {
        while let Some(first) = works.recv().await {
            let slow = hold(&asking.slow_disk)[usize::from(place)];
            let took = hold(&disk_rng).between(MS / 10, 2 * MS);
            sleep(took + slow).await;
            let mut all = vec![first];
            while let Ok(more) = works.try_recv() {
                all.push(more);
            }
            loop {
                let room = hold(&writer).room_for(&all);
                asking.network.host(place).full = room.is_err();
                match room {
                    Ok(()) => break,
                    Err(_) => sleep(250 * MS).await,
                }
            }
            let forgets =
                asking.mutant == Some(Mutant::VoteNotSynced) && all.iter().all(Work::is_vote);
            if forgets {
                lying.set_lying(true);
            }
            let worked = hold(&writer).work(all);
            if forgets {
                lying.set_lying(false);
            }
            if worked.is_err() {
                // A failed sync ends the process (rule R2).
                asking.died(place);
                return;
            }
        }
    });
    let (inbox, asks) = mpsc::unbounded_channel();
    host.process = Some(Arc::clone(&process));
    host.inbox = Some(inbox);
    host.engine = None;
    host.store = Some(store.clone());
    host.applier = Some(Arc::clone(&applier));
    (host.compared, host.full) = (0, false);
    host.starts = starts;
    host.history = match world.mutant {
        Some(Mutant::Forgetful) => PeerHistory::default(),
        _ => PeerHistory::from_text(&host.remembered, cluster().1),
    };
    host.connected.clear();
    host.answered.clear();
    let node = Node {
        world: Arc::clone(world),
        place,
        store,
        applier,
        rng: world.fork(1_000 + u64::from(place) + 100 * u64::from(host.boots)),
    };
    process.spawn(node.run(asks));
    Ok(())
}

struct Node {
    world: Arc<World>,
    place: Place,
    store: Store,
    applier: Arc<Applier>,
    rng: Rng,
}

/// The inbox of a node.
type Asks = mpsc::UnboundedReceiver<Ask>;

impl Node {
    async fn run(mut self, mut asks: Asks) {
        self.world.network.ask_members(self.place).await;
        let started = Engine::<LabRuntime>::start(EngineStart {
            node: NodeId(self.place.into()),
            store: self.store.clone(),
            applier: Arc::clone(&self.applier),
            transport: Link {
                from: self.place,
                network: Arc::clone(&self.world.network),
            },
            settings: self.settings(),
        });
        let engine = match started.await {
            Ok(engine) => engine,
            Err(error) => return self.world.broken("start", error.to_string()),
        };
        self.world.network.host(self.place).engine = Some(engine.clone());
        let lost = self.world.network.host(self.place).lost;
        if self.place < self.world.first_members && !lost {
            // Refused where the cluster is there already.
            let _ = engine.form(&members(0..self.world.first_members)).await;
        }
        let process = self.world.network.host(self.place).process.clone();
        if let Some(process) = process {
            process.spawn(hand_over(
                self.place,
                engine.clone(),
                Arc::clone(&self.world),
            ));
            process.spawn(remember(self.place, Arc::clone(&self.world)));
            if self.world.mutant != Some(Mutant::HalfChanged) {
                process.spawn(engine.clone().complete_changes());
            }
            process.spawn(snapshots(
                self.place,
                engine.clone(),
                self.store.clone(),
                Arc::clone(&self.world),
            ));
        }
        loop {
            let led = self.follow(&engine, &mut asks).await;
            let Ok((leadership, machine)) = led else {
                return self.world.died(self.place);
            };
            if self.world.is_ended() {
                return self
                    .world
                    .broken("a new leader", "while nothing fails".into());
            }
            self.world.count(|counts| counts.leaders += 1);
            let (place, term) = (self.place, leadership.leader().term);
            self.world.say(|| {
                format!(
                    "node {place} leads in term {term}, behind {}",
                    leadership.contains()
                )
            });
            let ended = self.lead(leadership, machine, &mut asks).await;
            if let Err(error) = ended {
                return self.world.broken("rebuild", error);
            }
            if self.world.is_ended() {
                return std::future::pending().await;
            }
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            timers: self.world.terms.timers.timers(),
            pauses: self.world.mutant != Some(Mutant::NoProbe),
            ..Settings::default()
        }
    }

    /// Sends callers on, until this node leads.
    async fn follow(
        &self,
        engine: &Engine<LabRuntime>,
        asks: &mut Asks,
    ) -> Result<(Leadership<LabRuntime>, Machine), NotCommitted> {
        let mut wait = pin!(Leadership::wait(engine, &self.applier));
        loop {
            let ask = pin!(asks.recv());
            match select(&mut wait, ask).await {
                Either::Left((led, _)) => return led,
                Either::Right((None, _)) => return std::future::pending().await,
                Either::Right((Some(ask), _)) => {
                    let leader = engine.progress().leader.map(|node| node.0 as Place);
                    let _ = ask.reply.send(Said::NotLeader(leader));
                }
            }
        }
    }

    /// Serves, until another node leads.
    async fn lead(
        &mut self,
        mut leadership: Leadership<LabRuntime>,
        machine: Machine,
        asks: &mut Asks,
    ) -> Result<(), String> {
        let mutant = self.world.mutant;
        let (since, from) = (self.local(), machine.now());
        let from = match mutant {
            // Its own clock, which no other node's has anything to do with.
            Some(Mutant::OwnClock) => Timestamp::ZERO.after(Span::from_nanos(since)),
            _ => from,
        };
        self.world.compare();
        let contains = leadership.contains();
        hold(&self.world.check).took_over(self.place, contains, &machine);
        let mut round = Round::new(machine, false);
        let mut first = take_over(Limits::DEFAULT);
        if mutant == Some(Mutant::NoGrace) {
            first.retain(|command| !matches!(command, Command::Grace(_)));
        }
        round.open(from, self.wall(), first);
        let mut gathered = VecDeque::new();
        let mut going = self.commit(&mut round, &mut leadership).await;
        while going && !self.world.is_ended() {
            if let UntilNext::Sleep(planned) = round.rest(self.at(from, since)) {
                let first = within(planned.as_nanos().max(1), asks.recv()).await;
                gathered.extend(first.flatten());
                while let Ok(ask) = asks.try_recv() {
                    gathered.push_back(ask);
                }
                let arrived = !gathered.is_empty();
                let _ = round.woke(self.at(from, since), arrived, Span::ZERO);
            }
            let now = Moment {
                at: self.at(from, since),
                wall: self.wall(),
                worked: Span::ZERO,
            };
            let room = if self.world.network.host(self.place).full {
                Err("the disk is full".to_owned())
            } else {
                Ok(())
            };
            round.begin(now, room, Writable::default());
            round.fill(&mut NodeInbox {
                gathered: &mut gathered,
                now: now.at,
                rng: &mut self.rng,
            });
            going = self.commit(&mut round, &mut leadership).await;
        }
        self.world
            .say(|| format!("node {} leads no longer", self.place));
        for (caller, answer) in round.deposed() {
            let _ = caller.0.send(Said::Answer(answer));
        }
        let machine = round.into_machine();
        let ended = match mutant {
            Some(Mutant::UncertainKept) => self.applier.take_back(Some(Lent {
                machine,
                contains: leadership.contains(),
                version: leadership.version(),
            })),
            _ => leadership.end(machine),
        };
        ended.map_err(|error| error.to_string())
    }

    /// Ends the batch. `false`: this node leads no longer.
    async fn commit(
        &self,
        round: &mut Round<Caller>,
        leadership: &mut Leadership<LabRuntime>,
    ) -> bool {
        let mutant = self.world.mutant;
        let patience = self.world.patience();
        let (entry, confirms) = match round.write() {
            ToWrite::Entry(entry) => (Some(Arc::<[u8]>::from(entry)), false),
            ToWrite::Confirm => (None, true),
            ToWrite::Nothing => (None, false),
        };
        let had_entry = entry.is_some();
        let mut is_out = mutant == Some(Mutant::AnswerBeforeQuorum);
        if is_out {
            let_out(round.written());
        }
        let done = match entry {
            Some(batch) if mutant == Some(Mutant::NoStamps) && is_stamp(&batch) => Some(Ok(())),
            Some(batch) if mutant == Some(Mutant::LearnerCounted) => {
                let copied = pin!(self.copied());
                let commit = pin!(within(patience, leadership.commit(batch)));
                match select(commit, copied).await {
                    Either::Left((done, _)) => done,
                    Either::Right(((), commit)) => {
                        let_out(round.written());
                        is_out = true;
                        commit.await
                    }
                }
            }
            Some(batch) => within(patience, leadership.commit(batch)).await,
            None if mutant == Some(Mutant::NoConfirm) => Some(Ok(())),
            None if confirms => within(patience, leadership.confirm()).await,
            None => Some(Ok(())),
        };
        let Some(Ok(())) = done else { return false };
        if had_entry {
            self.world
                .say(|| format!("node {} committed {}", self.place, leadership.contains()));
        }
        if !is_out {
            let_out(round.written());
        }
        true
    }

    /// Waits until as many nodes as make a majority have the next entry, whether they vote or not.
    async fn copied(&self) {
        let next = self.store.look(Log::last).map_or(0, |last| last.index + 1);
        loop {
            sleep(MS).await;
            let Some(engine) = self.world.network.host(self.place).engine.clone() else {
                return std::future::pending().await;
            };
            let progress = engine.progress();
            let matched = progress.matched.values().flatten();
            let copies = matched.filter(|matched| matched.index >= next).count();
            let voters = progress.members.voters;
            if voters.iter().all(|voters| copies > voters.len() / 2) {
                return;
            }
        }
    }

    /// This node's own clock, which has nothing to do with another's.
    fn local(&self) -> u64 {
        let place = u64::from(self.place);
        let ppm = self.world.rates_ppm[usize::from(self.place)];
        let real = i128::from(now());
        let ticked = real + real * i128::from(ppm) / 1_000_000;
        (place + 1) * 3_600_000 * MS + ticked as u64
    }

    fn at(&self, from: Timestamp, since: u64) -> Timestamp {
        from.after(Span::from_nanos(self.local() - since))
    }

    fn wall(&self) -> WallTime {
        WallTime(1_800_000_000_000 + self.local() / MS)
    }
}

/// Whether a batch has the time and nothing else.
fn is_stamp(batch: &[u8]) -> bool {
    let mut stamps = true;
    let decoded = decode_batch(batch, |entry| stamps &= entry.command == Command::Expire);
    decoded.is_ok() && stamps
}

fn let_out(released: DurableOutput<'_, Caller>) {
    drop(released.events);
    for (caller, answer) in released.answers {
        let _ = caller.0.send(Said::Answer(answer));
    }
}

/// Lets another node lead when this one's disk is full: others can still acknowledge requests (rule R23).
async fn hand_over(place: Place, engine: Engine<LabRuntime>, world: Arc<World>) {
    loop {
        sleep(250 * MS).await;
        let full = world.network.host(place).full;
        let progress = engine.progress();
        if !full || progress.role != Role::Leader || world.mutant == Some(Mutant::FullLeads) {
            continue;
        }
        let voters = progress.members.voters.into_iter().flatten();
        let others = voters.filter(|node| node.0 != u64::from(place));
        if let Some(to) = others.max_by_key(|node| progress.matched.get(node).copied().flatten()) {
            engine.hand_over(to).await;
        }
    }
}

/// Writes down this node's memory of the others, once a second (rule R14).
async fn remember(place: Place, world: Arc<World>) {
    loop {
        sleep(1_000 * MS).await;
        let mut host = world.network.host(place);
        host.remembered = host.history.to_text(cluster().1);
    }
}

/// Makes a snapshot now and then.
async fn snapshots(place: Place, engine: Engine<LabRuntime>, store: Store, world: Arc<World>) {
    loop {
        sleep(500 * MS).await;
        if store.sealed_bytes() < SNAPSHOT_AFTER {
            continue;
        }
        if world.compact(place, &store) {
            engine.snapshot_made(KEEP).await;
        }
    }
}

/// Folds a log into a snapshot as if everything in it were committed.
struct Hasty(State);

impl Fold for Hasty {
    type Error = StateError;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> Result<(), StateError> {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        self.0 = State::load(0, &bytes, false)?;
        Ok(())
    }

    fn apply(&mut self, _: Seq, frame: &[u8]) -> Result<(), StateError> {
        self.0.frame(frame)
    }

    fn save(&mut self, out: &mut SnapshotWriter) -> Result<(), StateError> {
        self.0.commit_all()?;
        Ok(self.0.save(|bytes| out.write_all(bytes))?)
    }
}

impl World {
    /// Folds the sealed part of a node's log into a snapshot; `false` if none was made.
    pub(super) fn compact(&self, place: Place, store: &Store) -> bool {
        // Entries in a snapshot are no longer compared.
        self.compare_log(place);
        let compactor = self.network.host(place).compactor.clone();
        // A failing disk makes none; it is tried again.
        let made = match (self.mutant, compactor) {
            (Some(Mutant::UncommittedFolded), Some(compactor)) => {
                let made = compactor.compact(&mut Hasty(State::new(0, false)));
                made.is_ok_and(|made| made.is_some())
            }
            _ => store.compact().is_ok_and(|made| made.is_some()),
        };
        if made {
            self.count(|counts| counts.snapshots += 1);
        }
        made
    }
}

pub(super) fn members(places: std::ops::Range<Place>) -> Members {
    let nodes: BTreeSet<NodeId> = places.map(|place| NodeId(place.into())).collect();
    Members {
        nodes: nodes.iter().map(|node| (*node, node.to_string())).collect(),
        voters: vec![nodes],
    }
}

/// A node that could not answer at all.
pub(super) fn unavailable() -> Said {
    Said::Answer(Answer::Failed(Failure::Unavailable("no connection".into())))
}
