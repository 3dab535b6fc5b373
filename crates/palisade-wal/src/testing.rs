//! A storage in memory that behaves as badly as a real one may: [`SimStorage`].
//!
//! ```text
//!   write ──▶ what processes see ("now")
//!        └──▶ pending ──sync──▶ durable ──crash──▶ all that is left, plus whatever part of pending the loss picks
//! ```
//!
//! A failed sync behaves as on Linux: some of the pending bytes reached the disk, none of them is pending
//! any more, and the next sync succeeds without writing them. A failed directory sync leaves its changes
//! pending: directories are journalled, and a journal that cannot be written stops the file system.
//!
//! A file has two times, as on Linux: of its last write, which a copying tool can set, and of its last change of any
//! kind, which only the storage sets. They move on in steps of several calls, as a kernel's coarse clock does, and
//! only [`File::sync_all`] makes them durable.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::hold;
use crate::storage::{File, FileId, OpenMode, Storage};

/// The unit of atomic writes, in bytes.
const SECTOR: usize = 512;

/// Which unsynced writes a crash loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashLoss {
    /// All of them.
    DropAll,
    /// None of them.
    KeepAll,
    /// The seed decides: any subset of sectors and names, or everything before one byte.
    Torn(u64),
}

/// The fault that is injected at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails once. It may have done part of a write; a failed sync forgets the bytes that it did not make
    /// durable.
    Error,
    /// The process dies in the call: it and everything after it fails. Go on with [`SimStorage::crash`] or
    /// [`SimStorage::restart`].
    Crash,
}

/// A way of putting an older copy back in place. All but the plain one give the files the write times of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// `rm -rf DATA; cp -a OLD DATA`, in the worst case: each file gets the inode number it had.
    Anew,
    /// `cp -a OLD/. DATA/`, or tar: written over the files, which keep their inodes; other files stay.
    Over,
    /// `cp OLD/* DATA/`: as `Over`, and the files are written now.
    Plain,
    /// `rsync -a`: a new file in the place of each that has another size or write time; other files stay.
    Sync,
    /// `rsync -a --inplace --delete`: those with another size or write time are written over, other files go.
    SyncInPlace,
}

impl PutBack {
    /// All of them.
    pub const ALL: [PutBack; 5] = [
        PutBack::Anew,
        PutBack::Over,
        PutBack::Plain,
        PutBack::Sync,
        PutBack::SyncInPlace,
    ];
}

/// A directory in memory. Clones share it.
#[derive(Clone)]
pub struct SimStorage {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Clone)]
struct Disk {
    files: Vec<FileContent>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<NameChange>,
    /// Added to a file's index; another number makes another file system.
    device: u64,
    calls: u64,
    fault: Option<(u64, Fault)>,
    crashed: bool,
    lying: bool,
    capacity: Option<u64>,
    random: u64,
    /// Changes so far, in this life and the ones before; the times of files are taken from them.
    changes: u64,
    /// The path leads elsewhere.
    moved: bool,
    /// Both times of a file are never equal.
    times_apart: bool,
}

/// When a file was last written, and last changed in any way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileTimes {
    written: u64,
    changed: u64,
}

/// Calls for each step of the clock.
const CALLS_A_TICK: u64 = 4;

#[derive(Clone, Default)]
struct FileContent {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<UnsyncedWrite>,
    times: FileTimes,
    durable_times: FileTimes,
    /// The times since the last durable ones. A crash may leave any of them.
    pending_times: Vec<FileTimes>,
}

#[derive(Clone)]
struct UnsyncedWrite {
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Clone)]
enum NameChange {
    Link(String, usize),
    Rename(String, String, usize),
    Unlink(String),
}

impl SimStorage {
    /// An empty directory. The seed decides which bytes a failed sync leaves on the disk.
    pub fn new(seed: u64) -> SimStorage {
        let disk = Disk {
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            device: 1,
            calls: 0,
            fault: None,
            crashed: false,
            lying: false,
            capacity: None,
            random: mix(seed),
            changes: 0,
            moved: false,
            times_apart: false,
        };
        SimStorage {
            disk: Arc::new(Mutex::new(disk)),
        }
    }

    /// How many calls that change something were made: creations, writes, syncs, renames, removals.
    pub fn calls(&self) -> u64 {
        hold(&self.disk).calls
    }

    /// Lets `fault` happen at the `call`-th such call from the beginning, counted from 1.
    pub fn fault_at(&self, call: u64, fault: Fault) {
        hold(&self.disk).fault = Some((call, fault));
    }

    /// Whether a [`Fault::Crash`] has happened.
    pub fn crashed(&self) -> bool {
        hold(&self.disk).crashed
    }

    /// The most bytes the files may have together; writes beyond it fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        hold(&self.disk).capacity = bytes;
    }

    /// How many bytes the files have together.
    pub fn used(&self) -> u64 {
        hold(&self.disk).used()
    }

    /// Lets every sync succeed without doing anything: the control arm of a crash test.
    pub fn set_lying(&self, lying: bool) {
        hold(&self.disk).lying = lying;
    }

    /// The directory after a power loss. Logs that are still open keep the old one.
    pub fn crash(&self, loss: CrashLoss) -> SimStorage {
        let mut disk = hold(&self.disk).clone();
        disk.lose(loss);
        disk.fresh()
    }

    /// The directory after the process died and the machine did not: nothing is lost, nothing is synced.
    pub fn restart(&self) -> SimStorage {
        hold(&self.disk).clone().fresh()
    }

    /// A copy of the directory, as `cp -r` makes it.
    pub fn copied(&self) -> SimStorage {
        let mut disk = hold(&self.disk).clone();
        disk.device += 1;
        disk.fresh()
    }

    /// The directory after `older`, an earlier state of it, was put back in place.
    pub fn put_back(&self, older: &SimStorage, way: PutBack) -> SimStorage {
        let (mut disk, older) = (hold(&self.disk).clone(), hold(&older.disk).clone());
        disk.changes += 10 * CALLS_A_TICK;
        let now = disk.now();
        if matches!(way, PutBack::Anew | PutBack::SyncInPlace) {
            disk.names
                .retain(|name, _| way == PutBack::SyncInPlace && older.names.contains_key(name));
        }
        for (name, from) in &older.names {
            let content = &older.files[*from];
            let there = disk.names.get(name).copied();
            let is_same = |file: usize| {
                let file = &disk.files[file];
                (file.now.len(), file.times.written) == (content.now.len(), content.times.written)
            };
            let syncs = matches!(way, PutBack::Sync | PutBack::SyncInPlace);
            if syncs && there.is_some_and(is_same) {
                continue;
            }
            let inode = match (way, there) {
                (PutBack::Anew, _) => *from,
                (PutBack::Over | PutBack::Plain | PutBack::SyncInPlace, Some(there)) => there,
                _ => disk.files.len(),
            };
            if disk.files.len() <= inode {
                disk.files.resize(inode + 1, FileContent::default());
            }
            let times = FileTimes {
                written: match way {
                    PutBack::Plain => now,
                    _ => content.times.written,
                },
                changed: now,
            };
            disk.files[inode] = FileContent::settled(&content.now, times);
            disk.names.insert(name.clone(), inode);
        }
        disk.durable_names.clone_from(&disk.names);
        disk.pending_names.clear();
        disk.fresh()
    }

    /// Changes the change time of every file, as `chown -R` and `chmod -R` do.
    pub fn touch(&self) {
        let mut disk = hold(&self.disk);
        disk.changes += 10 * CALLS_A_TICK;
        let now = disk.now();
        for file in disk.names.clone().into_values() {
            disk.files[file].times.changed = now;
            disk.files[file].durable_times = disk.files[file].times;
        }
    }

    /// Lets the path lead elsewhere: the directory was removed, renamed or replaced.
    pub fn set_moved(&self, moved: bool) {
        hold(&self.disk).moved = moved;
    }

    /// Gives a file this change time, which no copying tool can: for files of a test that are to be taken for
    /// those that were written once.
    pub fn set_changed(&self, name: &str, changed: u64) {
        let mut disk = hold(&self.disk);
        if let Some(file) = disk.names.get(name).copied() {
            disk.files[file].times.changed = changed;
            disk.files[file].durable_times.changed = changed;
        }
    }

    /// Removes a file by no call of the log's.
    pub fn take_away(&self, name: &str) {
        let mut disk = hold(&self.disk);
        disk.names.remove(name);
        disk.durable_names.remove(name);
    }

    /// Makes this a file system that does not keep the two times of a file equal after a write.
    pub fn set_times_apart(&self, apart: bool) {
        hold(&self.disk).times_apart = apart;
    }

    /// A file's bytes as a process sees them.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let disk = hold(&self.disk);
        disk.names
            .get(name)
            .map(|file| disk.files[*file].now.clone())
    }

    /// Gives a file these bytes, durably, by no call of the log's. A file that is not there is made.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut disk = hold(&self.disk);
        // The times stay: this models a fault below the file system.
        match disk.names.get(name).copied() {
            Some(file) => {
                let times = disk.files[file].times;
                disk.files[file] = FileContent::settled(bytes, times);
            }
            None => {
                let content = FileContent::settled(bytes, FileTimes::default());
                let file = disk.files.len();
                disk.files.push(content);
                disk.names.insert(name.to_owned(), file);
                disk.durable_names.insert(name.to_owned(), file);
            }
        }
    }

    /// Flips one bit of a file, durably. Does nothing when there is no such bit.
    pub fn flip(&self, name: &str, bit: usize) {
        let Some(mut bytes) = self.read(name) else {
            return;
        };
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
            self.put(name, &bytes);
        }
    }
}

impl Disk {
    fn fresh(mut self) -> SimStorage {
        self.calls = 0;
        self.fault = None;
        self.crashed = false;
        self.lying = false;
        SimStorage {
            disk: Arc::new(Mutex::new(self)),
        }
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|file| self.files[*file].now.len() as u64)
            .sum()
    }

    fn id(&self, file: usize) -> FileId {
        FileId {
            device: self.device,
            inode: file as u64 + 1,
            changed_ns: self.files[file].times.changed as i64,
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random = mix(self.random);
        self.random
    }

    fn now(&self) -> u64 {
        self.changes / CALLS_A_TICK + 1
    }

    fn check_alive(&self) -> io::Result<()> {
        if self.crashed {
            Err(io::Error::other("simulated: the process is dead"))
        } else {
            Ok(())
        }
    }

    /// Counts a call and says whether it is the one where something happens.
    fn begin(&mut self) -> io::Result<Option<Fault>> {
        self.check_alive()?;
        self.calls += 1;
        self.changes += 1;
        let fault = self
            .fault
            .filter(|(call, _)| *call == self.calls)
            .map(|(_, fault)| fault);
        self.crashed = fault == Some(Fault::Crash);
        Ok(fault)
    }

    /// Changes a name; at a fault the change fails, and after a crash it may be found done all the same.
    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        let fault = self.begin()?;
        if fault != Some(Fault::Error) {
            apply_name(&mut self.names, &change);
            let now = self.now();
            if let NameChange::Rename(_, _, file) | NameChange::Link(_, file) = &change {
                self.files[*file].change(|times| times.changed = now);
            }
            self.pending_names.push(change);
        }
        fault.map_or(Ok(()), |_| Err(failed()))
    }

    fn write(&mut self, file: usize, at: usize, bytes: &[u8]) -> io::Result<()> {
        let fault = self.begin()?;
        let growth = (at + bytes.len()).saturating_sub(self.files[file].now.len()) as u64;
        if self
            .capacity
            .is_some_and(|most| growth > 0 && self.used() + growth > most)
        {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "simulated: the disk is full",
            ));
        }
        let done = if fault == Some(Fault::Error) {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        let now = self.now();
        let content = &mut self.files[file];
        content.change(|times| {
            *times = FileTimes {
                written: now,
                changed: now,
            }
        });
        overwrite(&mut content.now, at, done);
        content.pending.push(UnsyncedWrite {
            at,
            bytes: done.to_vec(),
        });
        fault.map_or(Ok(()), |_| Err(failed()))
    }

    fn sync(&mut self, file: usize) -> io::Result<()> {
        let fault = self.begin()?;
        match fault {
            None if self.lying => return Ok(()),
            None => self.files[file].flush(|_| true),
            Some(Fault::Crash) => return Err(failed()),
            Some(Fault::Error) => {
                let mut random = self.next_random();
                self.files[file].flush(|_| coin(&mut random));
                return Err(failed());
            }
        }
        Ok(())
    }

    fn sync_names(&mut self) -> io::Result<()> {
        match self.begin()? {
            None if self.lying => return Ok(()),
            None => {}
            Some(_) => return Err(failed()),
        }
        self.flush_names();
        Ok(())
    }

    fn flush_names(&mut self) {
        for change in std::mem::take(&mut self.pending_names) {
            apply_name(&mut self.durable_names, &change);
        }
    }

    fn lose(&mut self, loss: CrashLoss) {
        let mut random = match loss {
            CrashLoss::Torn(seed) => mix(seed),
            _ => 0,
        };
        // Half of the seeds keep any subset, the others everything up to one point.
        let prefix = coin(&mut random);
        let mut open = true;
        let mut keep = |_: usize| match loss {
            CrashLoss::DropAll => false,
            CrashLoss::KeepAll => true,
            CrashLoss::Torn(_) if prefix => {
                open = open && !one_in_eight(&mut random);
                open
            }
            CrashLoss::Torn(_) => coin(&mut random),
        };
        self.pending_names.retain(|_| keep(0));
        self.flush_names();
        for content in &mut self.files {
            content.flush(&mut keep);
            content.now.clone_from(&content.durable);
            content.lose_times(&mut keep);
        }
        self.names.clone_from(&self.durable_names);
    }
}

impl FileContent {
    /// All of it on the disk.
    fn settled(bytes: &[u8], times: FileTimes) -> FileContent {
        FileContent {
            now: bytes.to_vec(),
            durable: bytes.to_vec(),
            pending: Vec::new(),
            times,
            durable_times: times,
            pending_times: Vec::new(),
        }
    }

    fn change(&mut self, set: impl FnOnce(&mut FileTimes)) {
        let before = self.times;
        set(&mut self.times);
        if self.times != before {
            self.pending_times.push(self.times);
        }
    }

    fn sync_times(&mut self) {
        self.durable_times = self.times;
        self.pending_times.clear();
    }

    fn lose_times(&mut self, mut keep: impl FnMut(usize) -> bool) {
        for times in std::mem::take(&mut self.pending_times) {
            if keep(0) {
                self.durable_times = times;
            }
        }
        self.times = self.durable_times;
    }

    /// Moves the pending sectors that `keep` picks to the disk and forgets the others.
    fn flush(&mut self, mut keep: impl FnMut(usize) -> bool) {
        for write in std::mem::take(&mut self.pending) {
            let mut from = 0;
            while from < write.bytes.len() {
                let to = write
                    .bytes
                    .len()
                    .min(from + SECTOR - (write.at + from) % SECTOR);
                if keep(write.at + from) {
                    overwrite(&mut self.durable, write.at + from, &write.bytes[from..to]);
                }
                from = to;
            }
        }
    }
}

fn overwrite(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

fn apply_name(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Link(name, file) => drop(names.insert(name.clone(), *file)),
        NameChange::Rename(from, to, file) => {
            names.remove(from);
            names.insert(to.clone(), *file);
        }
        NameChange::Unlink(name) => drop(names.remove(name)),
    }
}

fn failed() -> io::Error {
    io::Error::other("simulated: the call failed")
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "simulated: no such file")
}

/// splitmix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn coin(random: &mut u64) -> bool {
    *random = mix(*random);
    *random & 1 == 0
}

fn one_in_eight(random: &mut u64) -> bool {
    *random = mix(*random);
    *random & 7 == 0
}

impl Storage for SimStorage {
    fn open(&self, name: &str, access: OpenMode) -> io::Result<Box<dyn File>> {
        let mut disk = hold(&self.disk);
        disk.check_alive()?;
        let file = if access == OpenMode::Create {
            // Truncation of an existing file is modelled as a new file under its name.
            let file = disk.files.len();
            disk.files.push(FileContent::default());
            disk.change_name(NameChange::Link(name.to_owned(), file))?;
            file
        } else {
            *disk.names.get(name).ok_or_else(missing)?
        };
        Ok(Box::new(SimFile {
            disk: self.disk.clone(),
            file,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = hold(&self.disk);
        let file = *disk.names.get(from).ok_or_else(missing)?;
        disk.change_name(NameChange::Rename(from.to_owned(), to.to_owned(), file))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = hold(&self.disk);
        disk.names.get(name).ok_or_else(missing)?;
        disk.change_name(NameChange::Unlink(name.to_owned()))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        Ok(disk.names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        hold(&self.disk).sync_names()
    }

    fn id_of(&self, name: &str) -> io::Result<FileId> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        let file = *disk.names.get(name).ok_or_else(missing)?;
        Ok(disk.id(file))
    }

    fn is_in_place(&self) -> io::Result<bool> {
        Ok(!hold(&self.disk).moved)
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        let mut disk = hold(&self.disk);
        let (high, low) = (disk.next_random(), disk.next_random());
        Ok((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("sim")
    }
}

struct SimFile {
    disk: Arc<Mutex<Disk>>,
    file: usize,
}

impl File for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        let now = &disk.files[self.file].now;
        let from = usize::try_from(offset)
            .map_err(io::Error::other)?
            .min(now.len());
        let len = buf.len().min(now.len() - from);
        buf[..len].copy_from_slice(&now[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        hold(&self.disk).write(self.file, at, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        hold(&self.disk).sync(self.file)
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut disk = hold(&self.disk);
        disk.sync(self.file)?;
        if !disk.lying {
            disk.files[self.file].sync_times();
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        Ok(disk.files[self.file].now.len() as u64)
    }

    fn id(&self) -> io::Result<FileId> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        Ok(disk.id(self.file))
    }

    fn was_written_last(&self) -> io::Result<bool> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        let FileTimes { written, changed } = disk.files[self.file].times;
        Ok(written == changed && !disk.times_apart)
    }

    /// One process at a time has a simulated directory.
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
}
