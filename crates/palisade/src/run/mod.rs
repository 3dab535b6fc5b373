//! `palisade run`: holds a lock while a command runs, and makes sure that no process of the command is alive
//! when another client can be granted the lock.
//!
//! ```text
//!   acquire ─► watchdog ─► job (own group, dies with us) ─► supervise ─► everything dead ─► release
//!                 ▲  group, deadlines                          │ deadline.rs decides, group.rs signals
//!                 └────────────────────────────────────────────┘
//! ```

mod child;
mod deadline;
mod freeze;
mod group;
mod guard;
mod hook;
mod job_name;
mod patience;
mod renewals;
mod signals;
mod stopped;
mod supervise;
mod sys;
mod terminal;
pub(crate) mod watchdog;

use std::io;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::{LockName, Span};
use palisade_proto::Code;
use rustix::process::Signal;

use crate::cli::{FAILED, Failure, OnDeadline, Out, RunArgs, USAGE, millis, runtime};
use deadline::Supervisor;
use guard::{RunGuard, SHUTDOWN_WAIT};
use renewals::Renewals;
use signals::Signals;
use supervise::{JobEnd, SupervisedJob};
use terminal::Terminal;
use watchdog::Watchdog;

/// `--timeout` ended the command.
const TIMED_OUT: u8 = 122;
/// Found, but not executable, as env(1) reports it.
const NOT_EXECUTABLE: u8 = 126;
/// Not found, as env(1) reports it.
const NOT_FOUND: u8 = 127;

/// Holds the lock while the command runs; the status is the command's.
pub(crate) fn run(args: &RunArgs, out: Out) -> Result<u8, Failure> {
    let mut args = args.clone();
    args.lock_args.metadata = job_name::metadata(&args.lock_args, &args.command);
    let args = &args;
    match hold_and_finish(args, out.quiet(args.quiet)) {
        Err(conflict) if conflict.is_conflict() => {
            if args.quiet {
                return Ok(args.conflict_exit_code);
            }
            Err(Failure {
                status: args.conflict_exit_code,
                ..conflict
            })
        }
        // 2 may be the command's own status.
        Err(failure) if failure.status == USAGE => Err(Failure {
            status: FAILED,
            ..failure
        }),
        ended => ended,
    }
}

fn hold_and_finish(args: &RunArgs, out: Out) -> Result<u8, Failure> {
    let grace = grace(args)?;
    let runtime = runtime()?;
    let result = runtime.block_on(hold(args, grace, out));
    runtime.block_on(finish_background_requests());
    let ended = result?;
    if ended.interrupted {
        // Without palisade the terminal would have interrupted the whole group: a loop of a shell would be over.
        sys::interrupt_own_group();
    }
    Ok(ended.status)
}

/// The first renewal is sent after a third of the ttl. A grace longer than half of it would end healthy jobs.
fn grace(args: &RunArgs) -> Result<Span, Failure> {
    let ttl = args.lock_args.ttl.span();
    let Some(grace) = args.grace else {
        return Ok(Span::from_nanos(ttl.as_nanos() / 5).min(LONGEST_DEFAULT_GRACE));
    };
    let half = Span::from_nanos(ttl.as_nanos() / 2);
    if Span::from(grace) > half {
        let message = format!(
            "a grace of {} is too long: it is between 0 and {}, half of the ttl",
            millis(Span::from(grace).as_millis()),
            millis(half.as_millis())
        );
        return Err(Failure::usage(message).hint("give a longer --ttl or a shorter --grace"));
    }
    Ok(grace.into())
}

/// How long the command has to end after a SIGTERM that somebody sent.
fn kill_after(args: &RunArgs) -> Span {
    let given = args.kill_after.or(args.grace);
    given.map_or(DEFAULT_KILL_AFTER, Span::from)
}

/// As long as container runtimes wait.
const DEFAULT_KILL_AFTER: Span = Span::from_millis(10_000);

const LONGEST_DEFAULT_GRACE: Span = Span::from_millis(2_000);

/// How palisade ends.
struct RunEnd {
    status: u8,
    /// By the SIGINT of which its command died.
    interrupted: bool,
}

async fn hold(args: &RunArgs, grace: Span, out: Out) -> Result<RunEnd, Failure> {
    if args.on_deadline == OnDeadline::Freeze && !group::sees_processes() {
        let why = "--on-deadline freeze has to see that the command's processes are stopped, and /proc does not list them";
        return Err(Failure::local(why.to_owned())
            .hint("mount the /proc of this PID namespace, or omit --on-deadline freeze"));
    }
    let mut signals = Signals::ending()?;
    let mut guard = tokio::select! {
        guard = RunGuard::acquire(args, out) => guard?,
        // Nothing runs yet. The client releases any grant that the request got or will get.
        signal = signals.next() => return Ok(ended_by(signal)),
    };
    let authority = palisade_client::without_password(&args.lock_args.connection.authority);
    let mut environment = guard.environment(&authority);
    if args.sequencer {
        let signed = tokio::select! {
            signed = guard.sequencers(&authority) => signed,
            signal = signals.next() => {
                guard.free().await;
                return Ok(ended_by(signal));
            }
        };
        match signed {
            Ok(signed) => environment.push(("PALISADE_SEQUENCER", signed)),
            Err(failure) => {
                guard.free().await;
                return Err(failure);
            }
        }
    }
    let end = match job(args, grace, &mut guard, &environment, &mut signals, out).await {
        Ok(end) => end,
        Err(failure) => {
            guard.free().await;
            return Err(failure);
        }
    };
    if end.orphans > 0 {
        tracing::info!(
            orphans = end.orphans,
            "reaped processes that the command left behind"
        );
    }
    let lock = guard.lock().clone();
    let lost = if end.lost {
        Some(guard.give_up().await)
    } else {
        guard.release(out).await
    };
    let Some(failure) = lost else {
        return if end.overtime {
            Err(timed_out(&lock, args))
        } else {
            Ok(RunEnd {
                status: end.status,
                interrupted: end.interrupted,
            })
        };
    };
    if let Some(hook) = &args.on_lost {
        hook::run(hook, environment, failure.code.name(), &mut signals).await;
    }
    Err(failure)
}

fn timed_out(lock: &LockName, args: &RunArgs) -> Failure {
    let after = args.timeout.unwrap_or_default();
    let message = format!("the command was ended after {after:?}; {lock} is released");
    Failure::new(TIMED_OUT, Code::Expired, message).hint("choose a longer --timeout")
}

fn ended_by(signal: Signal) -> RunEnd {
    RunEnd {
        status: u8::try_from(128 + signal.as_raw()).unwrap_or(FAILED),
        interrupted: false,
    }
}

/// Runs the job until none of its processes is left.
async fn job(
    args: &RunArgs,
    grace: Span,
    guard: &mut RunGuard,
    environment: &[(&'static str, String)],
    signals: &mut Signals,
    out: Out,
) -> Result<JobEnd, Failure> {
    let failed = |what: &str, error: io::Error| Failure::local(format!("{what}: {error}"));
    signals.watch_all()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| failed("cannot adopt the command's orphans", error.into()))?;
    let deadline = guard.deadline()?;
    let release_command = guard.release_command(&args.lock_args);
    let watchdog = Watchdog::start(Some(deadline), None, &release_command)
        .map_err(|error| failed("cannot start the watchdog", error))?;
    let mut terminal = Terminal::find();
    let free = terminal.as_mut().filter(|terminal| terminal.is_free());
    let foreground = free.and_then(|terminal| {
        let device = terminal.device().ok()?;
        terminal.was_given();
        Some(device)
    });
    let command = command(args, environment)?;
    let freezes = args.on_deadline == OnDeadline::Freeze;
    // A stopped group whose parent dies is continued by the kernel if both are of one session. On a terminal they must be.
    let own_session = freezes && terminal.is_none();
    let leader = match child::start(command, &watchdog, foreground, own_session) {
        Ok(leader) => leader,
        Err(error) => {
            if let Some(terminal) = &mut terminal {
                terminal.take_back();
            }
            watchdog.stand_down();
            return Err(not_started(args, &error));
        }
    };
    let refresh = Span::from_nanos(args.lock_args.ttl.span().as_nanos() / 6);
    let supervisor = Supervisor::new(grace, refresh, deadline).freezing(freezes);
    let children = child::Children::new(leader);
    let end = if freezes { "frozen" } else { "ended" };
    let renewals = Renewals::new(out, guard.lock().clone(), args.lock_args.ttl, end);
    Ok(SupervisedJob {
        guard,
        signals,
        supervisor,
        children,
        watchdog: Some(watchdog),
        terminal,
        until: args
            .timeout
            .map(|timeout| BootClock.now().after(timeout.into())),
        renewals,
        yields: args.yield_on_wait,
        kill_after: kill_after(args),
        release_command,
        told: false,
        out,
    }
    .until_gone()
    .await)
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
        io::ErrorKind::NotFound => (NOT_FOUND, Code::NotFound),
        _ => (NOT_EXECUTABLE, Code::Refused),
    };
    Failure::new(status, code, format!("{program}: {error}"))
}

/// Gives the client's last requests (for a cancelled acquire or a dropped guard) time to reach the server. A short
/// time is enough: the lease expires by itself.
async fn finish_background_requests() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let done = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let _ = tokio::time::timeout(SHUTDOWN_WAIT, done).await;
}
