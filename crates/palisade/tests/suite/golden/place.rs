//! A packed directory becomes one that a start accepts: this plays the file system on which it was written.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Crc;
use flate2::read::GzDecoder;

/// Unpacks a directory: an archive in the format ustar.
pub(super) fn unpack(archive: &Path, to: &Path) {
    DirBuilder::new().mode(0o700).create(to).unwrap();
    let mut bytes = Vec::new();
    let packed = File::open(archive).unwrap_or_else(|error| panic!("{archive:?}: {error}"));
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    let mut rest = &bytes[..];
    while rest[0] != 0 {
        let text = |range: std::ops::Range<usize>| {
            let text = std::str::from_utf8(&rest[range]).unwrap();
            text.trim_end_matches('\0').trim().to_owned()
        };
        let length = usize::from_str_radix(&text(124..136), 8).unwrap();
        let name = text(0..100);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to.join(name))
            .unwrap();
        // Written at once, so that its times are equal, as those of a log are.
        file.write_all(&rest[512..512 + length]).unwrap();
        rest = &rest[512 + length.next_multiple_of(512)..];
    }
}

/// Unpacks it and makes its identity that of the files here, which a copy does not have.
pub(super) fn settle(archive: &Path, to: &Path) {
    unpack(archive, to);
    let opening = names(to, "opening-").pop().unwrap();
    let made = fs::metadata(opening).unwrap();
    let changed = i128::from(made.ctime()) * 1_000_000_000 + i128::from(made.ctime_nsec());
    edit_identity(to, |line| match line.split_once(' ') {
        Some(("device", _)) => format!("device {}", made.dev()),
        Some(("inode", _)) => format!("inode {}", made.ino()),
        Some(("changed", _)) => format!("changed {changed}"),
        _ => line.to_owned(),
    });
}

/// Replaces lines of the identity, and makes its checksum right again.
pub(super) fn edit_identity(data: &Path, edit: impl Fn(&str) -> String) {
    let file = data.join("identity");
    let text = fs::read_to_string(&file).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("checksum "));
    let mut edited: String = lines.map(|line| edit(line) + "\n").collect();
    edited += &format!("checksum {:08x}\n", crc(edited.as_bytes()));
    fs::write(file, edited).unwrap();
}

/// Changes the head of the last segment, and makes its checksum right again.
pub(super) fn edit_head(data: &Path, edit: impl Fn(&mut [u8; 60])) {
    let log = names(data, "log-").pop().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
    let mut head = [0; 60];
    file.read_exact_at(&mut head, 0).unwrap();
    edit(&mut head);
    file.write_all_at(&head, 0).unwrap();
    file.write_all_at(&crc(&head).to_le_bytes(), 60).unwrap();
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Its files whose names begin like this, in order.
pub(super) fn names(data: &Path, begin: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(data).unwrap().map(|entry| entry.unwrap());
    let found = files.filter(|entry| entry.file_name().to_string_lossy().starts_with(begin));
    let mut found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    found.sort();
    found
}
