//! The pipeline as seen from outside: counters, and events for those who watch.

use palisade_pipeline::{Counter, Stats};

use super::*;

#[tokio::test]
async fn the_counters_say_what_happened() {
    let paper = Paper::default();
    let pipeline = start(PipelineStart {
        identity: Identity {
            authority: AuthorityId::new("test").unwrap(),
            incarnation: "1".into(),
        },
        machine: Machine::new(1),
        log: Box::new(paper.clone()),
        manual_clock: true,
        limits: Limits {
            waiters_per_lock: 1,
            ..Limits::DEFAULT
        },
        returning: None,
    })
    .unwrap();
    let handle = &pipeline.handle;
    let advance = |ms| handle.call(Request::Advance(Span::from_millis(ms)));
    let (_, key) = granted(handle, "expires", "c1").await;
    advance(5_000).await;
    let renew = |key| Request::Renew {
        grant: grant("expires", key),
        ttl: None,
    };
    handle.call(renew(key)).await;
    advance(10_000).await;

    let (_, key) = granted(handle, "released", "c1").await;
    release(handle, "released", key).await;
    let (token, _) = granted(handle, "revoked", "c1").await;
    handle
        .call(Request::Revoke {
            lock: LockName::new("revoked").unwrap(),
            token,
            reason: "".into(),
        })
        .await;
    granted(handle, "kept", "c1").await;
    granted(handle, "kept", "c1").await;
    acquire(handle, wish("kept", "c2", None)).await;
    let mut long = wish("other", "c1", None);
    long.metadata = Some("m".repeat(1_000).into());
    acquire(handle, long).await;
    let (session, mut answers) = handle.session();
    session.submit(vec![
        (1, Request::Acquire(wish("kept", "c2", Some(60_000)))),
        (2, Request::Acquire(wish("kept", "c3", Some(60_000)))),
    ]);
    assert_eq!(answers.recv().await.unwrap().len(), 1);
    paper.full.store(true, Ordering::SeqCst);
    handle.call(Request::Status).await;

    let stats = handle.stats();
    let written = paper.batches.lock().unwrap().clone();
    let bytes: usize = written.iter().map(Vec::len).sum();
    type Of = fn(&Stats) -> &Counter;
    let cases: [(&str, Of, usize); 19] = [
        ("granted", |stats| &stats.granted, 5),
        ("held", |stats| &stats.held, 1),
        ("renewed", |stats| &stats.renewed, 1),
        ("near", |stats| &stats.renewed_near_deadline, 0),
        ("released", |stats| &stats.released, 1),
        ("expired", |stats| &stats.expired, 1),
        ("revoked", |stats| &stats.revoked, 1),
        ("superseded", |stats| &stats.superseded, 1),
        ("invalid", |stats| &stats.invalid, 1),
        ("queue_full", |stats| &stats.queue_full, 1),
        ("operations", |stats| &stats.operations, 15),
        ("batches", |stats| &stats.batches, written.len()),
        ("log_bytes", |stats| &stats.log_bytes, bytes),
        ("graces", |stats| &stats.graces, 0),
        ("locks", |stats| &stats.locks, 1),
        ("leases", |stats| &stats.leases, 1),
        ("waiters", |stats| &stats.waiters, 1),
        ("next_token", |stats| &stats.next_token, 6),
        ("log_full", |stats| &stats.log_full, 1),
    ];
    for (name, counter, expected) in cases {
        assert_eq!(counter(stats).get(), expected as u64, "{name}");
    }
    paper.full.store(false, Ordering::SeqCst);
    handle.call(Request::Status).await;
    assert_eq!((stats.log_full.get(), stats.graces.get()), (0, 1));
}

#[tokio::test]
async fn a_change_is_there_for_every_watcher_before_its_caller_has_the_answer() {
    let paper = Paper::default();
    let pipeline = fresh(&paper);
    let handle = &pipeline.handle;
    // Nobody watches yet, and the event is kept.
    let (_, key) = granted(handle, "a", "c1").await;
    let (mut news, mut events) = (handle.news(), handle.events());
    let mut see = |revision| {
        assert!(news.has_changed().unwrap());
        assert_eq!(*news.borrow_and_update(), revision);
        assert_eq!(events.try_recv().unwrap()[0].revision, revision);
        assert_eq!(handle.revision(), revision);
    };
    release(handle, "a", key).await;
    see(2);
    granted(handle, "a", "c1").await;
    see(3);
    let since = handle.since(1);
    let revisions = since.batches.iter().flat_map(|batch| batch.iter());
    let revisions: Vec<_> = revisions.map(|event| event.revision).collect();
    assert_eq!((revisions, since.latest), (vec![2, 3], handle.revision()));
    // A question changes nothing.
    handle.call(Request::Status).await;
    assert!(!news.has_changed().unwrap());
}
