//! The chores work on the tree they were called in, whatever tree the program was built in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The findings of the tidy rules, called as cargo calls the program in the tree with this root.
fn tidy(root: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["check", "--only", "tidy"])
        .env("CARGO_MANIFEST_DIR", root.join("xtask"))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_program_built_elsewhere_checks_the_tree_it_was_called_in() {
    let other = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("another-clone");
    fs::create_dir_all(other.join("xtask")).unwrap();
    fs::write(other.join("stranger.rs"), "#[test]\n#[ignore]\nfn a() {}\n").unwrap();
    let made = Command::new("git")
        .args(["init", "--quiet"])
        .current_dir(&other)
        .status()
        .unwrap();
    assert!(made.success());
    let said = tidy(&other);
    assert!(said.contains("stranger.rs"), "{said}");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let said = tidy(own);
    assert!(!said.contains("stranger.rs"), "{said}");
}
