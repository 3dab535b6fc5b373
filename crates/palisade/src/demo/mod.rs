//! `palisade demo`: the story of the paused holder, told with real processes, and drawn from what was recorded.
//!
//! ```text
//!   mod: three acts, a retry ─► stage: serve, store, network, workers  (processes of this program)
//!                               story: the schedule, from event to event
//!                               │  workers, network and a watcher of the lock service tell
//!                               ▼
//!                               ledger ─► schedule: did it happen as planned? ─► timeline: the picture
//!                                                                             └► report: what was lost
//! ```
//!
//! Nothing in the account or the picture is invented. An act whose recorded times do not follow the schedule says
//! that it is inconclusive, and proves nothing.

mod authority;
mod clock;
mod folder;
mod http;
mod ledger;
mod network;
mod process;
mod report;
mod schedule;
mod stage;
mod story;
mod timeline;
mod voice;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use folder::Folder;
use ledger::{Note, Told};
use report::Report;
use stage::Stage;
use timeline::{Act, Outcome, Update};
use voice::Voice;

pub(crate) use timeline::ActName;

/// What the command line says about a demonstration.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The acts to play; all three if empty.
    pub(crate) acts: Vec<ActName>,
    /// How long the leases last without renewal: [`MIN_TTL`] to [`MAX_TTL`].
    pub(crate) ttl: Duration,
    /// Where the pictures go; made if it is not there.
    pub(crate) out: PathBuf,
    /// Leave the data and the logs of all processes where they are.
    pub(crate) keep: bool,
    /// Print one JSON object instead of the account.
    pub(crate) json: bool,
}

/// Shorter, and a busy machine could not act in time.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(200);
/// Longer, and nobody would wait for it.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);

/// Why there was no demonstration, or why it did not show what it is there to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the demo takes a ttl of {MIN_TTL:?} – {MAX_TTL:?}, not {0:?}")]
    Ttl(Duration),
    #[error("cannot start `palisade {what}`: {why}")]
    Start { what: String, why: String },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("inconclusive: the act “{act}” did not take place as planned, twice: {why}; is the machine very busy? Try a longer --ttl")]
    Inconclusive { act: &'static str, why: String },
    #[error("the act “{act}” did not end as it must: {headline}; this is a bug in Palisade")]
    Unexpected { act: &'static str, headline: String },
    #[error("interrupted; everything that was started is stopped")]
    Interrupted,
    #[error("the demo’s own worker was called with something else: {0}")]
    Part(#[from] serde_json::Error),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl Error {
    fn start(what: &str, why: &str) -> Error {
        Error::Start { what: what.to_owned(), why: why.to_owned() }
    }
}

/// Plays the acts, prints the account, and writes `palisade-demo.html` and `palisade-demo.svg`.
///
/// # Errors
/// Also when an act was inconclusive twice, or ended otherwise than it must; the pictures are written then too.
pub(crate) fn run(settings: &Settings) -> Result<(), Error> {
    if !(MIN_TTL..=MAX_TTL).contains(&settings.ttl) {
        return Err(Error::Ttl(settings.ttl));
    }
    // First, so that nobody watches three acts to learn that their picture has no place.
    prepare(&settings.out)?;
    // Children die with the thread that started them: it has to be this one.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            shown = show(settings) => shown,
            _ = interrupt.recv() => Err(Error::Interrupted),
            _ = terminate.recv() => Err(Error::Interrupted),
        }
    })
}

/// The hidden command behind each worker.
///
/// # Errors
/// If it was called by anybody but the demo.
pub(crate) fn work(part: &str) -> Result<(), Error> {
    Ok(worker::play(&serde_json::from_str(part)?)?)
}

fn prepare(out: &Path) -> Result<(), Error> {
    let written = fs::create_dir_all(out).and_then(|()| fs::write(out.join(report::HTML), ""));
    written.map_err(|source| Error::Write { path: out.to_owned(), source })
}

async fn show(settings: &Settings) -> Result<(), Error> {
    let voice = Voice::new(settings.json);
    let folder = Folder::new(settings.keep)?;
    let all = [ActName::Unfenced, ActName::Textbook, ActName::Claim];
    let chosen = all.into_iter().filter(|act| settings.acts.is_empty() || settings.acts.contains(act));
    let chosen: Vec<ActName> = chosen.collect();
    let mut report = Report::new(settings, folder.path());
    for (number, act) in chosen.iter().enumerate() {
        voice.say(&format!("Act {} of {} · {}\n", number + 1, chosen.len(), act.title()));
        if !tell(*act, settings, &folder, voice, &mut report).await? {
            break;
        }
    }
    report.finish(settings, voice)
}

/// One act, and once more if it did not take place as planned; says whether it did in the end.
async fn tell(
    act: ActName,
    settings: &Settings,
    folder: &Folder,
    voice: Voice,
    report: &mut Report,
) -> Result<bool, Error> {
    for attempt in ["first", "second"] {
        let inner = folder.inner(&format!("{}-{attempt}", act.word()))?;
        let played = play(act, settings, inner, voice, report).await?;
        let inconclusive = played.verdict.incomplete.clone();
        report.played(played, voice);
        match inconclusive {
            None => return Ok(true),
            Some(why) if attempt == "first" => voice.say(&format!("\n  inconclusive: {why}; once more\n")),
            Some(_) => {}
        }
    }
    Ok(false)
}

/// One act from the first process to the last, and what was recorded.
async fn play(
    name: ActName,
    settings: &Settings,
    folder: PathBuf,
    voice: Voice,
    report: &mut Report,
) -> Result<Act, Error> {
    let mut stage = Stage::build(name, settings.ttl, folder).await?;
    let departed = story::play(&mut stage, voice).await.err();
    let content = stage.network.look().await?;
    report.processes(&stage);
    let mut told = stage.ledger.snapshot();
    authority::reconcile(&mut told.events);
    let mut act = Act::new(name);
    act.verdict.incomplete = departed.or_else(|| schedule::departure(name, &told));
    act.verdict.content = content;
    (act.verdict.acknowledged, act.verdict.rejected) = updates(&told);
    if let Some(sentence) = report::check_and_effect(&told) {
        act.explanation = format!("{} {sentence}", act.explanation);
    }
    act.events = told.events;
    Ok(act)
}

/// The updates whose writers were told “done”, and those whose writers were told “rejected”.
fn updates(told: &Told) -> (Vec<Update>, Vec<Update>) {
    let (mut acknowledged, mut rejected) = (Vec::new(), Vec::new());
    for client in ["A", "B"] {
        let update = |item: &String| Update { client: client.to_owned(), item: item.clone() };
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

/// Whether the act showed what it is there to show.
fn as_it_must(act: &Act) -> bool {
    let lost: Vec<&str> = act.verdict.lost().iter().map(|update| update.client.as_str()).collect();
    match (act.name, act.verdict.outcome()) {
        (ActName::Unfenced, Outcome::Lost) => lost == ["B"],
        (ActName::Textbook, Outcome::Lost) => lost == ["A"],
        (ActName::Claim, Outcome::Kept) => act.verdict.rejected.iter().any(|update| update.client == "A"),
        _ => false,
    }
}
