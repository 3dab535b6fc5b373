//! `palisade-lab sim` and `palisade-lab mutants`.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;

use super::batch::{Batch, first_violation};
use super::mutants::{Mutant, TABLE};
use super::plan::Plan;
use super::{Fact, Run, run, shrink};

/// Runs seeds through the simulation of the real parts.
#[derive(Debug, Args)]
pub struct Sim {
    /// The number of seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Print everything that happens in that seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// The number of threads [default: one for each core].
    #[arg(long)]
    threads: Option<usize>,
}

/// Removes one rule at a time and shows that the simulation detects it.
#[derive(Debug, Args)]
pub struct Mutants {
    /// The most seeds to try for a mutant.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only the mutants of this rule, or with this name.
    #[arg(long)]
    only: Option<String>,
    /// Print the shortest schedule found for each.
    #[arg(long)]
    trace: bool,
    /// The number of threads [default: one for each core].
    #[arg(long)]
    threads: Option<usize>,
}

impl Sim {
    /// Runs the command; fails if a rule was broken.
    pub fn run(self) -> ExitCode {
        match self.seed {
            Some(seed) => one(seed, self.trace),
            None => self.many(),
        }
    }

    fn many(self) -> ExitCode {
        let batch = Batch {
            from: self.from,
            seeds: self.seeds,
            threads: threads(self.threads),
        };
        let shown = AtomicU64::new(0);
        let summary = batch.run(|done, broken| {
            if done >= shown.load(Ordering::Relaxed) + PROGRESS {
                shown.store(done, Ordering::Relaxed);
                say(&format!("… {done} seeds, {broken} violations"));
            }
        });
        say(&format!(
            "{} seeds from {}: {} violations; hash {:016x}\n  {}",
            summary.seeds,
            self.from,
            summary.violations.len(),
            summary.hash,
            summary.counts
        ));
        for (seed, violation) in summary.violations.iter().take(SHOWN) {
            say(&format!(
                "seed {seed}: {}: {}\n  replay: palisade-lab sim --seed {seed} --trace",
                violation.rule, violation.what
            ));
        }
        code(summary.violations.is_empty())
    }
}

fn one(seed: u64, trace: bool) -> ExitCode {
    let plan = Plan::of(seed);
    say(&describe(&plan));
    let run = run(plan, None, trace);
    print_trace(&run);
    let end = match &run.violation {
        Some(violation) => format!("VIOLATION of {}: {}", violation.rule, violation.what),
        None => "no violation".into(),
    };
    say(&format!("seed {seed}: {end}; hash {:016x}", run.hash));
    code(run.violation.is_none())
}

impl Mutants {
    /// Runs the command; fails if a mutant was not found.
    pub fn run(self) -> ExitCode {
        let mut missed = 0;
        for row in TABLE {
            let (mutant, rule) = (row.mutant, row.rule);
            let name = format!("{mutant:?}");
            let wanted = |only: &String| only == rule || *only == name;
            if !self.only.as_ref().is_none_or(wanted) {
                continue;
            }
            let batch = Batch {
                from: self.from,
                seeds: self.seeds,
                threads: threads(self.threads),
            };
            say(&format!("{rule:9} {name}: {}", row.seam));
            match first_violation(batch, mutant) {
                None => {
                    missed += 1;
                    say(&format!("          NOT FOUND in {} seeds", self.seeds));
                }
                Some((seed, violation)) => {
                    say(&format!(
                        "          found after {} seeds, at seed {seed}: {}: {}",
                        seed - self.from + 1,
                        violation.rule,
                        violation.what
                    ));
                    self.shortest(seed, mutant);
                }
            }
        }
        say(&format!("{missed} mutants not found"));
        code(missed == 0)
    }

    fn shortest(&self, seed: u64, mutant: Mutant) {
        let (plan, run) = shrink(Plan::of(seed), Some(mutant));
        let ends = run
            .violation
            .as_ref()
            .map_or("", |violation| &violation.what);
        say(&format!(
            "          shortest schedule: {} facts; {}\n          {ends}",
            run.trace.len(),
            describe(&plan)
        ));
        if self.trace {
            print_trace(&run);
        }
    }
}

fn describe(plan: &Plan) -> String {
    let faults: Vec<String> = plan
        .faults
        .iter()
        .map(|(at, fault)| format!("{at} ms {fault:?}"))
        .collect();
    format!(
        "{} clients, {} locks with {:?} permits, {} clocks, leases {:?} ms, sets {} ‰, delays {} ‰, lost {} ‰, duplicated {} ‰, late {} ‰; faults: {}",
        plan.clients,
        plan.locks,
        &plan.permits[..usize::from(plan.locks)],
        if plan.tame { "tame" } else { "wild" },
        plan.ttl_ms,
        plan.sets,
        plan.delays,
        plan.loss,
        plan.duplication,
        plan.spikes,
        if faults.is_empty() {
            "none".into()
        } else {
            faults.join(", ")
        }
    )
}

fn print_trace(run: &Run) {
    for (at, fact) in &run.trace {
        let mark = match fact {
            Fact::Nemesis(_) | Fact::Quiet => "!",
            Fact::Sent { .. } => " ",
            _ => "·",
        };
        let seconds = *at as f64 / 1e9;
        say(&format!("{seconds:12.6} {mark} {fact:?}"));
    }
}

fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Prints a line; a closed pipe does not end the run.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

const PROGRESS: u64 = 100_000;
const SHOWN: usize = 10;
