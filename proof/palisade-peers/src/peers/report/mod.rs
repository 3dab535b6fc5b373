//! The results of a run: Markdown for people, JSON for programs, a picture.

mod chart;
mod markdown;

use std::path::Path;

use serde_json::{Value, json};

use super::load::Sample;
use super::million::Held;
use super::system::{self, Profile, System};
use super::workload::Workload;
use crate::lane::Error;
use crate::measure::median;

/// All measurements.
pub(crate) struct Report {
    pub(crate) machine: String,
    /// The command of the run, as typed.
    pub(crate) command: String,
    /// The load of the machine before the first measurement and after the last.
    pub(crate) load: [String; 2],
    /// How many measurements began although the machine was not idle.
    pub(crate) restless: u32,
    pub(crate) rows: Vec<Row>,
    pub(crate) held: Vec<(&'static Profile, usize, Result<Held, String>)>,
}

/// One workload on one system.
pub(crate) struct Row {
    pub(crate) workload: &'static Workload,
    pub(crate) profile: &'static Profile,
    /// One sample per round.
    pub(crate) samples: Vec<Sample>,
    /// Syncs per operation, if they could be counted.
    pub(crate) syncs: Result<f64, String>,
    pub(crate) failed: Option<String>,
}

/// The value of a sample in one column.
type Figure = fn(&Sample) -> f64;

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Row {
    pub(crate) fn spread(&self, figure: impl Fn(&Sample) -> f64) -> Spread {
        let figures: Vec<f64> = self.samples.iter().map(figure).collect();
        Spread {
            least: figures.iter().copied().fold(f64::INFINITY, f64::min),
            most: figures.iter().copied().fold(0.0, f64::max),
            median: median(figures),
        }
    }
}

impl Report {
    /// The rows of one workload, and Palisade's among them.
    fn of(&self, workload: &Workload) -> (Vec<&Row>, Option<&Row>) {
        let rows = self
            .rows
            .iter()
            .filter(|row| row.workload.id == workload.id);
        let rows: Vec<&Row> = rows.filter(|row| !row.samples.is_empty()).collect();
        let own = rows.iter().copied();
        let own = own
            .clone()
            .find(|row| row.profile.system == System::Palisade);
        (rows, own)
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let rows = self.rows.iter().filter_map(|row| {
            let why = row.failed.as_ref()?;
            Some(format!(
                "{}, {}: {why}",
                row.profile.name, row.workload.title
            ))
        });
        let held = self.held.iter().filter_map(|(profile, _, held)| {
            let why = held.as_ref().err()?;
            Some(format!("{}, held locks: {why}", profile.name))
        });
        rows.chain(held).collect()
    }

    pub(crate) fn markdown(&self) -> String {
        markdown::write(self)
    }

    /// Writes `peers.md`, `peers.json` and, once there is a rate to draw, `peers.svg`.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("peers.md"), self.markdown())?;
        let mut text = serde_json::to_string_pretty(&self.json())?;
        text.push('\n');
        std::fs::write(folder.join("peers.json"), text)?;
        let picture = folder.join("peers.svg");
        if self.rows.iter().any(|row| !row.samples.is_empty()) {
            std::fs::write(picture, chart::draw(self))?;
        } else if picture.exists() {
            // The picture of an earlier run.
            std::fs::remove_file(picture)?;
        }
        Ok(())
    }

    pub(crate) fn json(&self) -> Value {
        let systems: Vec<Value> = system::ALL
            .iter()
            .map(|profile| {
                json!({
                    "id": profile.id, "name": profile.name, "version": profile.version(),
                    "durable": profile.durable, "token": profile.token, "lease": profile.lease,
                })
            })
            .collect();
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row(row)).collect();
        let held = self.held.iter().map(|(profile, locks, held)| match held {
            Err(why) => json!({"system": profile.id, "locks": locks, "failed": why}),
            Ok(held) => json!({
                "system": profile.id, "locks": locks,
                "fill_per_second": held.fill_per_second, "bytes_beyond_name": held.bytes,
                "most_bytes_beyond_name": held.most_bytes,
                "pairs_per_second_with_few": held.rates[0],
                "pairs_per_second_with_all": held.rates[1],
                "rate_with_all_of_rate_with_few": held.slowed,
                "idle_cores": held.idle,
                "renewals_per_second": held.renewing.per_second,
                "cores_while_renewing": held.renewing.cores,
                "pairs_per_second_beside": held.renewing.pairs_per_second,
                "cores_beside": held.renewing.cores_beside,
                "restart_at_work_ms": held.restarts_ms[0],
                "restart_at_rest_ms": held.restarts_ms[1],
                "token_rose": held.token_rose,
            }),
        });
        json!({
            "machine": self.machine, "command": self.command, "load_average": self.load,
            "restless": self.restless,
            "systems": systems, "rows": rows, "held": held.collect::<Vec<_>>(),
            "failures": self.failures(),
        })
    }

    fn row(&self, row: &Row) -> Value {
        if row.samples.is_empty() {
            let (workload, system) = (row.workload.id, row.profile.id);
            return json!({"workload": workload, "system": system, "failed": row.failed});
        }
        let spread = |figure: Figure| {
            let Spread {
                median,
                least,
                most,
            } = row.spread(figure);
            let rounds: Vec<f64> = row.samples.iter().map(figure).collect();
            json!({"median": median, "min": least, "max": most, "rounds": rounds})
        };
        let (_, own) = self.of(row.workload);
        let ratio =
            |figure: Figure| own.map(|own| own.spread(figure).median / row.spread(figure).median);
        json!({
            "workload": row.workload.id, "system": row.profile.id,
            "unit": row.workload.unit(), "latency_of": row.workload.measured(),
            "per_second": spread(|sample| sample.per_second),
            "p50_us": spread(|sample| sample.p50),
            "p99_us": spread(|sample| sample.p99),
            "p999_us": spread(|sample| sample.p999),
            "server_cpu_us": spread(|sample| sample.cpu),
            "syncs_per_operation": row.syncs.as_ref().ok(),
            "palisade_over_this": {
                "per_second": ratio(|sample| sample.per_second),
                "p50": ratio(|sample| sample.p50),
                "p99": ratio(|sample| sample.p99),
                "server_cpu": ratio(|sample| sample.cpu),
            },
            "tokens": "checked", "failed": row.failed,
        })
    }
}
