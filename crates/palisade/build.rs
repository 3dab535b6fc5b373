//! Tells the program which commit it was built from, and of which day: `palisade --version` prints both.
//!
//! PALISADE_COMMIT names the commit where there is no repository, as in a container's build, and SOURCE_DATE_EPOCH the time.
//! Otherwise a crate's package knows the commit it was packed from, and a clone asks git, in a release build only: a
//! development build would be built again after each commit. No clock is read, so equal commits make equal programs.

use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=PALISADE_COMMIT");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    // An argument of a container's build that is not given is empty.
    let named = env::var("PALISADE_COMMIT").ok();
    let named = named.filter(|commit| !commit.is_empty());
    let (commit, seconds) = match named.or_else(packed) {
        Some(commit) => (Some(commit), None),
        None if is_release() => (git_commit(), git(&["log", "-1", "--format=%ct"])),
        None => (None, None),
    };
    let seconds = env::var("SOURCE_DATE_EPOCH").ok().or(seconds);
    let date = seconds.and_then(|text| text.trim().parse().ok()).map(date);
    let built: Vec<String> = commit.into_iter().chain(date).collect();
    let built = match built.as_slice() {
        [] => "a build without a commit".to_owned(),
        built => built.join(", "),
    };
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=PALISADE_VERSION={version} ({built})");
}

fn is_release() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "release")
}

/// The commit that this crate's package was made from: cargo writes it into the package.
fn packed() -> Option<String> {
    let facts = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, after) = facts.split_once("\"sha1\": \"")?;
    Some(after.split('"').next()?.chars().take(12).collect())
}

/// The commit of this clone, and whether the crates are as they were committed. `None` in a clone of something else.
fn git_commit() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])?.trim() != "crates/palisade/" {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let commit = commit.trim().to_owned();
    println!("cargo:rerun-if-changed=..");
    // A file that is not there would count as changed, always.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).unwrap_or_default();
    if fs::exists(log.trim()).unwrap_or(false) {
        println!("cargo:rerun-if-changed={}", log.trim());
    }
    match git(&["status", "--porcelain", "--untracked-files=no", "--", ".."]) {
        Some(changes) if changes.is_empty() => Some(commit),
        _ => Some(format!("{commit} with changes")),
    }
}

/// `None` where this is no clone.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(said)
}

/// The day of this second since 1970, in UTC: <https://howardhinnant.github.io/date_algorithms.html>, `civil_from_days`.
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = match month {
        0..10 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + next)
}
