//! The comparison: the same workloads on every system, in one run on one disk.
//!
//! ```text
//!   testbed ─► real servers ─► drivers (a Connection with lanes)
//!                                 │
//!   rounds × shuffled (system, workload) ─► wait for idle ─► load · open loop ─► Sample ─┐
//!   one more pass, with syncs counted ───────────────────────────────────────────────────┼─► report: .md .json .svg
//!   one system at a time with a million locks ─► million ─► Held ────────────────────────┘
//! ```
//!
//! A driver follows the cheapest correct recipe on its system, so that no system is slowed down by the needs of
//! another: see [`drivers`].

mod drivers;
mod load;
mod million;
mod open_loop;
mod process;
mod report;
mod system;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use crate::lane::{Error, random};
use crate::machine;
pub(crate) use load::Window;
use load::{Load, Sample};
use process::Syncs;
use report::{Report, Row};
use system::{Profile, Server};

/// The plan of the measurement.
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) window: Window,
    /// Parts of ids; empty for all.
    pub(crate) systems: Vec<String>,
    pub(crate) workloads: Vec<String>,
    /// Locks to hold; `None` skips that part.
    pub(crate) held: Option<usize>,
    /// Whether to measure the workloads too.
    pub(crate) rates: bool,
    /// The folder for the servers' data.
    pub(crate) data: PathBuf,
    /// The folder for the report.
    pub(crate) report: PathBuf,
    pub(crate) json: bool,
}

/// How long a measurement may exceed its window before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// Palisade checks every half second whether there were requests, and makes a snapshot if there were none. Before that
/// the machine looks idle for a moment only, and the next measurement would include the snapshot.
const SNAPSHOT_DELAY: Duration = Duration::from_millis(1_200);

pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    std::fs::create_dir_all(&plan.data)?;
    palisade_testbed::keep_in(&plan.data);
    let mut report = Report {
        machine: machine::line_for(&plan.data)?,
        command: std::env::args()
            .skip(1)
            .fold("palisade-peers".to_owned(), |line, word| {
                format!("{line} {word}")
            }),
        load: [load_average(), String::new()],
        restless: 0,
        rows: Vec::new(),
        held: Vec::new(),
    };
    runtime.block_on(async {
        if plan.rates {
            rates(plan, &mut report).await?;
        }
        if let Some(locks) = plan.held {
            for profile in plan.profiles()?.into_iter().filter(|one| one.holds()) {
                eprintln!("{}: {locks} held locks", profile.name);
                let held = million::run(profile, locks, plan.window).await;
                let held = held.map_err(|error| error.to_string());
                report.held.push((profile, locks, held));
            }
        }
        Ok::<_, Error>(())
    })?;
    report.load[1] = load_average();
    report.save(&plan.report)?;
    if plan.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.markdown());
    }
    eprintln!("written to {}", plan.report.display());
    match report.failures() {
        none if none.is_empty() => Ok(()),
        all => Err(all.join("\n").into()),
    }
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

impl Plan {
    fn profiles(&self) -> Result<Vec<&'static Profile>, Error> {
        chosen(&system::ALL, &self.systems, |profile| profile.id)
    }
}

/// Those whose id is one of the parts, or contains a part that is not a whole id.
fn chosen<T>(
    all: &'static [T],
    parts: &[String],
    id: fn(&T) -> &'static str,
) -> Result<Vec<&'static T>, Error> {
    let meant = |own: &str, part: &str| {
        own == part || (own.contains(part) && all.iter().all(|item| id(item) != part))
    };
    let ids = || all.iter().map(id).collect::<Vec<_>>().join(", ");
    for part in parts {
        if !all.iter().any(|item| meant(id(item), part)) {
            return Err(format!("`{part}` does not exist; there are {}", ids()).into());
        }
    }
    let wanted = |item: &&T| parts.iter().any(|part| meant(id(item), part));
    Ok(all
        .iter()
        .filter(|item| parts.is_empty() || wanted(item))
        .collect())
}

/// The report is written after every round, so that an interrupted run leaves one.
async fn rates(plan: &Plan, report: &mut Report) -> Result<(), Error> {
    let workloads = chosen(&workload::ALL, &plan.workloads, |workload| workload.id)?;
    let mut servers = Vec::new();
    for profile in plan.profiles()? {
        eprintln!("starting {}", profile.name);
        servers.push((profile, Server::start(profile.system).await?));
        let offered = workloads.iter().filter(|one| profile.offers(one));
        report.rows.extend(offered.map(|workload| Row {
            workload,
            profile,
            samples: Vec::new(),
            syncs: Err("the run ended early".to_owned()),
            failed: None,
        }));
    }
    let server = |row: &Row| servers.iter().find(|(own, _)| own.id == row.profile.id);
    let mut order: Vec<usize> = (0..report.rows.len()).collect();
    for round in 0..plan.rounds {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        shuffle(&mut order)?;
        for number in &order {
            let row = &mut report.rows[*number];
            let (_, server) = server(row).ok_or("no server")?;
            report.restless += u32::from(!machine::wait_until_idle(plan.window.measure).await?);
            match measure(server, row, plan.window, &format!("r{round}/{number}")).await {
                Ok(sample) => row.samples.push(sample),
                Err(error) => row.failed = Some(error.to_string()),
            }
            if row.profile.is_palisade() {
                tokio::time::sleep(SNAPSHOT_DELAY).await;
            }
        }
        report.save(&plan.report)?;
    }
    eprintln!("counting syncs");
    for (number, row) in report.rows.iter_mut().enumerate() {
        let (_, server) = server(row).ok_or("no server")?;
        let counted = syncs(server, row, plan.window, &format!("s/{number}")).await;
        row.syncs = counted.map_err(|error| error.to_string());
    }
    Ok(())
}

async fn measure(server: &Server, row: &Row, window: Window, name: &str) -> Result<Sample, Error> {
    let work = async {
        let load = Load::open(server, row.workload, name).await?;
        load.run(window).await
    };
    tokio::time::timeout(PATIENCE + window.measure, work).await?
}

/// Syncs per operation; the times of this run are not used.
async fn syncs(server: &Server, row: &Row, window: Window, name: &str) -> Result<f64, Error> {
    let work = async {
        let load = Load::open(server, row.workload, name).await?;
        let counting = Syncs::count(server.instance().pid()).await?;
        let sample = load.run(window).await?;
        Ok(counting.end()? as f64 / sample.operations.max(1) as f64)
    };
    tokio::time::timeout(PATIENCE + window.measure, work).await?
}

/// Fisher and Yates' shuffle.
fn shuffle(order: &mut [usize]) -> Result<(), Error> {
    for last in (1..order.len()).rev() {
        let drawn = u64::from_le_bytes(random()?[..8].try_into()?);
        order.swap(last, usize::try_from(drawn % (last as u64 + 1))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_id_selects_and_an_unknown_one_is_named() {
        let ids = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            chosen(&system::ALL, &parts, |profile| profile.id)
                .map(|all| all.iter().map(|profile| profile.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&[]).unwrap().len(), system::ALL.len());
        assert_eq!(
            ids(&["always", "pal"]).unwrap(),
            ["palisade", "palisade-socket", "palisade-3", "redis-always"]
        );
        let error = ids(&["oracle"]).unwrap_err().to_string();
        assert!(
            error.contains("`oracle`") && error.contains("zookeeper"),
            "{error}"
        );
    }

    #[test]
    fn shuffling_loses_nothing() {
        let mut order: Vec<usize> = (0..100).collect();
        shuffle(&mut order).unwrap();
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..100));
    }
}
