//! The golden data: what a version wrote, which every later one must serve (proof/golden/README.md).
//!
//! A release has a set of its own, made by its own program; that of a version that was released never changes; and no file
//! that defines a format is newer than the set.

use std::process::Command;

use serde_json::Value;

use crate::shell::{read, root};

/// Why the golden data is not that of this version.
///
/// # Errors
/// git does not answer.
pub(super) fn refused(version: &str) -> Result<Vec<String>, String> {
    let folder = format!("proof/golden/{version}");
    let manifest = std::fs::read_to_string(root().join(&folder).join("manifest.json"));
    let mut reasons = match manifest {
        Ok(text) => differs(version, &text, blob),
        Err(_) => vec![format!(
            "there is no golden data of {version}: run proof/golden/make, and commit {folder}"
        )],
    };
    for tag in released()? {
        let released = format!("proof/golden/{}", tag.trim_start_matches('v'));
        let mut diff = Command::new("git");
        diff.args(["diff", "--name-only", &tag, "--", &released]);
        let changed = read(diff.current_dir(root()))?;
        reasons.extend(changed.lines().map(|file| {
            format!("{file} is what {tag} wrote, and was changed: git checkout {tag} -- {file}")
        }));
    }
    Ok(reasons)
}

/// The id that git gives the content of a file, or nothing if there is no such file.
fn blob(name: &str) -> Option<String> {
    let mut hash = Command::new("git");
    let id = read(hash.args(["hash-object", "--", name]).current_dir(root()));
    id.ok().map(|id| id.trim().to_owned())
}

/// The tags of releases.
fn released() -> Result<Vec<String>, String> {
    let mut tags = Command::new("git");
    let tags = read(tags.args(["tag", "--list", "v[0-9]*"]).current_dir(root()))?;
    Ok(tags.lines().map(str::to_owned).collect())
}

/// The statements of a manifest that are not so. `blob` identifies what a file of the repository contains.
fn differs(version: &str, manifest: &str, blob: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let again = "run proof/golden/make again, and commit what it writes";
    let manifest: Value = match serde_json::from_str(manifest) {
        Ok(manifest) => manifest,
        Err(error) => return vec![format!("the manifest of the golden data: {error}")],
    };
    let mut reasons = Vec::new();
    if manifest["version"] != version {
        reasons.push(format!(
            "the golden data is of {}: {again}",
            manifest["version"]
        ));
    }
    let commit = manifest["commit"].as_str().unwrap_or_default();
    if commit.len() != 40 {
        reasons.push(format!(
            "the golden data was made by `{commit}`, not by a commit: {again}"
        ));
    }
    let formats = manifest["formats"].as_object();
    if formats.is_none_or(serde_json::Map::is_empty) {
        reasons.push(format!(
            "the golden data names no file that defines a format: {again}"
        ));
    }
    for (name, then) in formats.into_iter().flatten() {
        if blob(name).as_deref() != then.as_str() {
            reasons.push(format!(
                "{name} defines a format, and is not as it was when the golden data was made: {again}"
            ));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(manifest: &str) -> Vec<String> {
        differs("0.1.0", manifest, |name| {
            (name == "a").then(|| "12ab".to_owned())
        })
    }

    #[test]
    fn golden_data_of_another_version_or_format_is_refused() {
        let commit = "0".repeat(40);
        let manifest = |version: &str, commit: &str, file: &str, sum: &str| {
            of(&format!(
                r#"{{"version": "{version}", "commit": "{commit}", "formats": {{"{file}": "{sum}"}}}}"#
            ))
        };
        assert_eq!(
            manifest("0.1.0", &commit, "a", "12ab"),
            Vec::<String>::new()
        );
        let one = |reasons: Vec<String>, words: &str| {
            assert!(
                reasons.len() == 1 && reasons[0].contains(words),
                "{reasons:?}"
            );
        };
        one(manifest("0.0.9", &commit, "a", "12ab"), "is of \"0.0.9\"");
        one(
            manifest("0.1.0", "abc with changes", "a", "12ab"),
            "not by a commit",
        );
        one(
            manifest("0.1.0", &commit, "a", "12ac"),
            "a defines a format",
        );
        one(
            manifest("0.1.0", &commit, "gone", "12ab"),
            "gone defines a format",
        );
        one(of("{"), "the manifest");
        one(
            of(&format!(r#"{{"version": "0.1.0", "commit": "{commit}"}}"#)),
            "names no file",
        );
    }
}
