//! What a guard hears before its next renewal: against the authority in process, its double, and a real server.
//!
//! real time: a guard that listens is compared with one in the same run that does not, and learns of the same at its next
//! renewal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::support::relay::Relay;
use crate::support::server::Server;
use crate::support::{PATIENCE, until_shown};
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{AcquireRequest, Acquired, Operation, RequestId};
use palisade_client::testing::MemoryServer;
use palisade_client::{
    AuthorityId, Client, Ending, Fault, GrantNews, GrantRef, Lease, LeaseNotice, Listened,
    Listening, LockName, LockService, LockView, Loss, Notices, Options, Released, Renewal, Ttl,
    secs,
};
use tokio::time::timeout;

fn silent() -> Options {
    Options {
        notices: false,
        ..Options::default()
    }
}

async fn next(notices: &mut Notices) -> LeaseNotice {
    let next = timeout(PATIENCE, notices.next()).await;
    next.unwrap().expect("it was lost before")
}

/// The loss and the operator's reason, which come after whatever else there is.
async fn loss(notices: &mut Notices) -> (Loss, Option<Box<str>>) {
    loop {
        if let LeaseNotice::Lost { lost, reason } = next(notices).await {
            assert_eq!(notices.next().await, None, "nothing follows");
            return (lost.why, reason);
        }
    }
}

/// Two guards of one server are revoked, of which the first listens.
async fn a_break_is_heard(listens: Client, control: Client, operator: Client) {
    let ttl = secs(6);
    let mine = listens.lock("mine").ttl(ttl).acquire().await.unwrap();
    let other = control.lock("other").ttl(ttl).acquire().await.unwrap();
    let mut notices = mine.notices();
    let since = BootClock.now();
    for lease in [&mine, &other] {
        let revoked = operator.revoke(lease.lock(), lease.token(), "maintenance");
        revoked.await.unwrap();
    }
    let (why, reason) = loss(&mut notices).await;
    let took = BootClock.now().since(since).to_duration();
    assert_eq!(why, Loss::Ended(Ending::Revoked));
    assert!(mine.check().is_err());
    // A break before the guard was named is told without its reason.
    assert!(reason.is_none() || reason.as_deref() == Some("maintenance"));
    other
        .check()
        .expect("the control learns of it at its next renewal");
    timeout(PATIENCE, other.lost()).await.unwrap();
    let renewal = BootClock.now().since(since).to_duration();
    assert!(
        2 * took < renewal,
        "heard after {took:?}, at a renewal after {renewal:?}"
    );
}

#[tokio::test]
async fn a_break_is_heard_at_once_in_process_and_in_the_control_at_the_next_renewal() {
    let server = MemoryServer::new().unwrap();
    let control = server.client_with(&silent()).unwrap();
    let operator = server.client().unwrap();
    a_break_is_heard(server.client().unwrap(), control, operator).await;
}

#[tokio::test]
async fn a_break_is_heard_at_once_from_a_server_and_in_the_control_at_the_next_renewal() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let control = Client::connect_with(&server.url(), silent()).await.unwrap();
    let operator = Client::connect(&server.url()).await.unwrap();
    a_break_is_heard(client, control, operator).await;
}

/// Somebody waits, and goes away.
async fn waiters_are_told(client: Client, others: Client) {
    let lease = client.lock("orders").acquire().await.unwrap();
    let mut notices = lease.notices();
    assert_eq!(lease.wanted(), 0);
    let waiting = tokio::spawn(others.lock("orders").wait(secs(60)).acquire());
    assert_eq!(next(&mut notices).await, LeaseNotice::Wanted { waiters: 1 });
    assert_eq!(lease.wanted(), 1);
    // A late reader is told the present state.
    let mut late = lease.notices();
    assert_eq!(next(&mut late).await, LeaseNotice::Wanted { waiters: 1 });
    waiting.abort();
    assert_eq!(next(&mut notices).await, LeaseNotice::Unwanted);
    assert_eq!(
        (lease.wanted(), next(&mut late).await),
        (0, LeaseNotice::Unwanted)
    );
}

#[tokio::test]
async fn requests_that_wait_are_told_in_process() {
    let server = MemoryServer::new().unwrap();
    waiters_are_told(server.client().unwrap(), server.client().unwrap()).await;
}

#[tokio::test]
async fn requests_that_wait_are_told_by_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let others = Client::connect(&server.url()).await.unwrap();
    waiters_are_told(client, others).await;
}

#[tokio::test]
async fn without_notices_a_renewal_says_how_many_wait() {
    let server = MemoryServer::new().unwrap();
    let client = server.client_with(&silent()).unwrap();
    let lease = client
        .lock("orders")
        .ttl(Duration::from_millis(600))
        .acquire()
        .await
        .unwrap();
    let waiting = tokio::spawn(
        server
            .client()
            .unwrap()
            .lock("orders")
            .wait(secs(60))
            .acquire(),
    );
    until_shown(&client, "orders", |view| view.waiters == 1).await;
    let mut notices = lease.notices();
    assert_eq!(next(&mut notices).await, LeaseNotice::Wanted { waiters: 1 });
    waiting.abort();
    assert_eq!(next(&mut notices).await, LeaseNotice::Unwanted);
}

#[tokio::test]
async fn renewals_that_fail_suspend_a_guard_before_it_is_restored_or_lost() {
    for stalls in [false, true] {
        let server = MemoryServer::new().unwrap();
        let client = server.client().unwrap();
        let request = client.lock("orders").ttl(Duration::from_millis(1_500));
        let lease = request.acquire().await.unwrap();
        let mut notices = lease.notices();
        let fail = || {
            if stalls {
                server.stall()
            } else {
                server.down()
            }
        };
        fail();
        let LeaseNotice::Suspended { remaining } = next(&mut notices).await else {
            panic!("it is suspended first");
        };
        assert!(
            remaining > Duration::ZERO && remaining <= Duration::from_millis(1_500),
            "{remaining:?}"
        );
        lease.check().expect("it still holds");
        server.up();
        assert_eq!(next(&mut notices).await, LeaseNotice::Restored);
        lease.check().unwrap();
        fail();
        let suspended = next(&mut notices).await;
        assert!(
            matches!(suspended, LeaseNotice::Suspended { .. }),
            "{suspended:?}"
        );
        // A late reader is told that, too.
        let mut late = lease.notices();
        assert!(matches!(
            next(&mut late).await,
            LeaseNotice::Suspended { .. }
        ));
        assert_eq!(loss(&mut notices).await, (Loss::Deadline, None));
        assert_eq!(loss(&mut late).await, (Loss::Deadline, None));
        server.up();
    }
}

#[tokio::test]
async fn a_guard_listens_again_after_its_connection_broke_and_is_not_suspended_by_that() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    let relay = Relay::to(server.address).await;
    let client = Client::connect(&relay.url()).await.unwrap();
    let others = Client::connect(&server.url()).await.unwrap();
    let lease = client.lock("orders").ttl(secs(60)).acquire().await.unwrap();
    let mut notices = lease.notices();
    let first = tokio::spawn(others.lock("orders").wait(secs(60)).acquire());
    assert_eq!(next(&mut notices).await, LeaseNotice::Wanted { waiters: 1 });
    relay.cut();
    let second = tokio::spawn(
        others
            .lock("orders")
            .client_id("more")
            .wait(secs(60))
            .acquire(),
    );
    // Its next renewal is 20 s away, so this came over the next connection.
    assert_eq!(next(&mut notices).await, LeaseNotice::Wanted { waiters: 2 });
    first.abort();
    second.abort();
    let revoked = others.revoke("orders", lease.token(), "why").await;
    revoked.unwrap();
    assert_eq!(
        loss(&mut notices).await,
        (Loss::Ended(Ending::Revoked), Some("why".into()))
    );
    assert_eq!(lease.revoked_because(), Some("why"));
}

#[tokio::test]
async fn a_client_with_more_grants_than_one_request_may_name_hears_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let operator = Client::connect(&server.url()).await.unwrap();
    let mut leases = Vec::new();
    for number in 0..250 {
        let request = client.lock(&format!("lock-{number}")).ttl(secs(600));
        leases.push(request.acquire().await.unwrap());
    }
    // Their next renewal is 200 s away.
    for lease in [&leases[0], &leases[249], &leases[120]] {
        let revoked = operator.revoke(lease.lock(), lease.token(), "").await;
        revoked.unwrap();
        let lost = timeout(PATIENCE, lease.lost()).await.unwrap();
        assert_eq!(lost.why, Loss::Ended(Ending::Revoked));
    }
    let held = leases.iter().filter(|lease| lease.check().is_ok());
    assert_eq!(held.count(), 247);
}

/// Counts what is asked about grants.
struct Counting {
    service: Arc<dyn LockService>,
    named: Arc<AtomicUsize>,
}

struct CountingListening(Box<dyn Listening>, Arc<AtomicUsize>);

impl Listening for CountingListening {
    fn name(&mut self, grants: Vec<Listened>) {
        self.1.fetch_add(grants.len(), Ordering::SeqCst);
        self.0.name(grants);
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GrantNews, Fault>>> {
        self.0.poll_news(cx)
    }
}

impl LockService for Counting {
    fn authority(&self) -> &AuthorityId {
        self.service.authority()
    }

    fn listen(&self) -> Option<Box<dyn Listening>> {
        let listening = self.service.listen()?;
        Some(Box::new(CountingListening(
            listening,
            Arc::clone(&self.named),
        )))
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        self.service.acquire(request)
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        self.service.renew(grant, ttl)
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        self.service.release(grant)
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        self.service.abandon(request)
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        self.service.show(lock)
    }
}

fn counted(server: &MemoryServer, options: &Options) -> (Client, Arc<AtomicUsize>) {
    let named = Arc::new(AtomicUsize::new(0));
    let counting = Counting {
        service: server.service(),
        named: Arc::clone(&named),
    };
    let client = Client::with(Arc::new(counting), Arc::new(BootClock), options);
    (client.unwrap(), named)
}

#[tokio::test]
async fn short_holds_and_clients_without_notices_ask_nothing_and_each_long_hold_once() {
    let server = MemoryServer::new().unwrap();
    let (client, named) = counted(&server, &Options::default());
    let (without, never) = counted(&server, &silent());
    for _ in 0..50 {
        let lease = client.lock("short").acquire().await.unwrap();
        lease.release().await.unwrap();
    }
    let kept: Lease = without.lock("kept").acquire().await.unwrap();
    let long: Lease = client.lock("long").acquire().await.unwrap();
    let mut notices = long.notices();
    let waiting = tokio::spawn(
        server
            .client()
            .unwrap()
            .lock("long")
            .wait(secs(60))
            .acquire(),
    );
    // The control: by then the long one was named.
    assert_eq!(next(&mut notices).await, LeaseNotice::Wanted { waiters: 1 });
    waiting.abort();
    assert_eq!(next(&mut notices).await, LeaseNotice::Unwanted);
    let short = named.load(Ordering::SeqCst) - 1;
    assert!(
        short <= 1,
        "at most the one that was held when the others were named: {short}"
    );
    assert_eq!(never.load(Ordering::SeqCst), 0);
    kept.check().unwrap();
}
