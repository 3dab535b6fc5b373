//! When the log is told that nothing is going on.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use palisade_core::{AuthorityId, ClientId, Limits, LockName, Machine, Ttl, Under, Wish};
use palisade_server::pipeline::{Identity, Log, LogError, Request, Start, start};

/// What the driver asks of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// A round begins, because something arrived or the alarm rang.
    Check,
    Commit,
    Idle,
}

use Call::{Check, Commit, Idle};

/// A log that only tells what it is asked. Nobody listens after the test.
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

/// The first alarm after work is often early: it was set before that work. The log's housekeeping would then
/// come between two requests.
#[tokio::test]
async fn the_log_rests_at_the_second_quiet_alarm_and_not_at_the_first() {
    let (told, calls) = channel();
    let pipeline = start(Start {
        identity: Identity {
            authority: AuthorityId::new("test").unwrap(),
            incarnation: "1".into(),
        },
        machine: Machine::new(1),
        log: Box::new(Telling(told)),
        manual_clock: true,
        limits: Limits::DEFAULT,
        returning: None,
    })
    .unwrap();
    let next = || calls.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!([next(), next(), next()], [Check, Idle, Check]);
    let wish = Wish::new(
        LockName::new("orders").unwrap(),
        ClientId::new("a").unwrap(),
        Under::new(Ttl::from_millis(10_000).unwrap()),
        None,
    );
    pipeline.handle.call(Request::Acquire(wish)).await;
    while next() != Commit {}
    assert_eq!([next(), next(), next()], [Check, Idle, Check]);
    pipeline.handle.stop();
    pipeline.thread.join().unwrap();
}
