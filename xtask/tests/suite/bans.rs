//! The bans of the clippy.toml files, proved on code that breaks each of them: clippy is silent about a path
//! that it does not find, so a misspelt ban would look like a kept one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The findings of clippy about a crate with this source under the settings of that file of the repository.
fn clippy(name: &str, settings: &str, source: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(home.join("src")).unwrap();
    fs::create_dir_all(home.join("tests")).unwrap();
    fs::copy(root.join(settings), home.join("clippy.toml")).unwrap();
    let manifest = format!(
        "[package]\nname = \"{name}\"\nedition = \"2024\"\n[workspace]\n[lints.clippy]\nunwrap_used = \"warn\"\n"
    );
    fs::write(home.join("Cargo.toml"), manifest).unwrap();
    fs::write(home.join("src/lib.rs"), source).unwrap();
    // The same source as an integration test, where helper functions are no test functions.
    fs::write(home.join("tests/all.rs"), source).unwrap();
    let output = Command::new(env!("CARGO"))
        .args([
            "clippy",
            "--offline",
            "--quiet",
            "--tests",
            "--message-format",
            "short",
        ])
        .current_dir(&home)
        .env("CARGO_TARGET_DIR", home.join("target"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// Each statement, in a function of its own on a line of its own, and whether it must be named.
fn check(name: &str, settings: &str, statements: &[(&str, bool)]) {
    let lines: Vec<String> = (1..)
        .zip(statements)
        .map(|(line, (statement, _))| format!("pub fn f{line}() {{ let _ = {statement}; }}\n"))
        .collect();
    let said = clippy(name, settings, &lines.concat());
    for (line, (statement, banned)) in (1..).zip(statements) {
        let named = said
            .lines()
            .any(|message| message.contains(&format!("src/lib.rs:{line}:")));
        assert_eq!(named, *banned, "`{statement}` under {settings}:\n{said}");
    }
}

#[test]
fn the_root_bans_clocks_and_sleep() {
    check(
        "root_bans",
        "clippy.toml",
        &[
            ("std::time::Instant::now()", true),
            ("std::time::SystemTime::now()", true),
            ("std::thread::sleep(std::time::Duration::ZERO)", true),
            ("std::collections::HashMap::<u8, u8>::new()", false),
            ("std::time::Duration::ZERO", false),
        ],
    );
}

#[test]
fn unwrap_is_for_tests() {
    let source = "pub fn product() { \"1\".parse::<u8>().unwrap(); }\n#[test]\nfn test() { \"1\".parse::<u8>().unwrap(); }\n";
    let said = clippy("unwraps", "clippy.toml", source);
    let named = |place: &str| said.lines().any(|message| message.contains(place));
    assert!(
        named("src/lib.rs:1:") && named("tests/all.rs:1:"),
        "a helper function is not a test function:\n{said}"
    );
    assert!(
        !named("src/lib.rs:3:") && !named("tests/all.rs:3:"),
        "{said}"
    );
}
