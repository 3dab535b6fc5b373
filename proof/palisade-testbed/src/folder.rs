//! Folders and ports.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock};

static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// From now on, creates the folders of this process's servers in this folder instead of the system's folder for
/// temporary files: measurements must not depend on whether that folder is on a disk.
///
/// # Panics
/// If it was called before.
pub fn keep_in(folder: &Path) {
    let folder = std::path::absolute(folder).expect("a folder");
    assert!(ROOT.set(folder).is_ok(), "the folder was already chosen");
}

/// A folder that is removed when its value is dropped, or by a later process if its own process is dead.
pub(crate) struct ServerFolder(PathBuf);

impl ServerFolder {
    pub(crate) fn new(name: &str) -> ServerFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        let root = ROOT.get().cloned().unwrap_or_else(std::env::temp_dir);
        let root = root.join("palisade-testbed");
        SWEPT.call_once(|| sweep(&root));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{}-{number}-{name}", std::process::id()));
        // A dead process may have had the same number.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for a server");
        ServerFolder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ServerFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders of processes that were killed.
fn sweep(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split('-').next());
        if let Some(owner) = owner
            && !Path::new("/proc").join(owner).exists()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns a port on which nothing listens, and that this process was not given before: the kernel may give a port again
/// that nothing listens on yet.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on 127.0.0.1");
        let port = listener.local_addr().expect("its number").port();
        if GIVEN.lock().expect("nothing panics with it").insert(port) {
            return port;
        }
    }
}
