//! The server's page in a real Chromium. The checks and their controls are in `tests/page/page.py`.

use std::path::Path;
use std::process::Command;

use palisade_testbed::python_tool;

use crate::common::text;

/// Plays a scenario; screenshots are left in the target folder.
fn plays(scenario: &str) {
    let python = python_tool("browser", "playwright").with_file_name("python");
    let missing = "playwright is missing: run `cargo xtask test`, which installs it and Chromium";
    assert!(python.exists(), "{missing}");
    let program = Path::new(env!("CARGO_BIN_EXE_palisade"));
    let output = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page/page.py"))
        .arg(program)
        .arg(scenario)
        .arg(program.with_file_name("page-screenshots"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    println!("{}", text(&output.stdout));
}

#[test]
fn the_page_shows_what_the_interface_says() {
    plays("shows_what_the_interface_says");
}

#[test]
fn the_page_goes_on_after_a_refusal() {
    plays("goes_on_after_a_refusal");
}

#[test]
fn the_page_shows_one_lock_and_breaks_it_only_with_the_token() {
    plays("shows_one_lock");
}

#[test]
fn the_page_shows_a_closed_lock_and_opens_it_with_a_reason() {
    plays("shows_a_closed_lock");
}

#[test]
fn the_page_shows_text_as_text() {
    plays("shows_text_as_text");
}

#[test]
fn everybody_can_use_the_page() {
    plays("shows_itself_to_everybody");
}

#[test]
fn the_page_shows_what_the_rules_grant() {
    plays("shows_what_the_rules_grant");
}

#[test]
fn the_page_keeps_what_was_asked_for() {
    plays("keeps_what_was_asked_for");
}

#[test]
fn the_page_shows_many_locks() {
    plays("shows_many_locks");
}

#[test]
fn the_page_shows_a_cluster_without_majority() {
    plays("shows_a_cluster_without_majority");
}

#[test]
fn the_page_shows_a_full_disk() {
    plays("shows_a_full_disk");
}

#[test]
fn the_page_shows_a_stall() {
    plays("shows_a_stall");
}

#[test]
fn the_page_shows_an_expiring_certificate() {
    plays("shows_an_expiring_certificate");
}

#[test]
fn the_page_of_an_empty_server_says_what_to_type() {
    plays("shows_an_empty_server");
}

#[test]
fn the_page_shows_long_names() {
    plays("shows_long_names");
}

#[test]
fn the_page_shows_rates_expiries_and_the_oldest_waiter() {
    plays("shows_rates_expiries_and_the_oldest_waiter");
}

#[test]
fn the_page_shows_refused_late_writes() {
    plays("shows_refused_late_writes");
}
