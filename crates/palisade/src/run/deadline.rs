//! When the job must be terminated, and when it must be dead: the decision, without system calls.
//!
//! ```text
//!             deadline − grace        deadline      (SIGKILL at it, whatever happened before)
//!   Running ────────┬────────────────────┬──────►
//!      │            ▼                    │
//!      │  lost ─► Ending: SIGTERM ──► Killed: SIGKILL, repeated until nothing of the job is alive
//!      │            ▲        (from the earlier of the deadline and SIGTERM + grace on)
//!      ├ the command has ended, other processes of the job are left
//!      └ SIGTERM was passed on, and --kill-after has passed ──► Killed
//! ```
//!
//! The deadline is the guard's: counted from before the last acknowledged renewal was sent. Here it only
//! moves forward, and it stays known when the guard is lost: nobody else can be granted the lock before the
//! deadline, unless an operator breaks the lock, and then only the fence helps.
//!
//! With `--on-deadline freeze` a running job is not terminated a grace before the deadline for want of a renewal: it is
//! stopped, and goes on with a new deadline or is killed: see [`freeze`](super::freeze).
//!
//! A lost lock stays lost. A deadline that has passed never moves on, not even after a renewal that was
//! acknowledged before it: the watchdog knew only the old deadline, and has killed the job.

use palisade_core::{Span, Timestamp};

/// The guard's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardReport {
    /// The holder may act until then; a renewal moves this on.
    Until(Timestamp),
    /// The lock is lost.
    Lost,
}

/// The processes of the job that are still alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobProcesses {
    /// The command is running.
    Runs,
    /// The command has ended, but other processes of the job are alive.
    Leftovers,
    /// No process is left.
    Gone,
}

/// A signal to the whole job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobSignal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and what follows from it.
    Freeze,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextAction {
    pub(super) signal: Option<JobSignal>,
    /// When to call [`Supervisor::step`] again, if nothing happens before.
    pub(super) wake: Timestamp,
    /// No process is left to supervise.
    pub(super) over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobPhase {
    Running,
    Ending { kill_at: Timestamp },
    Killed,
}

/// Decides for one job.
#[derive(Clone, Debug)]
pub(super) struct Supervisor {
    grace: Span,
    /// Whether the job is stopped instead of terminated if no renewal comes.
    freezes: bool,
    refresh: Span,
    deadline: Timestamp,
    phase: JobPhase,
    lost: bool,
    overtime: bool,
    /// When a command that was told to end is killed.
    must_end_by: Option<Timestamp>,
    killed_after_term: bool,
}

impl Supervisor {
    /// `grace` is the time between SIGTERM and SIGKILL; `refresh` is how often to ask the guard, so that the
    /// watchdog learns of renewals.
    pub(super) fn new(grace: Span, refresh: Span, deadline: Timestamp) -> Supervisor {
        Supervisor {
            grace,
            freezes: false,
            refresh,
            deadline,
            phase: JobPhase::Running,
            lost: false,
            overtime: false,
            must_end_by: None,
            killed_after_term: false,
        }
    }

    /// The same with `--on-deadline freeze`.
    pub(super) fn freezing(self, freezes: bool) -> Supervisor {
        Supervisor { freezes, ..self }
    }

    /// Whether the job must be stopped now. One that is ending anyway is not stopped.
    pub(super) fn must_freeze(&self, now: Timestamp) -> bool {
        let runs = self.phase == JobPhase::Running && self.must_end_by.is_none();
        let held = !self.lost && !self.overtime && now < self.deadline;
        self.freezes && runs && held && !self.may_run(now, self.deadline)
    }

    /// Whether a job that has this deadline may run at `now`, until the next check at least.
    pub(super) fn may_run(&self, now: Timestamp, deadline: Timestamp) -> bool {
        now.after(self.grace) < deadline
    }

    /// The job was stopped from before the deadline on, and goes on: the authority acknowledged the same grant.
    pub(super) fn goes_on(&mut self, deadline: Timestamp) {
        self.deadline = self.deadline.max(deadline);
    }

    /// The frozen job is killed at the next step. `lost` says that the lock counts as lost, whatever its deadline.
    pub(super) fn ends_frozen(&mut self, lost: bool) {
        self.lost |= lost;
        self.phase = JobPhase::Killed;
    }

    /// The last deadline the guard vouched for.
    pub(super) fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// Whether the lock was lost, or had to be treated as lost, before the job was gone.
    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// `--timeout` has passed: the job is ended, and the lock stays held meanwhile.
    pub(super) fn time_is_up(&mut self) {
        self.overtime = true;
    }

    /// Whether the job was ended because of `--timeout`.
    pub(super) fn overtime(&self) -> bool {
        self.overtime && self.phase != JobPhase::Running
    }

    /// SIGTERM was passed on to the job: at `kill_at` it has ended or is killed. Later signals put that off no longer.
    pub(super) fn asked_to_end(&mut self, kill_at: Timestamp) {
        self.must_end_by.get_or_insert(kill_at);
    }

    /// A time to look again, or the end of the time that the command has after SIGTERM, if that is earlier and to come.
    pub(super) fn no_later_than(&self, wake: Timestamp) -> Timestamp {
        let ends = self.must_end_by.filter(|_| self.phase == JobPhase::Running);
        ends.map_or(wake, |end| end.min(wake))
    }

    /// Whether the command was killed because it did not end when it was asked to.
    pub(super) fn killed_after_term(&self) -> bool {
        self.killed_after_term
    }

    /// Whether SIGKILL was sent. A killed job must not be continued.
    pub(super) fn killed(&self) -> bool {
        self.phase == JobPhase::Killed
    }

    /// Decides the actions at `now`.
    pub(super) fn step(
        &mut self,
        now: Timestamp,
        hold: GuardReport,
        job: JobProcesses,
    ) -> NextAction {
        match hold {
            GuardReport::Until(deadline) if !self.lost && now < self.deadline => {
                self.deadline = self.deadline.max(deadline);
            }
            _ => self.lost = true,
        }
        if job == JobProcesses::Gone {
            return NextAction {
                signal: None,
                wake: now,
                over: true,
            };
        }
        match self.phase {
            JobPhase::Running if job == JobProcesses::Runs && self.must_freeze(now) => NextAction {
                signal: Some(JobSignal::Freeze),
                wake: now,
                over: false,
            },
            JobPhase::Running => match self.end_by(now, job) {
                Some(kill_at) => self.end(now, kill_at),
                None if self.must_end_by.is_some_and(|end| end <= now) => {
                    self.killed_after_term = true;
                    self.kill(now)
                }
                None => wait(self.next_check(now)),
            },
            JobPhase::Ending { kill_at } if now < kill_at => wait(kill_at),
            JobPhase::Ending { .. } | JobPhase::Killed => self.kill(now),
        }
    }

    /// When the job must be dead; `None` if it may go on.
    fn end_by(&mut self, now: Timestamp, job: JobProcesses) -> Option<Timestamp> {
        if self.lost || self.overtime || job == JobProcesses::Leftovers {
            return Some(now.after(self.grace).min(self.deadline));
        }
        if !self.may_run(now, self.deadline) {
            // No renewal came in time. A later one does not save the job.
            self.lost = true;
            return Some(self.deadline);
        }
        None
    }

    fn end(&mut self, now: Timestamp, kill_at: Timestamp) -> NextAction {
        if now >= kill_at {
            return self.kill(now);
        }
        self.phase = JobPhase::Ending { kill_at };
        NextAction {
            signal: Some(JobSignal::Terminate),
            wake: kill_at,
            over: false,
        }
    }

    fn kill(&mut self, now: Timestamp) -> NextAction {
        self.phase = JobPhase::Killed;
        NextAction {
            signal: Some(JobSignal::Kill),
            wake: now.after(KILL_INTERVAL),
            over: false,
        }
    }

    fn next_check(&self, now: Timestamp) -> Timestamp {
        let end = self
            .deadline
            .as_nanos()
            .saturating_sub(self.grace.as_nanos());
        let next = now.after(self.refresh).min(Timestamp::from_nanos(end));
        self.no_later_than(next)
    }
}

fn wait(wake: Timestamp) -> NextAction {
    NextAction {
        signal: None,
        wake,
        over: false,
    }
}

/// How often SIGKILL is repeated, for processes that escaped the one before.
const KILL_INTERVAL: Span = Span::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// A grace of 200 ms, a refresh every 300 ms, a deadline at 1 s.
    fn supervisor() -> Supervisor {
        Supervisor::new(Span::from_millis(200), Span::from_millis(300), ms(1_000))
    }

    const HELD: GuardReport = GuardReport::Until(ms(1_000));

    fn signal(signal: JobSignal, wake: u64) -> NextAction {
        NextAction {
            signal: Some(signal),
            wake: ms(wake),
            over: false,
        }
    }

    #[test]
    fn a_job_whose_lease_is_renewed_is_left_alone() {
        let mut supervisor = supervisor();
        for now in (0..100_000).step_by(100) {
            let step = supervisor.step(
                ms(now),
                GuardReport::Until(ms(now + 1_000)),
                JobProcesses::Runs,
            );
            assert_eq!(step, wait(ms(now + 300)));
        }
        assert!(!supervisor.lost());
    }

    #[test]
    fn terminate_comes_a_grace_before_the_deadline_and_kill_at_it() {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.step(ms(600), HELD, JobProcesses::Runs),
            wait(ms(800))
        );
        assert_eq!(
            supervisor.step(ms(799), HELD, JobProcesses::Runs),
            wait(ms(800))
        );
        assert_eq!(
            supervisor.step(ms(800), HELD, JobProcesses::Runs),
            signal(JobSignal::Terminate, 1_000)
        );
        assert_eq!(
            supervisor.step(ms(999), HELD, JobProcesses::Runs),
            wait(ms(1_000))
        );
        assert_eq!(
            supervisor.step(ms(1_000), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Kill, 1_020)
        );
        assert_eq!(
            supervisor.step(ms(1_020), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Kill, 1_040)
        );
        assert!(
            supervisor
                .step(ms(1_025), GuardReport::Lost, JobProcesses::Gone)
                .over
                && supervisor.lost()
        );
    }

    const FREEZE: JobSignal = JobSignal::Freeze;

    #[test]
    fn a_job_that_freezes_is_stopped_a_grace_before_the_deadline_and_goes_on_or_is_killed() {
        let mut goes_on = supervisor().freezing(true);
        assert_eq!(
            goes_on.step(ms(799), HELD, JobProcesses::Runs),
            wait(ms(800))
        );
        assert_eq!(
            goes_on.step(ms(800), HELD, JobProcesses::Runs),
            signal(FREEZE, 800)
        );
        let mut ends = goes_on.clone();
        // The grant was acknowledged at 4,000.
        goes_on.goes_on(ms(5_000));
        let held = GuardReport::Until(ms(5_000));
        assert_eq!(
            goes_on.step(ms(4_100), held, JobProcesses::Runs),
            wait(ms(4_400))
        );
        assert!(!goes_on.lost());
        assert_eq!(
            goes_on.step(ms(4_800), held, JobProcesses::Runs),
            signal(FREEZE, 4_800)
        );
        ends.ends_frozen(false);
        assert_eq!(
            ends.step(ms(4_000), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Kill, 4_020)
        );
        assert!(ends.lost(), "the deadline had passed");
    }

    #[test]
    fn a_job_is_not_frozen_that_is_ending_or_whose_lock_is_lost() {
        let at = |change: fn(&mut Supervisor), hold, job, now| {
            let mut supervisor = supervisor().freezing(true);
            change(&mut supervisor);
            supervisor.step(ms(now), hold, job).signal
        };
        assert_eq!(
            at(|_| {}, HELD, JobProcesses::Runs, 900),
            Some(FREEZE),
            "control"
        );
        let others = [
            at(|_| {}, GuardReport::Lost, JobProcesses::Runs, 900),
            at(|_| {}, HELD, JobProcesses::Leftovers, 900),
            at(
                |it| it.asked_to_end(ms(2_000)),
                HELD,
                JobProcesses::Runs,
                900,
            ),
            at(Supervisor::time_is_up, HELD, JobProcesses::Runs, 900),
            at(|it| it.freezes = false, HELD, JobProcesses::Runs, 900),
        ];
        assert_eq!(others, [Some(JobSignal::Terminate); 5]);
        // Too late to be seen stopped before the deadline.
        let late = at(|_| {}, HELD, JobProcesses::Runs, 1_000);
        assert_eq!(late, Some(JobSignal::Kill));
    }

    #[test]
    fn a_renewal_after_terminate_does_not_put_the_kill_off() {
        let mut supervisor = supervisor();
        supervisor.step(ms(800), HELD, JobProcesses::Runs);
        let late = GuardReport::Until(ms(1_900));
        assert_eq!(
            supervisor.step(ms(900), late, JobProcesses::Runs),
            wait(ms(1_000))
        );
        assert_eq!(
            supervisor.step(ms(1_000), late, JobProcesses::Runs),
            signal(JobSignal::Kill, 1_020)
        );
        assert!(supervisor.lost());
    }

    #[test]
    fn an_acknowledgement_after_the_deadline_does_not_save_the_job() {
        // It may have been acknowledged before; but at 1,000 the job had to die, and the watchdog may have killed it.
        for job in [
            JobProcesses::Gone,
            JobProcesses::Leftovers,
            JobProcesses::Runs,
        ] {
            let mut supervisor = supervisor();
            let step = supervisor.step(ms(1_000), GuardReport::Until(ms(1_900)), job);
            assert!(supervisor.lost(), "{job:?}");
            assert_eq!(supervisor.deadline(), ms(1_000), "and it is final");
            assert_eq!(step.over, job == JobProcesses::Gone);
            assert!(
                step.over || step == signal(JobSignal::Kill, 1_020),
                "{job:?}"
            );
        }
        let mut supervisor = supervisor();
        supervisor.step(ms(999), GuardReport::Until(ms(1_900)), JobProcesses::Gone);
        assert!(!supervisor.lost(), "control: a nanosecond earlier it holds");
    }

    #[test]
    fn a_lost_lock_stays_lost() {
        let mut supervisor = supervisor();
        supervisor.step(ms(100), GuardReport::Lost, JobProcesses::Runs);
        supervisor.step(ms(101), GuardReport::Until(ms(1_900)), JobProcesses::Gone);
        assert!(supervisor.lost());
        assert_eq!(supervisor.deadline(), ms(1_000));
    }

    #[test]
    fn after_a_pause_past_the_deadline_there_is_no_grace() {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.step(ms(5_000), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Kill, 5_020)
        );
        assert!(supervisor.lost() && supervisor.killed());
    }

    #[test]
    fn a_loss_reported_by_the_server_terminates_at_once_and_kills_after_the_grace() {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.step(ms(100), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Terminate, 300)
        );
        assert_eq!(
            supervisor.step(ms(300), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Kill, 320)
        );
    }

    #[test]
    fn a_loss_reported_by_the_server_never_postpones_the_kill_past_the_deadline() {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.step(ms(790), HELD, JobProcesses::Runs),
            wait(ms(800))
        );
        let mut early = supervisor.clone();
        early.grace = Span::from_millis(500);
        assert_eq!(
            early.step(ms(700), GuardReport::Lost, JobProcesses::Runs),
            signal(JobSignal::Terminate, 1_000)
        );
    }

    #[test]
    fn a_command_that_was_asked_to_end_has_its_time_and_no_more() {
        let mut supervisor = supervisor();
        supervisor.asked_to_end(ms(350));
        assert_eq!(
            supervisor.step(ms(100), HELD, JobProcesses::Runs),
            wait(ms(350))
        );
        supervisor.asked_to_end(ms(700));
        assert_eq!(
            supervisor.step(ms(350), HELD, JobProcesses::Runs),
            signal(JobSignal::Kill, 370)
        );
        assert!(supervisor.killed_after_term() && !supervisor.lost());
        // Control: one that ends in time is not killed.
        let mut supervisor = self::supervisor();
        supervisor.asked_to_end(ms(350));
        assert!(
            supervisor.step(ms(349), HELD, JobProcesses::Gone).over
                && !supervisor.killed_after_term()
        );
    }

    #[test]
    fn leftovers_are_ended_without_a_loss() {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.step(ms(100), HELD, JobProcesses::Leftovers),
            signal(JobSignal::Terminate, 300)
        );
        assert_eq!(
            supervisor.step(ms(200), HELD, JobProcesses::Leftovers),
            wait(ms(300))
        );
        assert_eq!(
            supervisor.step(ms(300), HELD, JobProcesses::Leftovers),
            signal(JobSignal::Kill, 320)
        );
        assert!(supervisor.step(ms(301), HELD, JobProcesses::Gone).over && !supervisor.lost());
    }

    #[test]
    fn leftovers_close_to_the_deadline_get_a_shorter_grace() {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.step(ms(950), HELD, JobProcesses::Leftovers),
            signal(JobSignal::Terminate, 1_000)
        );
        assert!(!supervisor.lost());
    }

    #[test]
    fn a_loss_noticed_together_with_the_jobs_end_counts() {
        let mut supervisor = supervisor();
        assert!(
            supervisor
                .step(ms(2_000), GuardReport::Lost, JobProcesses::Gone)
                .over
        );
        assert!(supervisor.lost(), "nobody knows which came first");
    }

    #[test]
    fn in_every_sequence_the_job_is_killed_at_the_deadline() {
        for grace in [0, 1, 200, 999, 1_500] {
            for (hold, job) in [
                (HELD, JobProcesses::Runs),
                (HELD, JobProcesses::Leftovers),
                (GuardReport::Lost, JobProcesses::Runs),
            ] {
                for first in [0, 500, 799, 999] {
                    let mut supervisor = Supervisor::new(
                        Span::from_millis(grace),
                        Span::from_millis(300),
                        ms(1_000),
                    );
                    let mut step = supervisor.step(ms(first), hold, job);
                    while step.wake < ms(1_000) {
                        assert!(step.wake > ms(0));
                        step = supervisor.step(step.wake, hold, job);
                    }
                    assert!(
                        supervisor.killed() || step.wake == ms(1_000),
                        "{grace} {hold:?} {job:?}"
                    );
                    supervisor.step(ms(1_000), hold, job);
                    assert!(supervisor.killed(), "{grace} {hold:?} {job:?} {first}");
                }
            }
        }
    }
}
