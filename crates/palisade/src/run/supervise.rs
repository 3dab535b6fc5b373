//! The supervision loop of a job: check, decide, act, wait.

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::{LockName, Span, Timestamp};
use rustix::process::{Pid, Signal};

use super::child::{Children, Reaped};
use super::deadline::{GuardReport, JobProcesses, JobSignal, NextAction, Supervisor};
use super::group;
use super::guard::RunGuard;
use super::renewals::Renewals;
use super::signals::{self, Signals};
use super::sys;
use super::terminal::Terminal;
use super::watchdog::{ReleaseCommand, Watchdog};
use crate::cli::{Out, millis, signal_name};

/// A job and everything needed to supervise it.
pub(super) struct SupervisedJob<'a> {
    pub(super) guard: &'a mut RunGuard,
    pub(super) signals: &'a mut Signals,
    pub(super) supervisor: Supervisor,
    pub(super) children: Children,
    /// `None` after it died and could not be started again.
    pub(super) watchdog: Option<Watchdog>,
    pub(super) terminal: Option<Terminal>,
    /// When `--timeout` passes.
    pub(super) until: Option<Timestamp>,
    pub(super) renewals: Renewals,
    /// What the job gets once when somebody waits for the lock; `None` after that.
    pub(super) yields: Option<Signal>,
    /// How long the command has to end after a SIGTERM that was passed on.
    pub(super) kill_after: Span,
    /// The watchdog releases the lock with this command after this process has ended.
    pub(super) release_command: ReleaseCommand,
    /// This process itself got SIGINT.
    pub(super) told: bool,
    pub(super) out: Out,
}

/// How a job ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobEnd {
    /// The command's exit status.
    pub(super) status: u8,
    /// The lock was lost before every process of the job was gone.
    pub(super) lost: bool,
    /// It was ended because of `--timeout`.
    pub(super) overtime: bool,
    /// It died of the ctrl-C of a terminal that only it had. The processes beside palisade would have got that, too.
    pub(super) interrupted: bool,
    pub(super) orphans: u32,
}

impl SupervisedJob<'_> {
    /// Supervises until no process of the job is alive.
    pub(super) async fn until_gone(mut self) -> JobEnd {
        let (mut lost, mut wanted) = (self.guard.lost(), self.guard.wanted());
        let (mut is_lost, mut passed_on) = (false, None);
        loop {
            let reaped = self.children.reap(self.watchdog_pid());
            let step = self.decide();
            if step.over {
                return self.end();
            }
            // Only after the decision: a job that must die is not continued first.
            if let Some(signal) = passed_on.take() {
                self.pass_on(signal);
            }
            self.handle(reaped);
            // Asked again: the job may have been told to end in between.
            if step.signal == Some(JobSignal::Freeze)
                && self.supervisor.must_freeze(BootClock.now())
            {
                self.freeze().await;
                (lost, is_lost) = (self.guard.lost(), false);
                wanted = self.guard.wanted();
                continue;
            }
            tokio::select! {
                biased;
                // The signal that was passed on may have set an earlier end.
                () = BootClock.alarm(self.supervisor.no_later_than(step.wake)) => {}
                () = &mut lost, if !is_lost => is_lost = true,
                () = BootClock.alarm(self.until.unwrap_or_default()), if self.until.is_some() => {
                    self.until = None;
                    self.supervisor.time_is_up();
                }
                signal = self.signals.next() => passed_on = Some(signal),
                (lock, waiters) = &mut wanted, if self.yields.is_some() => {
                    passed_on = self.yields.take();
                    self.says_who_waits(&lock, waiters, passed_on);
                }
            }
        }
    }

    fn says_who_waits(&self, lock: &LockName, waiters: u32, sent: Option<Signal>) {
        let wait = match waiters {
            1 => "1 request waits".to_owned(),
            more => format!("{more} requests wait"),
        };
        let signal = sent.map_or("nothing", signal_name);
        self.out
            .warning(&format!("{wait} for {lock}: sent {signal} to the job"));
    }

    fn decide(&mut self) -> NextAction {
        let watchdog = self.watchdog_pid();
        let job = self.children.job(watchdog);
        let (now, mut hold) = self.guard.state();
        // Asked after the check of the job: the watchdog records a kill before it kills.
        if self.watchdog.as_ref().is_some_and(Watchdog::has_killed) {
            hold = GuardReport::Lost;
        }
        if job == JobProcesses::Runs {
            self.renewals.check(now, hold);
        }
        let step = self.supervisor.step(now, hold, job);
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.send_deadline(self.supervisor.deadline());
        }
        if let Some(signal) = step.signal {
            if signal == JobSignal::Terminate && job == JobProcesses::Leftovers {
                self.name_leftovers();
            }
            self.send(signal, job);
        }
        step
    }

    /// Reports the processes that end with the command: a daemon that it started would otherwise disappear without a
    /// message.
    fn name_leftovers(&self) {
        let group = self.children.group();
        let named = group.names(self.watchdog_pid());
        if !named.is_empty() {
            self.out.warning(&format!(
                "the command has ended and left processes behind, which are ended before the lock is released: {}. \
                 Start a daemon without `palisade run`, for example as a service",
                named.join(", ")
            ));
        }
    }

    fn send(&self, signal: JobSignal, job: JobProcesses) {
        let reaped = job != JobProcesses::Runs;
        let send = |signal| {
            self.children
                .group()
                .signal_all(signal, reaped, self.watchdog_pid())
        };
        match signal {
            JobSignal::Terminate => {
                send(Signal::TERM);
                // A stopped process cannot handle SIGTERM.
                send(Signal::CONT);
            }
            JobSignal::Kill => send(Signal::KILL),
            // By the loop, which waits for what comes of it.
            JobSignal::Freeze => {}
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if signal == Signal::CHILD || self.children.status().is_some() || self.supervisor.killed() {
            return;
        }
        if signal == Signal::CONT
            && let Some(terminal) = &mut self.terminal
        {
            // `fg` in the shell has put palisade in the foreground.
            let wanted = terminal.is_free();
            if wanted {
                terminal.give(self.children.leader());
            }
        }
        self.told |= signal == Signal::INT;
        self.children.group().signal(signal);
        if signals::ENDING.contains(&signal) {
            // A stopped process handles no signal.
            self.children.group().signal(Signal::CONT);
        }
        if signal == Signal::TERM {
            self.asked_to_end();
        }
        if signal == Signal::TSTP {
            self.stop_with_job();
        }
    }

    pub(super) fn handle(&mut self, reaped: Reaped) {
        if reaped.watchdog_ended {
            let deadline = Some(self.supervisor.deadline());
            let leader = self.children.leader();
            self.watchdog = another_watchdog(deadline, leader, &self.release_command);
        }
        match reaped.stopped {
            Some(signal @ (Signal::TTIN | Signal::TTOU)) if self.may_give() => {
                self.wants_terminal(signal)
            }
            // ctrl-Z stopped only the job; the shell waits for palisade to stop too.
            Some(signal) if self.terminal.as_ref().is_some_and(Terminal::is_given) => {
                match signal {
                    Signal::TTIN | Signal::TTOU => self.stop_myself(),
                    _ => self.stop_with_job(),
                }
            }
            _ => {}
        }
    }

    /// The job was stopped because it used a terminal that it has not.
    fn wants_terminal(&mut self, signal: Signal) {
        let leader = self.children.leader();
        if self.terminal.as_mut().is_some_and(|it| it.give(leader)) {
            self.children.group().signal(Signal::CONT);
        } else if sys::own_group().is_none_or(group::is_orphaned) {
            // No shell is left that could ever give it: the kernel ends such a job in the same way.
            self.out.warning(
                "the command waits for a terminal that another program has, and no shell is left to give it back: it \
                 is ended with SIGHUP",
            );
            self.children.group().signal(Signal::HUP);
            self.children.group().signal(Signal::CONT);
            self.asked_to_end();
        } else {
            // The shell, or another palisade, sees why, and continues both with the terminal.
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
    }

    fn asked_to_end(&mut self) {
        let kill_at = BootClock.now().after(self.kill_after);
        self.supervisor.asked_to_end(kill_at);
    }

    fn may_give(&self) -> bool {
        self.terminal
            .as_ref()
            .is_some_and(|terminal| !terminal.is_given())
    }

    /// The job was stopped from the terminal. The first process of a namespace, as in a container, cannot be stopped from
    /// inside of it, and nobody there would continue it: a job that stays stopped would have its lock for ever.
    fn stop_with_job(&mut self) {
        if rustix::process::getpid() != Pid::INIT {
            return self.stop_myself();
        }
        self.out.warning(
            "the command was stopped and is continued: palisade is process 1, and no shell is there to continue it later",
        );
        self.children.group().signal(Signal::CONT);
    }

    /// Stops this process until SIGCONT, which then arrives like any signal. Meanwhile nothing is renewed, and the
    /// watchdog kills the job at the deadline.
    fn stop_myself(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }

    fn watchdog_pid(&self) -> Option<Pid> {
        self.watchdog.as_ref().map(Watchdog::pid)
    }

    fn end(self) -> JobEnd {
        let had_terminal = self.terminal.as_ref().is_some_and(Terminal::is_given);
        if let Some(mut terminal) = self.terminal {
            terminal.take_back();
        }
        if let Some(watchdog) = self.watchdog {
            watchdog.stand_down();
        }
        if self.supervisor.killed_after_term() {
            self.out.warning(&format!(
                "the command did not end within {} of SIGTERM and was killed; --kill-after gives it longer",
                millis(self.kill_after.as_millis())
            ));
        }
        JobEnd {
            status: self.children.status().unwrap_or(u8::MAX),
            lost: self.supervisor.lost(),
            overtime: self.supervisor.overtime(),
            interrupted: had_terminal && !self.told && self.children.was_interrupted(),
            orphans: self.children.orphans(),
        }
    }
}

/// Starts a watchdog in the place of one that has ended.
pub(super) fn another_watchdog(
    deadline: Option<Timestamp>,
    leader: Pid,
    release_command: &ReleaseCommand,
) -> Option<Watchdog> {
    match Watchdog::start(deadline, Some(leader), release_command) {
        Ok(watchdog) => {
            tracing::warn!("the watchdog had ended and was started again");
            Some(watchdog)
        }
        Err(error) => {
            tracing::error!(%error, "the watchdog has ended and cannot be started again");
            None
        }
    }
}
