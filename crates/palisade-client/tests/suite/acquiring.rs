//! Requests for a lock on virtual time, against a scripted authority: the calls and the retries, and that a request
//! leaves no lock behind, however it is given up.

use std::time::Duration;

use crate::support::scripted::{Answer, granted, usable};
use crate::support::{Call, ScriptedLockService, scripted_client, settle};
use palisade_client::clock::Clock as _;
use palisade_client::service::{AcquireRequest, Acquired};
use palisade_client::{Attempt, Code, Error, Fault, Released, secs};
use palisade_core::{ClientId, Holder, Span, Timestamp, Token};

const TTL: Duration = secs(10);
const TTL_MS: u64 = 10_000;

async fn acquire_call(
    service: &ScriptedLockService,
) -> (Timestamp, AcquireRequest, Answer<Acquired>) {
    match service.call().await {
        Call::Acquire {
            at,
            request,
            answer,
        } => (at, request, answer),
        _ => panic!("an acquire"),
    }
}

fn holder() -> Holder {
    Holder {
        client: ClientId::new("b").unwrap(),
        token: Token::new(33).unwrap(),
        remaining: Span::from_millis(4_210),
    }
}

#[tokio::test]
async fn a_denial_is_an_error_for_acquire_none_for_try_and_a_value_for_attempt() {
    let (client, service, _clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").acquire());
    let (_, request, answer) = acquire_call(&service).await;
    assert_eq!(
        request.wait,
        Some(Span::from(palisade_client::DEFAULT_WAIT))
    );
    answer.send(Ok(Acquired::Held(holder()))).unwrap();
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(
        (error.code(), error.holder()),
        (Code::Held, Some(&holder()))
    );
    assert_eq!(
        error.to_string(),
        "orders is held by b with token 33, for 4.2 s more unless renewed"
    );

    let tried = tokio::spawn(client.lock("orders").try_acquire());
    let (_, request, answer) = acquire_call(&service).await;
    assert_eq!(request.wait, None);
    answer.send(Ok(Acquired::Held(holder()))).unwrap();
    assert!(tried.await.unwrap().unwrap().is_none());

    let attempt = tokio::spawn(client.lock("orders").attempt());
    let (_, _, answer) = acquire_call(&service).await;
    answer
        .send(Ok(Acquired::QueueFull("64 wait".into())))
        .unwrap();
    assert!(
        matches!(attempt.await.unwrap().unwrap(), Attempt::QueueFull(text) if &*text == "64 wait")
    );
    assert!(
        service.calls().await.is_empty(),
        "a known denial leaves nothing to abandon"
    );
}

#[tokio::test]
async fn each_request_is_a_separate_client_unless_named() {
    let (client, service, _clock) = scripted_client();
    let mut ids = Vec::new();
    for named in [None, None, Some("worker-7"), Some("worker-7")] {
        let mut wish = client.lock("orders");
        if let Some(id) = named {
            wish = wish.client_id(id);
        }
        let task = tokio::spawn(wish.attempt());
        let (_, request, answer) = acquire_call(&service).await;
        answer.send(Ok(Acquired::Held(holder()))).unwrap();
        assert!(matches!(task.await.unwrap(), Ok(Attempt::Held(_))));
        ids.push((request.client, request.request));
    }
    assert_ne!(ids[0].0, ids[1].0);
    assert_eq!((&*ids[2].0, &*ids[3].0), ("worker-7", "worker-7"));
    assert_ne!(ids[2].1, ids[3].1, "every request has its own request id");
}

#[tokio::test]
async fn input_out_of_range_is_refused_before_anything_is_sent() {
    let (client, service, _clock) = scripted_client();
    for (wish, says) in [
        (client.lock(""), "lock name is empty"),
        (client.lock("café"), "not printable ASCII"),
        (
            client.lock("x").ttl(Duration::from_millis(99)),
            "100 ms ..= 86400000 ms",
        ),
        (
            client.lock("x").ttl(Duration::ZERO),
            "100 ms ..= 86400000 ms",
        ),
        (client.lock("x").wait(secs(90_000)), "0 ..= 86400000 ms"),
        (
            client.lock("x").client_id("a".repeat(256)),
            "client id has 256 bytes",
        ),
    ] {
        let error = wish.acquire().await.unwrap_err();
        assert_eq!(error.code(), Code::Invalid);
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn an_unknown_outcome_is_repeated_with_the_same_id_and_counts_from_the_answered_attempt() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).wait(secs(30)).acquire());
    let (first_at, first, answer) = acquire_call(&service).await;
    clock.advance(secs(4)).await;
    answer.send(Err(Fault::unknown_outcome("cut"))).unwrap();
    clock.advance(Duration::from_millis(10)).await;
    let (second_at, second, answer) = acquire_call(&service).await;
    assert_eq!(
        (first.request, &first.client),
        (second.request, &second.client)
    );
    let left = Span::from(secs(30) - second_at.since(first_at).to_duration());
    assert_eq!(
        second.wait,
        Some(left),
        "the caller's deadline stays the same"
    );
    clock.advance(secs(1)).await;
    // The grant has ten seconds left, counted from this attempt.
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    assert_eq!(
        clock.now().after(Span::from(lease.remaining())),
        second_at.after(Span::from(usable(TTL)))
    );
    // Control arm: counting from the first attempt would give another instant.
    assert_ne!(second_at, first_at);
}

/// The repeat takes the place of the first attempt in the queue, and the authority counts its wait from the repeat.
#[tokio::test]
async fn a_repeat_that_waits_longer_than_its_lease_lasts_is_of_use() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).wait(secs(60)).acquire());
    let (_, _, answer) = acquire_call(&service).await;
    clock.advance(secs(8)).await;
    answer.send(Err(Fault::unknown_outcome("cut"))).unwrap();
    clock.advance(Duration::from_millis(10)).await;
    let (second_at, _, answer) = acquire_call(&service).await;
    clock.advance(TTL * 2).await;
    // The lock is granted now.
    let waited_ms = clock.now().since(second_at).as_millis();
    answer
        .send(Ok(granted(7, TTL_MS, waited_ms + TTL_MS, waited_ms)))
        .unwrap();
    let lease = acquire.await.unwrap().unwrap();
    lease.check().unwrap();
    let deadline = clock.now().after(Span::from(lease.remaining()));
    assert!(deadline < clock.now().after(Span::from(TTL)));
}

#[tokio::test]
async fn a_cancelled_acquire_is_abandoned_until_that_is_acknowledged() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).wait(secs(5)).acquire());
    let (_, request, _answer) = acquire_call(&service).await;
    acquire.abort();
    for _ in 0..3 {
        let Call::Abandon {
            request: abandoned,
            answer,
            ..
        } = service.call().await
        else {
            panic!("an abandon")
        };
        assert_eq!(abandoned, request.request);
        answer.send(Err(Fault::unavailable("down"))).unwrap();
        clock.advance(Duration::from_millis(100)).await;
    }
    let Call::Abandon { answer, .. } = service.call().await else {
        panic!("an abandon")
    };
    answer.send(Ok(())).unwrap();
    clock.advance(TTL * 5).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn abandoning_ends_when_the_grant_has_surely_expired_by_itself() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).wait(secs(5)).acquire());
    let (sent, ..) = acquire_call(&service).await;
    acquire.abort();
    let mut last = sent;
    for _ in 0..400 {
        clock.advance(Duration::from_millis(100)).await;
        for call in service.calls().await {
            let Call::Abandon { at, answer, .. } = call else {
                panic!("an abandon")
            };
            last = at;
            answer.send(Err(Fault::unavailable("down"))).unwrap();
        }
    }
    let tried_for = last.since(sent).to_duration();
    assert!(
        tried_for >= secs(5) + TTL && tried_for <= secs(5) + TTL * 2,
        "{tried_for:?}"
    );
}

#[tokio::test]
async fn an_acquire_that_never_ran_or_never_arrived_leaves_nothing_to_abandon() {
    let (client, service, clock) = scripted_client();
    drop(client.lock("orders").acquire());
    let acquire = tokio::spawn(client.lock("orders").acquire());
    let (_, _, answer) = acquire_call(&service).await;
    answer.send(Err(Fault::unavailable("refused"))).unwrap();
    settle().await;
    acquire.abort();
    clock.advance(secs(60)).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn an_attempt_that_may_have_arrived_outweighs_a_later_one_that_did_not() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").wait(Duration::ZERO).acquire());
    let (_, first, answer) = acquire_call(&service).await;
    answer.send(Err(Fault::unknown_outcome("cut"))).unwrap();
    let mut abandoned = None;
    for _ in 0..70 {
        clock.advance(Duration::from_millis(100)).await;
        for call in service.calls().await {
            match call {
                Call::Acquire { answer, .. } => {
                    answer.send(Err(Fault::unavailable("refused"))).unwrap();
                }
                Call::Abandon {
                    request, answer, ..
                } => {
                    abandoned = Some(request);
                    answer.send(Ok(())).unwrap();
                }
                _ => panic!("an unexpected call"),
            }
        }
    }
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::UnknownOutcome);
    assert_eq!(abandoned, Some(first.request));
}

#[tokio::test]
async fn an_acquire_without_an_answer_ends_by_itself_and_is_abandoned() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").wait(secs(2)).acquire());
    let (_, _, _answer) = acquire_call(&service).await;
    clock.advance(secs(6)).await;
    assert!(
        !acquire.is_finished(),
        "the wait plus the client's patience"
    );
    clock.advance(secs(1)).await;
    assert_eq!(
        acquire.await.unwrap().unwrap_err().code(),
        Code::UnknownOutcome
    );
    assert!(matches!(service.call().await, Call::Abandon { .. }));
}

#[tokio::test]
async fn a_grant_that_comes_too_late_is_given_back_and_not_handed_out() {
    let (client, service, clock) = scripted_client();
    let try_it = client.lock("orders").ttl(TTL).wait(Duration::ZERO);
    let acquire = tokio::spawn(try_it.acquire());
    let (_, _, answer) = acquire_call(&service).await;
    clock.leap(usable(TTL));
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    assert!(matches!(acquire.await.unwrap(), Err(Error::Lost(lost)) if lost.token.get() == 7));
    let Call::Release { answer, .. } = service.call().await else {
        panic!("a release")
    };
    answer.send(Ok(Released::Released)).unwrap();
}

/// The machine slept while the request waited, and its grant was over when it woke.
#[tokio::test]
async fn a_wait_goes_on_after_a_grant_that_came_too_late() {
    use palisade_core::Ending;
    let over = |how| Ok(Acquired::Over(how));
    for too_late in [
        || Ok(granted(7, TTL_MS, TTL_MS, 0)),
        || Ok(Acquired::Over(Some(Ending::Expired))),
    ] {
        let (client, service, clock) = scripted_client();
        let wait = client.lock("orders").ttl(TTL).wait(secs(30));
        let acquire = tokio::spawn(wait.acquire());
        let (_, first, answer) = acquire_call(&service).await;
        clock.leap(secs(12));
        answer.send(too_late()).unwrap();
        let mut again = None;
        for call in service.calls().await {
            match call {
                Call::Acquire {
                    request, answer, ..
                } => again = Some((request, answer)),
                Call::Release { answer, .. } => answer.send(Ok(Released::Released)).unwrap(),
                _ => panic!("an unexpected call"),
            }
        }
        let (second, answer) = again.expect("it asks again");
        assert_ne!(first.request, second.request);
        let left = second.wait.unwrap();
        assert_eq!(left, Span::from_millis(18_000), "what is left of the wait");
        answer.send(Ok(granted(8, TTL_MS, TTL_MS, 0))).unwrap();
        assert_eq!(acquire.await.unwrap().unwrap().token().get(), 8);
    }
    // Control: a lock that another process with this client id has taken over is not taken back.
    let (client, service, _clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).wait(secs(30)).acquire());
    let (_, _, answer) = acquire_call(&service).await;
    answer.send(over(Some(Ending::Superseded))).unwrap();
    assert!(acquire.await.unwrap().is_err());
}

/// A server whose disk is full refuses each request at once.
#[tokio::test]
async fn what_is_refused_for_certain_is_not_asked_again_after_the_wait() {
    for (wait, ends) in [(secs(1), 1), (secs(4), 4), (Duration::ZERO, 5)] {
        let (client, service, clock) = scripted_client();
        let began = clock.now();
        let acquire = tokio::spawn(client.lock("orders").wait(wait).acquire());
        while !acquire.is_finished() {
            for call in service.calls().await {
                if let Call::Acquire { answer, .. } = call {
                    answer.send(Err(Fault::unavailable("no space"))).unwrap();
                }
            }
            clock.advance(Duration::from_millis(10)).await;
        }
        let took = clock.now().since(began);
        assert!(
            took <= Span::from_millis(ends * 1_000 + 20),
            "{wait:?}: {took:?}"
        );
        // Control: it was repeated until then, up to the longest pause.
        assert!(
            took >= Span::from_millis(ends * 1_000 - 600),
            "{wait:?}: {took:?}"
        );
    }
}

#[tokio::test]
async fn a_lost_lease_takes_no_further_locks() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).acquire());
    let (_, _, answer) = acquire_call(&service).await;
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    let second = tokio::spawn(client.lock("stock").under(&lease).acquire());
    let (_, request, answer) = acquire_call(&service).await;
    assert_eq!(&request.client, lease.client_id());
    answer.send(Ok(granted(8, TTL_MS, TTL_MS, 0))).unwrap();
    assert_eq!(second.await.unwrap().unwrap().token().get(), 8);
    clock.leap(TTL);
    let late = client.lock("stock").under(&lease).acquire().await;
    assert!(matches!(late, Err(Error::Lost(_))));
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_anything_is_sent() {
    let (client, service, _clock) = scripted_client();
    let nobody = client.locks([] as [&str; 0]).acquire().await.unwrap_err();
    assert!(nobody.to_string().contains("names 0 locks"), "{nobody}");
    let twice = client.locks(["a", "a"]).try_acquire().await.unwrap_err();
    assert!(twice.to_string().contains("twice"), "{twice}");
    for names in [vec![""], vec!["a", ""]] {
        let unnamed = client.locks(names).attempt().await.unwrap_err();
        assert!(unnamed.to_string().contains("empty"), "{unnamed}");
    }
    for (permits, of) in [(0, 4), (5, 4), (1, 0), (1, 65)] {
        let request = client.semaphore("gpu", of).permits(permits);
        let refused = request.acquire().await.unwrap_err();
        assert_eq!(refused.code(), Code::Invalid, "{refused}");
    }
    assert!(service.calls().await.is_empty());
    // Control: a set of one lock is a request for it.
    let acquire = tokio::spawn(client.locks(["orders"]).ttl(TTL).acquire());
    let (_, request, answer) = acquire_call(&service).await;
    assert_eq!((request.lock.as_str(), request.also.len()), ("orders", 0));
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    assert_eq!(acquire.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_request_under_a_lease_has_that_leases_terms_and_no_others() {
    let (client, service, _clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).acquire());
    let (_, _, answer) = acquire_call(&service).await;
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    let under = || client.lock("stock").under(&lease);
    for request in [under().ttl(TTL), under().client_id("another")] {
        let refused = request.acquire().await.unwrap_err();
        assert!(refused.to_string().contains("leave out"), "{refused}");
    }
    assert!(service.calls().await.is_empty());
}

#[test]
fn without_a_runtime_the_error_says_so() {
    let (client, _service, _clock) = scripted_client();
    let mut acquire = Box::pin(client.lock("orders").acquire());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match acquire.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Err(error)) => {
            assert!(error.to_string().contains("Tokio"), "{error}")
        }
        _ => panic!("an error at once"),
    }
}
