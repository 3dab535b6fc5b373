//! From the log back to a machine: at start-up, and in the background when a snapshot is due.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use palisade_core::machine::{Corrupt, Grants, Leases, Part, Past, Record};
use palisade_core::{Effect, Entry, Event, Machine, WallTime};

use super::Returning;
use super::clock::wall;
use super::codec::{self, Malformed};

/// Bytes of a log or a snapshot that cannot be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// They are not in the format.
    Malformed(Malformed),
    /// They contradict each other.
    Corrupt(Corrupt),
    /// An assertion of the machine fails at an entry. The version that wrote the entry would not have written it then.
    Impossible(Box<Impossible>),
}

/// An entry that the machine cannot apply, because its state would contradict itself.
#[derive(Debug)]
pub struct Impossible {
    at: InBatch,
    why: String,
}

/// An entry and its batch, in words.
#[derive(Debug)]
struct InBatch {
    /// Its place in the batch, counted from 1.
    place: usize,
    entry: Option<Entry>,
}

impl fmt::Display for InBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of a batch", self.place)?;
        match &self.entry {
            Some(Entry { at, command, .. }) => write!(f, ", {command:?} at {at:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Impossible { at, why } = self;
        write!(
            f,
            "{at}, contradicts what was before it: {why}. Start the version that wrote it on this directory; or restore the last \
             backup into a new one (palisade restore BACKUP NEW-DIRECTORY); and report this message"
        )
    }
}

/// The message of an assertion that failed while this batch was built. It names the last entry: that one is in no log.
pub(super) fn failed_at(batch: Option<&[u8]>, why: &str) -> String {
    let mut entries = Vec::new();
    // It was encoded a moment ago; without a batch there is no entry.
    let _ = codec::decode_batch(batch.unwrap_or_default(), |entry| entries.push(entry));
    let place = entries.len();
    match entries.pop() {
        Some(entry) => {
            let entry = Some(entry);
            format!("{why}, at {}", InBatch { place, entry })
        }
        None => why.to_owned(),
    }
}

/// The message of a panic.
pub(super) fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it gave no reason").to_owned()
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Malformed(malformed) => malformed.fmt(f),
            ReplayError::Corrupt(corrupt) => corrupt.fmt(f),
            ReplayError::Impossible(impossible) => impossible.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<Malformed> for ReplayError {
    fn from(malformed: Malformed) -> ReplayError {
        ReplayError::Malformed(malformed)
    }
}

/// A machine that is being brought up to date.
pub struct Replay {
    machine: Machine,
    /// The newest version of a batch in its log.
    version: u8,
    /// The wall clock of the last entry, if it is not in the snapshot.
    last: Option<WallTime>,
}

/// The parts of what a log says of the past, in this order. If its files go away meanwhile, it is read again from the start, and what
/// was told comes twice.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// The log begins behind this revision: earlier events are in its newest snapshot, where nobody can see them.
    Begins(u64),
    /// The events of a batch.
    Events(&'a [Event]),
    /// The machine behind the last of them.
    Now(&'a Machine),
}

/// A snapshot from here on is worth threads of its own: less is read in some milliseconds.
const LARGE: usize = 1 << 20;

/// The number of commands looked up at once: the memory that they need fits into the processor's caches.
const AHEAD: usize = 32;

/// The least that one grant takes in the log: a lease's key, its times, its names.
const GRANT_BYTES: u64 = 64;

/// Room for more locks than this is not made in advance.
const MOST_AT_ONCE: u64 = 1 << 22;

impl Replay {
    /// Begins with nothing: a log from its first batch.
    #[must_use]
    pub fn from_nothing(seed: u64) -> Replay {
        Replay::from_machine(Machine::new(seed), codec::VERSION)
    }

    /// Goes on from a machine that was in use, and from the newest version of a batch in its log.
    #[must_use]
    pub fn from_machine(machine: Machine, version: u8) -> Replay {
        Replay {
            machine,
            version,
            last: None,
        }
    }

    /// Begins with a snapshot, as [`Replay::snapshot`] wrote it. A large one is read by three threads, each
    /// of its parts by one.
    ///
    /// # Errors
    /// [`ReplayError`] if the bytes are not those of a snapshot.
    pub fn from_snapshot(seed: u64, snapshot: &[u8]) -> Result<Replay, ReplayError> {
        let [leases, grants, past] = RecordBatch::parts(snapshot)?;
        let read_grants = || grants.read(|records| Grants::read(seed, records));
        let read_past = || past.read(|records| Past::read(seed, records));
        let large = snapshot.len() >= LARGE;
        let (leases, grants, past) = thread::scope(|scope| {
            let grants = beside(scope, large, &read_grants);
            let past = beside(scope, large, &read_past);
            let leases = leases.read(|records| Leases::read(seed, records));
            (leases, grants(), past())
        });
        let machine = Machine::join(leases?, grants?, past?);
        let machine = machine.map_err(ReplayError::Corrupt)?;
        let [version, ..] = snapshot else {
            unreachable!("a snapshot with parts has a version");
        };
        Ok(Replay::from_machine(machine, *version))
    }

    /// Makes room for the locks that this many bytes of the log can grant: tables that grow step by step cost a fifth of a
    /// start with a million locks. After a snapshot it is not worth it: the commands behind it are as likely to be others, and
    /// everything that is there already would be moved.
    #[must_use]
    pub fn expecting(mut self, bytes: u64) -> Replay {
        let locks = (bytes / GRANT_BYTES).min(MOST_AT_ONCE);
        self.machine.reserve(locks as usize);
        self
    }

    /// Applies one batch of the log.
    ///
    /// # Errors
    /// [`ReplayError`] if the bytes are not those of a batch; nothing was applied then. After
    /// [`ReplayError::Impossible`] this must not be used any more.
    pub fn batch(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        self.apply(bytes, |machine, entry| machine.replay(entry))
    }

    /// Applies one batch that another node ordered, and gives its events.
    ///
    /// # Errors
    /// As [`Replay::batch`].
    pub fn follow(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ReplayError> {
        let (mut effects, mut events) = (Vec::new(), Vec::new());
        self.apply(bytes, |machine, entry| {
            machine.apply(entry, &mut effects);
            events.extend(effects.drain(..).filter_map(|effect| match effect {
                Effect::Event(event) => Some(event),
                Effect::Settled { .. } => None,
            }));
        })?;
        Ok(events)
    }

    /// Applies one batch, and tells its events if there are any behind this revision.
    ///
    /// # Errors
    /// As [`Replay::batch`].
    pub fn tell(
        &mut self,
        batch: &[u8],
        after: u64,
        each: &mut dyn FnMut(Told<'_>),
    ) -> Result<(), ReplayError> {
        let events = self.follow(batch)?;
        if events.last().is_some_and(|event| event.revision > after) {
            each(Told::Events(&events));
        }
        Ok(())
    }

    fn apply(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&mut Machine, Entry),
    ) -> Result<(), ReplayError> {
        let mut entries = Vec::new();
        codec::decode_batch(bytes, |entry| entries.push(entry))?;
        let [version, ..] = bytes else {
            unreachable!("a batch with a head has a version");
        };
        self.version = self.version.max(*version);
        self.last = entries.last().map(|entry| entry.wall).or(self.last);
        let all = entries.len();
        let mut entries = entries.into_iter();
        let machine = &mut self.machine;
        let applied = catch_unwind(AssertUnwindSafe(|| {
            while !entries.as_slice().is_empty() {
                let coming = entries.as_slice();
                machine.look_ahead(&coming[..AHEAD.min(coming.len())]);
                for entry in entries.by_ref().take(AHEAD) {
                    each(machine, entry);
                }
            }
        }));
        applied.map_err(|panic| {
            let place = all - entries.len();
            let mut again = Vec::new();
            // It was well-formed a moment ago.
            let _ = codec::decode_batch(bytes, |entry| again.push(entry));
            ReplayError::Impossible(Box::new(Impossible {
                at: InBatch {
                    place,
                    entry: again.into_iter().nth(place.saturating_sub(1)),
                },
                why: message_of(&*panic),
            }))
        })
    }

    /// Applies the commands that an authority records when it comes back, and returns the batch that has to be logged for them.
    ///
    /// # Errors
    /// [`ReplayError::Impossible`]; this must not be used any more then.
    pub fn return_from(&mut self, returning: Returning) -> Result<Vec<u8>, ReplayError> {
        let (at, wall) = (self.machine.now(), wall());
        let mut batch = Vec::new();
        codec::encode_head(&mut batch, at, wall);
        for command in returning.commands() {
            codec::encode_command(&mut batch, &command);
        }
        self.batch(&batch)?;
        Ok(batch)
    }

    /// The machine as it is now, to look at.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The wall clock of the last entry that was applied here; `None` if all are from a snapshot.
    #[must_use]
    pub fn last(&self) -> Option<WallTime> {
        self.last
    }

    /// The newest version of a batch in its log, which every reader of the log can read.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Writes the state as a snapshot, in the newest version of its log: a cluster goes on using each version that it has used,
    /// whichever members are there.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn snapshot<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        write(&[self.version])?;
        let mut record_bytes = Vec::new();
        for record in self.machine.records() {
            record_bytes.clear();
            codec::encode_record(&mut record_bytes, &record);
            let Ok(length) = u32::try_from(record_bytes.len()) else {
                unreachable!("a record takes 4 GiB");
            };
            write(&length.to_le_bytes())?;
            write(&record_bytes)?;
        }
        Ok(())
    }

    /// The machine as it is now.
    #[must_use]
    pub fn finish(mut self) -> Machine {
        self.machine.fit();
        self.machine
    }
}

/// Starts `work` on another thread, if it is worth one and the system gives one. The returned function waits for the
/// result, or does the work itself.
fn beside<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    worth_it: bool,
    work: &'scope (impl Fn() -> T + Sync),
) -> impl FnOnce() -> T {
    let start = || thread::Builder::new().spawn_scoped(scope, work);
    let thread = worth_it.then(start).and_then(Result::ok);
    move || match thread {
        Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        None => work(),
    }
}

/// Some records of a snapshot, each with its length before it.
struct RecordBatch<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> RecordBatch<'a> {
    /// The three parts of a snapshot: leases, grants, and records of the past.
    fn parts(snapshot: &'a [u8]) -> Result<[RecordBatch<'a>; 3], Malformed> {
        let known = codec::VERSION..=codec::newest_version();
        let whole = snapshot.split_first();
        let Some((_, mut bytes)) = whole.filter(|(version, _)| known.contains(version)) else {
            return Err(Malformed {
                what: "a snapshot has an unknown version",
                left: snapshot.len(),
            });
        };
        let [leases, grants] = [Part::Leases, Part::Grants].map(|part| {
            let mut records = RecordBatch { bytes, count: 0 };
            while let Some((record, rest)) = split(bytes)
                && codec::part(record) <= part
            {
                bytes = rest;
                records.count += 1;
            }
            let length = records.bytes.len() - bytes.len();
            records.bytes = &records.bytes[..length];
            records
        });
        let count = std::iter::successors(split(bytes), |(_, rest)| split(rest)).count();
        Ok([leases, grants, RecordBatch { bytes, count }])
    }

    /// Hands the records to `take`. An unreadable record ends them, and is the error then.
    fn read<T>(
        &self,
        take: impl FnOnce(&mut RecordIter<'a>) -> Result<T, Corrupt>,
    ) -> Result<T, ReplayError> {
        let mut reading = RecordIter {
            rest: self.bytes,
            left: self.count,
            failed: None,
        };
        let taken = take(&mut reading);
        match reading.failed {
            Some(malformed) => Err(ReplayError::Malformed(malformed)),
            None => taken.map_err(ReplayError::Corrupt),
        }
    }
}

/// Records being read; ends at the first one that cannot be read and keeps why.
struct RecordIter<'a> {
    rest: &'a [u8],
    left: usize,
    failed: Option<Malformed>,
}

impl Iterator for RecordIter<'_> {
    type Item = Record;

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }

    fn next(&mut self) -> Option<Record> {
        if self.rest.is_empty() {
            return None;
        }
        let read = match split(self.rest) {
            Some((record, rest)) => {
                self.rest = rest;
                codec::decode_record(record)
            }
            None => Err(Malformed {
                what: "a record ends in the middle",
                left: self.rest.len(),
            }),
        };
        self.left = self.left.saturating_sub(1);
        read.map_err(|malformed| {
            self.failed = Some(malformed);
            self.rest = &[];
        })
        .ok()
    }
}

/// The first record, and the bytes behind it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use palisade_core::{
        Acquire, ClientId, Command, GrantRef, LeaseKey, LockMode, LockName, Principal, RequestId,
        Span, Timestamp, Ttl, Under, WallTime, invariants,
    };

    use super::*;

    fn id(number: u64) -> [u8; 16] {
        let mut id = [7; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id
    }

    /// Locks that are held, some of them waited for; every fifth grant is over.
    fn worked(locks: u64) -> Replay {
        let mut replay = Replay::from_nothing(1);
        let mut now = |command| {
            replay.machine.replay(Entry {
                at: Timestamp::ZERO,
                wall: WallTime(1),
                by: Principal::ANONYMOUS,
                command,
            });
        };
        let lock = |number: u64| LockName::new(&format!("lock/{number}")).unwrap();
        let acquire = |number: u64, request: u64, wait: Option<Span>| {
            let under = Under::New {
                key: LeaseKey::from_bytes(id(request)),
                ttl: Ttl::from_millis(60_000).unwrap(),
            };
            let client = ClientId::new(&format!("client-{}", request % 100)).unwrap();
            let request_id = Some(RequestId::from_bytes(id(request)));
            Command::Acquire(Acquire {
                wait,
                metadata: request.is_multiple_of(3).then(|| "metadata".into()),
                ..Acquire::new(lock(number), client, under, request_id)
            })
        };
        for number in 0..locks {
            now(acquire(number, number, None));
            match number % 10 {
                0 | 5 => now(Command::Release(GrantRef {
                    lock: lock(number),
                    key: LeaseKey::from_bytes(id(number)),
                    token: None,
                })),
                1 => now(acquire(
                    number,
                    locks + number,
                    Some(Span::from_millis(1_000)),
                )),
                _ => {}
            }
        }
        replay
    }

    /// The acquire of a lock that nobody has.
    fn first(mode: LockMode, metadata: &str) -> Command {
        let under = Under::New {
            key: LeaseKey::from_bytes(id(1 << 20)),
            ttl: Ttl::from_millis(60_000).unwrap(),
        };
        let client = ClientId::new("client").unwrap();
        let acquire = Acquire::new(LockName::new("lock").unwrap(), client, under, None);
        let metadata = Some(metadata.into());
        Command::Acquire(Acquire {
            mode,
            metadata,
            ..acquire
        })
    }

    fn bytes(replay: &Replay) -> Vec<u8> {
        let mut bytes = Vec::new();
        let written = replay.snapshot(|part| {
            bytes.extend_from_slice(part);
            Ok::<(), std::convert::Infallible>(())
        });
        assert!(written.is_ok());
        bytes
    }

    /// An assertion of the machine that fails on a replay is an error that names the entry, and the way out.
    #[test]
    fn an_entry_that_cannot_be_is_named() {
        let mut batch = Vec::new();
        codec::encode_head(&mut batch, Timestamp::from_millis(7), WallTime::default());
        codec::encode_command(&mut batch, &Command::Expire);
        let withdraws = Command::Withdraw(RequestId::from_bytes([9; 16]));
        codec::encode_command(&mut batch, &withdraws);
        let error = Replay::from_nothing(1).apply(&batch, |_, entry| {
            assert_ne!(entry.command, withdraws, "a lock is kept for nobody");
        });
        let text = error.unwrap_err().to_string();
        let parts = [
            "entry 2 of a batch, Withdraw(",
            "kept for nobody",
            "palisade restore",
        ];
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(Replay::from_nothing(1).batch(&batch).is_ok(), "the control");
    }

    macro_rules! golden {
        ($($name:literal),* $(,)?) => {
            [$((
                $name,
                include_bytes!(concat!("golden/", $name, ".log")) as &[u8],
                include_bytes!(concat!("golden/", $name, ".snapshot")) as &[u8],
            )),*]
        };
    }

    /// Logs as they are on disks, each batch with its length before it, and the states they lead to.
    ///
    /// `expiry`: thirty grants under one lease and ten under leases of their own, with requests that wait, are over at one
    /// instant; a release, an acquire and a stall follow. `waits`: four locks with two requests that wait for each, a change of
    /// leader, a caller that comes back, and three releases. `readers`: readers of two locks, with requests that wait, one of
    /// them an orphan; one writer has become a reader. `principals`: a lock of nobody known, and locks of two principals with
    /// one client id; each of them waits for the other's, under one request id; a release and an answer. `semaphores`: two of
    /// them, one with fewer permits than before; a release, and requests that wait for one or more. `closing`: locks with
    /// lock-delays and reservations; two are closed, one by an expiry and one after a release. `leaders`: two leaders with
    /// values, one taken back; one resigns, and the next proclaims. `sets`: a set of three locks, one of them released, and two
    /// sets that wait for parts of it, one of them an orphan; a request waits behind them for a lock that is free. `update`:
    /// locks in mode update; two are upgraded, one after a wait and a change of leader, and a third upgrade waits, an orphan,
    /// as requests for mode update do. `restore`: two readers, one of them in mode update, and a restore; two others wait, one
    /// for mode update. `orphans`: two locks with requests that wait, one of them for both; some become orphans, one comes back
    /// and is granted, and the window of another one ends.
    const GOLDEN: [(&str, &[u8], &[u8]); 11] = golden![
        "expiry",
        "waits",
        "readers",
        "principals",
        "semaphores",
        "closing",
        "leaders",
        "sets",
        "update",
        "restore",
        "orphans",
    ];

    #[test]
    fn a_log_leads_to_the_state_that_it_always_led_to() {
        for (name, mut log, state) in GOLDEN {
            let mut replay = Replay::from_nothing(1);
            while let Some((batch, rest)) = split(log) {
                replay.batch(batch).unwrap();
                assert_eq!(invariants::check(&replay.machine), Ok(()));
                log = rest;
            }
            assert!(bytes(&replay) == state, "{name}");
            let read = Replay::from_snapshot(2, state).unwrap();
            assert!(bytes(&read) == state, "{name}");
        }
    }

    #[test]
    fn an_unknown_version_is_refused() {
        for version in [0, codec::newest_version() + 1] {
            let batch = Replay::from_nothing(1).batch(&[version, 0, 0]);
            let why = batch.unwrap_err().to_string();
            assert!(why.contains("a batch has an unknown version"), "{why}");
            let mut snapshot = bytes(&worked(1));
            snapshot[0] = version;
            let why = Replay::from_snapshot(1, &snapshot)
                .err()
                .unwrap()
                .to_string();
            assert!(why.contains("a snapshot has an unknown version"), "{why}");
        }
    }

    /// Entries that need nothing new are written as always, byte for byte (rule R21).
    #[test]
    fn a_batch_bears_the_lowest_version_that_expresses_it() {
        for (name, mut log, _) in GOLDEN {
            while let Some((batch, rest)) = split(log) {
                assert_eq!(batch[0], codec::VERSION);
                let mut entries = Vec::new();
                codec::decode_batch(batch, |entry| entries.push(entry)).unwrap();
                let mut again = Vec::new();
                codec::encode_head(&mut again, entries[0].at, entries[0].wall);
                let mut by = Principal::ANONYMOUS;
                for entry in &entries {
                    if entry.by != by {
                        by = entry.by;
                        codec::encode_by(&mut again, by);
                    }
                    codec::encode_command(&mut again, &entry.command);
                }
                assert!(again == batch, "{name}");
                log = rest;
            }
        }
    }

    /// Every member reads an entry of a version that the cluster has used once; a snapshot must not make it forget that.
    #[test]
    fn a_snapshot_remembers_the_newest_version_of_its_log() {
        let release = Command::Release(GrantRef {
            lock: LockName::new("lock").unwrap(),
            key: LeaseKey::from_bytes(id(1 << 20)),
            token: None,
        });
        for (metadata, version) in [("", codec::VERSION), (codec::NEXT, codec::VERSION + 1)] {
            let mut replay = Replay::from_nothing(1);
            let mut batch = Vec::new();
            codec::encode_head(&mut batch, Timestamp::ZERO, WallTime(1));
            codec::encode_command(&mut batch, &first(LockMode::Exclusive, metadata));
            replay.batch(&batch).unwrap();
            assert_eq!((replay.version(), bytes(&replay)[0]), (version, version));
            batch.clear();
            codec::encode_head(&mut batch, Timestamp::ZERO, WallTime(1));
            codec::encode_command(&mut batch, &release);
            replay.batch(&batch).unwrap();
            let again = Replay::from_snapshot(1, &bytes(&replay)).unwrap();
            assert_eq!(again.version(), version);
        }
    }

    #[test]
    fn the_batch_of_a_return_leads_to_the_state_that_returned() {
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            let worked = || {
                let mut replay = worked(10);
                let mut batch = Vec::new();
                codec::encode_head(&mut batch, Timestamp::ZERO, WallTime(1));
                codec::encode_command(&mut batch, &first(mode, ""));
                replay.batch(&batch).unwrap();
                replay
            };
            let (mut returned, mut follower) = (worked(), worked());
            for returning in [Returning::Restarted, Returning::Restored { leap: 1_000 }] {
                let batch = returned.return_from(returning).unwrap();
                follower.batch(&batch).unwrap();
                assert!(bytes(&returned) == bytes(&follower));
            }
            let next = follower.finish().next_token();
            assert!(next.is_some_and(|next| next.get() > 1_000));
        }
    }

    /// Where the `n`th record of a snapshot begins.
    fn place(snapshot: &[u8], n: usize) -> usize {
        let mut rest = &snapshot[1..];
        for _ in 0..n {
            rest = split(rest).unwrap().1;
        }
        snapshot.len() - rest.len()
    }

    fn records(snapshot: &[u8]) -> usize {
        std::iter::successors(split(&snapshot[1..]), |(_, rest)| split(rest)).count()
    }

    /// A small one is read by one thread, a large one by three: both come back as they were.
    #[test]
    fn a_snapshot_of_any_size_comes_back() {
        for (locks, large) in [(100, false), (20_000, true)] {
            let worked = worked(locks);
            let snapshot = bytes(&worked);
            assert_eq!(snapshot.len() >= LARGE, large);
            let again = Replay::from_snapshot(2, &snapshot).unwrap();
            assert!(bytes(&again) == snapshot, "{locks} locks");
            assert_eq!(invariants::check(&again.machine), Ok(()));
        }
    }

    /// In whichever part something is wrong, the snapshot is refused; the parts are read by three threads.
    #[test]
    fn a_large_snapshot_is_refused_for_what_is_wrong_in_any_part() {
        let whole = bytes(&worked(20_000));
        let count = records(&whole);
        // Within the leases, the grants, the waiters, the answers and the endings.
        for at in [0.1, 0.3, 0.58, 0.8, 0.99] {
            let begin = place(&whole, (at * count as f64) as usize);
            let mut unknown = whole.clone();
            unknown[begin + 4] = 99;
            let mut short = whole.clone();
            short[begin] -= 1;
            let mut misplaced = whole.clone();
            let head = whole[1..place(&whole, 1)].to_vec();
            misplaced.splice(begin..begin, head);
            for (what, broken) in [
                ("tag", unknown),
                ("length", short),
                ("head", misplaced),
                ("end", whole[..begin + 2].to_vec()),
            ] {
                assert!(broken.len() >= LARGE || what == "end");
                let read = Replay::from_snapshot(2, &broken).map(|replay| replay.finish());
                assert!(read.is_err(), "{what} at {at}");
            }
        }
    }
}
