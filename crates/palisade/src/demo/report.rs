//! The result of a demo: the summary, the pictures, and the records as JSON.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::environment::Environment;
use super::error::Error;
use super::progress::ProgressLines;
use super::recorder::Snapshot;
use super::settings::Settings;
use super::timeline::{
    Act, ActName, ActOutcome, OperationKind, Ruling, Update, duration, html, svg,
};

/// The names of the pictures.
const HTML: &str = "palisade-demo.html";
const SVG: &str = "palisade-demo.svg";

/// The whole demonstration; `--json` prints it as it is.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    acts: Vec<ActResult>,
    /// Every started process: role and process id.
    processes: Vec<(String, u32)>,
    /// Where the data was; removed unless `--keep` was given.
    folder: PathBuf,
    html: PathBuf,
    svg: PathBuf,
}

/// An act and its result.
#[derive(Debug, Serialize)]
struct ActResult {
    #[serde(flatten)]
    act: Act,
    outcome: &'static str,
    headline: String,
    lost: Vec<Update>,
}

impl Report {
    pub(super) fn new(settings: &Settings, folder: &Path) -> Report {
        Report {
            acts: Vec::new(),
            processes: Vec::new(),
            folder: folder.to_owned(),
            html: settings.out.join(HTML),
            svg: settings.out.join(SVG),
        }
    }

    /// Adds the processes of an act.
    pub(super) fn processes(&mut self, environment: &Environment) {
        self.processes.extend(environment.processes());
    }

    /// Adds an act and prints its result. A second attempt replaces the first.
    pub(super) fn add(&mut self, act: Act, progress: ProgressLines) {
        let outcome = match act.verdict.outcome() {
            ActOutcome::Lost => "lost",
            ActOutcome::Kept => "kept",
            ActOutcome::Incomplete => "inconclusive",
        };
        let lost = act.verdict.lost().into_iter().cloned().collect();
        let headline = act.verdict.headline();
        progress.line(&format!("\n  → {headline}\n"));
        self.acts.retain(|known| known.act.name != act.name);
        self.acts.push(ActResult {
            act,
            outcome,
            headline,
            lost,
        });
    }

    /// Writes the pictures and prints the summary.
    pub(super) fn finish(&self, settings: &Settings, progress: ProgressLines) -> Result<(), Error> {
        let acts: Vec<Act> = self.acts.iter().map(|result| result.act.clone()).collect();
        write(&self.html, &html(&acts))?;
        write(&self.svg, &svg(&acts))?;
        if settings.json {
            ProgressLines::new(false).line(&serde_json::to_string(self)?);
        }
        progress.line(&self.summary(settings));
        self.acts.iter().try_for_each(ActResult::verify)
    }

    fn summary(&self, settings: &Settings) -> String {
        let names = |updates: &[Update]| listed(updates.iter().map(|update| update.item.as_str()));
        let head = ["act", "acknowledged", "rejected", "final content", "lost"].map(str::to_owned);
        let rows = self.acts.iter().map(|result| {
            let verdict = &result.act.verdict;
            [
                result.act.name.word().to_owned(),
                names(&verdict.acknowledged),
                names(&verdict.rejected),
                listed(verdict.content.iter().map(String::as_str)),
                if result.outcome == "inconclusive" {
                    "inconclusive".to_owned()
                } else {
                    names(&result.lost)
                },
            ]
        });
        let table = std::iter::once(head)
            .chain(rows)
            .map(|cells| line(&cells))
            .collect::<Vec<_>>()
            .join("\n");
        let mut text = format!(
            "{table}\n\nNo lock service can stop two processes from both believing they hold a lock.\n\
             The lease saves work; the fence keeps data safe.\n\ntimelines  {}\n           {}",
            self.html.display(),
            self.svg.display()
        );
        if settings.keep {
            text.push_str(&format!("\nkept       {}", self.folder.display()));
        }
        text
    }
}

impl ActResult {
    fn verify(&self) -> Result<(), Error> {
        let act = self.act.name.word();
        match &self.act.verdict.incomplete {
            Some(why) => Err(Error::Inconclusive {
                act,
                why: why.clone(),
            }),
            None if is_as_expected(&self.act) => Ok(()),
            None => Err(Error::Unexpected {
                act,
                headline: self.headline.clone(),
            }),
        }
    }
}

/// One sentence with measured times: how long after A's check its write took effect.
pub(super) fn check_and_effect(snapshot: &Snapshot) -> Option<String> {
    let (checked, remaining) = snapshot.checked("A")?;
    let write = snapshot.operation("A", OperationKind::Write)?;
    let decided = write.message.decided_ms?;
    let late = decided - snapshot.expired("A")?;
    let effect = match write.verdict? {
        Ruling::Rejected(_) => "was rejected",
        _ => "took effect",
    };
    Some(format!(
        "In this run A checked its lease before it wrote, and the lease was valid for another {}; the write {effect} {} \
         after that check, {} after the lease had ended.",
        duration(remaining),
        duration(decided - checked),
        duration(late)
    ))
}

fn line(cells: &[String; 5]) -> String {
    let [act, acknowledged, rejected, content, lost] = cells;
    format!("{act:<10}{acknowledged:<14}{rejected:<10}{content:<15}{lost}")
}

fn listed<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let text = items.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "–".to_owned()
    } else {
        text
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

/// Whether the act had the expected result.
fn is_as_expected(act: &Act) -> bool {
    let lost: Vec<&str> = act
        .verdict
        .lost()
        .iter()
        .map(|update| update.client.as_str())
        .collect();
    match (act.name, act.verdict.outcome()) {
        (ActName::Unfenced, ActOutcome::Lost) => lost == ["B"],
        (ActName::Textbook, ActOutcome::Lost) => lost == ["A"],
        (ActName::Claim, ActOutcome::Kept) => act
            .verdict
            .rejected
            .iter()
            .any(|update| update.client == "A"),
        _ => false,
    }
}
