//! A description of the machine, and its load.

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

/// The same, with the disk of this folder.
pub(crate) fn line_for(folder: &Path) -> Result<String, Error> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("", |name| name.trim_start_matches([' ', '\t', ':']));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "{cores} cores of {model}, Linux {}, fdatasync of 4 KiB {:.0} µs",
        kernel.trim(),
        fdatasync(folder)?
    ))
}

/// The median time in microseconds of a write and fdatasync of 4 KiB that does not extend the file.
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

/// How often to check the machine.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until the machine is almost idle, so that cleanup after one measurement does not slow down the next, which may
/// be of another system. It checks at least once, and waits about five times as long as it measures then. Returns
/// whether it became idle.
pub(crate) async fn wait_until_idle(measure: Duration) -> Result<bool, Error> {
    let mut before = times()?;
    let checks = 5 * measure.as_millis() / CHECK_INTERVAL.as_millis();
    for _ in 0..checks.max(1) {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let after = times()?;
        // The kernel's count of waits for the disk may decrease.
        let busy = after.0.saturating_sub(before.0);
        let all = after.1.saturating_sub(before.1);
        if busy * 20 < all {
            return Ok(true);
        }
        before = after;
    }
    Ok(false)
}

/// The ticks in which processors worked here or waited for the disk, and all ticks; ticks stolen by other guests of the
/// host do not count as work.
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
    async fn a_busy_machine_is_not_idle() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let wanted = Arc::new(());
        for _ in 0..cores {
            let work = Arc::downgrade(&wanted);
            std::thread::spawn(move || while work.strong_count() > 0 {});
        }
        assert!(!wait_until_idle(Duration::from_secs(1)).await.unwrap());
        drop(wanted);
    }
}
