//! The results: a line for each run, `chaos.json`, and `chaos.html`, a self-contained page.

mod bars;
mod html;
mod moment;
mod rejects;
mod timeline;

use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::args::Chaos;
use super::arm::Arm;
use super::nemesis::fault::Nemesis;
use super::peers::authority::Authority;
use super::plan::Plan;
use super::program::version;
use super::verdict::ArmReport;

/// All runs of one call.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    command: String,
    /// The output of `palisade --version`.
    program: String,
    authority: Authority,
    authority_version: String,
    seed: u64,
    machine: Machine,
    ended: String,
    runs: Vec<Run>,
}

/// One run: a nemesis.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) nemesis: Nemesis,
    #[serde(serialize_with = "settings")]
    pub(super) plan: Plan,
    pub(super) arms: Vec<ArmReport>,
    pub(super) outcome: Outcome,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "why", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Nothing was lost behind the claim fence.
    Kept,
    /// Something happened that must not.
    Violated(Vec<String>),
    /// The run proves nothing.
    Void(Vec<String>),
    /// The machine does not allow it.
    Impossible(String),
}

#[derive(Debug, Serialize)]
struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
}

impl Outcome {
    pub(super) fn of(
        chaos: &Chaos,
        nemesis: Nemesis,
        plan: &Plan,
        arms: &[ArmReport],
        problems: &[String],
    ) -> Outcome {
        let mut wrong = Vec::new();
        for report in arms {
            let word = report.arm.word();
            let lost = report.lost.len();
            let quiet = nemesis == Nemesis::None && chaos.authority.is_orderly();
            if lost > 0 && (report.arm == Arm::Claim || quiet) {
                let acknowledged = report.acknowledged;
                wrong.push(format!(
                    "{word}: {lost} of {acknowledged} acknowledged adds are lost"
                ));
            }
            let changed = report.changed.len();
            if changed > 0 && (report.arm == Arm::Claim || quiet) {
                wrong.push(format!(
                    "{word}: {changed} second reads differ from what the same holder saw before"
                ));
            }
            for repeated in report.repeated_tokens.iter().take(SHOWN) {
                let (token, lane) = (repeated.token, repeated.lane);
                let (first, second) = repeated.workers;
                wrong.push(format!(
                    "{word}: token {token} of set-{lane} was granted twice, to worker {first} and to worker {second}"
                ));
            }
            let seen = report
                .observed
                .iter()
                .flat_map(|observed| &observed.violations);
            wrong.extend(seen.take(SHOWN).map(|what| format!("{word}: {what}")));
            let rejects = report.rejects.len();
            if nemesis == Nemesis::None && rejects > 0 && chaos.authority.is_orderly() {
                wrong.push(format!("{word}: {rejects} rejects without a fault"));
            }
        }
        if !wrong.is_empty() {
            return Outcome::Violated(wrong);
        }
        let mut void = problems.to_vec();
        for report in arms {
            let (word, acknowledged) = (report.arm.word(), report.acknowledged);
            if acknowledged < chaos.adds {
                void.push(format!(
                    "{word}: only {acknowledged} of {} adds were acknowledged in time",
                    chaos.adds
                ));
            }
            let done = report.done();
            let kinds = plan.lacking(&done).map(|kind| {
                let (kind, least) = (kind.word(), plan.least_of_kind());
                format!("{word}: less than {least} adds, or second reads, under {kind}")
            });
            void.extend(kinds);
            void.extend(chaos.authority.is_void(nemesis, report));
            if nemesis == Nemesis::Holder && report.arm != Arm::Claim {
                void.extend(plan.kinds.iter().filter_map(|kind| {
                    let of = report.kinds.get(kind).copied().unwrap_or_default();
                    let (kind, harmed) = (kind.word(), of.lost + of.changed);
                    (harmed == 0).then(|| format!("{word}: nothing was lost under {kind}"))
                }));
            }
        }
        if void.is_empty() {
            Outcome::Kept
        } else {
            Outcome::Void(void)
        }
    }
}

impl Run {
    /// A run that the machine does not allow.
    pub(super) fn impossible(nemesis: Nemesis, plan: &Plan, why: String) -> Run {
        Run {
            nemesis,
            plan: plan.clone(),
            arms: Vec::new(),
            outcome: Outcome::Impossible(why),
        }
    }

    /// A line for the terminal.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{:16}", self.nemesis.word());
        for report in &self.arms {
            line.push_str(&format!(
                "  {}: {} of {} lost ({:.1} %), {} rejects;",
                report.arm.word(),
                report.lost.len(),
                report.acknowledged,
                report.share_lost() * 100.0,
                report.rejects.len()
            ));
        }
        for (report, observed) in self
            .arms
            .iter()
            .filter_map(|report| Some((report, report.observed.as_ref()?)))
        {
            let faults: u64 = report.interventions.values().sum();
            line.push_str(&format!(
                "\n    {}: {faults} faults, {} calls of observers ({} unknown), {} grants, {} queues in order ({} void), healed within {:.0} ms;",
                report.arm.word(),
                observed.operations,
                observed.unknown,
                observed.grants,
                observed.queues_kept,
                observed.queues_void,
                observed.slowest_healing_ms
            ));
        }
        if self.plan.kinds.len() > 1 {
            for report in &self.arms {
                line.push_str(&format!("\n    {}:", report.arm.word()));
                for (kind, of) in &report.kinds {
                    line.push_str(&format!(
                        " {}: {} of {} lost, {} rejects,",
                        kind.word(),
                        of.lost,
                        of.acknowledged,
                        of.rejects
                    ));
                    if of.reads > 0 {
                        line.push_str(&format!(" {} of {} reads changed,", of.changed, of.reads));
                    }
                }
                line = line.trim_end_matches(',').to_owned() + ";";
            }
        }
        let inverted: u64 = self
            .arms
            .iter()
            .filter_map(|report| report.inverted_grants)
            .sum();
        if inverted > 0 {
            line.push_str(&format!(" {inverted} grants below an earlier one;"));
        }
        line + " " + &self.outcome.words()
    }
}

impl Outcome {
    fn words(&self) -> String {
        match self {
            Outcome::Kept => "kept".to_owned(),
            Outcome::Violated(why) => format!("VIOLATED: {}", why.join("; ")),
            Outcome::Void(why) => format!("VOID: {}", why.join("; ")),
            Outcome::Impossible(why) => format!("NOT DONE: {why}"),
        }
    }
}

impl Report {
    pub(super) fn new(chaos: &Chaos, program: &Path, seed: u64, runs: Vec<Run>) -> Report {
        let asked: Vec<String> = std::env::args().skip(1).collect();
        let first_line = |path: &str, name: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.map(|line| line.rsplit(':').next().unwrap_or(line).trim().to_owned());
            value.unwrap_or_default()
        };
        Report {
            command: format!("palisade-lab {}", asked.join(" ")),
            program: version(program, "--version"),
            authority: chaos.authority,
            authority_version: chaos.authority.version(program),
            seed,
            machine: Machine {
                processor: first_line("/proc/cpuinfo", "model name"),
                cores: std::thread::available_parallelism().map_or(0, usize::from),
                kernel: first_line("/proc/sys/kernel/osrelease", ""),
            },
            ended: Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            runs,
        }
    }

    /// Writes both files into this folder.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let words = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(words)?;
        let json = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(folder.join("chaos.json"), json).map_err(words)?;
        std::fs::write(folder.join("chaos.html"), html::page(self)).map_err(words)
    }

    /// The summary, printed last.
    pub(super) fn summary(&self) -> String {
        let count = |holds: fn(&Outcome) -> bool| {
            let found = self.runs.iter().filter(|run| holds(&run.outcome));
            found.count()
        };
        format!(
            "{} kept, {} violated, {} void, {} not done on this machine",
            count(|outcome| *outcome == Outcome::Kept),
            count(|outcome| matches!(outcome, Outcome::Violated(_))),
            count(|outcome| matches!(outcome, Outcome::Void(_))),
            count(|outcome| matches!(outcome, Outcome::Impossible(_))),
        )
    }

    /// The exit status of the worst run.
    pub(super) fn exit(&self) -> ExitCode {
        let any = |holds: fn(&Outcome) -> bool| self.runs.iter().any(|run| holds(&run.outcome));
        if any(|outcome| matches!(outcome, Outcome::Violated(_))) {
            return ExitCode::from(1);
        }
        if any(|outcome| matches!(outcome, Outcome::Void(_))) {
            ExitCode::from(3)
        } else {
            ExitCode::SUCCESS
        }
    }
}

fn settings<S: Serializer>(plan: &Plan, serializer: S) -> Result<S::Ok, S::Error> {
    let settings = serde_json::json!({
        "ttl_ms": plan.ttl.as_millis() as u64,
        "think_ttls": [plan.think.0, plan.think.1],
        "teams": plan.teams,
        "workers_per_team": plan.workers,
        "lanes_per_team": plan.lanes,
        "kinds": plan.kinds,
        "adds_per_grant": plan.adds_per_grant,
        "element_bytes": plan.padding,
    });
    settings.serialize(serializer)
}

/// How many of many problems are named.
const SHOWN: usize = 5;
