//! The tools of the gate find what they are there for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a step of the gate in a clone with these pages. Returns whether it passed, and what it said; `None` where the tools of
/// the gate cannot be had.
fn check(name: &str, step: &str, pages: &[(&str, &str)]) -> Option<(bool, String)> {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let home = temporary.join(name);
    let tools = home.join("xtask/tools");
    fs::create_dir_all(&tools).unwrap();
    // The lock that the gate's own tools were installed from, so that they are used.
    fs::copy(own("xtask/tools/gate.txt"), tools.join("gate.txt")).unwrap();
    fs::copy(own("typos.toml"), home.join("typos.toml")).unwrap();
    for (path, text) in pages {
        fs::write(home.join(path), text).unwrap();
    }
    let mut git = Command::new("git");
    let made = git
        .args(["init", "--quiet"])
        .current_dir(&home)
        .status()
        .unwrap();
    assert!(made.success());
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["check", "--only", step])
        .env("CARGO_MANIFEST_DIR", home.join("xtask"))
        .env("CARGO_TARGET_DIR", temporary.parent().unwrap())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let ran = !said.contains("NOT RUN");
    assert!(ran || std::env::var_os("CI").is_none(), "{said}");
    ran.then_some((output.status.success(), said))
}

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join(path)
}

/// Checks that the step passes with the right text of a page, and names the wrong one.
fn finds(name: &str, step: &str, right: &str, wrong: &str) {
    let other = ("b.md", "# One: two & three\n\n## Same\n\n## Same\n");
    let Some((passed, said)) = check(name, step, &[("a.md", right), other]) else {
        return;
    };
    assert!(passed, "{right}: {said}");
    let found = check(name, step, &[("a.md", wrong), other]);
    assert!(
        found.is_some_and(|(passed, said)| !passed && said.contains("a.md")),
        "{wrong}"
    );
}

#[test]
fn a_link_leads_to_a_file_and_to_a_heading() {
    let right = "[a](b.md) [b](b.md#same-1) [c](/b.md) [d](#here) [e](https://a.invalid/)\n\n# Here\n\n`[f](gone.md)`\n";
    for wrong in [
        "[a](gone.md)\n",
        "[a](b.md#four)\n",
        "[a](#gone)\n",
        "![a](a.png)\n",
        "[a][b]\n\n[b]: gone.md\n",
    ] {
        finds("links", "links", right, wrong);
    }
}

#[test]
fn a_misspelt_word_is_found() {
    finds(
        "words",
        "words",
        "It receives, with a childs-own name.\n",
        &format!("It rec{}ves.\n", "ie"),
    );
}
