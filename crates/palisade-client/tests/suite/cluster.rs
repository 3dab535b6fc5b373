//! A client with several addresses. The followers are real servers that are set not to lead. For a change of leader,
//! another server opens the leader's directory: leases survive, queues end.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_client::TlsFiles;
use palisade_client::clock::BootClock;
use palisade_client::palisade::Palisade;
use palisade_client::service::{
    AcquireRequest, Acquired, LockService, Operation, Released, Renewal,
};
use palisade_client::{
    Attempt, AuthorityId, Client, Code, GrantRef, LockName, LockView, Options, Ttl, secs,
};
use palisade_core::RequestId;
use palisade_pipeline::Leading;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::support::relay::Relay;
use crate::support::server::Server;
use crate::support::{PATIENCE, changed, poll, until_shown};

struct Cluster {
    dir: TempDir,
    leader: Server,
    followers: [Server; 2],
}

impl Cluster {
    async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let leader = Server::start(&dir.path().join("leader")).await;
        let one = Server::start(&dir.path().join("one")).await;
        let two = Server::start(&dir.path().join("two")).await;
        let cluster = Cluster {
            dir,
            leader,
            followers: [one, two],
        };
        cluster.announce();
        cluster
    }

    /// The followers learn who leads.
    fn announce(&self) {
        self.tell(Leading::At(http(&self.leader).into()));
    }

    fn tell(&self, leading: Leading) {
        for follower in &self.followers {
            follower.handle().set_leader(leading.clone());
        }
    }

    fn followers(&self) -> String {
        self.followers.each_ref().map(http).join(",")
    }

    fn urls(&self) -> String {
        format!("{},{}", self.followers(), http(&self.leader))
    }

    /// The leader is gone.
    async fn stop_leader(self) -> Leaderless {
        self.tell(Leading::Nowhere);
        self.leader.stop().await;
        Leaderless {
            dir: self.dir,
            followers: self.followers,
        }
    }
}

struct Leaderless {
    dir: TempDir,
    followers: [Server; 2],
}

impl Leaderless {
    /// Starts another leader, at an address that no client was given.
    async fn elect(self) -> Cluster {
        let leader = Server::start(&self.dir.path().join("leader")).await;
        let cluster = Cluster {
            dir: self.dir,
            leader,
            followers: self.followers,
        };
        cluster.announce();
        cluster
    }
}

fn http(server: &Server) -> String {
    format!("http://{}", server.address)
}

/// A node of another authority, or of none.
async fn stranger() -> (TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    (dir, server)
}

fn patient(patience: Duration) -> Options {
    Options {
        patience,
        ..Options::default()
    }
}

/// Counts the connections that a server was asked for.
async fn connections(server: &Server) -> u64 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("palisade_connections_accepted_total "));
    line.unwrap().parse().unwrap()
}

/// Waits until a server was asked for so many more connections, besides those of this function.
async fn searched(server: &Server, times: u64) {
    let before = connections(server).await;
    let mut looks = 0;
    poll(async || {
        looks += 1;
        connections(server).await >= before + looks + times
    })
    .await;
}

#[tokio::test]
async fn the_leader_is_found_through_any_node() {
    let cluster = Cluster::start().await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = format!("http://{}", dead.local_addr().unwrap());
    let id = cluster.leader.handle().identity().authority.clone();
    for urls in [
        http(&cluster.followers[0]),
        cluster.urls(),
        format!("{dead},{}", cluster.followers()),
        format!("{dead},{}", cluster.leader.url()),
    ] {
        let client = Client::connect(&urls).await.unwrap();
        assert_eq!(*client.authority(), id, "{urls}");
        let lease = client.lock("orders").acquire().await.unwrap();
        let name = LockName::new("orders").unwrap();
        let shown = Client::connect(&http(&cluster.leader)).await.unwrap();
        let shown = shown.service().show(name).await.unwrap();
        assert_eq!(shown.holder.unwrap().token, lease.token());
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_address_that_says_nothing_costs_less_than_the_clients_patience() {
    let cluster = Cluster::start().await;
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let urls = format!("{silent},{}", cluster.urls());
    let client = tokio::time::timeout(PATIENCE, Client::connect(&urls));
    let client = client.await.unwrap().unwrap();
    let _lease = client.lock("orders").acquire().await.unwrap();
}

/// A single call, which has a connection of its own, goes to the next address too, also behind two silent ones.
#[tokio::test]
async fn a_single_call_leaves_time_for_the_next_addresses() {
    let (_dir, server) = stranger().await;
    let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let two = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = [one, two].map(|silent| (silent.local_addr().unwrap(), silent));
    let urls = silent
        .each_ref()
        .map(|(address, _)| format!("http://{address}"));
    let urls = format!("{},{}", urls.join(","), http(&server));
    let client = Client::connect(&urls).await.unwrap();
    let lease = client.lock("orders").acquire().await.unwrap();
    let asked = tokio::time::timeout(PATIENCE, lease.sequencer()).await;
    // This server signs nothing, and itself reports that.
    assert_eq!(asked.unwrap().unwrap_err().code(), Code::Refused);
}

#[tokio::test]
async fn connecting_waits_for_a_leader_and_no_longer_than_the_patience() {
    let cluster = Cluster::start().await;
    cluster.tell(Leading::Nowhere);
    let urls = cluster.followers();
    let error = Client::connect_with(&urls, patient(Duration::from_millis(100)));
    let error = error.await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains("knows of no leader"), "{error}");
    let connect = Client::connect_with(&urls, patient(PATIENCE));
    let elected = async {
        // Its second question shows that a search has failed.
        searched(&cluster.followers[0], 2).await;
        cluster.announce();
    };
    let (client, ()) = tokio::join!(connect, elected);
    let _lease = client.unwrap().lock("orders").acquire().await.unwrap();
}

#[tokio::test]
async fn nodes_that_name_each_other_are_not_asked_in_a_busy_loop() {
    let cluster = Cluster::start().await;
    let [one, two] = &cluster.followers;
    one.handle().set_leader(Leading::At(http(two).into()));
    two.handle().set_leader(Leading::At(http(one).into()));
    let urls = cluster.followers();
    let connect = Client::connect_with(&urls, patient(secs(1)));
    assert_eq!(connect.await.unwrap_err().code(), Code::Unavailable);
    let count = connections(one).await;
    assert!((2..60).contains(&count), "{count} connections");
}

/// A node that answers the opening question and refuses everything else.
#[tokio::test]
async fn a_node_that_names_itself_is_not_asked_in_a_busy_loop() {
    let cluster = Cluster::start().await;
    let url = http(&cluster.leader);
    let client = Client::connect_with(&url, patient(secs(1)));
    let client = client.await.unwrap();
    let relay = Relay::to(cluster.leader.address).await;
    let itself = Leading::At(relay.url().into());
    cluster.leader.handle().set_leader(itself);
    let before = connections(&cluster.leader).await;
    let error = client.lock("orders").try_acquire().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let count = connections(&cluster.leader).await - before;
    assert!((2..60).contains(&count), "{count} connections");
}

#[tokio::test]
async fn a_renewal_rides_over_a_change_of_the_leader() {
    let cluster = Cluster::start().await;
    let client = Client::connect(&cluster.urls()).await.unwrap();
    let lease = client.lock("orders").ttl(secs(6)).acquire().await.unwrap();
    let leaderless = cluster.stop_leader().await;
    // The client looks for a leader during the election.
    searched(&leaderless.followers[0], 2).await;
    let cluster = leaderless.elect().await;
    let left = lease.remaining();
    // Only an acknowledged renewal adds time, and only the new leader acknowledges.
    poll(async || {
        lease.check().unwrap();
        lease.remaining() > left
    })
    .await;
    let observer = Client::connect(&http(&cluster.leader)).await.unwrap();
    let shown = observer.show("orders").await.unwrap();
    assert_eq!(shown.holder.unwrap().token, lease.token());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_renewal_rides_over_a_leader_that_falls_silent() {
    let cluster = Cluster::start().await;
    let relay = Relay::to(cluster.leader.address).await;
    let urls = format!("{},{}", relay.url(), http(&cluster.followers[0]));
    let client = Client::connect(&urls).await.unwrap();
    let lease = client.lock("orders").ttl(secs(12)).acquire().await.unwrap();
    relay.freeze();
    // Only an acknowledged renewal adds time.
    let mut left = lease.remaining();
    poll(async || {
        lease.check().unwrap();
        let before = std::mem::replace(&mut left, lease.remaining());
        left > before
    })
    .await;
    lease.release().await.unwrap();
}

/// Passes everything on, and records the request ids.
struct Recording {
    service: Palisade,
    ids: Arc<Mutex<Vec<RequestId>>>,
}

impl LockService for Recording {
    fn authority(&self) -> &AuthorityId {
        self.service.authority()
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        self.ids.lock().unwrap().push(request.request);
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

#[tokio::test]
async fn a_wait_that_a_change_cut_goes_on_at_the_new_leader_under_the_same_id() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let holder = Client::connect(&urls).await.unwrap();
    let held = holder.lock("orders").ttl(secs(60)).acquire().await.unwrap();
    let ids = Arc::new(Mutex::new(Vec::new()));
    let service = Recording {
        service: Palisade::connect_within(&urls, 1, PATIENCE, (&TlsFiles::default(), None))
            .await
            .unwrap(),
        ids: Arc::clone(&ids),
    };
    let options = Options::default();
    let client = Client::with(Arc::new(service), Arc::new(BootClock), &options).unwrap();
    let waiter = tokio::spawn(client.lock("orders").wait(secs(600)).attempt());
    until_shown(&holder, "orders", |lock| lock.waiters == 1).await;
    let cluster = cluster.stop_leader().await.elect().await;
    let observer = Client::connect(&http(&cluster.leader)).await.unwrap();
    until_shown(&observer, "orders", |lock| lock.waiters == 1).await;
    let token = held.token().get();
    held.release().await.unwrap();
    let lease = tokio::time::timeout(PATIENCE, waiter).await.unwrap();
    let Attempt::Granted(lease) = lease.unwrap().unwrap() else {
        panic!("it was not granted")
    };
    assert_eq!(lease.token().get(), token + 1, "one grant");
    let ids = ids.lock().unwrap();
    assert!(
        ids.len() > 1 && ids.iter().all(|id| *id == ids[0]),
        "{ids:?}"
    );
}

#[tokio::test]
async fn a_leader_that_steps_down_and_leads_again_is_found_again() {
    let cluster = Cluster::start().await;
    let client = Client::connect(&cluster.urls()).await.unwrap();
    let leader = cluster.leader.handle();
    leader.set_leader(Leading::Nowhere);
    cluster.tell(Leading::Nowhere);
    let asked = tokio::spawn(client.lock("orders").acquire());
    // The client looks for a leader during the election.
    searched(&cluster.followers[0], 2).await;
    leader.set_leader(Leading::Here);
    cluster.announce();
    let lease = tokio::time::timeout(PATIENCE, asked).await.unwrap();
    assert_eq!(lease.unwrap().unwrap().token().get(), 1);
}

#[tokio::test]
async fn a_leader_of_another_authority_is_not_followed() {
    let cluster = Cluster::start().await;
    let (_dir, other) = stranger().await;
    let urls = cluster.urls();
    let client = Client::connect_with(&urls, patient(secs(3)));
    let client = client.await.unwrap();
    let cluster = cluster.stop_leader().await;
    for follower in &cluster.followers {
        let leading = Leading::At(http(&other).into());
        follower.handle().set_leader(leading);
    }
    let refused = loop {
        match client.lock("orders").try_acquire().await {
            Err(error) if error.code() == Code::Unavailable => break error,
            Err(error) => assert_eq!(error.code(), Code::UnknownOutcome),
            Ok(_) => panic!("granted by another authority"),
        }
    };
    let text = refused.to_string();
    assert!(text.contains("tokens of two authorities"), "{text}");
    let observer = Client::connect(&http(&other)).await.unwrap();
    let shown = observer.show("orders").await.unwrap();
    assert!(shown.holder.is_none());
}

#[tokio::test]
async fn a_watch_goes_on_at_the_next_node_after_the_last_event() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data")).await;
    let (one, two) = (
        Relay::to(server.address).await,
        Relay::to(server.address).await,
    );
    let urls = format!("{},{}", one.url(), two.url());
    let client = Client::connect(&urls).await.unwrap();
    let mut watch = client.watch("").await.unwrap();
    let observer = Client::connect(&http(&server)).await.unwrap();
    let first = observer.lock("a").acquire().await.unwrap();
    assert_eq!(changed(&mut watch).await.token, first.token());
    one.move_to(None);
    let second = observer.lock("b").acquire().await.unwrap();
    assert_eq!(changed(&mut watch).await.token, second.token());
    let (_dir, other) = stranger().await;
    // A node of another authority has nothing to say.
    one.move_to(Some(other.address));
    two.move_to(Some(other.address));
    let third = observer.lock("c").acquire().await.unwrap();
    tokio::select! {
        said = watch.next() => panic!("{said:?}"),
        // It comes back, so it has believed nothing there.
        () = searched(&other, 3) => {}
    }
    two.move_to(Some(server.address));
    assert_eq!(changed(&mut watch).await.token, third.token());
}
