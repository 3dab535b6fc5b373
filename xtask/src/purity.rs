//! The proof that palisade-core has no clock, no I/O and no randomness.
//!
//! It always shows that the core depends on its allow-list and on nothing else, and that the lints ban what the
//! standard library offers. Where the bare WebAssembly target is installed it also builds the core for it: a
//! dependency that needs an operating system does not get that far.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::shell::{cargo, read, root, run};
use crate::tidy::house::{CORE, CORE_DEPENDENCIES};

const BARE: &str = "wasm32-unknown-unknown";

/// What the core's lint settings must ban, whatever else they say.
const BANS: &[&str] = &[
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::thread::sleep",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::hash::RandomState",
    "getrandom::fill",
];

/// # Errors
/// The core could do something other than compute; the message says what.
pub(crate) fn prove() -> Result<String, String> {
    let settings = root().join(CORE).join("clippy.toml");
    let settings = std::fs::read_to_string(&settings)
        .map_err(|error| format!("{CORE}/clippy.toml: {error}"))?;
    if let Some(missing) = BANS.iter().find(|ban| !is_banned(&settings, ban)) {
        return Err(format!("{CORE}/clippy.toml does not ban `{missing}`"));
    }
    let tree = [
        "tree",
        "--locked",
        "--package",
        "palisade-core",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ];
    compare(&read(&mut cargo(&tree))?)?;
    if !is_installed(BARE) {
        return Ok(format!(
            "by its dependencies and lints ({BARE} is not installed)"
        ));
    }
    run(&mut cargo(&[
        "build",
        "--locked",
        "--release",
        "--package",
        "palisade-core",
        "--target",
        BARE,
    ]))?;
    Ok(format!(
        "by its dependencies, its lints and a build for {BARE}"
    ))
}

fn is_banned(settings: &str, path: &str) -> bool {
    let quoted = format!("path = \"{path}\"");
    settings
        .lines()
        .any(|line| !line.trim_start().starts_with('#') && line.contains(&quoted))
}

/// Are the packages that cargo lists the core and its allow-list, no more and no fewer?
fn compare(listed: &str) -> Result<(), String> {
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let names: BTreeSet<&str> = names.filter(|name| *name != "palisade-core").collect();
    let allowed: BTreeSet<&str> = CORE_DEPENDENCIES.iter().copied().collect();
    if let Some(extra) = names.difference(&allowed).next() {
        return Err(format!(
            "palisade-core depends on `{extra}`, which is not on its allow-list"
        ));
    }
    match allowed.difference(&names).next() {
        Some(gone) => Err(format!(
            "the allow-list names `{gone}`, which palisade-core no longer needs"
        )),
        None => Ok(()),
    }
}

fn is_installed(target: &str) -> bool {
    let place = read(
        Command::new("rustc")
            .args(["--print", "target-libdir", "--target", target])
            .current_dir(root()),
    );
    place.is_ok_and(|path| Path::new(path.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependencies_are_the_allow_list_no_more_and_no_fewer() {
        let exact = "palisade-core v0.1.0 (/a)\nfoldhash v0.2.0\nhashbrown v0.17.0\n";
        assert_eq!(compare(exact), Ok(()));
        assert!(
            compare(&format!("{exact}libc v0.2.0\n")).is_err_and(|error| error.contains("libc"))
        );
        assert!(
            compare("palisade-core v0.1.0\nhashbrown v0.17.0\n")
                .is_err_and(|error| error.contains("foldhash"))
        );
    }

    #[test]
    fn a_ban_that_is_commented_out_is_none() {
        let line = "{ path = \"std::thread::sleep\", reason = \"a\" },";
        assert!(is_banned(line, "std::thread::sleep"));
        assert!(!is_banned(&format!("  # {line}"), "std::thread::sleep"));
        assert!(!is_banned(line, "std::thread::spawn"));
    }

    #[test]
    fn an_unknown_target_is_not_installed() {
        assert!(!is_installed("no-such-target"));
        let host = read(Command::new("rustc").arg("-vV"));
        let host = host
            .as_deref()
            .ok()
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("host: ")));
        assert!(host.is_some_and(is_installed));
    }
}
