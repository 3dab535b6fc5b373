//! Tests of the history checker and of its command.

use std::io::Write as _;
use std::process::{Command, Output};

use palisade_lab::history::generate::{Shape, clean, clean_text};
use palisade_lab::history::{Broken, History, check, self_test};

/// A number that an environment variable may change.
fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(number) => number.parse().expect("a number"),
        Err(_) => default,
    }
}

/// 10,000 of each; `PALISADE_HISTORIES` sets the number.
#[test]
fn clean_histories_pass_and_illegal_ones_are_found() {
    let rounds = number("PALISADE_HISTORIES", 10_000);
    let trial = self_test::run(1, rounds);
    assert_eq!(trial.false_alarms, [0; 0]);
    assert!(trial.passed(), "missed {:?}", trial.missed);
    assert_eq!(trial.tried(), trial.clean, "each could be made illegal");
    if rounds >= 1_000 {
        let tried: Vec<&str> = trial.mutated.keys().copied().collect();
        let mut kinds = self_test::kinds();
        kinds.sort_unstable();
        assert_eq!(tried, kinds, "every kind was tried");
    }
}

/// A hundred histories of sixteen clients and two thousand operations; `PALISADE_LARGE_HISTORIES` sets the number.
#[test]
fn large_histories_are_read_and_checked() {
    let shape = Shape {
        clients: 16,
        locks: 8,
        operations: 2_000,
    };
    for seed in 0..number("PALISADE_LARGE_HISTORIES", 100) {
        let text = clean_text(seed, shape);
        let report = check(&History::parse(&text).unwrap());
        assert_eq!(report.violations, [], "seed {seed}");
        assert_eq!(report.operations, 2_000);
        assert!(report.grants > 100 && report.unknown > 20, "{report:?}");
    }
}

#[test]
fn equal_seeds_give_equal_histories() {
    assert_eq!(clean(7, self_test::SHAPE), clean(7, self_test::SHAPE));
    assert_ne!(clean(7, self_test::SHAPE), clean(8, self_test::SHAPE));
}

const HEADER: &str = "{\"palisade_history\":1}\n";
const GRANT: &str = concat!(
    "{\"at\":1000,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":1000}\n",
    "{\"at\":2000,\"id\":1,\"answer\":\"granted\",\"token\":1}\n",
);

fn broken(lines: &str) -> Vec<Broken> {
    let history = History::parse(&format!("{HEADER}{GRANT}{lines}")).unwrap();
    let violations = check(&history).violations;
    violations
        .into_iter()
        .map(|violation| violation.broken)
        .collect()
}

/// Another client is granted the lock: requested at once, answered at this nanosecond.
fn next_at(answered: u64) -> String {
    format!(
        "{{\"at\":3000,\"id\":2,\"client\":\"b\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":1000}}\n\
         {{\"at\":{answered},\"id\":2,\"answer\":\"granted\",\"token\":2}}\n"
    )
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn expiry_must_not_come_early() {
    assert_eq!(broken(&next_at(1000 + SECOND)), []);
    let early = broken(&next_at(999 + SECOND));
    assert!(early.contains(&Broken::EarlyGrant), "{early:?}");
}

#[test]
fn a_lost_reply_is_unknown() {
    // An unanswered release explains an early grant; an unanswered renewal forbids nothing.
    let lost =
        "{\"at\":2500,\"id\":9,\"client\":\"a\",\"call\":\"release\",\"lock\":\"l\",\"token\":1}\n";
    assert_eq!(broken(&format!("{lost}{}", next_at(4000))), []);
    let lost = lost.replace("release", "renew");
    assert_eq!(broken(&format!("{lost}{}", next_at(1000 + SECOND))), []);
    assert_ne!(broken(&format!("{lost}{}", next_at(4000))), []);
}

#[test]
fn an_acknowledged_renewal_counts_from_its_sending() {
    let renewed = format!(
        "{{\"at\":{0},\"id\":9,\"client\":\"a\",\"call\":\"renew\",\"lock\":\"l\",\"token\":1}}\n\
         {{\"at\":{1},\"id\":9,\"answer\":\"renewed\",\"token\":1}}\n",
        SECOND / 2,
        SECOND / 2 + 10
    );
    assert_eq!(
        broken(&format!("{renewed}{}", next_at(SECOND / 2 + SECOND))),
        []
    );
    assert_ne!(
        broken(&format!("{renewed}{}", next_at(SECOND / 2 + SECOND - 1))),
        []
    );
}

#[test]
fn a_malformed_line_is_reported_with_the_expected_form() {
    let cases = [
        ("", "line 1: the file is empty, expected a header"),
        ("{}", "line 1: expected the header"),
        (
            "{\"palisade_history\":2}",
            "line 1: `palisade_history` is 2, and only version 1 is supported",
        ),
        (
            "H{\"at\":1",
            "line 2: EOF while parsing an object (at column 7)",
        ),
        (
            "H{\"at\":1,\"tokn\":3}",
            "line 2: unknown field `tokn`, expected one of",
        ),
        (
            "H{\"at\":1}",
            "line 2: expected exactly one of `call`, `answer` and `authority`",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"renew\",\"lock\":\"l\"}",
            "line 2: expected a field `token`",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"take\",\"lock\":\"l\"}",
            "line 2: `call` is \"take\", expected acquire",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"\",\"call\":\"show\",\"lock\":\"l\"}",
            "line 2: `client`: ",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"show\",\"lock\":\"l\",\"how\":\"x\"}",
            "line 2: unexpected field for a line of this kind",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":5}",
            "line 2: `ttl_ms`: ",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"renew\",\"lock\":\"l\",\"token\":0}",
            "line 2: `token`: ",
        ),
        (
            "H{\"at\":1,\"id\":1,\"answer\":\"free\"}",
            "line 2: an answer to call 1, which no line above makes",
        ),
        (
            "HG{\"at\":2000,\"id\":1,\"answer\":\"free\"}",
            "line 4: a second answer to call 1",
        ),
        (
            "HG{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"show\",\"lock\":\"l\"}",
            "line 4: `id` 1 already names another call",
        ),
        (
            "H{\"at\":9,\"until\":3,\"authority\":\"away\"}",
            "line 2: `until` is before `at`",
        ),
    ];
    for (text, expected) in cases {
        let text = text.replace('G', GRANT).replace('H', HEADER);
        let error = History::parse(&text).unwrap_err().to_string();
        assert!(
            error.starts_with(expected),
            "{text}\n     got {error}\nexpected {expected}"
        );
    }
}

fn run(text: &str, flags: &[&str]) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Command::new(env!("CARGO_BIN_EXE_palisade-lab"))
        .arg("check")
        .arg(file.path())
        .args(flags)
        .output()
        .unwrap()
}

#[test]
fn the_exit_status_distinguishes_clean_violated_and_unreadable() {
    let status = |lines: &str| run(lines, &[]).status.code();
    assert_eq!(
        status(&format!("{HEADER}{GRANT}{}", next_at(1000 + SECOND))),
        Some(0)
    );
    assert_eq!(
        status(&format!("{HEADER}{GRANT}{}", next_at(4000))),
        Some(1)
    );
    assert_eq!(status("nothing"), Some(2));
}

#[test]
fn json_names_the_broken_promise() {
    let output = run(&format!("{HEADER}{GRANT}{}", next_at(4000)), &["--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["grants"], 2);
    let broken = report["violations"].as_array().unwrap();
    assert!(
        broken
            .iter()
            .any(|violation| violation["broken"] == "early_grant"),
        "{report}"
    );
}
