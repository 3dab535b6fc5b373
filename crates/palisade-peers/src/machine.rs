//! Where it was measured.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::lane::Error;
use crate::measure::{median, now};

/// One line about the machine.
pub(crate) fn line() -> Result<String, Error> {
    line_for(&std::env::temp_dir())
}

/// The same, with the disk that this folder is on.
pub(crate) fn line_for(folder: &Path) -> Result<String, Error> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "{cores} cores of {model}, Linux {}, fdatasync of 4 KiB {:.0} us",
        kernel.trim(),
        fdatasync(folder)?
    ))
}

/// Microseconds for a plain write and fdatasync of 4 KiB on a file that is already as long; the median.
fn fdatasync(folder: &Path) -> Result<f64, Error> {
    let path = folder.join(format!("palisade-peers-{}", std::process::id()));
    let mut file = File::create(&path)?;
    file.write_all(&vec![0; 1 << 20])?;
    file.sync_all()?;
    let mut took = Vec::new();
    for round in 0..200_u64 {
        let begin = now();
        file.write_all_at(&[7; 4096], round * 4096)?;
        file.sync_data()?;
        took.push((now() - begin) as f64 / 1e3);
    }
    std::fs::remove_file(path)?;
    Ok(median(took))
}
