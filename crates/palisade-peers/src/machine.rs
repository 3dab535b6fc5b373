//! Where it was measured.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

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

/// How often the machine is looked at, and how many times at most.
const LOOK: Duration = Duration::from_millis(200);
const LOOKS: u32 = 25;

/// Waits until the machine does hardly anything, [`LOOKS`] times [`LOOK`] at most: what a server tidies up after one
/// measurement must not slow down the next, which may be of another. Whether it came to rest.
pub(crate) async fn rest() -> Result<bool, Error> {
    let mut before = times()?;
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        let after = times()?;
        // The kernel's count of waiting for the disk may go back.
        let busy = after.0.saturating_sub(before.0);
        let all = after.1.saturating_sub(before.1);
        if busy * 20 < all {
            return Ok(true);
        }
        before = after;
    }
    Ok(false)
}

/// Ticks of all processors in which they worked here or waited for the disk, and all ticks; those that went to
/// other guests of the host are no work here.
fn times() -> Result<(u64, u64), Error> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let [user, nice, system, idle, disk, interrupts, soft, stolen, ..] = ticks[..] else {
        return Err(format!("/proc/stat begins with `{line}`").into());
    };
    let busy = user + nice + system + disk + interrupts + soft;
    Ok((busy, busy + idle + stolen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_machine_at_work_is_not_at_rest() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let wanted = Arc::new(());
        for _ in 0..cores {
            let work = Arc::downgrade(&wanted);
            std::thread::spawn(move || while work.strong_count() > 0 {});
        }
        assert!(!rest().await.unwrap());
        drop(wanted);
    }
}
