//! Help, completions and man pages describe what the program does.

use crate::common::{palisade, status, text};

fn said(arguments: &[&str]) -> String {
    let output = palisade().args(arguments).output().unwrap();
    assert_eq!(
        status(&output),
        0,
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Text without its line breaks.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

const FIRST: &str = "No lock service can stop two processes from both believing they hold a lock. \
                     The lease saves work; the fence keeps data safe.";

#[test]
fn the_help_begins_with_what_a_lock_cannot_do() {
    assert!(flat(&said(&["--help"])).starts_with(FIRST));
    assert!(flat(&said(&["acquire", "--help"])).contains(FIRST));
}

#[test]
fn run_documents_its_statuses_and_environment() {
    let help = said(&["run", "--help"]);
    for word in [
        "123",
        "124",
        "125",
        "126",
        "127",
        "128 + n",
        "PALISADE_LOCK ",
        "PALISADE_FENCING_TOKEN",
        "PALISADE_AUTHORITY ",
        "PALISADE_AUTHORITY_ID",
        "PALISADE_DEADLINE_MS",
        "CLOCK_BOOTTIME",
        "--on-lost",
        "SIGTERM",
        "Examples:",
    ] {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn every_command_has_help_and_no_flag_takes_a_secret() {
    let overview = said(&["-h"]);
    for command in [
        "serve",
        "run",
        "acquire",
        "renew",
        "release",
        "ls",
        "show",
        "watch",
        "history",
        "doctor",
        "break",
        "permits",
        "store",
        "demo",
        "bench",
        "backup",
        "restore",
        "completions",
        "man",
    ] {
        assert!(overview.contains(&format!("\n  {command} ")), "{command}");
        let help = said(&[command, "--help"]);
        assert!(
            !help.contains("--lock-token ") && !help.contains("--lock-token="),
            "{command}"
        );
        assert!(help.contains("--json"), "{command}");
    }
}

#[test]
fn completions_and_man_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            said(&["completions", shell]).contains("palisade"),
            "{shell}"
        );
    }
    assert!(said(&["man"]).starts_with(".ie"));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(said(&["man", &dir.path().display().to_string()]), "");
    for page in ["palisade.1", "palisade-run.1", "palisade-break.1"] {
        assert!(crate::common::exists(&dir.path().join(page)), "{page}");
    }
}

#[test]
fn the_version_is_printed_with_where_the_program_comes_from() {
    let number = format!("palisade {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(said(&["-V"]), format!("{number}\n"));
    // A development build names no commit, so that it is not built again after each of them.
    let whole = said(&["--version"]);
    assert!(whole.starts_with(&format!("{number} (")), "{whole}");
}

#[test]
fn help_is_a_command_too() {
    assert_eq!(said(&["help", "run"]), said(&["run", "--help"]));
    assert_eq!(said(&["help"]), said(&["--help"]));
    assert!(said(&["fence", "help", "ls"]).contains("palisade fence ls"));
}

#[test]
fn the_man_page_of_run_has_the_dashes_in_its_synopsis() {
    let dir = tempfile::tempdir().unwrap();
    said(&["man", dir.path().to_str().unwrap()]);
    for name in ["run", "elect"] {
        let page = dir.path().join(format!("palisade-{name}.1"));
        let page = std::fs::read_to_string(page).unwrap();
        let synopsis = page.split(".SH ").find(|part| part.starts_with("SYNOPSIS"));
        assert!(synopsis.unwrap().contains(r"\-\- <\fICMD\fR>..."), "{page}");
    }
}

#[test]
fn scripts_ask_whether_a_lock_is_held_and_options_may_come_first() {
    let server = crate::common::Server::start();
    let show = |lock| {
        let flags = ["--authority", &server.url, "show", lock, "--exit-code"];
        status(&palisade().args(flags).output().unwrap())
    };
    let acquire = ["acquire", "held", "--ttl", "1d"];
    assert_eq!(status(&server.output(&acquire)), 0, "a day is 24 hours");
    assert_eq!([show("held"), show("free")], [0, 1]);
    assert_eq!(status(&server.output(&["show", "free"])), 0, "control");
}

#[test]
fn a_range_is_in_the_help_of_its_flag() {
    for (command, words) in [
        ("bench", "Loops on each connection, 1 – 10000"),
        ("bench", "The number of connections, 1 – 10000"),
        ("tfstate", "The largest state, 1 – 1073741824"),
        ("gateway", "The longest body of a write, 1 – 1099511627776"),
        ("gateway", "accept a connection: 1ms – 24h"),
        ("store", "its resource has seen, 1 – 9007199254740991"),
        ("serve", "How many watches, 1 or more"),
    ] {
        let help = flat(&said(&[command, "--help"]));
        assert!(help.contains(words), "{command}: {words}");
    }
}
