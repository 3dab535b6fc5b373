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
        kinds: false,
    };
    for seed in 0..number("PALISADE_LARGE_HISTORIES", 100) {
        let kinds = seed % 2 == 1;
        let text = clean_text(seed, Shape { kinds, ..shape });
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

/// A call and its answer, ten nanoseconds apart.
fn pair(at: u64, client: &str, call: &str, answer: &str) -> String {
    format!(
        "{{\"at\":{at},\"id\":{at},\"client\":\"{client}\",{call}}}\n\
         {{\"at\":{},\"id\":{at},{answer}}}\n",
        at + 10
    )
}

fn found(pairs: &[String]) -> Vec<Broken> {
    let history = History::parse(&format!("{HEADER}{}", pairs.concat())).unwrap();
    let violations = check(&history).violations.into_iter();
    violations.map(|violation| violation.broken).collect()
}

fn permits(at: u64, client: &str, permits: &str, token: u64, slots: &str) -> String {
    let call = format!("\"call\":\"acquire\",\"lock\":\"gpu\",\"ttl_ms\":1000,{permits}");
    let answer = format!("\"answer\":\"granted\",\"token\":{token},\"slots\":{slots}");
    pair(at, client, &call, &answer)
}

#[test]
fn a_slot_has_one_holder_and_a_grant_as_many_as_it_asked_for() {
    const TWO: &str = "\"permits\":2,\"of\":3";
    const ONE: &str = "\"permits\":1,\"of\":3";
    let first = permits(100, "a", TWO, 1, "[1,2]");
    let beside = permits(200, "b", ONE, 2, "[3]");
    assert_eq!(found(&[first.clone(), beside.clone()]), []);
    // The same client holds more; its former grant goes on.
    let more = permits(200, "a", ONE, 2, "[3]");
    assert_eq!(found(&[first.clone(), more]), []);
    let both = [first.clone(), permits(200, "b", ONE, 2, "[2]")];
    assert!(found(&both).contains(&Broken::Overlap));
    let taken = [first.clone(), permits(200, "a", ONE, 2, "[2]")];
    assert!(found(&taken).contains(&Broken::Overlap));
    for slots in ["[1]", "[1,2,3]", "[1,4]"] {
        assert_eq!(
            found(&[permits(100, "a", TWO, 1, slots)]),
            [Broken::WrongSlots]
        );
    }
    let other = [
        first.clone(),
        permits(200, "b", "\"permits\":1,\"of\":4", 2, "[4]"),
    ];
    assert_eq!(found(&other), [Broken::PermitCount]);
    let plain = pair(
        200,
        "b",
        "\"call\":\"acquire\",\"lock\":\"gpu\",\"ttl_ms\":1000",
        "\"answer\":\"granted\",\"token\":2",
    );
    assert_eq!(found(&[first.clone(), plain]), [Broken::PermitCount]);
    // A release is of all slots of a grant, and then they are free.
    let release = "\"call\":\"release\",\"lock\":\"gpu\",\"token\":1";
    let release = pair(300, "a", release, "\"answer\":\"released\",\"token\":1");
    let free = pair(
        400,
        "c",
        "\"call\":\"show\",\"lock\":\"gpu\"",
        "\"answer\":\"free\"",
    );
    assert_eq!(found(&[first.clone(), release.clone(), free.clone()]), []);
    let held = found(&[first, beside, release, free]);
    assert_eq!(held, [Broken::NotFree]);
}

#[test]
fn a_set_has_one_token_and_its_parts_end_by_themselves() {
    let acquire = "\"call\":\"acquire\",\"lock\":\"a\",\"also\":[\"b\"],\"ttl_ms\":1000";
    let set = pair(100, "x", acquire, "\"answer\":\"granted\",\"token\":1");
    let release = "\"call\":\"release\",\"lock\":\"b\",\"token\":1";
    let release = pair(200, "x", release, "\"answer\":\"released\",\"token\":1");
    let next = |lock: &str| {
        let call = format!("\"call\":\"acquire\",\"lock\":\"{lock}\",\"ttl_ms\":1000");
        pair(300, "y", &call, "\"answer\":\"granted\",\"token\":2")
    };
    assert_eq!(found(&[set.clone(), release.clone(), next("b")]), []);
    for held in [
        [set.clone(), release, next("a")].as_slice(),
        &[set.clone(), next("b")],
        // Granted with a lock that somebody has.
        &[
            next("b"),
            set.clone().replace("100", "400").replace("110", "410"),
        ],
    ] {
        let found = found(held);
        assert!(found.contains(&Broken::Overlap), "{found:?}");
    }
    let show = "\"call\":\"show\",\"lock\":\"b\"";
    let apart = pair(
        200,
        "y",
        show,
        "\"answer\":\"held\",\"token\":2,\"holder\":\"x\"",
    );
    assert_eq!(found(&[set, apart]), [Broken::UnknownToken]);
}

/// A grant of a lock that has readers, and its release.
fn reader(at: u64, client: &str, mode: &str, token: u64) -> String {
    let call = format!("\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":1000,\"{mode}\":true");
    let answer = format!("\"answer\":\"granted\",\"token\":{token},\"phase\":1");
    pair(at, client, &call, &answer)
}

fn released(at: u64, client: &str, token: u64) -> String {
    let call = format!("\"call\":\"release\",\"lock\":\"l\",\"token\":{token}");
    let answer = format!("\"answer\":\"released\",\"token\":{token}");
    pair(at, client, &call, &answer)
}

fn upgraded(at: u64, client: &str, lease: u64, token: u64) -> String {
    let call = format!("\"call\":\"acquire\",\"lock\":\"l\",\"under\":{lease},\"upgrade\":true");
    let answer = format!("\"answer\":\"granted\",\"token\":{token},\"lease\":{lease}");
    pair(at, client, &call, &answer)
}

#[test]
fn an_upgrade_is_of_the_one_reader_in_mode_update_and_waits_for_the_others() {
    let update = reader(100, "u", "update", 1);
    let other = reader(200, "r", "shared", 2);
    let all = [
        update.clone(),
        other.clone(),
        released(300, "r", 2),
        upgraded(400, "u", 1, 3),
        released(500, "u", 3),
        reader(600, "r", "shared", 4).replace("\"phase\":1", "\"phase\":4"),
    ];
    assert_eq!(found(&all), []);
    // It did not wait for the other reader.
    let beside = found(&[update.clone(), other.clone(), upgraded(400, "u", 1, 3)]);
    assert!(beside.contains(&Broken::Overlap), "{beside:?}");
    // Two at once in mode update; one after the other is fine.
    let second = reader(400, "v", "update", 3);
    let twice = found(&[update.clone(), other.clone(), second.clone()]);
    assert!(twice.contains(&Broken::Overlap), "{twice:?}");
    let gone = released(300, "u", 1);
    assert_eq!(
        found(&[update.clone(), other.clone(), gone.clone(), second]),
        []
    );
    // A reader that is not in mode update, alone or not.
    let plain = found(&[update.clone(), other, gone, upgraded(400, "r", 2, 3)]);
    assert!(plain.contains(&Broken::Upgrade), "{plain:?}");
    // Somebody else wrote between the read and the write.
    let writer = "\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":1000";
    let writer = pair(
        2 * SECOND,
        "w",
        writer,
        "\"answer\":\"granted\",\"token\":2",
    );
    let late = [
        update,
        writer,
        released(2 * SECOND + 100, "w", 2),
        upgraded(2 * SECOND + 200, "u", 1, 3),
    ];
    let late = found(&late);
    assert!(late.contains(&Broken::Upgrade), "{late:?}");
}

#[test]
fn a_lost_reply_to_an_upgrade_is_unknown() {
    let update = reader(100, "u", "update", 1);
    let lost = "{\"at\":200,\"id\":9,\"client\":\"u\",\"call\":\"acquire\",\"lock\":\"l\",\"under\":1,\"upgrade\":true}\n";
    let next = "\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":1000";
    let next = |token: u64| {
        let answer = format!("\"answer\":\"granted\",\"token\":{token}");
        pair(300, "v", next, &answer)
    };
    // It was granted token 2, and given up.
    assert_eq!(found(&[update.clone(), lost.to_owned(), next(3)]), []);
    // No token is left for it.
    assert_ne!(found(&[update.clone(), lost.to_owned(), next(2)]), []);
    assert_ne!(found(&[update, next(3)]), []);
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
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500,\"permits\":2}",
            "line 2: expected one of `shared`, `update`, `upgrade`, and `permits` with `of`, or none of them",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500,\"permits\":3,\"of\":2}",
            "line 2: `permits`: ",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500,\"also\":[\"l\"]}",
            "line 2: `also`: ",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500,\"also\":[\"m\"],\"shared\":true}",
            "line 2: an acquire with `also` is exclusive",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500,\"shared\":true,\"update\":true}",
            "line 2: expected one of `shared`, `update`, `upgrade`, and `permits` with `of`, or none of them",
        ),
        (
            "H{\"at\":1,\"id\":1,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500,\"upgrade\":true}",
            "line 2: an acquire with `upgrade` has `under`",
        ),
        (
            "HG{\"at\":3000,\"id\":2,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"l\",\"ttl_ms\":500}\n\
             {\"at\":3001,\"id\":2,\"answer\":\"granted\",\"token\":2,\"slots\":[1]}",
            "line 5: call 2 cannot have this answer",
        ),
        (
            "HG{\"at\":3000,\"id\":2,\"client\":\"a\",\"call\":\"acquire\",\"lock\":\"m\",\"ttl_ms\":500,\"permits\":1,\"of\":2}\n\
             {\"at\":3001,\"id\":2,\"answer\":\"granted\",\"token\":2,\"slots\":[1,1]}",
            "line 5: `slots` has 1, expected distinct numbers, 1 to 64",
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
