//! Leases that go from one process to another, against both authorities, and on virtual time against a scripted one.

use std::time::Duration;

use crate::authorities::Authority;
use crate::support::scripted::{Answer, granted, renewed, usable};
use crate::support::{
    Call, ScriptedLockService, VirtualClock, poll, scripted_client, settle, until_shown,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_client::clock::Clock as _;
use palisade_client::service::{Released, Renewal};
use palisade_client::{
    Client, Code, Ending, Error, Fault, Lease, LockMode, Loss, Revocation, Token, secs,
};
use palisade_core::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const FORM: &str = "palisade-lease/1.";
const TTL: Duration = secs(10);
const TTL_MS: u64 = 10_000;

macro_rules! for_every_authority {
    ($($test:ident),* $(,)?) => {
        mod in_process { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test(super::Authority::in_process()).await }
        )* }
        mod server { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() { super::$test(super::Authority::server().await).await }
        )* }
    };
}

for_every_authority![
    a_handed_over_lease_is_held_by_its_adopter_alone,
    every_kind_of_lease_is_handed_over,
    a_lease_with_other_guards_is_not_handed_over,
    a_set_of_which_one_is_over_is_lost_and_released,
];

async fn token_of(client: &Client, lock: &str) -> Option<Token> {
    client.show(lock).await.unwrap().holder.map(|it| it.token)
}

fn why<T: std::fmt::Debug>(result: Result<T, Error>) -> Loss {
    match result.unwrap_err() {
        Error::Lost(lost) => lost.why,
        other => panic!("{other}"),
    }
}

fn is_invalid<T: std::fmt::Debug>(result: Result<T, Error>, says: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), Code::Invalid, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

fn fields(text: &str) -> Value {
    let encoded = text.strip_prefix(FORM).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(encoded).unwrap()).unwrap()
}

async fn a_handed_over_lease_is_held_by_its_adopter_alone(authority: Authority) {
    let (client, other) = (authority.client(), authority.client());
    let request = client.lock("orders").ttl(secs(20)).client_id("me");
    let mut first = request.metadata("why").acquire().await.unwrap();
    let (token, lost, ends) = (first.token(), first.lost(), first.cancellation_token());
    let text = first.export().unwrap();
    assert_eq!(first.check().unwrap_err().why, Loss::HandedOver);
    assert!(first.remaining().is_zero() && ends.is_cancelled());
    assert_eq!(lost.await.why, Loss::HandedOver);
    assert_eq!(why(first.export()), Loss::HandedOver, "a second time");
    assert_eq!(
        why(client.lock("b").under(&first).acquire().await),
        Loss::HandedOver
    );
    assert_eq!(why(first.release().await), Loss::HandedOver);
    assert_eq!(token_of(&client, "orders").await, Some(token));

    let mut second = other.adopt(&format!("{text}\n")).await.unwrap();
    second.check().unwrap();
    assert_eq!((second.token(), second.lock().as_str()), (token, "orders"));
    assert_eq!(second.authority(), client.authority());
    assert_eq!(
        (second.client_id().as_str(), second.lease_id()),
        ("me", None)
    );
    assert!(second.remaining() > secs(15) && second.remaining() < secs(20));
    // The drop of an exported guard sends nothing either, and what goes on is the same text.
    let again = second.export().unwrap();
    assert_eq!(fields(&again), fields(&text));
    drop(second);
    let third = client.adopt(&again).await.unwrap();
    assert_eq!(third.release().await, Ok(Released::Released));
    assert_eq!(token_of(&client, "orders").await, None);
    let over = why(other.adopt(&text).await);
    assert_eq!(over.code(), Code::NotHeld, "{over}");
}

async fn every_kind_of_lease_is_handed_over(authority: Authority) {
    let (client, other) = (authority.client(), authority.client());
    let mut set = client.locks(["a", "b", "c"]).acquire().await.unwrap();
    let token = set[0].token();
    set.remove(0).release().await.unwrap();
    set.reverse();
    let text = Lease::export_all(&mut set).unwrap();
    assert_eq!(fields(&text)["parts"], json!(["b", "c"]));
    is_invalid(other.adopt(&text).await, "adopt_all");
    let rest = other.adopt_all(&text).await.unwrap();
    let names: Vec<_> = rest.iter().map(|lease| lease.lock().as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    drop(set);
    for lease in rest {
        assert_eq!(lease.token(), token);
        assert_eq!(lease.release().await, Ok(Released::Released));
    }

    let mut permits = client
        .semaphore("gpu", 3)
        .permits(2)
        .acquire()
        .await
        .unwrap();
    let adopted = other.adopt(&permits.export().unwrap()).await.unwrap();
    assert_eq!(
        (adopted.slots(), adopted.mode()),
        (permits.slots(), permits.mode())
    );
    adopted.release().await.unwrap();

    let beside = client.lock_shared("report").acquire().await.unwrap();
    let mut reader = client
        .lock_shared("report")
        .for_update()
        .acquire()
        .await
        .unwrap();
    let adopted = other.adopt(&reader.export().unwrap()).await.unwrap();
    assert_eq!(
        (adopted.mode(), adopted.grant_id()),
        (LockMode::Update, reader.grant_id())
    );
    let denied = other.upgrade(&adopted, Duration::ZERO).await;
    assert!(matches!(denied, Err(Error::Held { .. })), "{denied:?}");
    beside.release().await.unwrap();
    let mut writer = other.upgrade(&adopted, secs(20)).await.unwrap();
    let writer = client.adopt(&writer.export().unwrap()).await.unwrap();
    let mut reader = client.downgrade(writer).await.unwrap();
    let reader = other.adopt(&reader.export().unwrap()).await.unwrap();
    assert_eq!(reader.mode(), LockMode::Shared);
    reader.release().await.unwrap();
}

async fn a_lease_with_other_guards_is_not_handed_over(authority: Authority) {
    let client = authority.client();
    let mut orders = client.lock("orders").acquire().await.unwrap();
    let mut stock = client.lock("stock").under(&orders).acquire().await.unwrap();
    is_invalid(orders.export(), "other guards");
    let mut both = [orders, stock];
    is_invalid(Lease::export_all(&mut both), "not of one request");
    [orders, stock] = both;
    orders.check().unwrap();
    stock.check().unwrap();
    stock.release().await.unwrap();
    orders = client.adopt(&orders.export().unwrap()).await.unwrap();

    let again = client
        .lock("orders")
        .under(&orders)
        .acquire()
        .await
        .unwrap();
    is_invalid(Lease::export_all(&mut [orders, again]), "orders");
    until_shown(&client, "orders", |view| view.holder.is_none()).await;
    is_invalid(Lease::export_all(&mut []), "at least one");
}

async fn a_set_of_which_one_is_over_is_lost_and_released(authority: Authority) {
    let (client, other) = (authority.client(), authority.client());
    let mut set = client.locks(["a", "b"]).acquire().await.unwrap();
    let text = Lease::export_all(&mut set).unwrap();
    let revoked = client.revoke("b", set[0].token(), "the test").await;
    assert_eq!(revoked, Ok(Revocation::Revoked));
    match other.adopt_all(&text).await {
        Err(Error::Lost(lost)) => assert_eq!(
            (lost.lock.as_str(), lost.why),
            ("b", Loss::Ended(Ending::Revoked))
        ),
        adopted => panic!("{adopted:?}"),
    }
    poll(async || token_of(&client, "a").await.is_none()).await;
}

/// The guard of a grant with token 7 by the scripted authority.
async fn held(client: &Client, service: &ScriptedLockService) -> Lease {
    let acquire = tokio::spawn(client.lock("orders").ttl(TTL).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    acquire.await.unwrap().unwrap()
}

/// An adoption that has asked for its renewal.
async fn adopting(
    client: &Client,
    service: &ScriptedLockService,
    text: &str,
) -> (JoinHandle<Result<Lease, Error>>, Timestamp, Answer<Renewal>) {
    let (client, text) = (client.clone(), text.to_owned());
    let adopting = tokio::spawn(async move { client.adopt(&text).await });
    let Call::Renew { at, grant, answer } = service.call().await else {
        panic!("a renewal")
    };
    assert_eq!(grant.token.map(Token::get), Some(7));
    (adopting, at, answer)
}

fn deadline_of(lease: &Lease, clock: &VirtualClock) -> Timestamp {
    clock.now().after(lease.remaining().into())
}

#[tokio::test]
async fn after_the_export_nothing_is_sent() {
    let (client, service, clock) = scripted_client();
    // The control: a guard that is kept renews, and one that is dropped releases.
    let kept = held(&client, &service).await;
    clock.advance(TTL / 2).await;
    let Call::Renew { answer, .. } = service.call().await else {
        panic!("a renewal")
    };
    drop(kept);
    let Call::Release {
        answer: released, ..
    } = service.call().await
    else {
        panic!("a release")
    };
    released.send(Ok(Released::Released)).unwrap();
    drop(answer.send(Ok(renewed(7, TTL_MS))));

    let mut lease = held(&client, &service).await;
    // A renewal that is under way may end, and changes nothing.
    clock.advance(TTL / 2).await;
    let Call::Renew { answer, .. } = service.call().await else {
        panic!("a renewal")
    };
    lease.export().unwrap();
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    clock.advance(TTL).await;
    assert_eq!(lease.check().unwrap_err().why, Loss::HandedOver);
    drop(lease);
    clock.advance(2 * TTL).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn an_adopter_counts_from_before_its_own_renewal_was_sent() {
    let (client, service, clock) = scripted_client();
    let mut lease = held(&client, &service).await;
    let text = lease.export().unwrap();
    // Nothing that the exporter's clock said reaches the adopter.
    let told = fields(&text);
    let names: Vec<_> = told.as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "authority",
            "client_id",
            "fencing_token",
            "lock",
            "lock_token",
            "ttl_ms"
        ]
    );
    clock.advance(secs(4)).await;
    let (adopting_it, at, answer) = adopting(&client, &service, &text).await;
    assert_eq!(at, clock.now());
    clock.advance(secs(3)).await;
    assert!(!adopting_it.is_finished(), "held before the answer");
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    let adopted = adopting_it.await.unwrap().unwrap();
    assert_eq!(deadline_of(&adopted, &clock), at.after(usable(TTL).into()));
    // It is renewed from then on.
    clock.advance(adopted.remaining() / 2).await;
    assert!(matches!(service.call().await, Call::Renew { .. }));
}

#[tokio::test]
async fn without_an_acknowledgement_nothing_is_held() {
    let (client, service, clock) = scripted_client();
    let text = held(&client, &service).await.export().unwrap();
    // An answer that did not arrive: the deadline counts from the attempt that was acknowledged.
    let (trying, first, answer) = adopting(&client, &service, &text).await;
    answer.send(Err(Fault::unknown_outcome("cut"))).unwrap();
    clock.advance(secs(1)).await;
    let Call::Renew { at, answer, .. } = service.call().await else {
        panic!("a renewal")
    };
    assert!(at > first);
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    let mut adopted = trying.await.unwrap().unwrap();
    assert_eq!(deadline_of(&adopted, &clock), at.after(usable(TTL).into()));
    let text = adopted.export().unwrap();

    let (trying, _, _no_answer) = adopting(&client, &service, &text).await;
    clock.advance(secs(60)).await;
    let error = trying.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    // Another grant of the same lease is not the one that was handed over.
    for (answered, expected) in [
        (
            Renewal::Ended(Ending::Expired),
            Loss::Ended(Ending::Expired),
        ),
        (
            renewed(8, TTL_MS),
            Loss::Stale {
                highest: Token::new(8).unwrap(),
            },
        ),
    ] {
        let (trying, _, answer) = adopting(&client, &service, &text).await;
        answer.send(Ok(answered)).unwrap();
        assert_eq!(why(trying.await.unwrap()), expected);
    }
    clock.advance(2 * TTL).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn an_upgrade_that_is_under_way_is_not_handed_over() {
    let (client, service, clock) = scripted_client();
    let acquire = tokio::spawn(client.lock_shared("report").for_update().ttl(TTL).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    let mut reader = acquire.await.unwrap().unwrap();
    {
        let upgrade = client.upgrade(&reader, secs(5));
        tokio::pin!(upgrade);
        assert!(futures_util::poll!(upgrade.as_mut()).is_pending());
        assert!(matches!(service.call().await, Call::Acquire { .. }));
    }
    // The upgrade may have been granted. Abandoning it would free the lock of an adopter, so that comes first.
    let Call::Renew {
        answer: renewal, ..
    } = service.call().await
    else {
        panic!("a renewal")
    };
    is_invalid(reader.export(), "upgrade");
    renewal.send(Ok(renewed(7, TTL_MS))).unwrap();
    let Call::Abandon {
        answer: abandon, ..
    } = service.call().await
    else {
        panic!("an abandon")
    };
    is_invalid(reader.export(), "upgrade");
    abandon.send(Ok(())).unwrap();
    let Call::Renew {
        answer: renewal, ..
    } = service.call().await
    else {
        panic!("a renewal")
    };
    is_invalid(reader.export(), "upgrade");
    renewal.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    reader.check().unwrap();
    reader.export().unwrap();
    clock.advance(2 * TTL).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn a_text_that_is_no_lease_is_refused_and_not_printed() {
    let (client, service, _) = scripted_client();
    let text = held(&client, &service).await.export().unwrap();
    let key = fields(&text)["lock_token"].as_str().unwrap().to_owned();
    let with = |name: &str, value: Value| {
        let mut told = fields(&text);
        told[name] = value;
        format!("{FORM}{}", URL_SAFE_NO_PAD.encode(told.to_string()))
    };
    let mut wrong: Vec<_> = ["", &key, "1.*", "1.e30", "1.bnVsbA", "1.W10", "2.e30"]
        .map(|end| format!("palisade-lease/{end}"))
        .into();
    wrong.push(format!("{text}="));
    for (name, values) in [
        ("lock", json!(["", "ä", null, 7])),
        ("authority", json!(["", null, "another"])),
        ("fencing_token", json!([0, -1, 1_u64 << 53, "7", 1.5])),
        ("lock_token", json!(["", "s3cret", null])),
        ("ttl_ms", json!([0, 99, 86_400_001])),
        ("client_id", json!([""])),
        (
            "parts",
            json!([[], ["a", "b"], ["orders", "orders"], ["orders", 7]]),
        ),
        ("mode", json!(["shared", "upgrade", 7])),
        ("slots", json!([[0], [2, 1], [1, 1], [65], [1], "1"])),
        ("metadata", json!(["x".repeat(257), 7])),
    ] {
        for value in values.as_array().unwrap() {
            wrong.push(with(name, value.clone()));
        }
    }
    for text in wrong {
        let error = client.adopt(&text).await.unwrap_err();
        assert_eq!(error.code(), Code::Invalid, "{error}: {text}");
        assert!(!format!("{error:#}").contains(&key), "{error:#}");
    }
    assert!(service.calls().await.is_empty());
    let later = with("of_a_later_version", json!(1));
    let (adopting, _, answer) = adopting(&client, &service, &later).await;
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    adopting.await.unwrap().unwrap().check().unwrap();
}
