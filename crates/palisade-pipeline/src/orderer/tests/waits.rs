//! Requests that wait: how they end, how they keep their places, and which requests are let in behind them.

use super::*;

#[test]
fn at_an_orderly_stop_waiting_requests_are_answered_that_nothing_happened() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.acquire(of_session(7, 2), "a", Some(60_000));
    bench.commit();
    let answers = numbered(bench.orderer.stopped());
    assert!(matches!(
        answers[..],
        [(2, Answer::Failed(Failure::Unavailable(_)))]
    ));
}

#[test]
fn a_hang_up_takes_the_sessions_requests_out_of_their_queues_the_last_one_first() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    for (session, number) in [(7, 5), (8, 3), (7, 4), (7, 2)] {
        bench.acquire(of_session(session, number), "a", Some(60_000));
    }
    bench.commit();
    bench.begin();
    bench.orderer.hang_up(7);
    let withdrawn = [2, 4, 5].map(|number| Command::Withdraw(RequestId::from_bytes([number; 16])));
    assert_eq!(bench.commands(), withdrawn);
    let (answers, _) = bench.commit();
    assert!(answers.is_empty(), "no caller is left");
    assert_eq!(bench.recovered().waiters(), 1);
}

/// Found by the simulator: without the writer in front of it the reader joined the phase, and nobody was there to read.
#[test]
fn a_hang_up_grants_nothing_to_the_session_that_is_gone() {
    // A request that is asked again is asked last, and still arrived first.
    for again in [false, true] {
        let mut bench = Bench::new();
        bench.begin();
        bench.acquire_as(caller(1), "a", LockMode::Shared, None);
        bench.acquire(of_session(7, 2), "a", Some(60_000));
        bench.acquire_as(of_session(7, 3), "a", LockMode::Shared, Some(60_000));
        if again {
            bench.acquire(of_session(7, 2), "a", Some(60_000));
        }
        bench.commit();
        bench.begin();
        bench.orderer.hang_up(7);
        let (answers, events) = bench.commit();
        assert!(
            answers.is_empty() && events.is_empty(),
            "{again}: {events:?}"
        );
        let recovered = bench.recovered();
        assert_eq!((recovered.readers(), recovered.waiters()), (1, 0));
    }
}

#[test]
fn a_request_asked_again_elsewhere_outlives_its_first_caller() {
    let mut bench = Bench::new();
    let first = caller(2);
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.acquire(first.clone(), "a", Some(60_000));
    bench.acquire(of_session(7, 2), "a", Some(60_000));
    let (answers, _) = bench.commit();
    assert_eq!(unknown(&answers), [2], "where it was asked first");
    first.gone.set(true);
    bench.begin();
    bench
        .orderer
        .gone(NOBODY, RequestId::from_bytes([2; 16]), false);
    assert_eq!(bench.commands(), []);
    bench.orderer.hang_up(7);
    assert_eq!(bench.commands().len(), 1, "the last one to ask is gone");
    // The control: nobody asked again.
    bench.commit();
    let alone = caller(3);
    bench.begin();
    bench.acquire(alone.clone(), "a", Some(60_000));
    bench.commit();
    alone.gone.set(true);
    bench.begin();
    bench
        .orderer
        .gone(NOBODY, RequestId::from_bytes([3; 16]), false);
    assert_eq!(bench.commands().len(), 1);
}

/// The last request of a client decides, although the first caller's wait would last a minute and that caller may still
/// be there.
#[test]
fn a_request_asked_again_without_a_wait_waits_no_longer() {
    for no_wait in [None, Some(0)] {
        let mut bench = Bench::new();
        bench.begin();
        bench.acquire(caller(1), "a", None);
        bench.acquire(of_session(7, 2), "a", Some(60_000));
        bench.acquire(caller(3), "a", Some(60_000));
        bench.commit();
        bench.begin();
        bench.acquire(of_session(8, 2), "a", no_wait);
        // Another lock under the same id is refused and ends no wait.
        bench.acquire(caller(3), "b", no_wait);
        let (answers, events) = bench.commit();
        assert_eq!(unknown(&answers), [2], "where it was asked first");
        let denied = |answer: &Answer| matches!(answer, Answer::Outcome(Outcome::Held(holder)) if *holder.client == *"client-1");
        let told = |number| answers.iter().filter(move |(to, _)| *to == number);
        assert!(told(2).any(|(_, answer)| denied(answer)), "{answers:?}");
        let reused = |answer: &Answer| matches!(answer, Answer::Outcome(Outcome::Invalid(_)));
        assert!(told(3).any(|(_, answer)| reused(answer)), "{answers:?}");
        assert!(events.is_empty());
        assert_eq!(bench.recovered().waiters(), 1);
        // Nobody is left to hang up, and the answer stays the same.
        bench.begin();
        bench.orderer.hang_up(7);
        bench.orderer.hang_up(8);
        assert_eq!(bench.commands(), []);
        bench.acquire(caller(2), "a", Some(60_000));
        let (answers, _) = bench.commit();
        assert!(
            matches!(&answers[..], [(2, answer)] if denied(answer)),
            "{answers:?}"
        );
    }
}

/// It stood in front of a reader, which joins the others now.
#[test]
fn a_wait_that_is_ended_lets_those_behind_it_in() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire_as(caller(1), "a", LockMode::Shared, None);
    bench.acquire(caller(2), "a", Some(60_000));
    bench.acquire_as(caller(3), "a", LockMode::Shared, Some(60_000));
    bench.commit();
    bench.begin();
    bench.acquire(caller(2), "a", None);
    let (answers, _) = bench.commit();
    let granted = |(to, answer): &(u32, Answer)| {
        *to == 3 && matches!(answer, Answer::Outcome(Outcome::Granted(_)))
    };
    assert!(answers.iter().any(granted), "{answers:?}");
    let recovered = bench.recovered();
    assert_eq!((recovered.readers(), recovered.waiters()), (2, 0));
}

/// A request that another node forwarded keeps its place for its caller. The other arm is the control, in which the
/// place is lost.
#[test]
fn a_wait_that_another_node_sent_on_keeps_its_place() {
    for kept in [true, false] {
        let mut bench = Bench::new();
        let second = caller(2);
        bench.begin();
        bench.acquire(caller(1), "a", None);
        bench.acquire(second.clone(), "a", Some(60_000));
        bench.acquire(caller(3), "a", Some(60_000));
        let (answers, _) = bench.commit();
        second.gone.set(true);
        bench.begin();
        let id = RequestId::from_bytes([2; 16]);
        bench.orderer.gone(NOBODY, id, kept);
        let left = if kept {
            Command::Orphan(id)
        } else {
            Command::Withdraw(id)
        };
        assert_eq!(bench.commands(), [left]);
        bench.commit();
        // Its caller comes by another way, and then the lock is free.
        bench.begin();
        bench.acquire(caller(2), "a", Some(60_000));
        let held = grant_of(&answers, 1);
        bench.ask(caller(1), Request::Release(held));
        let (answers, _) = bench.commit();
        grant_of(&answers, if kept { 2 } else { 3 });
    }
}

/// Its place is reserved for it, and no other caller waits for its answer.
#[test]
fn an_orphan_that_comes_back_without_a_wait_has_its_turn() {
    let mut bench = Bench::new();
    bench.begin();
    bench.acquire(caller(1), "a", None);
    bench.acquire(caller(2), "a", Some(60_000));
    bench.acquire(caller(3), "a", Some(60_000));
    let (answers, _) = bench.commit();
    let held = grant_of(&answers, 1);
    let mut led = Bench::new();
    led.orderer = Orderer::new(bench.orderer.into_machine(), false);
    let at = led.orderer.now();
    led.orderer
        .open(at, WallTime::default(), vec![Command::Grace(Away::Led)]);
    led.ask(caller(1), Request::Release(held));
    led.acquire(caller(2), "a", None);
    let (answers, _) = led.commit();
    let granted = |(to, answer): &(u32, Answer)| {
        *to == 2 && matches!(answer, Answer::Outcome(Outcome::Granted(_)))
    };
    assert!(answers.iter().any(granted), "{answers:?}");
}
