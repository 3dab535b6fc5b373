//! The acts one after the other, each once more if it did not take place as planned.

use super::authority::reconcile;
use super::folder::Folder;
use super::ledger::{Note, Told};
use super::report::{Report, check_and_effect};
use super::schedule::departure;
use super::stage::Stage;
use super::story;
use super::timeline::{Act, ActName, Update};
use super::voice::Voice;
use super::{Error, Settings};

/// Plays what was asked for, and writes and prints what came of it.
pub(super) async fn show(settings: &Settings) -> Result<(), Error> {
    let (folder, voice) = (Folder::new(settings.keep)?, Voice::new(settings.json));
    let report = Report::new(settings, folder.path());
    let mut show = Show {
        settings,
        folder,
        voice,
        report,
    };
    let all = [ActName::Unfenced, ActName::Textbook, ActName::Claim];
    let chosen = |act: &ActName| settings.acts.is_empty() || settings.acts.contains(act);
    let acts: Vec<ActName> = all.into_iter().filter(chosen).collect();
    for (number, act) in acts.iter().enumerate() {
        voice.say(&format!(
            "Act {} of {} · {}\n",
            number + 1,
            acts.len(),
            act.title()
        ));
        if !show.tell(*act).await? {
            break;
        }
    }
    show.report.finish(settings, voice)
}

struct Show<'a> {
    settings: &'a Settings,
    folder: Folder,
    voice: Voice,
    report: Report,
}

impl Show<'_> {
    /// One act, and once more if it did not take place as planned; says whether it did in the end.
    async fn tell(&mut self, act: ActName) -> Result<bool, Error> {
        for attempt in ["first", "second"] {
            let played = self.play(act, attempt).await?;
            let conclusive = played.verdict.incomplete.is_none();
            self.report.played(played, self.voice);
            if conclusive {
                return Ok(true);
            }
            if attempt == "first" {
                self.voice.say("  Once more, from the beginning.\n");
            }
        }
        Ok(false)
    }

    /// One act from the first process to the last, and what was recorded.
    async fn play(&mut self, name: ActName, attempt: &str) -> Result<Act, Error> {
        let folder = self.folder.inner(&format!("{}-{attempt}", name.word()))?;
        let mut stage = Stage::build(name, self.settings.ttl, folder).await?;
        let departed = story::play(&mut stage, self.voice).await.err();
        // A store that does not answer in the end is one more way to leave the schedule.
        let (content, unread) = match stage.network.look().await {
            Ok(content) => (content, None),
            Err(error) => (
                Vec::new(),
                Some(format!("the store could not be read: {error}")),
            ),
        };
        self.report.processes(&stage);
        let mut told = stage.ledger.snapshot();
        reconcile(&mut told.events);
        let mut act = Act::new(name);
        act.verdict.incomplete = departed.or(unread).or_else(|| departure(name, &told));
        act.verdict.content = content;
        (act.verdict.acknowledged, act.verdict.rejected) = updates(&told);
        if let Some(sentence) = check_and_effect(&told) {
            act.explanation = format!("{} {sentence}", act.explanation);
        }
        act.events = told.events;
        Ok(act)
    }
}

/// The updates whose writers were told “done”, and those whose writers were told “rejected”.
fn updates(told: &Told) -> (Vec<Update>, Vec<Update>) {
    let (mut acknowledged, mut rejected) = (Vec::new(), Vec::new());
    for client in ["A", "B"] {
        let update = |item: &String| Update {
            client: client.to_owned(),
            item: item.clone(),
        };
        for note in told.notes(client) {
            match note {
                Note::Acknowledged { item } => acknowledged.push(update(item)),
                Note::Rejected { item } => rejected.push(update(item)),
                _ => {}
            }
        }
    }
    (acknowledged, rejected)
}
