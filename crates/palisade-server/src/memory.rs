//! How much memory this process may use.

use std::fs::read_to_string;
use std::path::Path;
use std::sync::OnceLock;

/// The memory of this machine, or of the control group that this process is confined to if that is less, in
/// bytes; 1 GiB where neither can be read. Read once.
#[must_use]
pub fn of_this_machine() -> u64 {
    static READ: OnceLock<u64> = OnceLock::new();
    *READ.get_or_init(|| {
        let machine = read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| total(&text));
        let group = read_to_string("/proc/self/cgroup")
            .ok()
            .and_then(|text| confined(&text));
        machine.into_iter().chain(group).min().unwrap_or(1 << 30)
    })
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1_024)
}

/// The least limit on the way from this process's group (version 2) up to the root.
fn confined(groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Path::new("/sys/fs/cgroup")
        .join(path)
        .ancestors()
        .take_while(|group| group.starts_with("/sys/fs/cgroup"))
        .filter_map(|group| read_to_string(group.join("memory.max")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read_and_a_group_without_a_limit_has_none() {
        assert_eq!(
            total("MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(confined("1:cpu:/a\n"), None);
        assert!(of_this_machine() > 1 << 20);
    }
}
