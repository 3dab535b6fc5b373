//! A small file system in memory that can be filled up and freed again.
//!
//! It is mounted, opened, and unmounted at once: the open folder keeps it alive, so it is gone with the lab, however
//! that ends.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of a fixed size.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    /// Keeps the file system alive.
    root: File,
}

impl SmallDisk {
    /// Makes one; it is mounted on this folder for a moment.
    ///
    /// # Errors
    /// What the machine does not allow.
    pub(crate) fn new(folder: &Path) -> Result<SmallDisk, String> {
        std::fs::create_dir(folder).map_err(|error| error.to_string())?;
        let size = format!("size={SIZE_MIB}m");
        let path = folder.display().to_string();
        run(&["mount", "-t", "tmpfs", "-o", &size, "none", &path])?;
        let root = File::open(folder).map_err(|error| error.to_string());
        run(&["umount", "--lazy", &path])?;
        let disk = SmallDisk { root: root? };
        std::fs::create_dir(disk.data()).map_err(|error| error.to_string())?;
        Ok(disk)
    }

    fn path(&self) -> PathBuf {
        let (us, file) = (std::process::id(), self.root.as_raw_fd());
        PathBuf::from(format!("/proc/{us}/fd/{file}"))
    }

    /// A server's folder on it.
    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Takes all space that is left.
    pub(crate) fn fill(&self) {
        use std::io::Write as _;
        let Ok(mut filler) = File::create(self.path().join("filler")) else {
            return;
        };
        // Smaller and smaller pieces, until not one byte is left.
        for size in [1 << 20, 4096, 1] {
            while filler.write_all(&vec![1; size]).is_ok() {}
        }
    }

    /// Frees that space.
    pub(crate) fn free(&self) {
        let _ = std::fs::remove_file(self.path().join("filler"));
    }
}

/// Runs a command of the system; the error is its standard error.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Room for a log's segments (16 MiB each are prepared ahead), and not much more.
const SIZE_MIB: u32 = 160;
