//! A machine without a server runs the other tests, unless it judges.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs `cargo xtask test --quick` on a machine without any other program, where one test passes and one fails with these
/// words. Returns whether it passed, and what it said.
fn quick(name: &str, judges: bool, failure: &str) -> (bool, String) {
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    for folder in ["xtask", "bin", "crates/fence"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    let program = home.join("program");
    script(
        &program,
        &format!(
            "echo 'test memory::a ... ok'; echo 'test redis::b ... FAILED'\n\
             echo; echo failures:; echo '---- redis::b stdout ----'; echo '{failure}'\n\
             echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101"
        ),
    );
    // It builds nothing, and says that this program was built.
    let cargo = home.join("cargo");
    let artifact = format!(
        r#"{{"manifest_path":"{}/crates/fence/Cargo.toml","target":{{"kind":["test"],"name":"suite"}},"profile":{{"test":true}},"executable":"{}"}}"#,
        home.display(),
        program.display()
    );
    let list = format!("case \"$*\" in *message-format*) echo '{artifact}' ;; esac");
    script(&cargo, &list);
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask
        .args(["test", "--quick"])
        .env("CARGO", &cargo)
        .env("CARGO_MANIFEST_DIR", home.join("xtask"))
        .env("PATH", home.join("bin"))
        .env_remove("CI");
    if judges {
        xtask.env("CI", "true");
    }
    let output = xtask.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), said)
}

const MISSING: &str = "redis is missing (/usr/bin/redis-server): install it";

#[test]
fn a_test_without_its_server_is_named_and_the_rest_counts() {
    let (passed, said) = quick("not-run", false, MISSING);
    let line = "test: NOT RUN: fence suite: redis::b, without Redis: install what is missing \
                (on Debian: sudo apt-get install --yes redis-server) and try again";
    assert!(passed && said.contains(line), "{said}");
    assert!(said.contains("1 passed, 0 failed, 1 not run"), "{said}");
}

#[test]
fn a_machine_that_judges_fails_for_the_same_lack() {
    let (passed, said) = quick("not-run-judges", true, MISSING);
    assert!(!passed && !said.contains("NOT RUN"), "{said}");
    assert!(
        said.contains("test: failed: fence suite: redis::b"),
        "{said}"
    );
}

#[test]
fn a_test_that_fails_for_another_reason_fails() {
    let (passed, said) = quick("not-run-fails", false, "assertion failed: 1 == 2");
    assert!(
        !passed && said.contains("test: failed: fence suite: redis::b"),
        "{said}"
    );
}
