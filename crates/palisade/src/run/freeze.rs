//! `--on-deadline freeze`: the job is stopped before its deadline, and goes on only under the same token (H7).
//!
//! ```text
//!      deadline − grace                 deadline
//!   Running ──┬────────────────────────────┬───────────────────────────────────────►
//!             ▼                            │
//!          SIGSTOP; look until every       │  ask the authority for the same grant, look every 10 ms
//!          thread is seen stopped          │     ├ acknowledged ─► SIGCONT, Running until the new deadline
//!             │              │             │     └ any other answer ─► SIGKILL
//!             │              └ not by then ┴─► SIGKILL
//!             ├ renewed in time ─► SIGCONT
//!             └ at any time: a thread that ran, SIGTERM and its like, --timeout ─► SIGKILL
//! ```
//!
//! All that is known of a frozen job is in [`StoppedJob`], here, and in the watchdog, which has no deadline meanwhile and kills
//! the job when this process dies. The supervisor knows only `Running` before, and `Running` with a later deadline or
//! `Killed` afterwards. A job that is ended while it is frozen gets no SIGTERM: it could not handle it without running.
//!
//! SIGSTOP is there for every user. A cgroup could be frozen in one step, and nobody's SIGCONT would undo that; but it takes
//! a cgroup of the job's own that this user may write to, which a container or a cron job has not.

use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::{Error, Loss};
use palisade_core::{Span, Timestamp};
use rustix::process::Signal;

use super::child::{Children, Reaped};
use super::deadline::{GuardReport, Supervisor};
use super::guard::RunGuard;
use super::signals::{self, Signals};
use super::stopped::StoppedJob;
use super::supervise::{SupervisedJob, another_watchdog};
use super::watchdog::{MOST_OUTSIDE, ReleaseCommand, Watchdog};
use crate::cli::{Out, millis};

/// How often to look at a job that is being stopped, and at one that is.
const LOOK: Span = Span::from_millis(5);
const WATCH: Span = Span::from_millis(10);

/// How long to wait for an answer of the authority, and between two questions.
const ATTEMPT: Duration = Duration::from_secs(2);
const PAUSE: Span = Span::from_millis(100);

/// Why a frozen job is killed.
struct Kill {
    why: String,
    /// The lock counts as lost, even before the deadline.
    lost: bool,
    overtime: bool,
}

impl Kill {
    fn because(why: impl Into<String>) -> Kill {
        Kill {
            why: why.into(),
            lost: false,
            overtime: false,
        }
    }
}

impl SupervisedJob<'_> {
    /// Stops the job, and returns when it goes on or is to be killed, which the supervisor then knows.
    pub(super) async fn freeze(&mut self) {
        let began = BootClock.now();
        let mut frozen = Frozen {
            job: StoppedJob::begin(self.children.group()),
            deadline: self.supervisor.deadline(),
            is_stopped: false,
            user_stopped: None,
            signals: self.signals,
            children: &mut self.children,
            watchdog: &mut self.watchdog,
            until: &mut self.until,
            release_command: &self.release_command,
        };
        let end = match frozen
            .until_deadline(self.guard, &self.supervisor, self.out)
            .await
        {
            Ok(None) => {
                frozen
                    .until_acknowledged(self.guard, &self.supervisor)
                    .await
            }
            Ok(Some(deadline)) => Ok(deadline),
            Err(kill) => Err(kill),
        };
        let (job, user_stopped) = (frozen.job, frozen.user_stopped);
        match end {
            Ok(deadline) => {
                self.supervisor.goes_on(deadline);
                // Before the job runs.
                if let Some(watchdog) = &mut self.watchdog {
                    watchdog.send_deadline(deadline);
                }
                job.go_on(user_stopped.is_some());
                let took = BootClock.now().since(began).as_millis();
                self.out.warning(&format!(
                    "{} is held again under the same token: the command goes on after {}",
                    self.guard.lock(),
                    millis(took)
                ));
                self.handle(Reaped {
                    stopped: user_stopped,
                    watchdog_ended: false,
                });
            }
            Err(kill) => {
                self.out
                    .warning(&format!("the frozen command is killed: {}", kill.why));
                if kill.overtime {
                    self.supervisor.time_is_up();
                }
                self.supervisor.ends_frozen(kill.lost);
            }
        }
    }
}

/// A frozen job, and what can end it.
struct Frozen<'a> {
    job: StoppedJob,
    /// By when it has to be seen stopped.
    deadline: Timestamp,
    /// Every thread was seen stopped, and the watchdog knows it.
    is_stopped: bool,
    /// The job was stopped from its terminal, before this process stopped it.
    user_stopped: Option<Signal>,
    signals: &'a mut Signals,
    children: &'a mut Children,
    watchdog: &'a mut Option<Watchdog>,
    until: &'a mut Option<Timestamp>,
    release_command: &'a ReleaseCommand,
}

impl Frozen<'_> {
    /// Until the deadline: sees to it that the job is stopped. Returns a later deadline if a renewal was acknowledged in time.
    async fn until_deadline(
        &mut self,
        guard: &RunGuard,
        supervisor: &Supervisor,
        out: Out,
    ) -> Result<Option<Timestamp>, Kill> {
        let deadline = self.deadline;
        loop {
            let (now, hold) = guard.state();
            match hold {
                GuardReport::Until(later) if supervisor.may_run(now, later) => {
                    return Ok(Some(later));
                }
                GuardReport::Lost if now < deadline => {
                    return Err(Kill::because("the authority says that the lock is lost"));
                }
                _ if now >= deadline && self.is_stopped => return Ok(None),
                _ if now >= deadline => {
                    return Err(Kill::because(format!(
                        "not all of its processes could be stopped before the deadline: {}",
                        self.job.unstopped()
                    )));
                }
                _ => {}
            }
            if !self.is_stopped {
                self.look()?;
                if self.is_stopped {
                    out.warning(&format!(
                        "{} was not renewed in time. The command is frozen ({} processes) until the authority acknowledges \
                         the same token, and killed if it does not. Meanwhile it keeps its database locks and files, \
                         and others wait for them",
                        guard.lock(),
                        self.job.len()
                    ));
                }
            }
            tokio::select! {
                biased;
                kill = self.must_be_killed(true) => return Err(kill),
                () = BootClock.alarm(now.after(LOOK).min(deadline)) => {}
            }
        }
    }

    fn look(&mut self) -> Result<(), Kill> {
        if !self.job.is_seen() {
            self.job.insist();
            return Ok(());
        }
        let outside = self.job.numbers_outside();
        if outside.len() > MOST_OUTSIDE {
            return Err(Kill::because("too many of its processes left its group"));
        }
        // Seen too late is not seen.
        if BootClock.now() < self.deadline {
            self.is_stopped = true;
            if let Some(watchdog) = self.watchdog.as_ref() {
                watchdog.send_frozen(&outside);
            }
        }
        Ok(())
    }

    /// After the deadline: asks until the authority acknowledges the same grant, and returns the new deadline.
    async fn until_acknowledged(
        &mut self,
        guard: &mut RunGuard,
        supervisor: &Supervisor,
    ) -> Result<Timestamp, Kill> {
        loop {
            let answer = tokio::select! {
                biased;
                kill = self.must_be_killed(false) => return Err(kill),
                answer = tokio::time::timeout(ATTEMPT, guard.resume()) => answer,
            };
            match answer {
                Err(_no_answer) => {}
                Ok(Ok(())) => {
                    let (now, hold) = guard.state();
                    if let GuardReport::Until(deadline) = hold
                        && supervisor.may_run(now, deadline)
                    {
                        // A job that has run in between is not saved by the answer.
                        return self.unchanged(false).map(|()| deadline);
                    }
                }
                Ok(Err(Error::Lost(lost))) if lost.why == Loss::Deadline => {}
                Ok(Err(Error::Fault(fault))) if fault.is_transient() => {}
                Ok(Err(error)) => return Err(Kill::because(format!("{error:#}"))),
            }
            tokio::select! {
                biased;
                kill = self.must_be_killed(false) => return Err(kill),
                () = BootClock.alarm(BootClock.now().after(PAUSE)) => {}
            }
        }
    }

    /// Completes when the job must be killed. Dropping the future loses nothing.
    async fn must_be_killed(&mut self, settling: bool) -> Kill {
        loop {
            let began = BootClock.now();
            if let Err(kill) = self.check(settling) {
                return kill;
            }
            // At most a tenth of the time goes into looking.
            let took = BootClock.now().since(began).as_nanos();
            let pause = WATCH.max(Span::from_nanos(took.saturating_mul(9)));
            tokio::select! {
                biased;
                () = BootClock.alarm(self.until.unwrap_or_default()), if self.until.is_some() => {
                    *self.until = None;
                    return Kill { overtime: true, ..Kill::because("its --timeout has passed") };
                }
                signal = self.signals.next() => match signal {
                    ending if signals::ENDING.contains(&ending) => {
                        return Kill::because("palisade was told to end it");
                    }
                    // The job handles it when it goes on.
                    Signal::USR1 | Signal::USR2 | Signal::WINCH => self.children.group().signal(signal),
                    // Another SIGCONT or SIGTSTP changes nothing.
                    _ => {}
                },
                () = BootClock.alarm(BootClock.now().after(pause)) => {}
            }
        }
    }

    fn check(&mut self, settling: bool) -> Result<(), Kill> {
        let reaped = self
            .children
            .reap(self.watchdog.as_ref().map(Watchdog::pid));
        // Asked after the check of the job: the watchdog records a kill before it kills.
        if self.watchdog.as_ref().is_some_and(Watchdog::has_killed) {
            return Err(Kill::because(
                "the deadline came before it was seen stopped",
            ));
        }
        if self.children.status().is_some() {
            return Err(Kill::because("its first process has ended"));
        }
        if reaped.watchdog_ended {
            self.replace_watchdog()?;
        }
        if let Some(signal) = reaped.stopped.filter(|signal| *signal != Signal::STOP) {
            self.user_stopped = Some(signal);
        }
        if self.is_stopped {
            self.unchanged(settling)
        } else {
            Ok(())
        }
    }

    fn replace_watchdog(&mut self) -> Result<(), Kill> {
        let leader = self.children.leader();
        let deadline = (!self.is_stopped).then_some(self.deadline);
        *self.watchdog = another_watchdog(deadline, leader, self.release_command);
        let Some(watchdog) = self.watchdog.as_ref() else {
            return Err(Kill::because("nothing would end it if palisade died"));
        };
        if self.is_stopped {
            watchdog.send_frozen(&self.job.numbers_outside());
        }
        Ok(())
    }

    fn unchanged(&mut self, settling: bool) -> Result<(), Kill> {
        match self.job.has_changed(settling) {
            None => Ok(()),
            Some(pid) => Err(Kill {
                lost: true,
                ..Kill::because(format!(
                    "another program has continued or ended its process {pid}"
                ))
            }),
        }
    }
}
