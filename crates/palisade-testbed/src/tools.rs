//! Programs of other people that `cargo xtask test` installs beside what is built.

use std::path::PathBuf;

/// A program of the Python environment called `environment`, where `cargo xtask test` put it, or on the
/// path; empty if it is nowhere.
#[must_use]
pub fn python_tool(environment: &str, program: &str) -> PathBuf {
    // Tests run from the folder of their crate, and their program lies in the target folder.
    let test = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let inside = PathBuf::from("palisade-tools")
        .join(environment)
        .join("bin");
    let installed = test.ancestors().map(|dir| dir.join(&inside).join(program));
    let on_path = std::env::split_paths(&path).map(|dir| dir.join(program));
    let mut places = installed.chain(on_path);
    places.find(|path| path.exists()).unwrap_or_default()
}
