//! The public interface of the crates beside that of the last release, by cargo-semver-checks: a name that went or changed
//! needs a version that says so. Building the tool takes many minutes, so it is no step of the gate: the forge's workflow and
//! `cargo xtask release` run it.

use std::process::Command;

use semver::Version;

use crate::shell::{cargo, read, root, run};

/// Its version; .github/workflows/check.yml installs the same, and a test compares them.
const TOOL: &str = "0.51.0";

/// The crates whose names users write (ARCHITECTURE.md, the public API).
const PUBLIC: &[&str] = &["palisade-authorities", "palisade-client", "palisade-fence"];

/// True when every change since the last release is one that the version allows.
pub(crate) fn check() -> bool {
    match refused(None) {
        Ok(reasons) => {
            for reason in &reasons {
                println!("semver: {reason}");
            }
            reasons.is_empty()
        }
        Err(complaint) => {
            println!("semver: {complaint}");
            false
        }
    }
}

/// Why the version does not allow what has changed since the last release, or since the one before this version.
///
/// # Errors
/// git does not answer.
pub(super) fn refused(version: Option<&str>) -> Result<Vec<String>, String> {
    let mut tags = Command::new("git");
    let tags = read(tags.args(["tag", "--list", "v[0-9]*"]).current_dir(root()))?;
    let Some(last) = last(&tags, version) else {
        println!("semver: there is no release to compare with");
        return Ok(Vec::new());
    };
    if read(&mut cargo(&["semver-checks", "--version"])).is_err() {
        return Ok(vec![format!(
            "the public interface was not compared with {last}: \
             cargo install --locked cargo-semver-checks@{TOOL}, and try again"
        )]);
    }
    let mut compare = cargo(&["semver-checks", "--all-features", "--baseline-rev", &last]);
    for name in PUBLIC {
        compare.args(["--package", name]);
    }
    let compared = run(&mut compare);
    let reason = format!("the public interface differs from {last} more than the version says");
    Ok(compared.err().map(|_| reason).into_iter().collect())
}

/// The tag of the highest version, below another one if that is named.
fn last(tags: &str, below: Option<&str>) -> Option<String> {
    let below = below.and_then(|version| Version::parse(version).ok());
    let versions = tags.lines().filter_map(|tag| {
        let version = Version::parse(tag.strip_prefix('v')?).ok()?;
        Some((version, tag))
    });
    let earlier =
        versions.filter(|(version, _)| below.as_ref().is_none_or(|below| version < below));
    earlier.max().map(|(_, tag)| tag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_is_the_highest_version() {
        let tags = "v0.10.0\nv0.2.0\nv0.9.1\nv0.10.0-rc.1\n";
        let of = |tags, below| last(tags, below).unwrap_or_default();
        assert_eq!(of("v0\nv-1\n", None), "");
        assert_eq!(of(tags, None), "v0.10.0");
        // The workflow of a release begins with its tag.
        assert_eq!(of(tags, Some("0.10.0")), "v0.10.0-rc.1");
        assert_eq!(of(tags, Some("0.2.0")), "");
    }

    #[test]
    fn the_forge_installs_the_same_version() {
        let workflow = root().join(".github/workflows/check.yml");
        let workflow = std::fs::read_to_string(workflow).unwrap();
        assert!(workflow.contains(&format!("cargo-semver-checks@{TOOL}\n")));
    }
}
