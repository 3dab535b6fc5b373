//! Runs the acts one after the other. An act that did not take place as planned is run once more.

use tempfile::TempDir;

use super::authority::reconcile;
use super::ledger::{Note, Snapshot};
use super::progress::Progress;
use super::report::{Report, check_and_effect};
use super::schedule::deviation;
use super::stage::Stage;
use super::story;
use super::timeline::{Act, ActName, Update};
use super::{Error, Settings};

/// Runs the acts that were asked for, then writes the pictures and prints the result.
pub(super) async fn play_all(settings: &Settings) -> Result<(), Error> {
    let progress = Progress::new(settings.json);
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
    progress: Progress,
    report: Report,
}

impl Runner<'_> {
    /// Runs one act, twice if it did not take place as planned the first time. Returns whether it did in the end.
    async fn run(&mut self, act: ActName) -> Result<bool, Error> {
        for attempt in ["first", "second"] {
            let played = self.play(act, attempt).await?;
            let conclusive = played.verdict.incomplete.is_none();
            self.report.played(played, self.progress);
            if conclusive {
                return Ok(true);
            }
            if attempt == "first" {
                self.progress.line("  Once more, from the beginning.\n");
            }
        }
        Ok(false)
    }

    /// Runs one act from the first process to the last; returns what was recorded.
    async fn play(&mut self, name: ActName, attempt: &str) -> Result<Act, Error> {
        let folder = self
            .folder
            .path()
            .join(format!("{}-{attempt}", name.word()));
        std::fs::create_dir(&folder)?;
        let mut stage = Stage::build(name, self.settings.ttl, folder).await?;
        let failed = story::play(&mut stage, self.progress).await.err();
        // An act whose store does not answer at the end is inconclusive, too.
        let (content, unread) = match stage.network.read_content().await {
            Ok(content) => (content, None),
            Err(error) => (
                Vec::new(),
                Some(format!("the store could not be read: {error}")),
            ),
        };
        self.report.processes(&stage);
        let mut snapshot = stage.ledger.snapshot();
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

/// The updates whose writers were told “done”, and those whose writers were told “rejected”.
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
