//! Each kind of entry, record and option that this build knows is in the golden data of some version.
//!
//! A new kind stops the compilation here, and then fails the test until the version that brings it has golden data.

use std::collections::BTreeSet;
use std::convert::Infallible;

use palisade_core::{Away, Command, LockMode, Principal, Under};
use palisade_pipeline::codec::decode_batch;
use palisade_replica::{Payload, Record, records_of};
use palisade_wal::{DirStorage, ReadError, ReplayError, observe};
use serde_json::Value;

use super::place::unpack;
use super::{Server, Set};

type Kinds = BTreeSet<&'static str>;

/// A name for each variant, and a list of the names.
macro_rules! kinds {
    ($list:ident, $name:ident, $of:ty: $($pattern:pat => $kind:literal),+ $(,)?) => {
        const $list: &[&str] = &[$($kind),+];

        fn $name(it: &$of) -> &'static str {
            match it {
                $($pattern => $kind),+
            }
        }
    };
}

kinds!(COMMANDS, command, Command:
    Command::Acquire(_) => "acquire",
    Command::Renew { ttl: None, .. } => "renew",
    Command::Renew { ttl: Some(_), .. } => "renew for another time",
    Command::Proclaim { .. } => "proclaim",
    Command::Release(_) => "release",
    Command::Revoke { .. } => "revoke",
    Command::Open { .. } => "open",
    Command::Resize { .. } => "resize",
    Command::Withdraw(_) => "withdraw",
    Command::Orphan(_) => "orphan",
    Command::Abandon(_) => "abandon",
    Command::Expire => "expire",
    Command::Grace(_) => "grace",
    Command::Leap { .. } => "leap",
    Command::Configure(_) => "configure",
);

kinds!(ABSENCES, absence, Away:
    Away::Restarted => "restarted",
    Away::Down(_) => "down",
    Away::Restored => "restored",
    Away::Led => "led",
    Away::Paused(_) => "paused",
);

kinds!(MODES, mode, LockMode:
    LockMode::Exclusive => "exclusive",
    LockMode::Shared => "shared",
    LockMode::Update => "update",
    LockMode::Upgrade => "upgrade",
    LockMode::Permits(_) => "permits",
);

kinds!(LEASES, lease, Under:
    Under::New { .. } => "a new lease",
    Under::Existing { ttl: None, .. } => "a lease that is there",
    Under::Existing { ttl: Some(_), .. } => "a lease that is there, and its time",
);

kinds!(RECORDS, record, Record:
    Record::Vote(_) => "vote",
    Record::Entry(_) => "entry",
    Record::Truncate(_) => "truncate",
    Record::Committed(_) => "committed",
);

kinds!(PAYLOADS, payload, Payload:
    Payload::Blank => "blank",
    Payload::Batch(_) => "batch",
    Payload::Members(_) => "members",
);

/// Only a leader that wrote what no other node got, and came back, leaves it. The tests of palisade-replica do that.
const ABSENT: [&str; 1] = ["truncate"];

fn of_batch(bytes: &[u8], kinds: &mut Kinds) {
    decode_batch(bytes, |entry| {
        kinds.insert(command(&entry.command));
        if entry.by != Principal::ANONYMOUS {
            kinds.insert("a principal");
        }
        match &entry.command {
            Command::Grace(away) => {
                kinds.insert(absence(away));
            }
            Command::Acquire(acquire) => {
                kinds.extend([mode(&acquire.mode), lease(&acquire.under)]);
                if acquire.wait.is_some() {
                    kinds.insert("a wait");
                }
                if acquire.metadata.is_some() {
                    kinds.insert("metadata");
                }
            }
            _ => {}
        }
    })
    .unwrap();
}

/// A directory that nobody has open is not read again.
fn never(_: &ReplayError<Infallible>) -> Option<&ReadError> {
    None
}

/// The kinds in the frames of a packed directory's log.
fn of_log(set: &Set, name: &str, kinds: &mut Kinds) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join(name);
    unpack(&set.file(&format!("directories/{name}.tar.gz")), &data);
    let storage = DirStorage::observe(&data).unwrap();
    let incarnation = palisade_wal::identity(&storage)
        .unwrap()
        .unwrap()
        .incarnation;
    let is_node = name.starts_with("node");
    observe(&storage, incarnation, never, |log| {
        log.replay(|_, frame| {
            if is_node {
                for it in records_of(frame).unwrap() {
                    kinds.insert(record(&it));
                    if let Record::Entry(entry) = it {
                        kinds.insert(payload(&entry.payload));
                        if let Payload::Batch(batch) = &entry.payload {
                            of_batch(batch, kinds);
                        }
                    }
                }
            } else {
                of_batch(frame, kinds)
            }
            Ok(())
        })
    })
    .unwrap();
}

#[test]
fn every_kind_of_entry_is_in_the_golden_data() {
    let mut kinds = Kinds::new();
    for set in Set::all() {
        for name in ["single", "restored", "backup", "node-1", "node-2", "node-3"] {
            of_log(&set, name, &mut kinds);
        }
    }
    let known = [COMMANDS, ABSENCES, MODES, LEASES, RECORDS, PAYLOADS];
    let known = known.into_iter().flatten().copied();
    let missing: Vec<&str> = known.filter(|kind| !kinds.contains(kind)).collect();
    assert_eq!(missing, ABSENT, "use it in proof/golden/directories.py");
    for kind in ["a principal", "a wait", "metadata"] {
        assert!(kinds.contains(kind), "{kind}");
    }
}

/// Options as a client names them: a new field of an acquire needs golden data, too.
#[test]
fn every_option_of_an_acquire_is_in_the_golden_data() {
    let mut used = BTreeSet::new();
    for set in Set::all() {
        let options = set.manifest["directories"]["options"].as_array().unwrap();
        used.extend(
            options
                .iter()
                .map(|option| option.as_str().unwrap().to_owned()),
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start("serve", &dir.path().join("data"), &[]);
    let (_, described) = server.ask("GET", "/openapi.json", "", &Value::Null);
    let fields = &described["components"]["schemas"]["AcquireBody"]["properties"];
    let fields = fields.as_object().unwrap().keys();
    let missing: Vec<&String> = fields.filter(|field| !used.contains(*field)).collect();
    // It says when an answer comes, and is in no entry.
    assert_eq!(missing, ["poll_ms"]);
}
