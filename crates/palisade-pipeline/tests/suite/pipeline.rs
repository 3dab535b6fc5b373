//! The pipeline without sockets: ordering, durability gating, callers that leave, a log that is full
//! or fails.

#![expect(
    clippy::await_holding_lock,
    reason = "the gate is shut on purpose: the pipeline's own thread must stand still meanwhile"
)]

mod callers;
mod observers;
mod rounds;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_core::{
    AuthorityId, ClientId, Ending, GrantRef, LeaseKey, Limits, LockName, Machine, Outcome,
    RequestId, Span, Token, Ttl, Under, Wish,
};
use palisade_pipeline::replay::Replay;
use palisade_pipeline::{
    Answer, Failure, Handle, Identity, Log, LogError, Pipeline, PipelineStart, Request, Returning,
    Stopped, start,
};
use rustix::time::{ClockId, clock_gettime};

/// A log in memory that can be set to be full, to fail, or to pause.
#[derive(Clone, Default)]
struct Paper {
    batches: Arc<Mutex<Vec<Vec<u8>>>>,
    full: Arc<AtomicBool>,
    fail_at: Arc<AtomicUsize>,
    gate: Arc<Mutex<()>>,
    /// Commits that were begun, whether or not the gate let them through.
    begun: Arc<AtomicUsize>,
    /// How many times it heard that the pipeline is idle, and when it heard it last.
    rests: Arc<AtomicUsize>,
    rested: Arc<Mutex<u128>>,
    /// How many times it was asked whether this node leads, and whether another one does.
    confirms: Arc<AtomicUsize>,
    deposed: Arc<AtomicBool>,
}

impl Log for Paper {
    fn has_room(&mut self, _bytes: usize) -> bool {
        !self.full.load(Ordering::SeqCst)
    }

    fn commit(&mut self, batch: &[u8]) -> Result<(), LogError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.lock().unwrap();
        self.leads()?;
        let mut batches = self.batches.lock().unwrap();
        if batches.len() + 1 == self.fail_at.load(Ordering::SeqCst) {
            return Err(LogError::Failed("paper jam".into()));
        }
        batches.push(batch.to_vec());
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), LogError> {
        self.confirms.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.lock().unwrap();
        self.leads()
    }

    fn idle(&mut self) {
        *self.rested.lock().unwrap() = milliseconds(ClockId::Boottime);
        self.rests.fetch_add(1, Ordering::SeqCst);
    }
}

impl Paper {
    fn leads(&self) -> Result<(), LogError> {
        if self.deposed.load(Ordering::SeqCst) {
            Err(LogError::Deposed)
        } else {
            Ok(())
        }
    }

    fn replay(&self) -> Machine {
        let mut replay = Replay::from_nothing(7);
        for batch in self.batches.lock().unwrap().iter() {
            replay.batch(batch).unwrap();
        }
        replay.finish()
    }

    fn written(&self) -> usize {
        self.batches.lock().unwrap().len()
    }
}

fn begin(paper: &Paper, machine: Machine, returning: Option<Returning>) -> Pipeline {
    let authority = AuthorityId::new("test").unwrap();
    start(PipelineStart {
        identity: Identity {
            authority,
            incarnation: "1".into(),
        },
        machine,
        log: Box::new(paper.clone()),
        manual_clock: true,
        limits: Limits::DEFAULT,
        returning,
    })
    .unwrap()
}

/// With a clock that runs.
fn running(paper: &Paper) -> Pipeline {
    let identity = Identity {
        authority: AuthorityId::new("test").unwrap(),
        incarnation: "1".into(),
    };
    start(PipelineStart {
        identity,
        machine: Machine::new(1),
        log: Box::new(paper.clone()),
        manual_clock: false,
        limits: Limits::DEFAULT,
        returning: None,
    })
    .unwrap()
}

fn fresh(paper: &Paper) -> Pipeline {
    begin(paper, Machine::new(1), None)
}

fn wish(lock: &str, client: &str, wait_ms: Option<u64>) -> Wish {
    Wish {
        wait: wait_ms.map(Span::from_millis),
        ..Wish::new(
            LockName::new(lock).unwrap(),
            ClientId::new(client).unwrap(),
            Under::new(Ttl::from_millis(10_000).unwrap()),
            None,
        )
    }
}

async fn acquire(handle: &Handle, acquire: Wish) -> Outcome {
    match handle.call(Request::Acquire(acquire)).await {
        Answer::Outcome(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

async fn granted(handle: &Handle, lock: &str, client: &str) -> (Token, LeaseKey) {
    match acquire(handle, wish(lock, client, None)).await {
        Outcome::Granted(granted) => (granted.token, granted.key),
        other => panic!("{other:?}"),
    }
}

fn grant(lock: &str, key: LeaseKey) -> GrantRef {
    GrantRef {
        lock: LockName::new(lock).unwrap(),
        key,
        token: None,
    }
}

async fn release(handle: &Handle, lock: &str, key: LeaseKey) -> Answer {
    handle.call(Request::Release(grant(lock, key))).await
}

async fn waiters(handle: &Handle) -> usize {
    match handle.call(Request::Status).await {
        Answer::Status(status) => status.waiters,
        other => panic!("{other:?}"),
    }
}

async fn stopped(handle: &Handle) -> Stopped {
    let mut stopped = handle.stopped();
    let stopped = stopped.wait_for(Option::is_some).await.unwrap();
    stopped.clone().unwrap()
}

#[tokio::test]
async fn no_answer_leaves_before_its_batch_is_durable() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    granted(&pipeline.handle, "a", "c1").await;
    let before = paper.written();

    let shut = paper.gate.lock().unwrap();
    let call = tokio::spawn({
        let handle = pipeline.handle.clone();
        async move { granted(&handle, "b", "c1").await }
    });
    let read = tokio::spawn({
        let handle = pipeline.handle.clone();
        async move {
            handle
                .call(Request::Show(LockName::new("b").unwrap()))
                .await
        }
    });
    while paper.begun.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    assert!(
        !call.is_finished(),
        "a grant that is not on disk was acknowledged"
    );
    drop(shut);
    call.await.unwrap();
    read.await.unwrap();
    assert_eq!(paper.written(), before + 1);
}

#[tokio::test]
async fn a_request_that_changes_nothing_is_not_logged() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (_, key) = granted(&pipeline.handle, "a", "c1").await;
    let before = paper.written();
    let (session, mut answers) = pipeline.handle.session();
    session.submit(vec![
        (1, Request::Acquire(wish("a", "c2", None))),
        (2, Request::Release(grant("b", key))),
        (3, Request::Show(LockName::new("a").unwrap())),
    ]);
    let answers = answers.recv().await.unwrap();
    assert!(matches!(answers[0], (1, Answer::Outcome(Outcome::Held(_)))));
    assert!(matches!(answers[1], (2, Answer::Outcome(Outcome::NotHeld))));
    assert!(matches!(answers[2], (3, Answer::Lock(_))));
    assert_eq!(paper.written(), before);
}

#[tokio::test]
async fn the_log_is_told_when_the_pipeline_is_idle() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    for _ in 0..2 {
        granted(&pipeline.handle, "a", "c1").await;
        let before = paper.rests.load(Ordering::SeqCst);
        while paper.rests.load(Ordering::SeqCst) == before {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn the_log_replays_to_the_same_state() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (_, key) = granted(&pipeline.handle, "a", "c1").await;
    granted(&pipeline.handle, "b", "c2").await;
    let waiting = tokio::spawn({
        let handle = pipeline.handle.clone();
        async move { acquire(&handle, wish("a", "c3", Some(60_000))).await }
    });
    while waiters(&pipeline.handle).await == 0 {}
    release(&pipeline.handle, "a", key).await;
    assert!(
        matches!(waiting.await.unwrap(), Outcome::Granted(granted) if granted.token.get() == 3)
    );
    pipeline
        .handle
        .call(Request::Advance(Span::from_millis(10_000)))
        .await;
    granted(&pipeline.handle, "b", "c4").await;

    let machine = paper.replay();
    assert_eq!(machine.next_token().map(Token::get), Some(5));
    assert_eq!(
        machine.holder("b", machine.now()).unwrap().client.as_str(),
        "c4"
    );
    assert_eq!(
        machine.holder("a", machine.now()),
        None,
        "a's lease was over when b's was"
    );
}

#[tokio::test]
async fn a_restart_gives_every_lease_its_full_time_and_never_repeats_a_token() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (first, key) = granted(&pipeline.handle, "a", "c1").await;
    pipeline
        .handle
        .call(Request::Advance(Span::from_millis(9_999)))
        .await;
    // Something that is logged, so that the clock resumes here.
    granted(&pipeline.handle, "b", "c1").await;
    pipeline.handle.stop();
    pipeline.thread.join().unwrap();

    let pipeline = begin(&paper, paper.replay(), Some(Returning::Restarted));
    pipeline
        .handle
        .call(Request::Advance(Span::from_millis(9_999)))
        .await;
    let Answer::Outcome(Outcome::Renewed(renewed)) = pipeline
        .handle
        .call(Request::Renew {
            grant: grant("a", key),
            ttl: None,
        })
        .await
    else {
        panic!("the lease did not get its full time");
    };
    assert_eq!(renewed.token, first);
    assert_eq!(granted(&pipeline.handle, "c", "c1").await.0.get(), 3);

    // The control: without the grace the same lease is over by then.
    let bare = begin(&Paper::default(), paper_without_grace(&paper), None);
    bare.handle
        .call(Request::Advance(Span::from_millis(9_999)))
        .await;
    let renew = bare
        .handle
        .call(Request::Renew {
            grant: grant("a", key),
            ttl: None,
        })
        .await;
    let expired = Outcome::Ended {
        token: first,
        how: Ending::Expired,
    };
    assert!(matches!(renew, Answer::Outcome(outcome) if outcome == expired));
}

fn paper_without_grace(paper: &Paper) -> Machine {
    let mut replay = Replay::from_nothing(7);
    // The batches of the first life: a and b.
    for batch in paper.batches.lock().unwrap().iter().take(2) {
        replay.batch(batch).unwrap();
    }
    replay.finish()
}

#[tokio::test]
async fn a_caller_that_leaves_leaves_the_queue() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (_, key) = granted(&pipeline.handle, "a", "c1").await;
    let handle = pipeline.handle.clone();
    let waiting =
        tokio::spawn(async move { acquire(&handle, wish("a", "c2", Some(60_000))).await });
    while waiters(&pipeline.handle).await == 0 {}
    waiting.abort();
    while waiters(&pipeline.handle).await == 1 {}
    release(&pipeline.handle, "a", key).await;
    let Answer::Lock(view) = pipeline
        .handle
        .call(Request::Show(LockName::new("a").unwrap()))
        .await
    else {
        panic!("no view");
    };
    assert_eq!(view.holder, None, "a dead waiter was granted");
}

#[tokio::test]
async fn a_request_asked_again_elsewhere_is_answered_there_and_survives_its_first_caller() {
    let pipeline = fresh(&Paper::default());
    let (_, key) = granted(&pipeline.handle, "a", "c1").await;
    let mut wish = wish("a", "c2", Some(60_000));
    wish.request = Some(RequestId::from_bytes([5; 16]));
    let call = || {
        let (handle, wish) = (pipeline.handle.clone(), wish.clone());
        tokio::spawn(async move { handle.call(Request::Acquire(wish)).await })
    };
    let first = call();
    while waiters(&pipeline.handle).await == 0 {}
    let (session, mut answers) = pipeline.handle.session();
    session.submit(vec![(7, Request::Acquire(wish.clone()))]);
    assert!(matches!(
        first.await.unwrap(),
        Answer::Failed(Failure::UnknownOutcome(_))
    ));

    // A third caller joins and dies. Of the others, the session asked last, so it got the answer.
    let third = call();
    assert!(matches!(
        answers.recv().await.unwrap()[..],
        [(7, Answer::Failed(_))]
    ));
    session.submit(vec![(8, Request::Acquire(wish.clone()))]);
    third.await.unwrap();
    assert_eq!(
        waiters(&pipeline.handle).await,
        1,
        "the one that asked last still waits"
    );
    release(&pipeline.handle, "a", key).await;
    let [(8, Answer::Outcome(Outcome::Granted(_)))] = answers.recv().await.unwrap()[..] else {
        panic!("the session was not granted");
    };
}

#[tokio::test]
async fn a_session_that_hangs_up_leaves_its_queues_but_keeps_its_grants() {
    let pipeline = fresh(&Paper::default());
    granted(&pipeline.handle, "a", "c1").await;
    let (session, mut answers) = pipeline.handle.session();
    session.submit(vec![
        (1, Request::Acquire(wish("a", "c2", Some(60_000)))),
        (2, Request::Acquire(wish("b", "c2", None))),
    ]);
    assert_eq!(
        answers.recv().await.unwrap().len(),
        1,
        "only the grant is answered yet"
    );
    assert_eq!(waiters(&pipeline.handle).await, 1);
    drop(session);
    while waiters(&pipeline.handle).await == 1 {}
    assert!(matches!(
        acquire(&pipeline.handle, wish("b", "c3", None)).await,
        Outcome::Held(_)
    ));
}

#[tokio::test]
async fn a_grant_that_its_caller_cannot_ask_for_again_is_released() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    for named in [false, true] {
        let lock = format!("lock-{named}");
        let mut wish = wish(&lock, "c1", None);
        wish.request = named.then(|| RequestId::from_bytes([9; 16]));
        let begun = paper.begun.load(Ordering::SeqCst);
        let shut = paper.gate.lock().unwrap();
        let handle = pipeline.handle.clone();
        let call = tokio::spawn(async move { acquire(&handle, wish).await });
        while paper.begun.load(Ordering::SeqCst) == begun {
            tokio::task::yield_now().await;
        }
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        drop(shut);
        let again = acquire(&pipeline.handle, self::wish(&lock, "c2", None)).await;
        assert_eq!(
            matches!(again, Outcome::Held(_)),
            named,
            "named {named}: {again:?}"
        );
    }
}

#[tokio::test]
async fn a_full_disk_refuses_changes_answers_questions_and_heals() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (_, key) = granted(&pipeline.handle, "a", "c1").await;
    paper.full.store(true, Ordering::SeqCst);
    let refused = pipeline
        .handle
        .call(Request::Acquire(wish("b", "c2", None)))
        .await;
    assert!(matches!(refused, Answer::Failed(Failure::Unavailable(_))));
    pipeline
        .handle
        .call(Request::Advance(Span::from_millis(60_000)))
        .await;
    let status = pipeline.handle.call(Request::Status).await;
    assert!(matches!(status, Answer::Status(status) if status.locks == 1));

    paper.full.store(false, Ordering::SeqCst);
    let Answer::Outcome(Outcome::Renewed(renewed)) = pipeline
        .handle
        .call(Request::Renew {
            grant: grant("a", key),
            ttl: None,
        })
        .await
    else {
        panic!("a lease that could not be renewed while the disk was full was lost");
    };
    assert_eq!(renewed.valid_for.as_millis(), 10_000);
    assert_eq!(granted(&pipeline.handle, "b", "c2").await.0.get(), 2);
}

#[tokio::test]
async fn a_failed_log_acknowledges_nothing_more_and_says_why() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    granted(&pipeline.handle, "a", "c1").await;
    let waiting = tokio::spawn({
        let handle = pipeline.handle.clone();
        async move {
            handle
                .call(Request::Acquire(wish("a", "c2", Some(60_000))))
                .await
        }
    });
    while waiters(&pipeline.handle).await == 0 {}
    paper.fail_at.store(paper.written() + 1, Ordering::SeqCst);
    let answer = pipeline
        .handle
        .call(Request::Acquire(wish("b", "c1", None)))
        .await;
    assert!(matches!(answer, Answer::Failed(Failure::UnknownOutcome(_))));
    assert!(matches!(
        waiting.await.unwrap(),
        Answer::Failed(Failure::UnknownOutcome(_))
    ));
    assert_eq!(
        stopped(&pipeline.handle).await,
        Stopped::LogFailed("paper jam".into())
    );
    let later = pipeline.handle.call(Request::Status).await;
    assert!(matches!(later, Answer::Failed(_)));
    assert_eq!(
        paper.replay().next_token().map(Token::get),
        Some(2),
        "b was never granted"
    );
}

#[tokio::test]
async fn answers_without_an_entry_leave_only_when_the_leadership_is_confirmed() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let confirms = || paper.confirms.load(Ordering::SeqCst);
    granted(&pipeline.handle, "a", "c1").await;
    assert_eq!(confirms(), 0, "a commit says it by itself");

    let shut = paper.gate.lock().unwrap();
    let read = tokio::spawn({
        let handle = pipeline.handle.clone();
        async move { handle.call(Request::Status).await }
    });
    while confirms() == 0 {
        assert!(!read.is_finished(), "it left before that");
        tokio::task::yield_now().await;
    }
    assert!(!read.is_finished(), "it left before the answer");
    drop(shut);
    assert!(matches!(read.await.unwrap(), Answer::Status(_)));
    assert_eq!(confirms(), 1);

    paper.deposed.store(true, Ordering::SeqCst);
    let read = pipeline.handle.call(Request::Status).await;
    assert!(matches!(read, Answer::Failed(Failure::UnknownOutcome(_))));
    assert_eq!(stopped(&pipeline.handle).await, Stopped::Deposed);
}

#[tokio::test]
async fn a_deposed_node_says_what_may_have_happened_and_what_has_not() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let (session, mut answers) = pipeline.handle.session();
    paper.deposed.store(true, Ordering::SeqCst);
    // Moving the clock ends the batch, and takes several; the requests after that are not carried out.
    session.submit(vec![
        (1, Request::Acquire(wish("a", "c1", None))),
        (2, Request::Advance(Span::from_millis(1))),
        (3, Request::Acquire(wish("b", "c1", None))),
    ]);
    assert_eq!(stopped(&pipeline.handle).await, Stopped::Deposed);
    let mut received = std::collections::BTreeMap::new();
    while let Ok(more) = answers.try_recv() {
        received.extend(more);
    }
    for begun in [1, 2] {
        let answer = &received[&begun];
        assert!(
            matches!(answer, Answer::Failed(Failure::UnknownOutcome(_))),
            "{begun}: {answer:?}"
        );
    }
    assert!(matches!(
        received[&3],
        Answer::Failed(Failure::NotLeader { .. })
    ));
}

#[tokio::test]
async fn events_come_in_order_and_only_when_durable() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let mut events = pipeline.handle.events();
    let (_, key) = granted(&pipeline.handle, "a", "c1").await;
    release(&pipeline.handle, "a", key).await;
    let mut revisions = Vec::new();
    while revisions.len() < 2 {
        revisions.extend(
            events
                .recv()
                .await
                .unwrap()
                .iter()
                .map(|event| event.revision),
        );
    }
    assert_eq!(revisions, [1, 2]);
}

async fn holder(handle: &Handle, lock: &str) -> Option<palisade_core::Holder> {
    let shown = handle.call(Request::Show(LockName::new(lock).unwrap()));
    match shown.await {
        Answer::Lock(view) => view.holder,
        other => panic!("{other:?}"),
    }
}

fn milliseconds(clock: ClockId) -> u128 {
    let now = Duration::try_from(clock_gettime(clock)).unwrap();
    now.as_millis()
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long nobody was there is what these tests are about"
)]
fn stand_still(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms)); // real time: absence is measured by the kernel's clocks
}

/// Occupies the ordering thread for this long, by working or by doing nothing. Returns how long the thread was
/// there without working.
async fn keep(handle: &Handle, ms: u128, work: bool) -> u128 {
    let kept = handle.near(async move {
        let (began, used) = (
            milliseconds(ClockId::Boottime),
            milliseconds(ClockId::ThreadCPUTime),
        );
        if work {
            while milliseconds(ClockId::ThreadCPUTime) < used + ms {}
        } else {
            stand_still(ms as u64);
        }
        let worked = milliseconds(ClockId::ThreadCPUTime) - used;
        (milliseconds(ClockId::Boottime) - began).saturating_sub(worked)
    });
    kept.await.unwrap()
}

#[tokio::test]
async fn work_on_the_ordering_thread_keeps_no_dead_lease_alive_and_absence_gives_it_its_time() {
    let pipeline = running(&Paper::default());
    let handle = &pipeline.handle;
    let graces = || handle.stats().graces.get();
    for round in 0..3 {
        let mut wish = wish(&format!("dead-{round}"), "c", None);
        wish.under = Under::new(Ttl::from_millis(1_000).unwrap());
        let lock = wish.lock.clone();
        assert!(matches!(acquire(handle, wish).await, Outcome::Granted(_)));
        let before = graces();
        let mut away = 0;
        for _ in 0..2 {
            away += keep(handle, 700, true).await;
            handle.call(Request::Status).await;
        }
        if graces() == before {
            assert_eq!(holder(handle, &lock).await, None, "it outlived its time");
        } else {
            // A busy machine may have taken the processor away, and that is absence.
            assert!(away > 200, "work was taken for absence: {away} ms");
        }
    }
    // The control: the thread was occupied as long, and did not work.
    let before = graces();
    keep(handle, 700, false).await;
    handle.call(Request::Status).await;
    assert!(graces() > before);
}

#[tokio::test]
async fn a_pause_that_a_short_lease_does_not_bear_gives_it_its_full_time_and_no_other_lease() {
    let paper = Paper::default();
    let pipeline = running(&paper);
    let (session, mut answers) = pipeline.handle.session();
    let acquire = |lock: &str, ttl_ms| {
        let mut wish = wish(lock, "c", None);
        wish.under = Under::new(Ttl::from_millis(ttl_ms).unwrap());
        Request::Acquire(wish)
    };
    let shut = paper.gate.lock().unwrap();
    let before = paper.begun.load(Ordering::SeqCst);
    session.submit(vec![
        (1, acquire("short", 200)),
        (2, acquire("long", 20_000)),
    ]);
    while paper.begun.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    let show = |lock| Request::Show(LockName::new(lock).unwrap());
    session.submit(vec![(3, show("short")), (4, show("long"))]);
    // The disk stalls: longer than the short lease lasts, and shorter than all leases are given their time for.
    stand_still(400);
    drop(shut);
    let mut left = std::collections::BTreeMap::new();
    while left.len() < 2 {
        for (id, answer) in answers.recv().await.unwrap() {
            if let Answer::Lock(view) = answer {
                left.insert(id, view.holder.map(|holder| holder.remaining.as_millis()));
            }
        }
    }
    assert_eq!(left[&3], Some(200), "it ended while the server was away");
    assert!(left[&4].unwrap() <= 19_600, "it bore the pause: {left:?}");
}

#[tokio::test]
async fn a_running_clock_is_not_advanced() {
    let pipeline = running(&Paper::default());
    let answer = pipeline
        .handle
        .call(Request::Advance(Span::from_millis(1)))
        .await;
    assert!(matches!(answer, Answer::Failed(Failure::Refused(_))));
}
