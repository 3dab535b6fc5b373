//! Every schedule of a small scope: nothing is lost with every rule in force, and without any one rule something
//! goes wrong.

use std::process::Command;

use palisade_lab::exhaust::{Found, Scope, Weakness, Wrong, search};

/// Clients, grants, writes under a grant, resends, crashes.
fn scope([clients, grants, writes, resends, crashes]: [u8; 5]) -> Scope {
    Scope {
        clients,
        readers: 0,
        updates: 0,
        slots: 0,
        locks: 1,
        grants,
        writes,
        resends,
        crashes,
    }
}

fn correct(numbers: [u8; 5], at_least: usize) {
    correct_in(scope(numbers), at_least);
}

fn correct_in(scope: Scope, at_least: usize) {
    let found = search(None, scope).unwrap();
    println!(
        "{scope:?}: {} states, {} steps deep",
        found.states, found.depth
    );
    assert_eq!(
        (found.losing, found.wrong),
        (0, None),
        "{:#?}",
        found.shortest
    );
    assert!(found.states >= at_least, "only {} states", found.states);
}

#[test]
fn two_clients_two_grants_two_writes_a_resend_and_a_crash_lose_nothing() {
    correct([2, 2, 2, 1, 1], 100_000);
}

#[test]
fn three_clients_three_grants_two_writes_and_a_resend_lose_nothing() {
    correct([3, 3, 2, 1, 0], 100_000);
}

#[test]
fn three_clients_three_grants_a_write_and_a_crash_lose_nothing() {
    correct([3, 3, 1, 0, 1], 400_000);
}

#[test]
fn one_client_that_returns_three_times_loses_nothing() {
    correct([1, 3, 2, 1, 1], 10_000);
}

#[test]
fn a_writer_and_two_readers_lose_nothing_and_refuse_nobody_who_holds() {
    let scope = Scope {
        readers: 2,
        ..scope([3, 3, 1, 0, 0])
    };
    correct_in(scope, 10_000);
}

#[test]
fn a_writer_that_becomes_a_reader_beside_another_loses_nothing_over_a_crash() {
    let scope = Scope {
        readers: 1,
        ..scope([2, 2, 1, 0, 1])
    };
    correct_in(scope, 10_000);
}

#[test]
fn a_reader_that_becomes_the_writer_loses_nothing_and_ends_no_other_reader() {
    let scope = |readers, numbers| Scope {
        readers,
        updates: 1,
        ..scope(numbers)
    };
    // A writer and a reader beside it, and repeated requests.
    correct_in(scope(2, [3, 3, 1, 0, 0]), 10_000);
    correct_in(scope(1, [2, 2, 1, 1, 0]), 1_000);
    correct_in(scope(1, [2, 2, 1, 0, 1]), 10_000);
    // Two readers in mode update: one after the other.
    let both = Scope {
        updates: 2,
        ..scope(2, [2, 2, 1, 0, 1])
    };
    correct_in(both, 1_000);
}

#[test]
fn holders_of_two_slots_lose_nothing_and_refuse_nobody_who_holds() {
    let slots = |numbers| Scope {
        slots: 2,
        ..scope(numbers)
    };
    correct_in(slots([3, 3, 1, 0, 0]), 1_000);
    correct_in(slots([2, 2, 1, 0, 1]), 1_000);
}

#[test]
fn holders_of_two_locks_at_once_lose_nothing_and_read_what_nobody_changes() {
    let locks = |numbers| Scope {
        locks: 2,
        ..scope(numbers)
    };
    correct_in(locks([2, 2, 1, 1, 0]), 1_000);
}

fn weak(weakness: Weakness) -> Found {
    let found = search(Some(weakness), weakness.scope()).unwrap();
    assert_eq!(found.wrong, Some(weakness.wrong()), "{}", weakness.name());
    found
}

/// Control for the searches above: they can find a loss, in the fewest steps.
#[test]
fn without_any_one_rule_something_goes_wrong() {
    for weakness in Weakness::ALL {
        let schedule = weak(weakness).shortest.unwrap();
        println!("{}: {schedule:#?}", weakness.name());
        assert_eq!(
            schedule.last().unwrap().contains("is gone"),
            weakness.wrong() == Wrong::Lost,
            "{schedule:#?}"
        );
        let same_scope = search(None, weakness.scope()).unwrap();
        assert_eq!(same_scope.wrong, None, "{}", weakness.name());
    }
}

/// The classic schedule: nine steps, and the textbook fence does not help.
#[test]
fn the_textbook_fence_loses_in_nine_steps() {
    let schedule = weak(Weakness::TextbookFence).shortest.unwrap();
    assert_eq!(schedule.len(), 9 + 1, "{schedule:#?}");
    let late = &schedule[7];
    assert!(
        late.contains("A's write of {a1} with token 1 arrives: admitted"),
        "{late}"
    );
}

#[test]
fn equal_searches_end_equal() {
    let weakness = Weakness::NoLeap;
    assert_eq!(weak(weakness), weak(weakness));
}

#[test]
fn a_scope_out_of_range_is_refused_with_the_range() {
    let refused = search(None, scope([2, 2, 3, 0, 0])).unwrap_err();
    assert_eq!(refused, "writes is 3, expected 1 to 2");
    let both = Scope {
        slots: 2,
        locks: 2,
        ..scope([2, 2, 1, 0, 0])
    };
    let refused = search(None, both).unwrap_err();
    assert_eq!(refused, "locks is 2, expected 1 to 1");
}

#[test]
fn the_command_prints_both_and_succeeds() {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade-lab"))
        .args(["exhaust", "--json", "--clients", "2", "--grants", "2"])
        .args(["--writes", "1", "--resends", "1", "--crashes", "1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let results: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(results.len(), 1 + Weakness::ALL.len());
    assert_eq!(results[0]["losing"], 0);
    assert!(
        results[1..].iter().all(|arm| !arm["wrong"].is_null()),
        "{lines}"
    );
}
