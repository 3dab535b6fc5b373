//! How many connections fit into the limit of open files.
//!
//! A log that cannot open its next segment stops the server, so connections never get the last descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Settings;
use super::error::Error;

/// Raises the soft limit of open files to the hard one, and returns how many connections fit.
///
/// # Errors
/// [`Error::Descriptors`] if none fits.
pub(super) fn connections(settings: &Settings) -> Result<u32, Error> {
    let (limit, open, fit) = check(settings)?;
    if fit < settings.connections {
        tracing::warn!(
            "{} connections do not fit: this process may open {limit} files, {open} are open and {} are \
             reserved for the log and other files; at most {fit} connections are accepted. To raise the limit: \
             `ulimit -n {}`, or LimitNOFILE= of the unit",
            settings.connections,
            settings.reserved_files,
            needed(open, settings),
        );
    }
    Ok(fit)
}

/// As [`connections`], without a warning: the limit, how many files are open, and how many connections fit.
pub(super) fn check(settings: &Settings) -> Result<(u64, u64, u32), Error> {
    let limit = raise();
    let open = open_files()?;
    let fit = fitting(limit, open, settings).ok_or(Error::Descriptors {
        limit,
        open,
        reserve: settings.reserved_files.into(),
    })?;
    Ok((limit, open, fit))
}

/// The soft limit, raised to the hard one if possible.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let in_force = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    // None means no limit.
    in_force.unwrap_or(u64::MAX)
}

fn open_files() -> io::Result<u64> {
    const OWN: &str = "/proc/self/fd";
    let unread = |error: io::Error| {
        io::Error::new(error.kind(), format!("{OWN}: {error}; is /proc mounted?"))
    };
    // The directory itself is open during the count; it stands for a file that is opened next.
    Ok(std::fs::read_dir(OWN).map_err(unread)?.count() as u64)
}

fn fitting(limit: u64, open: u64, settings: &Settings) -> Option<u32> {
    let free = limit.saturating_sub(open + u64::from(settings.reserved_files));
    let fit = free / u64::from(settings.files_per_connection);
    let fit = fit.min(settings.connections.into());
    u32::try_from(fit).ok().filter(|fit| *fit > 0)
}

fn needed(open: u64, settings: &Settings) -> u64 {
    let connections = u64::from(settings.connections) * u64::from(settings.files_per_connection);
    open + u64::from(settings.reserved_files) + connections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_what_is_left_after_the_reserve() {
        let settings = Settings {
            connections: 10_000,
            reserved_files: 64,
            ..Settings::default()
        };
        assert_eq!(fitting(1_024, 24, &settings), Some(936));
        assert_eq!(fitting(u64::MAX, 24, &settings), Some(10_000));
        assert_eq!(fitting(64, 24, &settings), None);
        let proxy = Settings {
            files_per_connection: 2,
            ..settings
        };
        assert_eq!(fitting(1_024, 24, &proxy), Some(468));
        assert_eq!(fitting(needed(24, &proxy), 24, &proxy), Some(10_000));
    }
}
