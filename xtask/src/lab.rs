//! `cargo xtask lab`: every proof of the lab at its full size. `cargo xtask test` runs each of them bounded.

use std::path::PathBuf;

use crate::mutation;
use crate::prerequisites::{PREREQUISITES, ensure};
use crate::shell::{cargo, run, target, timed};

/// A part of the battery: its name, and how long it takes on four free cores.
struct Part {
    name: &'static str,
    minutes: u32,
    does: Does,
}

enum Does {
    /// `palisade-lab` with these arguments.
    Lab(&'static str),
    /// A variable, and the test that is as large as it says.
    Test(&'static str, &'static str),
    /// `cargo mutants`, where it is installed.
    Mutation,
}

const PARTS: [Part; 21] = [
    lab("simulation", 5, "sim --seeds 1000000"),
    lab("mutants", 1, "mutants"),
    lab("clusters in virtual time", 45, "cluster --seeds 100000"),
    lab("exhaustive search", 1, "exhaust"),
    lab(
        "exhaustive search, wider",
        2,
        "exhaust --clients 3 --grants 3 --writes 2 --resends 0 --crashes 1",
    ),
    lab("history checker", 2, "check --self-test 40000"),
    test(
        "large histories",
        1,
        "PALISADE_LARGE_HISTORIES=1000",
        "-p palisade-lab --test suite large_histories",
    ),
    test(
        "decoders",
        5,
        "PALISADE_FUZZ_ROUNDS=1000000",
        "-p palisade-lab --test suite decoders::",
    ),
    lab(
        "chaos",
        25,
        "chaos --adds 10000 --lanes 8 --limit 1500 --report target/lab/chaos",
    ),
    lab(
        "chaos in a cluster",
        8,
        "chaos --nodes 3 --nemesis nodes --arm claim --teams 2 --adds 200 --faults 200 --report target/lab/nodes",
    ),
    lab(
        "chaos without faults",
        2,
        "chaos --nemesis none --adds 25000 --lanes 16 --ttl 10000 --report target/lab/quiet",
    ),
    lab(
        "an authority that grants everybody",
        3,
        "chaos --authority broken --adds 10000 --lanes 8 --report target/lab/broken",
    ),
    lab(
        "etcd",
        3,
        "chaos --authority etcd --adds 1000 --lanes 16 --report target/lab/etcd",
    ),
    lab(
        "ZooKeeper",
        3,
        "chaos --authority zookeeper --adds 1000 --lanes 16 --report target/lab/zookeeper",
    ),
    lab(
        "PostgreSQL",
        3,
        "chaos --authority postgres --adds 2000 --lanes 8 --report target/lab/postgres",
    ),
    lab(
        "Redis, INCR before SET",
        3,
        "chaos --authority redis-incr --adds 2000 --lanes 8 --report target/lab/redis",
    ),
    lab(
        "Redlock",
        3,
        "chaos --authority redlock --adds 2000 --lanes 8 --report target/lab/redlock",
    ),
    test(
        "1,000 SIGKILLs",
        10,
        "PALISADE_KILLS=1000",
        "-p palisade --test alone crash_sigkill::",
    ),
    lab("attacks from outside", 8, "attack"),
    lab("attacks on TLS and rules", 8, "attack --secure"),
    Part {
        name: "mutation testing",
        minutes: 120,
        does: Does::Mutation,
    },
];

const fn lab(name: &'static str, minutes: u32, arguments: &'static str) -> Part {
    let does = Does::Lab(arguments);
    Part {
        name,
        minutes,
        does,
    }
}

const fn test(
    name: &'static str,
    minutes: u32,
    variable: &'static str,
    arguments: &'static str,
) -> Part {
    let does = Does::Test(variable, arguments);
    Part {
        name,
        minutes,
        does,
    }
}

/// Runs the whole battery, whatever an earlier part said; true when every part proved what it should.
pub(crate) fn battery() -> bool {
    let minutes: u32 = PARTS.iter().map(|part| part.minutes).sum();
    println!(
        "lab: {} parts, about {minutes} minutes on four free cores",
        PARTS.len()
    );
    let built = ensure(PREREQUISITES).and_then(|()| {
        let packages = ["-p", "palisade", "-p", "palisade-lab"];
        run(cargo(&["build", "--release"]).args(packages))
    });
    if let Err(complaint) = built {
        println!("lab: {complaint}");
        return false;
    }
    let mut lines = Vec::new();
    let mut skipped = Vec::new();
    for part in &PARTS {
        println!("\nlab: {}", part.name);
        if let Some(because) = part.does.impossible() {
            println!("lab: {} was not run: {because}", part.name);
            skipped.push(format!("NOT RUN {}: {because}", part.name));
            continue;
        }
        let (done, time) = timed(|| part.does.run());
        let (word, complaint) = match &done {
            Ok(()) => ("ok", ""),
            Err(complaint) => ("FAILED", complaint.as_str()),
        };
        lines.push((
            done.is_ok(),
            format!(
                "{word:<6} {:<36} {:>6.0} s  {complaint}",
                part.name,
                time.as_secs_f32()
            ),
        ));
    }
    println!();
    for (_, line) in &lines {
        println!("{}", line.trim_end());
    }
    skipped.iter().for_each(|line| println!("{line}"));
    let failed = lines.iter().filter(|(ok, _)| !ok).count();
    let (passed, not_run) = (lines.len() - failed, skipped.len());
    println!("lab: {passed} passed, {failed} failed, {not_run} not run");
    failed == 0
}

impl Does {
    /// Why this machine cannot do it, if it cannot. That is neither a success nor a failure.
    fn impossible(&self) -> Option<String> {
        match self {
            Does::Mutation => mutation::missing(),
            Does::Lab(_) | Does::Test(..) => None,
        }
    }

    fn run(&self) -> Result<(), String> {
        match self {
            Does::Lab(arguments) => {
                let program = target().join("release/palisade-lab");
                run(std::process::Command::new(program)
                    .args(arguments.split(' ').map(placed))
                    .current_dir(crate::shell::root()))
            }
            Does::Test(variable, arguments) => {
                let (name, value) = variable.split_once('=').unwrap_or((variable, "1"));
                run(cargo(&["test", "--release"])
                    .args(arguments.split(' '))
                    .env(name, value))
            }
            Does::Mutation => mutation::all(),
        }
    }
}

/// An argument below `target/` goes to where cargo builds.
fn placed(argument: &str) -> PathBuf {
    match argument.strip_prefix("target/") {
        Some(below) => target().join(below),
        None => argument.into(),
    }
}
