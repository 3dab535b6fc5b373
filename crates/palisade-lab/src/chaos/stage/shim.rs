//! The preload shim: built with the machine's C compiler when it is needed, and controlled through a small file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use rustix::time::{ClockId, clock_gettime};

use crate::chaos::server::lock;

const SOURCE: &str = include_str!("shim.c");

/// The shim as a shared object in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Shim {
    object: PathBuf,
}

impl Shim {
    /// Builds it in this folder.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn build(folder: &Path) -> Result<Shim, String> {
        let (source, object) = (folder.join("shim.c"), folder.join("shim.so"));
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-shared", "-fPIC", "-o"]);
        let output = command.arg(&object).arg(&source).output();
        let output =
            output.map_err(|error| format!("cc: {error}; install the Debian package gcc"))?;
        match output.status.success() {
            true => Ok(Shim { object }),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Checks that it changes the clock of a program that reads the vDSO by itself, as the servers do.
    ///
    /// # Errors
    /// It does not. A nemesis without an effect must not count.
    pub(crate) fn check(&self, folder: &Path) -> Result<(), String> {
        let warp = Warp::new(folder.join("clock-check"))?;
        warp.wall(3_600)?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.arg("chaos-clock").envs(self.environment());
        let output = command.envs(warp.environment()).output();
        let output = output.map_err(|error| error.to_string())?.stdout;
        let told: i64 = String::from_utf8_lossy(&output).trim().parse().unwrap_or(0);
        match told - wall_seconds() {
            3_590..=3_610 => Ok(()),
            off => Err(format!("the shim moved a clock by {off} s, not by 3600 s")),
        }
    }

    /// The environment of a process that uses it.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        vec![("LD_PRELOAD".to_owned(), self.object.display().to_string())]
    }
}

/// The clocks of the processes that were started with it.
#[derive(Debug)]
pub(crate) struct Warp {
    path: PathBuf,
    file: File,
    state: Mutex<State>,
}

/// As the shim has it: nanoseconds, and a rate in thousandths.
#[derive(Clone, Copy, Debug)]
struct State {
    sequence: i64,
    wall: i64,
    since: i64,
    extra: i64,
    rate: i64,
}

impl Warp {
    /// Clocks that are right so far, controlled through this file.
    pub(crate) fn new(path: PathBuf) -> Result<Warp, String> {
        let file = File::create(&path).map_err(|error| error.to_string())?;
        let state = State {
            sequence: 0,
            wall: 0,
            since: monotonic(),
            extra: 0,
            rate: 1_000,
        };
        let warp = Warp {
            path,
            file,
            state: Mutex::new(state),
        };
        warp.write(state)?;
        Ok(warp)
    }

    /// The environment of a process with these clocks, in addition to the shim's.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = self.path.display().to_string();
        vec![("PALISADE_LAB_CLOCK".to_owned(), path)]
    }

    /// The wall clock is wrong by so many seconds from now on.
    pub(crate) fn wall(&self, seconds: i64) -> Result<(), String> {
        self.change(|state| state.wall = seconds * NANOS)
    }

    /// Clocks that count from the start run at so many thousandths of their rate from now on.
    pub(crate) fn rate(&self, thousandths: i64) -> Result<(), String> {
        self.change(|state| {
            let now = monotonic();
            // The shim computes the same, so that no clock jumps.
            state.extra += (now - state.since) / 1_000 * (state.rate - 1_000);
            (state.since, state.rate) = (now, thousandths);
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), String> {
        let mut state = lock(&self.state);
        change(&mut state);
        state.sequence += 2;
        self.write(*state)
    }

    fn write(&self, state: State) -> Result<(), String> {
        let put = |at: u64, values: &[i64]| {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_ne_bytes())
                .collect();
            self.file
                .write_all_at(&bytes, at)
                .map_err(|error| error.to_string())
        };
        put(0, &[state.sequence - 1])?;
        put(8, &[state.wall, state.since, state.extra, state.rate])?;
        put(0, &[state.sequence])
    }
}

/// The real value of the clock that the shim computes with.
fn monotonic() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * NANOS + time.tv_nsec
}

const NANOS: i64 = 1_000_000_000;

/// The wall clock of this process, read past the C library: what the check of the shim asks of a child.
#[must_use]
pub fn wall_seconds() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}
