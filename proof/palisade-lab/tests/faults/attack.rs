//! `palisade-lab attack` against the release binary, with the amounts of a test: no attack succeeds, and if the program
//! lets one succeed, the lab reports it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn binary() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_palisade-lab")).with_file_name("palisade");
    assert!(
        binary.exists(),
        "the program under test is missing: cargo build --release -p palisade"
    );
    binary
}

fn attack(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-lab"));
    command.args(["attack", "--short"]).args(arguments);
    command
}

fn printed(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn every_attack_is_held_off() {
    binary();
    let output = attack(&[]).output().unwrap();
    println!("{}", printed(&output));
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let held = printed(&output)
        .lines()
        .filter(|line| line.starts_with("held "))
        .count();
    assert!(held > 20, "{}", printed(&output));
}

/// Attacks that use up the shared resources of connections, on servers with TLS and rules.
#[test]
fn attacks_on_servers_with_tls_and_rules_are_held_off() {
    binary();
    let names = [
        "listing-bomb",
        "descriptors-exhausted",
        "one-peer-takes-all",
        "uncounted-rejections",
    ];
    let output = attack(&["--secure"]).args(names).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let said = printed(&output);
    let held = said.lines().filter(|line| line.starts_with("held "));
    assert_eq!(held.count(), names.len(), "{said}");
}

/// Control: a store without its fence admits any token.
#[test]
fn an_attack_that_succeeds_is_reported_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("palisade");
    let real = binary();
    let script = format!(
        "#!/bin/sh\nshift\nexec {} store --danger-unfenced \"$@\"\n",
        real.display()
    );
    std::fs::write(&broken, script).unwrap();
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o755)).unwrap();
    let broken = broken.display().to_string();
    let output = attack(&["jump-poisons-fence", "--binary", &broken])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    assert!(printed(&output).contains("BROKEN"), "{}", printed(&output));
    assert!(
        printed(&output).contains("1 succeeded"),
        "{}",
        printed(&output)
    );
}

#[test]
fn an_attack_that_this_machine_does_not_allow_does_not_count() {
    binary();
    let folder = tempfile::tempdir().unwrap();
    // Everything but Python.
    symlink("/usr/bin/setpriv", folder.path().join("setpriv")).unwrap();
    let mut command = attack(&["gateway-spellings"]);
    let output = command.env("PATH", folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(
        printed(&output).contains("not run, because python3"),
        "{}",
        printed(&output)
    );
    assert!(
        printed(&output).contains("0 held off"),
        "{}",
        printed(&output)
    );
}

#[test]
fn an_unknown_attack_is_refused_before_any_attack() {
    let output = attack(&["lock-file-renamed", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        printed(&output).contains("attack --list"),
        "{}",
        printed(&output)
    );
}
