//! When the log hears that the pipeline is idle.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use palisade_core::{
    AuthorityId, ClientId, Limits, LockName, Machine, Span, Ttl, Under, Wish, limits,
};
use palisade_pipeline::{Identity, Log, LogError, Pipeline, PipelineStart, Request, start};
use rustix::time::{ClockId, clock_gettime};

/// The driver's calls to its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// A round begins, because something arrived or the alarm rang.
    Check,
    Commit,
    Idle,
}

use Call::{Check, Commit, Idle};

/// A log that only reports its calls. Nobody listens after the test.
struct Telling(Sender<Call>);

impl Log for Telling {
    fn has_room(&mut self, _bytes: usize) -> bool {
        true
    }

    fn check(&self) -> Result<(), LogError> {
        let _ = self.0.send(Check);
        Ok(())
    }

    fn commit(&mut self, _batch: &[u8]) -> Result<(), LogError> {
        let _ = self.0.send(Commit);
        Ok(())
    }

    fn idle(&mut self) {
        let _ = self.0.send(Idle);
    }
}

/// A pipeline with a clock that is moved by hand, and its calls to its log.
fn begin() -> (Pipeline, Receiver<Call>) {
    let (told, calls) = channel();
    let pipeline = start(PipelineStart {
        identity: Identity {
            authority: AuthorityId::new("test").unwrap(),
            incarnation: "1".into(),
        },
        machine: Machine::new(1),
        log: Box::new(Telling(told)),
        manual_clock: true,
        limits: Limits::DEFAULT,
        returning: None,
    });
    (pipeline.unwrap(), calls)
}

/// A lock for ten seconds, for a client of the same name.
fn wish(lock: &str) -> Request {
    Request::Acquire(Wish::new(
        LockName::new(lock).unwrap(),
        ClientId::new(lock).unwrap(),
        Under::new(Ttl::from_millis(10_000).unwrap()),
        None,
    ))
}

/// The first alarm after work is often early: it was set before that work. The log's housekeeping would then
/// come between two requests.
#[tokio::test]
async fn the_log_rests_at_the_second_quiet_alarm_and_not_at_the_first() {
    let (pipeline, calls) = begin();
    let next = || calls.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!([next(), next(), next()], [Check, Idle, Check]);
    pipeline.handle.call(wish("orders")).await;
    while next() != Commit {}
    assert_eq!([next(), next(), next()], [Check, Idle, Check]);
    pipeline.handle.stop();
    pipeline.thread.join().unwrap();
}

/// An alarm that is not set again keeps ringing, and the thread never sleeps.
#[test]
fn an_idle_pipeline_wakes_once_in_a_heartbeat() {
    const HEARTBEAT: Duration = Duration::from_millis(100);
    let now = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
    let begun = now();
    let (_pipeline, calls) = begin();
    let idle = |call: &Call| *call == Idle;
    let fifth = calls.iter().filter(idle).nth(4);
    assert_eq!(fifth, Some(Idle));
    // The first alarm was no idle one.
    let least = 6 * HEARTBEAT;
    assert!(now() - begun >= least);
}

/// More may be due than one entry ends.
#[tokio::test]
async fn what_one_entry_leaves_over_ends_at_once_also_under_a_manual_clock() {
    let (pipeline, calls) = begin();
    let (session, mut answers) = pipeline.handle.session();
    let many = 3 * u64::from(limits::EXPIRE_ALONE);
    let wishes = (0..many).map(|n| (n, wish(&format!("lock-{n}"))));
    session.submit(wishes.collect());
    let mut answered = 0;
    while answered < many {
        answered += answers.recv().await.unwrap().len() as u64;
    }
    let advance = Request::Advance(Span::from_millis(10_000));
    let before = calls.try_iter().count();
    assert!(before > 0);
    pipeline.handle.call(advance).await;
    let mut asked = calls.iter();
    let mut entries = 0;
    while entries < 3 {
        match asked.next().unwrap() {
            Commit => entries += 1,
            Idle => assert_eq!(entries, 0, "a heartbeat went by"),
            Check => {}
        }
    }
}
