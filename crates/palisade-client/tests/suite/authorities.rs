//! Properties that only our own authorities have, or that only a manual clock shows: the same tests run
//! against the in-process authority and against a real server. The suite
//! of `palisade-authorities` covers the properties of every authority.

use std::sync::Arc;
use std::time::Duration;

use crate::support::server::Server;
use crate::support::{PATIENCE, VirtualClock, changed, observed};
use palisade_client::clock::Clock as _;
use palisade_client::in_process::InProcess;
use palisade_client::palisade::Palisade;
use palisade_client::service::LockService;
use palisade_client::testing::MemoryServer;
use palisade_client::{
    Attempt, Change, Client, Code, Ending, Leader, Lease, Loss, Options, Proclamation, Released,
    Revocation, Token, secs,
};
use palisade_core::Span;

/// An authority whose clock moves only when the test moves it.
pub(crate) struct Authority {
    service: Arc<dyn LockService>,
    inside: Inside,
}

enum Inside {
    Process(Arc<InProcess>),
    Server(
        Box<Server>,
        #[expect(dead_code, reason = "removed when dropped")] tempfile::TempDir,
    ),
}

impl Authority {
    pub(crate) fn in_process() -> Authority {
        let process = Arc::new(InProcess::with_manual_clock().unwrap());
        // The double for unit tests is this authority behind its levers.
        Authority {
            service: MemoryServer::on(process.clone()).unwrap().service(),
            inside: Inside::Process(process),
        }
    }

    pub(crate) async fn server() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start_with(&dir.path().join("data"), true).await;
        let service = Arc::new(Palisade::connect(&server.url(), 2).await.unwrap());
        Authority {
            service,
            inside: Inside::Server(Box::new(server), dir),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.service.clone()).unwrap()
    }

    /// A process whose clock says that it is paused hears no notice either.
    fn paused_client(&self, clock: Arc<VirtualClock>) -> Client {
        let options = Options {
            notices: false,
            ..Options::default()
        };
        Client::with(self.service.clone(), clock, &options).unwrap()
    }

    async fn advance(&self, by: Duration) {
        match &self.inside {
            Inside::Process(process) => process.advance(Span::from(by)).await.unwrap(),
            Inside::Server(server, _) => server.advance(Span::from(by)).await,
        }
    }
}

/// Runs each test against each authority.
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
    a_paused_holder_learns_that_it_is_late_and_its_token_is_lower,
    an_operator_takes_a_lock_and_its_holder_learns_it,
    locks_under_one_lease_expire_together,
    a_release_reports_its_outcome,
    a_detached_grant_can_be_released_with_its_key,
    listing_goes_through_all_pages,
    a_watch_reports_events_in_order,
    an_observer_gets_the_leader_and_each_change,
    a_leader_proclaims_until_it_resigns,
    thousands_of_operations_in_flight,
];

async fn a_paused_holder_learns_that_it_is_late_and_its_token_is_lower(authority: Authority) {
    let clock = Arc::new(VirtualClock::at(secs(77)));
    let (paused, other) = (authority.paused_client(clock.clone()), authority.client());
    let late = paused.lock("orders").ttl(secs(10)).acquire().await.unwrap();
    late.check().unwrap();
    // The process is stopped for the full time of its lease.
    authority.advance(secs(10)).await;
    clock.leap(secs(10));
    let next = other
        .lock("orders")
        .try_acquire()
        .await
        .unwrap()
        .expect("free at issued_at + ttl");
    assert_eq!(late.check().unwrap_err().why, Loss::Deadline);
    assert!(next.token() > late.token());
    // Its late release does not free the next holder's lock.
    assert_eq!(late.release().await, Ok(Released::Ended(Ending::Expired)));
    assert_eq!(
        other.show("orders").await.unwrap().holder.unwrap().token,
        next.token()
    );
    assert!(clock.now() >= palisade_core::Timestamp::from_millis(87_000));
}

async fn an_operator_takes_a_lock_and_its_holder_learns_it(authority: Authority) {
    let client = authority.client();
    // real time: the holder learns of the revocation with its next renewal, here after 70 ms.
    let lease = client
        .lock("orders")
        .ttl(Duration::from_millis(210))
        .acquire()
        .await
        .unwrap();
    let other = Token::new(99).unwrap();
    let highest = lease.token();
    assert_eq!(
        client.revoke("orders", other, "no").await,
        Ok(Revocation::Stale { highest })
    );
    assert_eq!(
        client.revoke("orders", highest, "stuck").await,
        Ok(Revocation::Revoked)
    );
    let lost = tokio::time::timeout(PATIENCE, lease.lost()).await.unwrap();
    // A machine that is busy for a long time may reach the deadline first; the lease is lost either way.
    assert!(
        matches!(lost.why, Loss::Ended(Ending::Revoked) | Loss::Deadline),
        "{lost}"
    );
    assert_eq!(
        client.revoke("nothing", other, "no").await,
        Ok(Revocation::NotHeld)
    );
}

async fn locks_under_one_lease_expire_together(authority: Authority) {
    let clock = Arc::new(VirtualClock::at(secs(5)));
    let client = authority.paused_client(clock.clone());
    let orders = client.lock("orders").ttl(secs(10)).acquire().await.unwrap();
    let stock = client.lock("stock").under(&orders).acquire().await.unwrap();
    assert_eq!(stock.lease_id(), orders.lease_id());
    assert!(stock.token() > orders.token());
    stock.release().await.unwrap();
    let stock = client.lock("stock").under(&orders).acquire().await.unwrap();
    authority.advance(secs(10)).await;
    for lock in ["orders", "stock"] {
        assert!(client.show(lock).await.unwrap().holder.is_none(), "{lock}");
    }
    // The holder's clock stood still, so it is the authority that refuses.
    let late = client
        .lock("more")
        .under(&orders)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(late.code(), Code::Invalid, "{late}");
    drop((orders, stock));
}

async fn a_release_reports_its_outcome(authority: Authority) {
    let client = authority.client();
    let lease = client
        .lock("orders")
        .metadata("nightly job")
        .acquire()
        .await
        .unwrap();
    let shown = client.show("orders").await.unwrap();
    let holder = shown.holder.unwrap();
    assert_eq!(
        (holder.client, holder.token),
        (lease.client_id().clone(), lease.token())
    );
    assert_eq!(
        (shown.metadata.as_deref(), shown.lease),
        (Some("nightly job"), lease.lease_id())
    );
    let grant = palisade_client::GrantRef {
        lock: lease.lock().clone(),
        key: *lease.lease_key(),
        token: Some(lease.token()),
    };
    assert_eq!(lease.release().await, Ok(Released::Released));
    assert_eq!(
        client.release(&grant).await,
        Ok(Released::Ended(Ending::Released))
    );
    let unknown = palisade_client::GrantRef {
        key: palisade_client::LeaseKey::from_bytes([0; 16]),
        ..grant
    };
    assert_eq!(client.release(&unknown).await, Ok(Released::NotHeld));
    assert!(client.show("orders").await.unwrap().holder.is_none());
}

async fn a_detached_grant_can_be_released_with_its_key(authority: Authority) {
    let client = authority.client();
    let grant = client.lock("orders").acquire().await.unwrap().detach();
    let other = authority.client();
    let Ok(Attempt::Held(holder)) = other.lock("orders").wait(Duration::ZERO).attempt().await
    else {
        panic!("held")
    };
    assert_eq!(Some(holder.token), grant.token);
    assert!(matches!(
        other.renew(&grant, None).await,
        Ok(palisade_client::Renewal::Renewed(renewed)) if Some(renewed.token) == grant.token
    ));
    assert_eq!(other.release(&grant).await, Ok(Released::Released));
}

async fn listing_goes_through_all_pages(authority: Authority) {
    const LOCKS: usize = 1_203;
    let client = authority.client();
    let mut leases = Vec::new();
    for number in 0..LOCKS {
        leases.push(client.lock(&format!("a/{number}")).acquire().await.unwrap());
    }
    leases.push(client.lock("b").acquire().await.unwrap());
    let mut names: Vec<_> = client
        .list("a/")
        .all()
        .await
        .unwrap()
        .into_iter()
        .map(|view| view.lock)
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), LOCKS);
    assert!(names.iter().all(|name| name.starts_with("a/")));
    let status = client.status().await.unwrap();
    assert_eq!(
        (status.locks, &status.authority),
        (LOCKS as u64 + 1, client.authority())
    );
}

async fn a_watch_reports_events_in_order(authority: Authority) {
    let client = authority.client();
    let mut watch = client.watch("orders").await.unwrap();
    let lease = client
        .lock("orders/1")
        .ttl(secs(10))
        .acquire()
        .await
        .unwrap();
    let _unseen = client.lock("stock").acquire().await.unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    let granted = changed(&mut watch).await;
    assert_eq!((granted.token, &*granted.lock), (token, "orders/1"));
    assert!(matches!(granted.change, Change::Granted { ttl } if ttl.as_millis() == 10_000));
    let ended = changed(&mut watch).await;
    assert!(matches!(
        ended.change,
        Change::Ended {
            how: Ending::Released,
            ..
        }
    ));
    assert!(ended.revision > granted.revision);
}

/// Rule E3: the present state first, then changes, and always the last one.
async fn an_observer_gets_the_leader_and_each_change(authority: Authority) {
    let client = authority.client();
    let mut observer = client.observe("primary").await.unwrap();
    assert_eq!(observed(&mut observer).await, None);
    let first = client.lock("primary").metadata("one").acquire().await;
    let first = first.unwrap();
    // Another lock whose name begins in the same way changes nothing here.
    let beside = client.lock("primary-2").metadata("beside").acquire().await;
    let leader = |lease: &Lease, value: &str| {
        Some(Leader {
            client: lease.client_id().clone(),
            token: lease.token(),
            value: Some(value.into()),
        })
    };
    assert_eq!(observed(&mut observer).await, leader(&first, "one"));
    first.proclaim("two").await.unwrap();
    assert_eq!(observed(&mut observer).await, leader(&first, "two"));
    assert_eq!(
        client.leader("primary").await.unwrap(),
        leader(&first, "two")
    );
    // An observer may skip a value that is soon replaced, but never the last one.
    for value in ["three", "four", "five"] {
        first.proclaim(value).await.unwrap();
    }
    let mut seen = observed(&mut observer).await;
    while seen != leader(&first, "five") {
        seen = observed(&mut observer).await;
    }
    first.release().await.unwrap();
    let next = client.lock("primary").metadata("next").acquire().await;
    let next = next.unwrap();
    let mut seen = observed(&mut observer).await;
    if seen.is_none() {
        seen = observed(&mut observer).await;
    }
    assert_eq!(seen, leader(&next, "next"));
    drop(beside);
}

async fn a_leader_proclaims_until_it_resigns(authority: Authority) {
    let client = authority.client();
    let lease = client
        .lock("primary")
        .ttl(secs(10))
        .acquire()
        .await
        .unwrap();
    let grant = lease.detach();
    let Proclamation::Proclaimed { revision } = client.proclaim(&grant, "one").await.unwrap()
    else {
        panic!("not proclaimed");
    };
    match client.proclaim(&grant, "two").await.unwrap() {
        Proclamation::Proclaimed { revision: later } => assert!(later > revision),
        other => panic!("{other:?}"),
    }
    authority.advance(secs(10)).await;
    let late = client.proclaim(&grant, "late").await.unwrap();
    assert_eq!(late, Proclamation::Ended(Ending::Expired));
    let reader = client.lock_shared("read").acquire().await.unwrap();
    let refused = reader.proclaim("mine").await.unwrap_err();
    assert!(refused.to_string().contains("exclusive"), "{refused}");
}

async fn thousands_of_operations_in_flight(authority: Authority) {
    let client = authority.client();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..3_000 {
        let wish = client.lock(&format!("lock/{number}"));
        tasks.spawn(async move { wish.acquire().await?.release().await });
    }
    let mut released = 0;
    while let Some(task) = tasks.join_next().await {
        assert_eq!(task.unwrap(), Ok(Released::Released));
        released += 1;
    }
    assert_eq!(released, 3_000);
}
