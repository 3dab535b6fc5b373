//! `palisade run`: holds a lock while a command runs, and sees to it that nothing of the command is alive
//! when somebody else can be granted the lock.
//!
//! ```text
//!   acquire ─► watchdog ─► job (own group, dies with us) ─► supervise ─► everything dead ─► release
//!                 ▲  group, deadlines                          │ deadline.rs decides, group.rs signals
//!                 └────────────────────────────────────────────┘
//! ```

mod child;
mod deadline;
mod group;
mod hook;
mod signals;
mod supervise;
mod sys;
mod terminal;
pub(crate) mod watchdog;

use std::io;
use std::time::Duration;

use palisade_client::{Caution, Client, Ending, Lease, Options, Released};
use palisade_core::{Span, Timestamp, Ttl};
use palisade_proto::Code;
use rustix::process::Signal;

use crate::cli::{FAILED, Failure, LOST, NOT_ACQUIRED, Out, RunArgs, USAGE};
use deadline::{Hold, Supervisor};
use signals::Signals;
use supervise::{End, Watch, look};
use terminal::Terminal;
use watchdog::Watchdog;

/// Found, but not executable; as env(1) says it.
const NOT_EXECUTABLE: u8 = 126;
/// Not found; as env(1) says it.
const NOT_FOUND: u8 = 127;

/// How long an answer is waited for that nothing depends on any more.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Holds the lock while the command runs; the status is the command's.
pub(crate) fn run(args: &RunArgs, out: Out) -> Result<u8, Failure> {
    // 2 may be the command's own status.
    as_asked(args, out).map_err(|failure| match failure.status {
        USAGE => Failure {
            status: FAILED,
            ..failure
        },
        _ => failure,
    })
}

fn as_asked(args: &RunArgs, out: Out) -> Result<u8, Failure> {
    let grace = grace(args)?;
    let runtime = crate::cli::runtime()?;
    let result = runtime.block_on(hold(args, grace, out));
    runtime.block_on(finish_errands());
    result
}

/// The first renewal is sent after a third of the ttl. A grace beyond half of it would end healthy jobs.
fn grace(args: &RunArgs) -> Result<Span, Failure> {
    let ttl = args.wish.ttl.span();
    let Some(grace) = args.grace else {
        return Ok(Span::from_nanos(ttl.as_nanos() / 5).min(LONGEST_DEFAULT_GRACE));
    };
    let half = Span::from_nanos(ttl.as_nanos() / 2);
    if Span::from(grace) > half {
        let message = format!(
            "a grace of {} ms is outside 0 ..= {} ms, half of the ttl",
            grace.as_millis(),
            half.as_millis()
        );
        return Err(Failure::usage(message).hint("give a longer --ttl or a shorter --grace"));
    }
    Ok(grace.into())
}

const LONGEST_DEFAULT_GRACE: Span = Span::from_millis(2_000);

/// The guard's deadline leaves time for SIGKILL to do its work: processes do not end in no time.
fn caution(ttl: Ttl) -> Caution {
    let margin = Span::from_nanos(ttl.span().as_nanos() / 10).min(Span::from_millis(100));
    Caution::new(10_000, margin).unwrap_or_default()
}

async fn hold(args: &RunArgs, grace: Span, out: Out) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let lease = tokio::select! {
        lease = acquire(args) => lease?,
        // Nothing runs yet. What the request was or will be granted is given back.
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    let environment = child::environment(&lease, &args.wish.connection.authority);
    let end = match job(args, grace, &lease, &environment, &mut signals).await {
        Ok(end) => end,
        Err(failure) => {
            let _ = tokio::time::timeout(LAST_WORD, lease.release()).await;
            return Err(failure);
        }
    };
    if end.orphans > 0 {
        tracing::info!(
            orphans = end.orphans,
            "reaped what the command had left behind"
        );
    }
    let lost = if end.lost {
        Some(give_up(lease).await)
    } else {
        release(lease, out).await
    };
    let Some(failure) = lost else {
        return Ok(end.status);
    };
    if let Some(hook) = &args.on_lost {
        hook::run(hook, environment, failure.code, &mut signals).await;
    }
    Err(failure)
}

async fn acquire(args: &RunArgs) -> Result<Lease, Failure> {
    let options = Options {
        caution: caution(args.wish.ttl),
        ..Options::default()
    };
    let client: Client = args.wish.connection.open(options).await?;
    let url = &args.wish.connection.authority;
    args.wish.ask(&client).acquire().await.map_err(|error| {
        let failure = Failure::of(&error, url);
        // Granted too late to be of use; nothing has run.
        if failure.status == LOST {
            Failure {
                status: NOT_ACQUIRED,
                ..failure
            }
        } else {
            failure
        }
    })
}

fn ended_by(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(FAILED)
}

/// Runs the job until nothing of it is left.
async fn job(
    args: &RunArgs,
    grace: Span,
    lease: &Lease,
    environment: &[(&'static str, String)],
    signals: &mut Signals,
) -> Result<End, Failure> {
    let failed = |what: &str, error: io::Error| Failure::local(format!("{what}: {error}"));
    signals.watch_all()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| failed("cannot adopt what the command leaves behind", error.into()))?;
    let deadline = now_until(lease)?;
    let watchdog = Watchdog::start(deadline, None)
        .map_err(|error| failed("cannot start the watchdog", error))?;
    let mut terminal = Terminal::find();
    let foreground = terminal.as_ref().is_some_and(Terminal::is_free);
    let command = command(args, environment)?;
    let leader = match child::start(command, &watchdog, foreground) {
        Ok(leader) => leader,
        Err(error) => {
            if foreground && let Some(terminal) = &mut terminal {
                terminal.was_given();
                terminal.take_back();
            }
            watchdog.stand_down();
            return Err(not_started(args, &error));
        }
    };
    if foreground && let Some(terminal) = &mut terminal {
        terminal.was_given();
    }
    let refresh = Span::from_nanos(args.wish.ttl.span().as_nanos() / 6);
    let supervisor = Supervisor::new(grace, refresh, deadline);
    let children = child::Children::new(leader);
    Ok(Watch {
        lease,
        signals,
        supervisor,
        children,
        watchdog: Some(watchdog),
        terminal,
    }
    .until_gone()
    .await)
}

fn now_until(lease: &Lease) -> Result<Timestamp, Failure> {
    match look(lease) {
        (_, Hold::Until(deadline)) => Ok(deadline),
        (_, Hold::Lost) => Err(loss(lease)),
    }
}

fn command(
    args: &RunArgs,
    environment: &[(&'static str, String)],
) -> Result<std::process::Command, Failure> {
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("a command is missing after --"))?;
    let mut command = child::command(program, environment);
    command.args(arguments);
    Ok(command)
}

fn not_started(args: &RunArgs, error: &io::Error) -> Failure {
    let program = args
        .command
        .first()
        .map(|program| program.display().to_string())
        .unwrap_or_default();
    let (status, code) = match error.kind() {
        io::ErrorKind::NotFound => (NOT_FOUND, Code::NotFound.name()),
        _ => (NOT_EXECUTABLE, Code::Refused.name()),
    };
    Failure::new(status, code, format!("{program}: {error}"))
}

/// Why the lease is lost, as the guard knows.
fn loss(lease: &Lease) -> Failure {
    match lease.check() {
        Err(lost) => Failure::new(LOST, lost.why.code(), lost.to_string()),
        // Ended a grace before the deadline: as good as lost.
        Ok(()) => {
            let message = format!(
                "{} (token {}) is lost: no renewal was acknowledged in time",
                lease.lock(),
                lease.token()
            );
            Failure::new(LOST, Code::Expired.name(), message)
        }
    }
}

/// Everything of the job is dead, so whoever waits can have the lock; if it is not known to be free.
async fn give_up(lease: Lease) -> Failure {
    let mut failure = loss(&lease);
    failure
        .message
        .push_str("; everything of the command was ended");
    let _ = tokio::time::timeout(LAST_WORD, lease.release()).await;
    failure
}

/// Releases. The authority may say that the lock had been lost before: then it was, whatever the command
/// did.
async fn release(lease: Lease, out: Out) -> Option<Failure> {
    let (lock, token, ttl) = (lease.lock().clone(), lease.token(), lease.ttl());
    let was = |how: &str, code: Code| {
        let message = format!("{lock} (token {token}) was lost before it was released: {how}");
        Some(Failure::new(LOST, code.name(), message))
    };
    match lease.release().await {
        Ok(Released::Released | Released::Ended(Ending::Released)) => None,
        Ok(Released::Ended(Ending::Expired)) => was("the lease had expired", Code::Expired),
        Ok(Released::Ended(Ending::Revoked)) => was("an operator took it", Code::Revoked),
        Ok(Released::Ended(Ending::Superseded)) => {
            was("the same client id acquired it again", Code::Superseded)
        }
        Ok(Released::NotHeld) => was("it is not held", Code::NotHeld),
        Ok(Released::Stale { highest }) => {
            was(&format!("it is held with token {highest}"), Code::Stale)
        }
        Err(error) => {
            let message = format!("{lock} could not be released: {error}");
            let failure = Failure::new(0, error.code(), message);
            out.failure(&failure.hint(format!(
                "it expires by itself, at most {ttl} after the last renewal"
            )));
            None
        }
    }
}

/// Lets what was given up on the way (a cancelled acquire, a guard that was dropped) reach the server. It
/// is not worth much waiting: the lease expires by itself.
async fn finish_errands() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let done = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORD, done).await;
}
