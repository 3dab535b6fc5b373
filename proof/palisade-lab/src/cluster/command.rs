//! `palisade-lab cluster`.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;

use super::runtime::hold;
use super::{Counts, run};

/// Runs seeds through clusters of the production nodes in virtual time.
#[derive(Debug, Args)]
pub struct Cluster {
    /// The number of seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed, and print everything that happens.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// The number of threads [default: one for each core].
    #[arg(long)]
    threads: Option<usize>,
}

/// The results of many seeds.
#[derive(Default)]
struct Summary {
    counts: Counts,
    violations: u64,
}

impl Cluster {
    /// Runs the command; fails if a rule was broken.
    pub fn run(self) -> ExitCode {
        let Some(seed) = self.seed else {
            return self.many();
        };
        let run = run(seed, None, true);
        run.trace.iter().for_each(|line| say(line));
        match run.violation {
            None => say(&format!(
                "seed {seed}: no violation; hash {:016x}",
                run.hash
            )),
            Some(violation) => {
                say(&format!("seed {seed}: {violation}"));
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    }

    fn many(&self) -> ExitCode {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let (next, summary) = (AtomicU64::new(0), Mutex::new(Summary::default()));
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.seeds {
                    return;
                }
                if index > 0 && index.is_multiple_of(PROGRESS) {
                    let broken = hold(&summary).violations;
                    say(&format!("… {index} seeds, {broken} violations"));
                }
                let seed = self.from + index;
                let run = run(seed, None, false);
                let mut summary = hold(&summary);
                summary.counts += run.counts;
                if let Some(violation) = run.violation {
                    say(&format!(
                        "seed {seed}: {violation}\n  replay: palisade-lab cluster --seed {seed}"
                    ));
                    summary.violations += 1;
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.unwrap_or_else(cores) {
                scope.spawn(work);
            }
        });
        let Summary { counts, violations } = &*hold(&summary);
        let Cluster { seeds, from, .. } = self;
        say(&format!(
            "{seeds} seeds from {from}: {violations} violations\n  {counts:?}"
        ));
        if *violations == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// Prints a line; a closed pipe does not end the run.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

const PROGRESS: u64 = 1_000;
