//! Runs one nemesis after the other; for each, all arms at once.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::args::Chaos;
use super::arm::Arm;
use super::fixture::Fixture;
use super::lock::lock;
use super::nemesis::KINDS;
use super::nemesis::fault::Nemesis;
use super::plan::Plan;
use super::program::program;
use super::report::{Outcome, Report, Run};
use super::stop::Stop;
use super::verdict::ArmReport;
use super::world::World;

/// Runs everything that was requested.
///
/// # Errors A program that is missing or could not be started.
pub(super) fn all(chaos: &Chaos) -> Result<Report, String> {
    let program = program(chaos.palisade.as_ref(), "--palisade")?;
    let seed = chaos.seed.unwrap_or_else(|| fastrand::u64(1..1 << 32));
    println!("seed {seed}");
    let arms = chaos.authority.arms(&chaos.arm)?;
    let nemeses = chaos
        .authority
        .nemeses(&chaos.nemesis, chaos.nodes.is_some())?;
    chaos.authority.kinds(&chaos.kinds())?;
    let (lanes, kinds) = (chaos.teams * chaos.lanes, chaos.kinds().len() as u64);
    if lanes < kinds {
        return Err(format!(
            "{lanes} lanes are too few for {kinds} kinds of locks: see --lanes and --kind"
        ));
    }
    let mut runs = Vec::new();
    for nemesis in nemeses {
        let plan = plan(chaos, nemesis, &program, seed);
        let run = one(chaos, nemesis, &plan, &arms)?;
        println!("{}", run.line());
        runs.push(run);
    }
    Ok(Report::new(chaos, &program, seed, runs))
}

fn plan(chaos: &Chaos, nemesis: Nemesis, program: &Path, seed: u64) -> Plan {
    // Without faults no write may be rejected, so a busy machine must not end a lease.
    let ttl = match nemesis {
        Nemesis::None => chaos.ttl().max(MIN_TTL_WITHOUT_FAULTS),
        _ => chaos.ttl(),
    };
    Plan {
        kinds: chaos.kinds(),
        program: program.to_owned(),
        ttl,
        think: nemesis.think(),
        teams: chaos.teams as usize,
        workers: chaos.workers as usize,
        lanes: chaos.lanes as usize,
        adds_per_grant: nemesis.adds_per_grant(),
        padding: nemesis.padding(),
        adds: chaos.adds,
        faults: chaos.faults.unwrap_or(KINDS),
        seed,
        // A history has one clock.
        records: chaos.record.is_some() && nemesis != Nemesis::ClockRate,
    }
}

/// One nemesis: one world per arm, until each has its adds.
fn one(chaos: &Chaos, nemesis: Nemesis, plan: &Plan, arms: &[Arm]) -> Result<Run, String> {
    let folder = tempfile::Builder::new().prefix("palisade-chaos-").tempdir();
    let folder = folder.map_err(|error| error.to_string())?;
    let mut worlds = Vec::new();
    for arm in arms {
        let place: PathBuf = folder.path().join(format!("{arm:?}").to_lowercase());
        std::fs::create_dir(&place).map_err(|error| error.to_string())?;
        let fixture = match Fixture::set(nemesis, &place) {
            Ok(fixture) => fixture,
            Err(why) => return Ok(Run::impossible(nemesis, plan, why)),
        };
        let authority = chaos.authority.start(chaos, plan, &place)?;
        worlds.push(World::start(*arm, plan, &place, authority, fixture)?);
    }
    let problems = Mutex::new(Vec::new());
    let stop = Stop::default();
    std::thread::scope(|scope| {
        for world in &worlds {
            world
                .covered
                .store(!covers(nemesis, plan), Ordering::SeqCst);
            let (problems, stop) = (&problems, &stop);
            scope.spawn(move || {
                if let Err(why) = nemesis.run(world, stop) {
                    lock(problems).push(format!("{}: {why}", world.arm.word()));
                }
            });
        }
        let enough = || {
            worlds.iter().all(|world| {
                let done = world.event_log.done();
                let adds: u64 = done.values().map(|(adds, _)| adds).sum();
                let kinds = plan.lacking(&done).next().is_none();
                adds >= chaos.adds && kinds && world.covered.load(Ordering::SeqCst)
            })
        };
        let begun = worlds.first().map_or(0.0, |world| world.event_log.now_ms());
        let late = || {
            let now = worlds.first().map_or(0.0, |world| world.event_log.now_ms());
            now - begun > chaos.limit as f64 * 1e3
        };
        while !enough() && !late() && lock(&problems).is_empty() {
            stop.comes_within(POLL_INTERVAL);
        }
        stop.set();
        for world in worlds
            .iter()
            .filter(|world| !world.covered.load(Ordering::SeqCst))
        {
            let word = world.arm.word();
            lock(&problems).push(format!("{word}: the nemesis did not finish in time"));
        }
    });
    let mut reports = Vec::new();
    let mut problems = lock(&problems).clone();
    for world in worlds {
        let word = world.arm.word();
        match world.end() {
            Ok(mut results) => {
                let resources = std::mem::take(&mut results.state.resources);
                let report = ArmReport::of(results, nemesis != Nemesis::ClockRate);
                keep_history(chaos, &report)?;
                if let Some(folder) = chaos.record.as_deref().filter(|_| plan.records) {
                    record(folder, nemesis, &report, &resources)?;
                }
                reports.push(report);
            }
            Err(why) => problems.push(format!("{word}: {why}")),
        }
    }
    let outcome = Outcome::of(chaos, nemesis, plan, &reports, &problems);
    Ok(Run {
        nemesis,
        plan: plan.clone(),
        arms: reports,
        outcome,
    })
}

/// Whether the nemesis has an end of its own.
fn covers(nemesis: Nemesis, plan: &Plan) -> bool {
    // A history without a kill shows nothing of kills.
    let records_kills = plan.records && nemesis == Nemesis::KillAuthority;
    records_kills || nemesis == Nemesis::FailedSync || nemesis.needs_cluster()
}

/// Writes the history of a cluster that broke a rule beside the report.
fn keep_history(chaos: &Chaos, report: &ArmReport) -> Result<(), String> {
    let wrong = report
        .observed
        .as_ref()
        .filter(|observed| !observed.violations.is_empty());
    let Some(observed) = wrong else {
        return Ok(());
    };
    let name = format!("history-{:?}.jsonl", report.arm).to_lowercase();
    let file = chaos.report.join(name);
    let written = std::fs::create_dir_all(&chaos.report)
        .and_then(|()| std::fs::write(&file, &observed.history));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// Writes the observations of the locks and of the resources, each as a history.
fn record(
    folder: &Path,
    nemesis: Nemesis,
    report: &ArmReport,
    resources: &[String],
) -> Result<(), String> {
    let name = format!("{}-{:?}", nemesis.word(), report.arm).to_lowercase();
    let write = |kind: &str, text: &str| {
        let file = folder.join(format!("{name}.{kind}.jsonl"));
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&file, text))
            .map_err(|error| format!("{}: {error}", file.display()))
    };
    if let Some(observed) = &report.observed {
        write("locks", &observed.history)?;
    }
    match resources {
        [] => Ok(()),
        lines => write(
            "resources",
            &format!("{RESOURCES_HEADER}\n{}\n", lines.join("\n")),
        ),
    }
}

/// The first line of a history of resources.
const RESOURCES_HEADER: &str = r#"{"palisade_resources":1}"#;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const MIN_TTL_WITHOUT_FAULTS: Duration = Duration::from_secs(10);
