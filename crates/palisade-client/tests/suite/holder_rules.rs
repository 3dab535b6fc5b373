//! The holder's rules (docs/promise/rules.md), on virtual time against a scripted authority.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scripted::{Answer, granted, renewed, usable};
use crate::support::{Call, ScriptedLockService, VirtualClock, scripted_client, settle};
use palisade_client::clock::Clock as _;
use palisade_client::{Client, Error, Fault, Lease, Loss, Released, Renewal, secs};
use palisade_core::{Ending, Span, Timestamp, Token, WallTime};

const TTL: Duration = secs(10);
const TTL_MS: u64 = 10_000;

/// A lease with token 7, granted at once.
async fn lease(client: &Client, service: &ScriptedLockService) -> Lease {
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    acquire.await.unwrap().unwrap()
}

/// Lets time pass until a renewal is sent.
async fn renewal(
    service: &ScriptedLockService,
    clock: &VirtualClock,
) -> (Timestamp, Answer<Renewal>) {
    clock.advance(TTL.mul_f64(0.4)).await;
    match service.calls().await.into_iter().next() {
        Some(Call::Renew { at, answer, grant }) => {
            assert_eq!(
                grant.token,
                Some(Token::new(7).unwrap()),
                "the renewal names this very grant"
            );
            (at, answer)
        }
        _ => panic!("a renewal"),
    }
}

fn deadline(lease: &Lease, clock: &VirtualClock) -> Timestamp {
    clock.now().after(Span::from(lease.remaining()))
}

/// The instant from which the authority may grant to others, for a request sent at `sent`.
fn freed(sent: Timestamp) -> Timestamp {
    sent.after(Span::from(TTL))
}

#[tokio::test]
async fn the_deadline_counts_from_before_the_request_was_sent() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).acquire());
    let Call::Acquire {
        at: sent, answer, ..
    } = service.call().await
    else {
        panic!("an acquire")
    };
    clock.advance(secs(3)).await;
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    assert!(deadline(&lease, &clock) < freed(sent));
    assert_eq!(lease.remaining(), usable(TTL) - secs(3));
    // Control arm: counted from the receipt, the same assertion fails.
    let from_receipt = clock.now().after(Span::from(usable(TTL)));
    assert!(from_receipt >= freed(sent));
}

#[tokio::test]
async fn a_guard_says_what_was_granted_and_keeps_the_secret_to_itself() {
    let (client, service, _clock) = scripted_client();
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).wait(TTL).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 300))).unwrap();
    let lease = acquire.await.unwrap().unwrap();
    assert_eq!(lease.token().get(), 7);
    assert_eq!(lease.lock().as_str(), "orders");
    assert_eq!(lease.authority().as_str(), "scripted");
    assert_eq!(u64::from(lease.ttl().as_millis()), TTL_MS);
    assert_eq!(lease.acquired_at(), Some(WallTime(1_800_000_000_000)));
    assert_eq!(lease.waited(), Duration::from_millis(300));
    let shown = format!("{lease:?}");
    let client = lease.client_id().to_string();
    for part in ["orders", "Token(7)", &client, "remaining", "lost: None"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(!shown.contains(&lease.lease_key().to_hex()), "{shown}");
    assert!(!shown.contains("LeaseKey"), "{shown}");
}

#[tokio::test]
async fn a_renewal_counts_from_before_it_was_sent_too() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let (sent, answer) = renewal(&service, &clock).await;
    clock.advance(secs(2)).await;
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    assert_eq!(
        deadline(&lease, &clock),
        sent.after(Span::from(usable(TTL)))
    );
    assert!(
        clock.now().after(Span::from(usable(TTL))) >= freed(sent),
        "control: from the receipt"
    );
}

#[tokio::test]
async fn it_renews_at_a_third_of_the_ttl() {
    let (client, service, clock) = scripted_client();
    let granted_at = clock.now();
    let lease = lease(&client, &service).await;
    let (sent, answer) = renewal(&service, &clock).await;
    let third = sent.since(granted_at).to_duration();
    assert!(third <= TTL / 3 && third > TTL.mul_f64(0.3), "{third:?}");
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    // The renewals continue for as long as the guard lives.
    for _ in 0..20 {
        let (_, answer) = renewal(&service, &clock).await;
        answer.send(Ok(renewed(7, TTL_MS))).unwrap();
        settle().await;
        lease.check().unwrap();
    }
}

#[tokio::test]
async fn an_older_acknowledgement_does_not_move_the_deadline_back() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let (_, first) = renewal(&service, &clock).await;
    let (sent, second) = renewal(&service, &clock).await;
    second.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    let after_second = deadline(&lease, &clock);
    assert_eq!(after_second, sent.after(Span::from(usable(TTL))));
    first.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    assert_eq!(deadline(&lease, &clock), after_second);
}

#[tokio::test]
async fn an_acknowledgement_after_the_deadline_does_not_revive() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let (sent, answer) = renewal(&service, &clock).await;
    // The process is stopped past its deadline; then the acknowledgement is read before any timer fires.
    clock.leap(usable(TTL) - clock.now().since(sent).to_duration());
    // Control arm: without the deadline, the renewal would still be good.
    assert!(sent.after(Span::from(usable(TTL))) <= clock.now().after(Span::from_millis(1)));
    answer.send(Ok(renewed(7, 86_400_000))).unwrap();
    settle().await;
    assert_eq!(lease.check().unwrap_err().why, Loss::Deadline);
    assert_eq!(lease.remaining(), Duration::ZERO);
}

/// Asks for the grant again, and answers.
async fn resumed(
    (lease, service): (Lease, &ScriptedLockService),
    answer: Result<Renewal, Fault>,
) -> (Lease, Result<(), Error>) {
    let asked = tokio::spawn(async move {
        let mut lease = lease;
        let result = lease.resume().await;
        (lease, result)
    });
    let Call::Renew {
        answer: reply,
        grant,
        ..
    } = service.call().await
    else {
        panic!("a renewal")
    };
    assert_eq!(grant.token, Token::new(7).ok(), "this very grant");
    reply.send(answer).unwrap();
    asked.await.unwrap()
}

/// A lease whose deadline has passed without an answer.
async fn past_its_deadline() -> (Client, Arc<ScriptedLockService>, Arc<VirtualClock>, Lease) {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    clock.leap(usable(TTL));
    assert_eq!(lease.check().unwrap_err().why, Loss::Deadline);
    (client, service, clock, lease)
}

#[tokio::test]
async fn a_grant_is_held_again_after_its_deadline_if_the_same_token_is_acknowledged() {
    let (_client, service, clock, lease) = past_its_deadline().await;
    let lost = lease.lost().await;
    // Without an answer nothing changes.
    let silence = Err(Fault::unavailable("nobody answers"));
    let (lease, result) = resumed((lease, &service), silence).await;
    assert!(matches!(result, Err(Error::Fault(_))), "{result:?}");
    assert_eq!(lease.check().unwrap_err(), lost);
    clock.leap(secs(60));
    let asked_at = clock.now();
    let (lease, result) = resumed((lease, &service), Ok(renewed(7, TTL_MS))).await;
    result.unwrap();
    lease.check().unwrap();
    assert_eq!(
        deadline(&lease, &clock),
        asked_at.after(Span::from(usable(TTL)))
    );
    // It is renewed as before, and lost as before.
    let (sent, answer) = renewal(&service, &clock).await;
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    assert_eq!(
        deadline(&lease, &clock),
        sent.after(Span::from(usable(TTL)))
    );
    clock.leap(usable(TTL));
    assert_eq!(lease.check().unwrap_err().why, Loss::Deadline);
}

#[tokio::test]
async fn any_other_answer_after_the_deadline_is_a_final_loss() {
    let highest = Token::new(9).unwrap();
    for (answer, why) in [
        (renewed(9, TTL_MS), Loss::Stale { highest }),
        (Renewal::Stale { highest }, Loss::Stale { highest }),
        (Renewal::NotHeld, Loss::NotHeld),
        (
            Renewal::Ended(Ending::Revoked),
            Loss::Ended(Ending::Revoked),
        ),
    ] {
        let (_client, service, _clock, lease) = past_its_deadline().await;
        let (mut lease, result) = resumed((lease, &service), Ok(answer)).await;
        assert!(matches!(result, Err(Error::Lost(lost)) if lost.why == why));
        assert_eq!(lease.check().unwrap_err().why, why);
        // The authority is not asked again.
        assert!(matches!(lease.resume().await, Err(Error::Lost(lost)) if lost.why == why));
    }
}

#[tokio::test]
async fn a_stopped_holder_learns_of_its_loss_from_a_check_without_any_timer() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let signal = lease.cancellation_token();
    clock.leap(usable(TTL) - Duration::from_nanos(1));
    lease.check().unwrap();
    clock.leap(Duration::from_nanos(1));
    let lost = lease.check().unwrap_err();
    assert_eq!((lost.token.get(), lost.why), (7, Loss::Deadline));
    assert!(signal.is_cancelled());
    assert_eq!(lease.lost().await, lost);
    assert_eq!(lease.token().get(), 7, "the token can still be read");
}

#[tokio::test]
async fn the_loss_is_announced_by_a_timer_at_the_deadline() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let lost = tokio::spawn(lease.lost());
    clock.advance(usable(TTL) - Duration::from_nanos(1)).await;
    assert!(!lost.is_finished());
    clock.advance(Duration::from_nanos(1)).await;
    assert!(lost.is_finished());
    assert_eq!(lost.await.unwrap().why, Loss::Deadline);
}

#[tokio::test]
async fn a_loss_reported_by_the_authority_counts_at_once() {
    let highest = Token::new(9).unwrap();
    for (answered, why) in [
        (
            Renewal::Ended(Ending::Expired),
            Loss::Ended(Ending::Expired),
        ),
        (
            Renewal::Ended(Ending::Revoked),
            Loss::Ended(Ending::Revoked),
        ),
        (Renewal::NotHeld, Loss::NotHeld),
        (Renewal::Stale { highest }, Loss::Stale { highest }),
    ] {
        let (client, service, clock) = scripted_client();
        let lease = lease(&client, &service).await;
        let lost = tokio::spawn(lease.lost());
        let (_, answer) = renewal(&service, &clock).await;
        lease.check().unwrap();
        answer.send(Ok(answered)).unwrap();
        assert_eq!(lost.await.unwrap().why, why);
        assert_eq!(lease.check().unwrap_err().why, why);
        // Nothing is left to release, and nothing is renewed.
        drop(lease);
        clock.advance(TTL * 3).await;
        assert!(service.calls().await.is_empty());
    }
}

#[tokio::test]
async fn a_broken_connection_extends_nothing_and_renewal_goes_on_until_the_deadline() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let before = deadline(&lease, &clock);
    let mut attempts = 0;
    while clock.now().after(Span::from_millis(200)) < before {
        clock.advance(Duration::from_millis(100)).await;
        for call in service.calls().await {
            let Call::Renew { answer, .. } = call else {
                panic!("a renewal")
            };
            let fault = match attempts % 2 {
                0 => Fault::unknown_outcome("cut"),
                _ => Fault::unavailable("refused"),
            };
            answer.send(Err(fault)).unwrap();
            attempts += 1;
        }
        settle().await;
        assert_eq!(deadline(&lease, &clock), before);
    }
    // Tried again soon, and with pauses: a server that was restarted is not overrun.
    assert!((6..40).contains(&attempts), "{attempts}");
    // The server is back just before the deadline.
    clock.advance(Duration::from_millis(100)).await;
    let Some(Call::Renew { at, answer, .. }) = service.calls().await.pop() else {
        panic!("a renewal")
    };
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    assert_eq!(deadline(&lease, &clock), at.after(Span::from(usable(TTL))));
}

#[tokio::test]
async fn not_held_is_recorded_before_the_release_is_sent() {
    let (client, service, _clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let (signal, seen) = (lease.cancellation_token(), order.clone());
    let watched = signal.clone();
    *service.on_release.lock().unwrap() = Some(Box::new(move || {
        seen.lock().unwrap().push(watched.is_cancelled())
    }));
    // Control arm: the observer can see the other order.
    assert!(!signal.is_cancelled());
    let release = tokio::spawn(lease.release());
    let Call::Release { grant, answer, .. } = service.call().await else {
        panic!("a release")
    };
    assert_eq!(*order.lock().unwrap(), [true]);
    assert_eq!(grant.token, Some(Token::new(7).unwrap()));
    answer.send(Ok(Released::Released)).unwrap();
    assert_eq!(release.await.unwrap(), Ok(Released::Released));
    assert!(
        service.calls().await.is_empty(),
        "an acknowledged release is not repeated"
    );
}

#[tokio::test]
async fn a_release_without_an_answer_is_repeated_and_names_the_grant() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let release = tokio::spawn(lease.release());
    let Call::Release {
        grant: first,
        answer,
        ..
    } = service.call().await
    else {
        panic!("a release")
    };
    answer.send(Err(Fault::unknown_outcome("cut"))).unwrap();
    clock.advance(secs(1)).await;
    let Call::Release { grant, answer, .. } = service.call().await else {
        panic!("a release")
    };
    assert_eq!(first, grant);
    answer.send(Ok(Released::Ended(Ending::Released))).unwrap();
    assert_eq!(
        release.await.unwrap(),
        Ok(Released::Ended(Ending::Released))
    );
}

#[tokio::test]
async fn a_release_that_is_cancelled_goes_on_in_the_background() {
    let (client, service, _clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let release = tokio::spawn(lease.release());
    let Call::Release { .. } = service.call().await else {
        panic!("a release")
    };
    release.abort();
    let Call::Release { answer, .. } = service.call().await else {
        panic!("a release")
    };
    answer.send(Ok(Released::Released)).unwrap();
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn dropping_the_guard_releases_and_stops_renewing() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let lost = tokio::spawn(lease.lost());
    drop(lease);
    assert_eq!(lost.await.unwrap().why, Loss::Released);
    let Call::Release { answer, .. } = service.call().await else {
        panic!("a release")
    };
    answer.send(Err(Fault::unavailable("down"))).unwrap();
    clock.advance(secs(1)).await;
    let Call::Release { answer, .. } = service.call().await else {
        panic!("a release")
    };
    answer.send(Ok(Released::Released)).unwrap();
    clock.advance(TTL * 3).await;
    assert!(service.calls().await.is_empty());
}

#[test]
fn dropping_the_guard_outside_a_runtime_releases_too() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (client, service, _clock) = scripted_client();
    let lease = runtime.block_on(lease(&client, &service));
    drop(lease);
    drop(client);
    runtime.block_on(async {
        assert!(matches!(service.call().await, Call::Release { .. }));
    });
}

#[test]
fn dropping_the_guard_after_its_runtime_ended_does_no_harm() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (client, service, _clock) = scripted_client();
    let lease = runtime.block_on(lease(&client, &service));
    drop(runtime);
    drop(lease);
}

#[tokio::test]
async fn a_detached_grant_is_neither_renewed_nor_released() {
    let (client, service, clock) = scripted_client();
    let lease = lease(&client, &service).await;
    let grant = lease.detach();
    assert_eq!(grant.token, Some(Token::new(7).unwrap()));
    clock.advance(TTL * 2).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn a_thousand_leases_need_no_task_each() {
    let (client, service, clock) = scripted_client();
    let mut leases = Vec::new();
    for _ in 0..1_000 {
        leases.push(lease(&client, &service).await);
    }
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert_eq!(tasks, 1, "the keeper");
    clock.advance(TTL.mul_f64(0.4)).await;
    let calls = service.calls().await;
    assert_eq!(calls.len(), 1_000);
    for call in calls {
        let Call::Renew { answer, .. } = call else {
            panic!("a renewal")
        };
        answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    }
    clock.advance(TTL.mul_f64(0.25)).await;
    assert!(leases.iter().all(|lease| lease.check().is_ok()));
}

/// A lease with the grants 7 and 8, and a guard for each.
async fn two_under_one(client: &Client, service: &ScriptedLockService) -> [Lease; 2] {
    let orders = lease(client, service).await;
    let acquire = tokio::spawn(client.lock("seats").under(&orders).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(8, TTL_MS, TTL_MS, 0))).unwrap();
    [orders, acquire.await.unwrap().unwrap()]
}

/// The only call there is, which is a renewal: the token it names, when it was sent, and where its answer goes.
async fn only_renewal(service: &ScriptedLockService) -> (u64, Timestamp, Answer<Renewal>) {
    match service.call().await {
        Call::Renew { at, grant, answer } => (grant.token.unwrap().get(), at, answer),
        _ => panic!("a renewal"),
    }
}

#[tokio::test]
async fn one_renewal_serves_all_guards_of_a_lease() {
    let (client, service, clock) = scripted_client();
    let guards = two_under_one(&client, &service).await;
    let mut named = Vec::new();
    for _ in 0..4 {
        clock.advance(TTL.mul_f64(0.4)).await;
        let (token, sent, answer) = only_renewal(&service).await;
        named.push(token);
        clock.advance(Duration::from_millis(500)).await;
        answer.send(Ok(renewed(token, TTL_MS))).unwrap();
        settle().await;
        for guard in &guards {
            let until = sent.after(Span::from(usable(TTL)));
            assert_eq!(deadline(guard, &clock), until, "counted from the sending");
        }
    }
    assert_eq!(named, [7, 8, 7, 8], "each grant is named in its turn");
}

#[tokio::test]
async fn a_lease_is_renewed_for_the_guards_that_are_left() {
    let (client, service, clock) = scripted_client();
    let [orders, seats] = two_under_one(&client, &service).await;
    drop(orders);
    assert!(matches!(service.call().await, Call::Release { .. }));
    for _ in 0..3 {
        clock.advance(TTL.mul_f64(0.4)).await;
        let renewals = service
            .calls()
            .await
            .into_iter()
            .filter_map(|call| match call {
                Call::Renew { grant, answer, .. } => Some((grant.token.unwrap().get(), answer)),
                _ => None,
            });
        let [(8, answer)] = <[_; 1]>::try_from(renewals.collect::<Vec<_>>()).unwrap() else {
            panic!("a renewal of what is left")
        };
        answer.send(Ok(renewed(8, TTL_MS))).unwrap();
        settle().await;
        seats.check().unwrap();
    }
}

#[tokio::test]
async fn a_grant_that_was_revoked_alone_is_lost_alone() {
    let (client, service, clock) = scripted_client();
    let [orders, seats] = two_under_one(&client, &service).await;
    clock.advance(TTL.mul_f64(0.4)).await;
    let (7, _, answer) = only_renewal(&service).await else {
        panic!("the older one first")
    };
    answer.send(Ok(Renewal::Ended(Ending::Revoked))).unwrap();
    let (8, _, answer) = only_renewal(&service).await else {
        panic!("the other one, at once")
    };
    assert_eq!(
        orders.check().unwrap_err().why,
        Loss::Ended(Ending::Revoked)
    );
    answer.send(Ok(renewed(8, TTL_MS))).unwrap();
    settle().await;
    assert_eq!(seats.remaining(), usable(TTL));
}
