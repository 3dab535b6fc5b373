//! Third-party programs that `cargo xtask test` installs in the target folder.

use std::path::PathBuf;

/// Returns the path of a program: in the Python environment `environment` that `cargo xtask test` installed, or
/// on `PATH`; empty if there is none.
#[must_use]
pub fn python_tool(environment: &str, program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = installed(&format!("{environment}/bin/{program}"));
    let on_path = std::env::split_paths(&path).map(|dir| dir.join(program));
    let mut places = std::iter::once(installed).chain(on_path);
    places.find(|path| path.exists()).unwrap_or_default()
}

/// Returns the folder of the programs of a PostgreSQL that `cargo xtask test` installed, `14` or `18`; empty if it did not.
#[must_use]
pub fn postgres_programs(version: &str) -> PathBuf {
    installed(&format!(
        "postgres/node_modules/postgresql-{version}/native/bin"
    ))
}

/// Returns where `cargo xtask test` put this file or folder of a tool; empty if it did not.
pub(crate) fn installed(inside: &str) -> PathBuf {
    // Tests run from the folder of their crate, and their program lies in the target folder.
    let test = std::env::current_exe().unwrap_or_default();
    let mut places = test
        .ancestors()
        .map(|dir| dir.join("palisade-tools").join(inside));
    places.find(|path| path.exists()).unwrap_or_default()
}
