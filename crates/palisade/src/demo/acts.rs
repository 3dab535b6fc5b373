//! Runs the acts one after the other. An act that did not follow its schedule runs once more.

use tempfile::TempDir;

use super::authority::reconcile;
use super::driver;
use super::environment::Environment;
use super::error::Error;
use super::progress::ProgressLines;
use super::recorder::{Note, Snapshot};
use super::report::{Report, check_and_effect};
use super::schedule::deviation;
use super::settings::Settings;
use super::timeline::{Act, ActName, Update};

/// Runs the requested acts, then writes the pictures and prints the result.
pub(super) async fn run_all(settings: &Settings) -> Result<(), Error> {
    let progress = ProgressLines::new(settings.json);
    // A temporary folder that only its owner can read. Dropping it removes it.
    let name = format!("palisade-demo-{}-", std::process::id());
    let mut folder = tempfile::Builder::new().prefix(&name).tempdir()?;
    folder.disable_cleanup(settings.keep);
    let report = Report::new(settings, folder.path());
    let mut runner = Runner {
        settings,
        folder,
        progress,
        report,
    };
    let all = [ActName::Unfenced, ActName::Textbook, ActName::Claim];
    let chosen = |act: &ActName| settings.acts.is_empty() || settings.acts.contains(act);
    let acts: Vec<ActName> = all.into_iter().filter(chosen).collect();
    for (number, act) in acts.iter().enumerate() {
        progress.line(&format!(
            "Act {} of {} · {}\n",
            number + 1,
            acts.len(),
            act.title()
        ));
        if !runner.run(*act).await? {
            break;
        }
    }
    runner.report.finish(settings, progress)
}

struct Runner<'a> {
    settings: &'a Settings,
    folder: TempDir,
    progress: ProgressLines,
    report: Report,
}

impl Runner<'_> {
    /// Runs one act, and once more if it did not follow its schedule. Returns whether it did in the end.
    async fn run(&mut self, act: ActName) -> Result<bool, Error> {
        for attempt in ["first", "second"] {
            let result = self.attempt(act, attempt).await?;
            let conclusive = result.verdict.incomplete.is_none();
            self.report.add(result, self.progress);
            if conclusive {
                return Ok(true);
            }
            if attempt == "first" {
                self.progress.line("  Once more, from the beginning.\n");
            }
        }
        Ok(false)
    }

    /// Runs one act from the first process to the last; returns the records.
    async fn attempt(&mut self, name: ActName, attempt: &str) -> Result<Act, Error> {
        let folder = self
            .folder
            .path()
            .join(format!("{}-{attempt}", name.word()));
        std::fs::create_dir(&folder)?;
        let mut environment = Environment::build(name, self.settings.ttl, folder).await?;
        let failed = driver::run(&mut environment, self.progress).await.err();
        // If the store does not answer at the end, the act is inconclusive too.
        let (content, unread) = match environment.network.read_content().await {
            Ok(content) => (content, None),
            Err(error) => (
                Vec::new(),
                Some(format!("the store could not be read: {error}")),
            ),
        };
        self.report.processes(&environment);
        let mut snapshot = environment.recorder.snapshot();
        reconcile(&mut snapshot.events);
        let mut act = Act::new(name);
        act.verdict.incomplete = failed.or(unread).or_else(|| deviation(name, &snapshot));
        act.verdict.content = content;
        (act.verdict.acknowledged, act.verdict.rejected) = updates(&snapshot);
        if let Some(sentence) = check_and_effect(&snapshot) {
            act.explanation = format!("{} {sentence}", act.explanation);
        }
        act.events = snapshot.events;
        Ok(act)
    }
}

/// The updates whose writers got “done”, and those whose writers got “rejected”.
fn updates(snapshot: &Snapshot) -> (Vec<Update>, Vec<Update>) {
    let (mut acknowledged, mut rejected) = (Vec::new(), Vec::new());
    for client in ["A", "B"] {
        let update = |item: &String| Update {
            client: client.to_owned(),
            item: item.clone(),
        };
        for note in snapshot.notes(client) {
            match note {
                Note::Acknowledged { item } => acknowledged.push(update(item)),
                Note::Rejected { item } => rejected.push(update(item)),
                _ => {}
            }
        }
    }
    (acknowledged, rejected)
}
