//! The beginning of a round, and the requests that it takes in.

use palisade_pipeline::{FailedAssertion, Forgetful, orderer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::*;

#[tokio::test]
async fn what_gathers_during_a_sync_becomes_one_batch() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (session, mut answers) = pipeline.handle.session();
    let before = paper.begun.load(Ordering::SeqCst);
    let shut = paper.gate.lock().unwrap();
    let ask = |n: u64| {
        let wish = wish(&format!("lock-{n}"), "c1", None);
        session.submit(vec![(n, Request::Acquire(wish))]);
    };
    ask(0);
    while paper.begun.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    (1..=10).for_each(ask);
    drop(shut);
    assert_eq!(answers.recv().await.unwrap().len(), 1);
    assert_eq!(answers.recv().await.unwrap().len(), 10);
    assert_eq!(paper.written(), before + 2);
}

/// A round of several callers takes in what has arrived at their sockets. That of a lone caller does not look, because it
/// would cost a system call for each operation. Each arm is the control of the other.
#[tokio::test]
async fn a_round_looks_for_more_at_the_sockets_unless_its_caller_is_alone() {
    let batches = async |callers: u64| {
        let paper = Paper::default();
        let pipeline = fresh(&paper);
        let handle = pipeline.handle.clone();
        let near = pipeline.handle.near(async move {
            let (mut socket, mut far) = UnixStream::pair().unwrap();
            let (tell, mut told) = mpsc::unbounded_channel();
            let (neighbour, mut its_answers) = handle.session();
            let ask = |n: u64| vec![(n, Request::Acquire(wish(&format!("{n}"), "c1", None)))];
            handle.near(async move {
                // After the first byte its socket is known to be empty, so the next one is an event.
                far.read_exact(&mut [0]).await.unwrap();
                tell.send(()).unwrap();
                far.read_exact(&mut [0]).await.unwrap();
                neighbour.submit(ask(100));
                its_answers.recv().await.unwrap();
                tell.send(()).unwrap();
            });
            socket.write_all(b"x").await.unwrap();
            told.recv().await.unwrap();
            let (session, mut answers) = handle.session();
            for n in 0..2 {
                session.submit(ask(n));
                answers.recv().await.unwrap();
            }
            let before = paper.written();
            socket.write_all(b"y").await.unwrap();
            (0..callers).for_each(|n| session.submit(ask(200 + n)));
            told.recv().await.unwrap();
            paper.written() - before
        });
        near.await.unwrap()
    };
    assert_eq!(batches(1).await, 2);
    assert_eq!(batches(2).await, 1);
}

/// Otherwise the log would be asked for more room than it said it has.
#[tokio::test]
async fn no_batch_grows_beyond_the_room_that_the_log_was_asked_for() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (session, mut answers) = pipeline.handle.session();
    let before = paper.written();
    let wishes = (0..3_000).map(|n| {
        let name = format!("{n:0>255}");
        let mut wish = wish(&name, &name, None);
        wish.metadata = Some("m".repeat(256).into());
        (n, Request::Acquire(wish))
    });
    session.submit(wishes.collect());
    let mut answered = 0;
    while answered < 3_000 {
        answered += answers.recv().await.unwrap().len();
    }
    let batches = paper.batches.lock().unwrap();
    assert!(batches.len() > before + 2, "{} batches", batches.len());
    for batch in &batches[before..] {
        assert!(batch.len() <= orderer::ROOM, "{} bytes", batch.len());
    }
}

/// A wait that ends before the alarm rings brings the alarm forward. The test does not depend on the machine's
/// speed: one wait that ends before the alarm of a heartbeat can ring is enough, and without the rule there is none.
#[tokio::test]
async fn a_wait_ends_when_it_is_over_and_not_at_the_next_heartbeat() {
    const HEARTBEAT_MS: u128 = 100;
    let paper = Paper::default();
    let pipeline = running(&paper);
    let handle = &pipeline.handle;
    // So long that nothing else is due.
    let mut held = wish("a", "c1", None);
    held.under = Under::new(Ttl::MAX);
    acquire(handle, held).await;
    let in_time = async || {
        let rests = paper.rests.load(Ordering::SeqCst);
        while paper.rests.load(Ordering::SeqCst) == rests {
            tokio::task::yield_now().await;
        }
        // From then on the alarm is set for the next heartbeat.
        let rested = *paper.rested.lock().unwrap();
        let ended = acquire(handle, wish("a", "c2", Some(10))).await;
        assert!(matches!(ended, Outcome::Held(_)), "{ended:?}");
        milliseconds(ClockId::Boottime) < rested + HEARTBEAT_MS
    };
    for _ in 0..50 {
        if in_time().await {
            return;
        }
    }
    panic!("every wait ended at a heartbeat");
}

#[test]
fn hash_tables_are_seeded_anew_each_time() {
    let seeds = [(); 4].map(|()| palisade_pipeline::seed());
    for (n, seed) in seeds.iter().enumerate() {
        assert!(!seeds[..n].contains(seed));
    }
}

#[tokio::test]
async fn an_authority_without_a_log_grants() {
    let pipeline = start(PipelineStart {
        identity: Identity {
            authority: AuthorityId::new("test").unwrap(),
            incarnation: "1".into(),
        },
        machine: Machine::new(1),
        log: Box::new(Forgetful),
        manual_clock: false,
        limits: Limits::DEFAULT,
        returning: None,
    });
    granted(&pipeline.unwrap().handle, "a", "c1").await;
}

/// A log that stands for a machine whose assertion fails while a batch is built.
struct Contradicts {
    written: Arc<AtomicUsize>,
}

impl Log for Contradicts {
    fn has_room(&mut self, _: usize) -> bool {
        panic!("a lock is kept for nobody");
    }

    fn commit(&mut self, _: &[u8]) -> Result<(), LogError> {
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// An impossible state is an outage, never an answer: the pipeline says why it stopped, and nothing was written after that.
#[tokio::test]
async fn a_failed_assertion_stops_the_pipeline_before_anything_is_written() {
    let written = Arc::new(AtomicUsize::new(0));
    let log = Contradicts {
        written: Arc::clone(&written),
    };
    let pipeline = start(PipelineStart {
        identity: Identity {
            authority: AuthorityId::new("test").unwrap(),
            incarnation: "1".into(),
        },
        machine: Machine::new(1),
        log: Box::new(log),
        manual_clock: false,
        limits: Limits::DEFAULT,
        returning: None,
    });
    let handle = pipeline.unwrap().handle;
    let before = written.load(Ordering::SeqCst);
    let answer = handle.call(Request::Acquire(wish("a", "c1", None))).await;
    assert!(matches!(answer, Answer::Failed(_)), "{answer:?}");
    let Stopped::Broken(why) = stopped(&handle).await else {
        panic!("it goes on");
    };
    assert_eq!(why, "a lock is kept for nobody");
    assert_eq!(written.load(Ordering::SeqCst), before);
}

/// A log that stands for a machine whose assertion fails in the first batch.
struct BreaksFirst;

impl Log for BreaksFirst {
    fn has_room(&mut self, _: usize) -> bool {
        true
    }

    fn commit(&mut self, _: &[u8]) -> Result<(), LogError> {
        panic!("a lock is kept for nobody");
    }
}

/// The first batch is recorded before anybody could hear that the pipeline stopped, so its failure is the start's. The controls
/// are a log that takes the batch, and one that fails.
#[tokio::test]
async fn an_assertion_that_fails_in_the_first_batch_is_an_error_of_the_start_that_names_the_entry()
{
    let start_on = |log: Box<dyn Log>| {
        start(PipelineStart {
            identity: Identity {
                authority: AuthorityId::new("test").unwrap(),
                incarnation: "1".into(),
            },
            machine: Machine::new(1),
            log,
            manual_clock: false,
            limits: Limits::DEFAULT,
            returning: Some(Returning::Restarted),
        })
    };
    let sound = start_on(Box::new(Forgetful));
    granted(&sound.unwrap().handle, "a", "c1").await;
    let fails = Paper::default();
    fails.fail_at.store(1, Ordering::SeqCst);
    let error = start_on(Box::new(fails)).err().unwrap();
    assert!(error.to_string().contains("paper jam"), "{error}");
    let error = start_on(Box::new(BreaksFirst)).err().unwrap();
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let Some(FailedAssertion(why)) = cause else {
        panic!("{error:?}");
    };
    let entry = "a lock is kept for nobody, at entry 1 of a batch, Grace(Restarted)";
    assert!(why.starts_with(entry), "{why}");
    assert!(error.to_string().contains(why), "{error}");
}
