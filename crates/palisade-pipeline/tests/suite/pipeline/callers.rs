//! Answers reach the right caller: callers that leave at any moment, sessions beside each other, and everybody at
//! the end.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use palisade_pipeline::Answers;

use super::*;

/// Submits a question, and does not look for its answer.
async fn hand_in(call: &mut (impl Future + Unpin)) {
    poll_fn(|context| {
        let _ = Pin::new(&mut *call).poll(context);
        Poll::Ready(())
    })
    .await;
}

fn show(lock: &str) -> Request {
    Request::Show(LockName::new(lock).unwrap())
}

async fn ids(answers: &mut Answers) -> Vec<u64> {
    let answers = answers.recv().await.unwrap();
    answers.into_iter().map(|(id, _)| id).collect()
}

#[tokio::test]
async fn sessions_get_their_own_answers_and_a_hang_up_ends_its_own_waits_only() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let handle = &pipeline.handle;
    let (_, key) = granted(handle, "a", "c1").await;
    let [(first, mut to_first), (second, mut to_second)] = [handle.session(), handle.session()];
    let before = paper.begun.load(Ordering::SeqCst);
    let shut = paper.gate.lock().unwrap();
    first.submit(vec![(0, Request::Acquire(wish("b", "c1", None)))]);
    while paper.begun.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    // All of these are in one batch.
    first.submit(vec![
        (1, Request::Acquire(wish("a", "c2", Some(60_000)))),
        (2, show("a")),
    ]);
    second.submit(vec![
        (3, Request::Acquire(wish("a", "c3", Some(60_000)))),
        (4, show("a")),
    ]);
    first.submit(vec![(5, show("a"))]);
    drop(shut);
    for expected in [0, 2, 5] {
        assert_eq!(ids(&mut to_first).await, [expected]);
    }
    assert_eq!(ids(&mut to_second).await, [4]);
    assert_eq!(paper.written(), before + 2);

    drop(first);
    while waiters(handle).await == 2 {}
    assert_eq!(waiters(handle).await, 1);
    release(handle, "a", key).await;
    assert_eq!(ids(&mut to_second).await, [3]);
    assert_eq!(holder(handle, "a").await.unwrap().client.as_str(), "c3");
}

#[tokio::test]
async fn a_caller_that_left_does_not_take_the_request_with_it_that_was_asked_again_elsewhere() {
    let pipeline = fresh(&Paper::default());
    let handle = &pipeline.handle;
    granted(handle, "a", "c1").await;
    let mut wish = wish("a", "c2", Some(60_000));
    wish.request = Some(RequestId::from_bytes([5; 16]));
    for elsewhere_is_a_session in [true, false] {
        let mut left = Box::pin(handle.call(Request::Acquire(wish.clone())));
        hand_in(&mut left).await;
        while waiters(handle).await == 0 {}
        let (session, _answers) = handle.session();
        let mut call = Box::pin(handle.call(Request::Acquire(wish.clone())));
        if elsewhere_is_a_session {
            session.submit(vec![(1, Request::Acquire(wish.clone()))])
        } else {
            hand_in(&mut call).await
        }
        // The first caller's answer was sent, and it leaves before it reads that.
        waiters(handle).await;
        drop(left);
        assert_eq!(waiters(handle).await, 1);
        drop((call, session));
        while waiters(handle).await == 1 {}
    }
}

/// Its answer was delivered and not read, unlike that of a grant whose caller is gone already when the answer
/// leaves.
#[tokio::test]
async fn a_grant_that_its_caller_never_read_is_released_unless_it_can_be_asked_for_again() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let handle = &pipeline.handle;
    for named in [false, true] {
        let lock = format!("lock-{named}");
        let mut wish = wish(&lock, "c1", None);
        wish.request = named.then(|| RequestId::from_bytes([9; 16]));
        let mut call = Box::pin(handle.call(Request::Acquire(wish)));
        let shut = paper.gate.lock().unwrap();
        hand_in(&mut call).await;
        drop(shut);
        // Answers leave in order, so that one was sent before this one.
        handle.call(Request::Status).await;
        drop(call);
        let again = acquire(handle, self::wish(&lock, "c2", None)).await;
        assert_eq!(matches!(again, Outcome::Held(_)), named, "{again:?}");
    }
}

#[tokio::test]
async fn waiting_requests_without_an_id_are_told_apart() {
    let pipeline = fresh(&Paper::default());
    let handle = &pipeline.handle;
    let (_, key) = granted(handle, "a", "c1").await;
    let (session, mut answers) = handle.session();
    session.submit(vec![
        (1, Request::Acquire(wish("a", "c2", Some(60_000)))),
        (2, Request::Acquire(wish("a", "c3", Some(60_000)))),
    ]);
    while waiters(handle).await < 2 {}
    release(handle, "a", key).await;
    assert_eq!(ids(&mut answers).await, [1]);
    session.hang_up();
    while waiters(handle).await == 1 {}
}

fn nothing_happened(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(Failure::Unavailable(_)))
}

#[tokio::test]
async fn after_the_stop_every_caller_is_told_that_nothing_happened() {
    let pipeline = fresh(&Paper::default());
    let handle = pipeline.handle.clone();
    let (session, mut answers) = handle.session();
    handle.stop();
    pipeline.thread.join().unwrap();
    assert_eq!(stopped(&handle).await, Stopped::Asked);
    assert!(nothing_happened(&handle.call(Request::Status).await));
    session.submit(vec![(1, Request::Status), (2, show("a"))]);
    let answers = answers.recv().await.unwrap();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|(_, answer)| nothing_happened(answer)));
}

#[tokio::test]
async fn what_arrived_behind_the_batch_that_failed_did_not_happen() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let handle = &pipeline.handle;
    let before = paper.begun.load(Ordering::SeqCst);
    paper.fail_at.store(before + 1, Ordering::SeqCst);
    let shut = paper.gate.lock().unwrap();
    let (session, mut answers) = handle.session();
    session.submit(vec![(1, Request::Acquire(wish("a", "c1", None)))]);
    while paper.begun.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    session.submit(vec![(2, Request::Acquire(wish("b", "c1", None)))]);
    let mut call = Box::pin(handle.call(Request::Acquire(wish("c", "c1", None))));
    hand_in(&mut call).await;
    drop(shut);
    let failed = answers.recv().await.unwrap();
    let unknown = Failure::UnknownOutcome("the authority stopped before it answered".into());
    assert!(matches!(&failed[..], [(1, Answer::Failed(failed))] if *failed == unknown));
    assert!(nothing_happened(&answers.recv().await.unwrap()[0].1));
    assert!(nothing_happened(&call.await));
}

#[tokio::test]
async fn a_full_log_says_why_it_refuses() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    paper.full.store(true, Ordering::SeqCst);
    let refused = pipeline
        .handle
        .call(Request::Acquire(wish("b", "c2", None)))
        .await;
    let why = "the disk has no room for the log; nothing happened";
    assert!(
        matches!(&refused, Answer::Failed(Failure::Unavailable(said)) if said == why),
        "{refused:?}"
    );
    assert_eq!(LogError::Deposed.to_string(), "another node leads");
    assert_eq!(
        LogError::Failed("paper jam".into()).to_string(),
        "paper jam"
    );
}
