//! The holder's side of an upgrade, on virtual time against a scripted authority: success, denial and giving up.

use std::sync::Arc;
use std::time::Duration;

use crate::support::scripted::{Answer, granted, renewed};
use crate::support::{Call, ScriptedLockService, VirtualClock, scripted_client, settle};
use palisade_client::service::Acquired;
use palisade_client::{Client, Error, Lease, Loss, Renewal, secs};
use palisade_core::Ending;
use tokio::task::JoinHandle;

const TTL: Duration = secs(10);
const TTL_MS: u64 = 10_000;

/// An upgrade that is under way.
struct Upgrading {
    reader: Arc<Lease>,
    writer: JoinHandle<Result<Lease, Error>>,
    answer: Answer<Acquired>,
}

/// The guard of a reader in mode update with the number 7, and its upgrade, which waits.
async fn upgrading(client: &Client, service: &ScriptedLockService) -> Upgrading {
    let acquire = tokio::spawn(client.lock_shared("report").for_update().ttl(TTL).acquire());
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an acquire")
    };
    answer.send(Ok(granted(7, TTL_MS, TTL_MS, 0))).unwrap();
    let reader = Arc::new(acquire.await.unwrap().unwrap());
    let (client, asked) = (client.clone(), Arc::clone(&reader));
    let writer = tokio::spawn(async move { client.upgrade(&asked, secs(60)).await });
    let Call::Acquire { answer, .. } = service.call().await else {
        panic!("an upgrade")
    };
    Upgrading {
        reader,
        writer,
        answer,
    }
}

/// The only call there is, which is a renewal of the reader.
async fn renewal(service: &ScriptedLockService) -> Answer<Renewal> {
    match service.call().await {
        Call::Renew { answer, grant, .. } => {
            assert_eq!(grant.token.map(|number| number.get()), Some(7));
            answer
        }
        _ => panic!("a renewal"),
    }
}

async fn abandoned(service: &ScriptedLockService) {
    let Call::Abandon { answer, .. } = service.call().await else {
        panic!("an abandon")
    };
    answer.send(Ok(())).unwrap();
}

#[tokio::test]
async fn a_reader_that_was_lost_meanwhile_has_no_successor() {
    for in_time in [true, false] {
        let (client, service, clock) = scripted_client();
        let upgrading = upgrading(&client, &service).await;
        let (answered, waited_ms) = if in_time {
            // A control: the same answer to a reader that still holds is a writer.
            (secs(1), 1_000)
        } else {
            (TTL, TTL_MS)
        };
        clock.advance(answered).await;
        let calls = service.calls().await;
        assert!(calls.iter().all(|call| matches!(call, Call::Renew { .. })));
        assert_eq!(upgrading.reader.check().is_ok(), in_time);
        let grant = granted(8, TTL_MS, TTL_MS + waited_ms, waited_ms);
        upgrading.answer.send(Ok(grant)).unwrap();
        let writer = upgrading.writer.await.unwrap();
        if in_time {
            assert_eq!(writer.unwrap().token().get(), 8);
            continue;
        }
        let Err(Error::Lost(lost)) = writer else {
            panic!("{writer:?}")
        };
        assert_eq!(lost.why, Loss::Deadline);
        let given_back = service.calls().await;
        let names_the_writer = |call: &Call| matches!(call, Call::Release { grant, .. } if grant.token.map(|token| token.get()) == Some(8));
        assert!(given_back.iter().any(names_the_writer));
    }
}

#[tokio::test]
async fn an_answer_that_says_how_the_reader_ended_ends_its_guard() {
    let (client, service, _clock) = scripted_client();
    let upgrading = upgrading(&client, &service).await;
    upgrading.reader.check().unwrap();
    let over = Acquired::Over(Some(Ending::Revoked));
    upgrading.answer.send(Ok(over)).unwrap();
    let Err(Error::Lost(lost)) = upgrading.writer.await.unwrap() else {
        panic!("a loss")
    };
    assert_eq!(lost.why, Loss::Ended(Ending::Revoked));
    assert_eq!(upgrading.reader.check(), Err(lost));
}

#[tokio::test]
async fn a_reader_knows_that_it_was_superseded_before_an_upgrade_that_is_given_up_frees_the_lock() {
    let (client, service, _clock) = scripted_client();
    let upgrading = upgrading(&client, &service).await;
    upgrading.writer.abort();
    let answer = renewal(&service).await;
    upgrading.reader.check().unwrap();
    answer.send(Ok(Renewal::Ended(Ending::Superseded))).unwrap();
    settle().await;
    assert!(upgrading.reader.check().is_err());
    abandoned(&service).await;
    assert!(service.calls().await.is_empty());
}

#[tokio::test]
async fn a_reader_goes_on_after_an_upgrade_that_was_given_up_before_its_grant() {
    let (client, service, clock) = scripted_client();
    let upgrading = upgrading(&client, &service).await;
    upgrading.writer.abort();
    for once_more in [true, false] {
        let answer = renewal(&service).await;
        answer.send(Ok(renewed(7, TTL_MS))).unwrap();
        if once_more {
            abandoned(&service).await;
        }
    }
    assert!(service.calls().await.is_empty());
    goes_on(&upgrading.reader, &service, &clock).await;
}

async fn goes_on(reader: &Lease, service: &ScriptedLockService, clock: &VirtualClock) {
    clock.advance(TTL.mul_f64(0.4)).await;
    let answer = renewal(service).await;
    answer.send(Ok(renewed(7, TTL_MS))).unwrap();
    settle().await;
    reader.check().unwrap();
}
