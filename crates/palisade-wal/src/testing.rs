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

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::hold;
use crate::storage::{Access, File, FileId, Storage};

/// What is written at once or not at all.
const SECTOR: usize = 512;

/// Which unsynced writes a crash loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All of them.
    DropAll,
    /// None of them.
    KeepAll,
    /// Whatever the seed says: any subset of sectors and names, or everything before one byte.
    Torn(u64),
}

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails once; a write may have been done in part, a sync forgets what it did not do.
    Error,
    /// The process dies in the call: it and everything after it fails. Go on with [`SimStorage::crash`] or
    /// [`SimStorage::restart`].
    Crash,
}

/// A directory in memory. Clones share it.
#[derive(Clone)]
pub struct SimStorage {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Clone)]
struct Disk {
    files: Vec<Content>,
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
}

#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Write>,
}

#[derive(Clone)]
struct Write {
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
    /// An empty directory. The seed decides what a failed sync leaves on the disk.
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

    /// The directory after a power loss. The old one stays with whoever still has it open.
    pub fn crash(&self, loss: Loss) -> SimStorage {
        let mut disk = hold(&self.disk).clone();
        disk.lose(loss);
        disk.fresh()
    }

    /// The directory after the process died and the machine did not: nothing is lost, nothing is synced.
    pub fn restart(&self) -> SimStorage {
        hold(&self.disk).clone().fresh()
    }

    /// What `cp -r` makes of the directory.
    pub fn copied(&self) -> SimStorage {
        let mut disk = hold(&self.disk).clone();
        disk.device += 1;
        disk.fresh()
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
        let content = Content {
            now: bytes.to_vec(),
            durable: bytes.to_vec(),
            pending: Vec::new(),
        };
        match disk.names.get(name).copied() {
            Some(file) => disk.files[file] = content,
            None => {
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

    fn next_random(&mut self) -> u64 {
        self.random = mix(self.random);
        self.random
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
        let content = &mut self.files[file];
        overwrite(&mut content.now, at, done);
        content.pending.push(Write {
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

    fn lose(&mut self, loss: Loss) {
        let mut random = match loss {
            Loss::Torn(seed) => mix(seed),
            _ => 0,
        };
        // Half of the seeds keep any subset, the others everything up to one point.
        let prefix = coin(&mut random);
        let mut open = true;
        let mut keep = |_: usize| match loss {
            Loss::DropAll => false,
            Loss::KeepAll => true,
            Loss::Torn(_) if prefix => {
                open = open && !one_in_eight(&mut random);
                open
            }
            Loss::Torn(_) => coin(&mut random),
        };
        self.pending_names.retain(|_| keep(0));
        self.flush_names();
        for content in &mut self.files {
            content.flush(&mut keep);
            content.now.clone_from(&content.durable);
        }
        self.names.clone_from(&self.durable_names);
    }
}

impl Content {
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
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn File>> {
        let mut disk = hold(&self.disk);
        disk.check_alive()?;
        let file = if access == Access::Create {
            // Truncation of an existing file is modelled as a new file under its name.
            let file = disk.files.len();
            disk.files.push(Content::default());
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

    fn len(&self) -> io::Result<u64> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        Ok(disk.files[self.file].now.len() as u64)
    }

    fn id(&self) -> io::Result<FileId> {
        let disk = hold(&self.disk);
        disk.check_alive()?;
        Ok(FileId {
            device: disk.device,
            inode: self.file as u64 + 1,
        })
    }
}
