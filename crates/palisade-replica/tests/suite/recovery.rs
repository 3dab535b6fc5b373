//! A member's directory without its cluster: which entries of its log a backup and a recovery take, and which they
//! leave out.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use palisade_core::Token;
use palisade_pipeline::durable::{self, Restored};
use palisade_replica::{
    Directory, Entry, Founding, Leader, LogId, Members, NodeId, Payload, Sink, Store, Stored, Work,
    Writer, recovery,
};
use palisade_wal::{DirStorage, Id, Options, Purpose};

use crate::cluster::{grant, single_server};

/// Work waits here for the writer.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Vec<Work>>>);

impl Sink for Waiting {
    fn submit(&self, work: Work) {
        self.0.lock().unwrap().push(work);
    }
}

/// One member of three; the test writes its log.
struct Member {
    home: tempfile::TempDir,
    node: NodeId,
    store: Store,
    writer: Writer,
    waiting: Waiting,
}

fn place(term: u64, index: u64) -> LogId {
    let node = NodeId(7);
    let leader = Leader { term, node };
    LogId { leader, index }
}

impl Member {
    fn new() -> Member {
        let home = tempfile::tempdir().unwrap();
        let directory = Directory::lock(&home.path().join("data")).unwrap();
        let node = directory.node();
        let members = [node, NodeId(2), NodeId(3)];
        let founding = Founding {
            authority: Id::from_bytes([0xaa; 16]),
            incarnation: Id::from_bytes([1; 16]),
            members: Members {
                voters: vec![members.into()],
                nodes: members.map(|node| (node, format!("{node}:1"))).into(),
            },
        };
        let opened = directory.form(&founding, &Options::small(1 << 14)).unwrap();
        let Stored { writer, state } = Stored::read(opened, 1).unwrap();
        let waiting = Waiting::default();
        let store = Store::new(state.log, waiting.clone(), writer.compactor(), 1);
        Member {
            home,
            node,
            store,
            writer,
            waiting,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn sync(&mut self) {
        let works = std::mem::take(&mut *self.waiting.0.lock().unwrap());
        self.writer.work(works).unwrap();
    }

    /// Appends entries that grant one lock each.
    fn append(&mut self, term: u64, indexes: std::ops::RangeInclusive<u64>) {
        let entries = indexes.map(|index| Entry {
            id: place(term, index),
            payload: Payload::Batch(grant(index)),
        });
        self.store.append(entries.collect(), drop).unwrap();
        self.sync();
    }

    fn truncate_after(&mut self, last: LogId) {
        self.store.truncate_after(Some(last), drop).unwrap();
        self.sync();
    }

    /// A backup of its log as it is now, restored.
    fn backed_up(&self, name: &str) -> (u64, u64, Restored) {
        let (saved, restored) = (self.path(name), self.path(&format!("{name}-restored")));
        let from = DirStorage::observe(&self.data()).unwrap();
        let made =
            recovery::back_up_on(&from, &DirStorage::create(&saved).unwrap(), || ()).unwrap();
        let again = durable::restore(&saved, &restored).unwrap();
        (made.entries, made.left_out, again)
    }

    /// Ends the process.
    fn kill(self) -> (tempfile::TempDir, NodeId) {
        (self.home, self.node)
    }
}

fn leapt(restored: &Restored) {
    let next = restored.next_token.map_or(0, Token::get);
    assert!(next > 1 << 44, "{next}");
}

#[test]
fn a_backup_has_what_is_committed_and_nothing_else() {
    let mut member = Member::new();
    member.append(1, 1..=5);
    let (entries, left_out, restored) = member.backed_up("nothing-known");
    assert_eq!((entries, left_out, restored.locks), (1, 5, 0));

    // Known with the next entries.
    member.store.commit(place(1, 5)).unwrap();
    member.append(1, 6..=9);
    let (entries, left_out, restored) = member.backed_up("some");
    assert_eq!((entries, left_out, restored.locks), (6, 4, 5));
    leapt(&restored);
    assert_eq!(*restored.identity.authority, *"aa".repeat(16));
    assert_ne!(restored.identity.incarnation, "01".repeat(16));

    // An idle node has no next entry.
    member.store.commit(place(1, 9)).unwrap();
    member.store.save_commit().unwrap();
    member.sync();
    let (entries, left_out, restored) = member.backed_up("all");
    assert_eq!((entries, left_out, restored.locks), (10, 0, 9));

    // Folded into a snapshot it is the same.
    member.append(1, 10..=400);
    member.store.commit(place(1, 400)).unwrap();
    member.append(1, 401..=800);
    assert!(member.store.compact().unwrap().is_some());
    let (entries, left_out, restored) = member.backed_up("folded");
    assert_eq!((entries, left_out, restored.locks), (401, 400, 400));
}

/// A running node writes its commits down a moment later: the backup waits for that.
#[test]
fn a_backup_of_a_node_that_runs_has_what_was_committed_when_it_was_asked_for() {
    let mut member = Member::new();
    member.append(1, 1..=5);
    member.store.commit(place(1, 5)).unwrap();
    let from = DirStorage::observe(&member.data()).unwrap();
    let to = DirStorage::create(&member.path("saved")).unwrap();
    let write_down = || {
        member.store.save_commit().unwrap();
        member.sync();
    };
    let made = recovery::back_up_on(&from, &to, write_down).unwrap();
    assert_eq!((made.entries, made.left_out), (6, 0));
}

#[test]
fn a_recovery_takes_the_whole_log_that_is_left() {
    let mut member = Member::new();
    member.append(1, 1..=5);
    member.store.commit(place(1, 5)).unwrap();
    member.append(1, 6..=9);
    // Entries that another leader overwrote are not in the log any more.
    member.truncate_after(place(1, 7));
    member.append(2, 8..=8);

    let look = recovery::look(&member.data()).unwrap();
    assert_eq!(look.node, member.node);
    assert_eq!(
        (look.last, look.committed),
        (Some(place(2, 8)), Some(place(1, 5)))
    );
    assert_eq!((look.uncommitted(), look.members.nodes.len()), (3, 3));
    let in_use = recovery::recover(&member.data()).unwrap_err();
    assert!(in_use.to_string().contains("in use"), "{in_use}");

    let (home, node) = member.kill();
    let data = home.path().join("data");
    let recovered = recovery::recover(&data).unwrap();
    assert_eq!(recovered.locks, 8, "those of entries 1 to 8");
    leapt(&recovered);
    assert_eq!(*recovered.identity.authority, *"aa".repeat(16));
    assert_ne!(recovered.identity.incarnation, "01".repeat(16));
    let again = recovery::recover(&data).unwrap_err().to_string();
    assert!(again.contains("a single server"), "{again}");
    is_single_of_another_node(&data, node);
}

fn is_single_of_another_node(data: &Path, old: NodeId) {
    let seeding = Directory::lock(data).unwrap();
    assert!(matches!(seeding.purpose(), Ok(Purpose::Single(_))));
    assert_ne!(seeding.node(), old, "an id is used once");
    let opened = seeding.seed("here:1", &Options::small(1 << 16)).unwrap();
    let state = Stored::read(opened, 1).unwrap().state;
    assert_eq!(state.machine.finish().locks(), 8);
}

#[test]
fn other_directories_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    assert!(recovery::look(&at("nowhere")).is_err());
    single_server(&at("single"), 1);
    std::fs::create_dir(at("empty")).unwrap();
    for name in ["single", "empty"] {
        let refused = [
            recovery::look(&at(name)).err(),
            recovery::back_up(&at(name), &at("saved")).err(),
            recovery::recover(&at(name)).err(),
        ];
        for refused in refused {
            let refused = refused.unwrap().to_string();
            assert!(
                refused.contains(&at(name).display().to_string()),
                "{refused}"
            );
        }
    }
}
