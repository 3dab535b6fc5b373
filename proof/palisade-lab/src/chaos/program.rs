//! The program under test.

use std::path::{Path, PathBuf};

/// The program under test: the given one, or the one beside this program. `flag` selects another.
pub(crate) fn program(named: Option<&PathBuf>, flag: &str) -> Result<PathBuf, String> {
    let beside = || {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        Ok::<_, String>(own.with_file_name("palisade"))
    };
    let program = named.cloned().map_or_else(beside, Ok)?;
    if program.exists() {
        return Ok(program);
    }
    let program = program.display();
    Err(format!(
        "{program} is missing: build it with cargo build --release -p palisade, or select another with {flag}"
    ))
}

/// The first line of a program's output.
pub(super) fn version(program: &Path, flag: &str) -> String {
    let output = std::process::Command::new(program).arg(flag).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let first = text.unwrap_or_default();
    first.lines().next().unwrap_or("unknown").to_owned()
}
