//! Starting other programs, always from the root of the repository.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The root of the repository: the parent of this crate's directory, as cargo names it now. Clones that share a
/// target directory also share this program, so what it was when the program was built may be another one.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(chosen)
}

/// Whether this machine judges a submission: there, what cannot run has failed.
pub(crate) fn judges() -> bool {
    std::env::var_os("CI").is_some_and(|set| !set.is_empty() && set != "false")
}

/// The cargo that started us, so that a chosen toolchain stays chosen.
pub(crate) fn cargo<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null());
    without_this_crate(&mut command);
    command
}

/// For a program that starts cargo.
pub(crate) fn without_this_crate(command: &mut Command) {
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| is_about_this_crate(name)) {
        command.env_remove(name);
    }
}

/// This program once more. Its path may lead to another file by now, or to none: the build of the tests puts a new `xtask` there. Linux
/// opens the one that runs, even when it has been deleted (proc_pid_exe(5)).
///
/// # Errors
/// The program's own file cannot be told.
pub(crate) fn again() -> Result<Command, String> {
    if cfg!(target_os = "linux") {
        return Ok(Command::new(format!("/proc/{}/exe", std::process::id())));
    }
    let path = std::env::current_exe().map_err(|error| format!("xtask: {error}"))?;
    Ok(Command::new(path))
}

/// The same command at a low priority, so that it computes while others wait: 10, or 19, at which it hardly ever runs beside
/// programs that always compute.
pub(crate) fn patient(command: &Command, nice: u8) -> Command {
    let mut patient = Command::new("nice");
    patient
        .args(["-n", &nice.to_string()])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => patient.env(name, value),
            None => patient.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        patient.current_dir(folder);
    }
    patient
}

/// Whether `cargo run` set this variable to describe `xtask`. Build scripts watch such variables, so a cargo
/// that inherits them builds `ring` and all that uses it again.
fn is_about_this_crate(name: &OsStr) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
        "CARGO_PRIMARY_",
    ];
    let name = name.to_string_lossy();
    BEGINNINGS.iter().any(|begin| name.starts_with(begin))
}

/// Runs to the end with the output shown as it comes.
///
/// # Errors
/// The program could not be started, or did not succeed.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    Background::start(command)?.finish()
}

/// A program that runs while we go on. It is stopped where nobody waits for it any more.
pub(crate) struct Background {
    name: String,
    child: Child,
}

impl Background {
    /// # Errors
    /// The program could not be started.
    pub(crate) fn start(command: &mut Command) -> Result<Background, String> {
        let name = spelled(command);
        let child = command.spawn();
        let child = child.map_err(|error| format!("{name}: {error}"))?;
        Ok(Background { name, child })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not succeed.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let status = self.child.wait();
        let status = status.map_err(|error| format!("{}: {error}", self.name))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} ended with {status}", self.name))
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs to the end and returns what was printed on standard output.
///
/// # Errors
/// The program could not be started, or did not succeed; the message carries its complaint.
pub(crate) fn read(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", spelled(command)))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{} ended with {}: {}",
        spelled(command),
        output.status,
        complaint.trim()
    ))
}

/// The command as one would type it.
pub(crate) fn spelled(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The result of `work`, and how long it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a stopwatch for a person; nothing is decided by it"
    )]
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names this test to the copy of the program that it starts, by the copy's path.
    const COPY: &str = "XTASK_TEST_COPY";

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_whose_file_is_gone_starts_once_more() {
        if let Some(copy) = std::env::var_os(COPY) {
            std::fs::remove_file(copy).unwrap();
            let list = |command: &mut Command| read(command.arg("--list")).is_ok();
            assert!(list(&mut again().unwrap()) && list(&mut patient(&again().unwrap(), 10)));
            // The control: its path leads to nothing.
            assert!(!list(&mut Command::new(std::env::current_exe().unwrap())));
            return;
        }
        let copy = std::env::temp_dir().join(format!("xtask-again-{}", std::process::id()));
        // By another program: a file that this one writes is busy while a child of another test, forked meanwhile, has it open.
        let path = std::env::current_exe().unwrap();
        run(Command::new("cp").arg(path).arg(&copy)).unwrap();
        let mut test = Command::new(&copy);
        test.args([
            "--exact",
            "shell::tests::a_program_whose_file_is_gone_starts_once_more",
        ])
        .env(COPY, &copy);
        let said = read(&mut test).unwrap();
        assert!(said.contains("1 passed") && !copy.exists(), "{said}");
    }

    /// The variables are there, because cargo runs this test, too.
    #[test]
    fn a_nested_cargo_does_not_inherit_what_describes_this_crate() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
        let nested = cargo(&["--version"]);
        let removed = |wanted: &str| {
            let mut changes = nested.get_envs();
            changes.any(|(name, value)| name == wanted && value.is_none())
        };
        assert!(removed("CARGO_PKG_NAME") && removed("CARGO_MANIFEST_DIR"));
        for chosen in [
            "CARGO",
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_PROFILE_DEV_DEBUG",
        ] {
            assert!(!is_about_this_crate(OsStr::new(chosen)), "{chosen}");
        }
    }
}
