//! A tenant that tries everything for a minute of the server's clock: every operation, every kind of grant and wait, sessions,
//! watches and connections that end at any moment, and more request ids than the authority remembers. It gets no more than its
//! quotas say, and its neighbour is granted and answered all the time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use palisade_access::Verb;
use palisade_proto::frames;
use palisade_proto::v1::acquire_option::Option as With;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, Replies};
use palisade_server::net::Settings;
use palisade_server::shell;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::net_access::{
    Closed, ask_session, closed_with, code_of, http_of, open_session, rules, token,
};
use crate::net_quota::{numbers, room};
use crate::net_support::{Server, grpc, soon};

/// The tenant's quotas.
const QUOTAS: [(&str, u32); 4] = [
    ("locks", 5),
    ("waiters", 3),
    ("watchers", 2),
    ("sessions", 3),
];
const CONNECTIONS: u32 = 24;
/// The connections of the neighbour and of the test itself, which end a moment after they are closed here.
const OTHERS: u32 = 8;

const STEPS: u32 = 300;
const STEP_MS: u64 = 200;
/// As many ids as the authority remembers (131,072), and some.
const ABANDONED: u32 = 4_096;
const ABANDON_EVERY: u32 = 9;

/// A server whose tenant has these quotas but one; `connections` is the share of its address.
async fn bounded_but(left_out: &str) -> Closed {
    let mut text = rules();
    let all = Verb::ALL.map(Verb::name);
    text.push_str(&format!(
        "[[auth.rules]]\nprincipal = \"hold\"\nprefix = \"x/\"\nverbs = {all:?}\n[[auth.quotas]]\nprincipal = \"hold\"\n\
         bytes = 5000000\n"
    ));
    for (bound, most) in QUOTAS.iter().filter(|(bound, _)| *bound != left_out) {
        text.push_str(&format!("{bound} = {most}\n"));
    }
    let share = match left_out {
        "connections" => 1_000,
        _ => CONNECTIONS,
    };
    let shell = shell::Settings {
        connections_per_address: Some(share),
        ..shell::Settings::default()
    };
    closed_with(
        &text,
        Settings {
            shell,
            ..Settings::default()
        },
    )
    .await
}

/// The tenant's use at a moment, in the order of [`QUOTAS`], and the connections of all.
type Uses = [u32; 5];

struct Tenant {
    server: SocketAddr,
    numbers: Box<dyn Iterator<Item = usize>>,
    /// In which every operation is answered.
    asking: TcpStream,
    /// In which everything waits.
    waiting: Option<TcpStream>,
    more_sessions: Vec<TcpStream>,
    watches: Vec<TcpStream>,
    http: Vec<TcpStream>,
    grants: Vec<(String, v1::Granted)>,
    ids: u32,
    abandoned: u32,
    /// By the server's clock.
    minutes: u64,
}

impl Tenant {
    async fn new(server: SocketAddr) -> Tenant {
        let asking = begin(server).await.expect("the first session fits");
        Tenant {
            server,
            numbers: Box::new(numbers()),
            asking,
            waiting: None,
            more_sessions: Vec::new(),
            watches: Vec::new(),
            http: Vec::new(),
            grants: Vec::new(),
            ids: 0,
            abandoned: 0,
            minutes: 0,
        }
    }

    fn below(&mut self, most: usize) -> usize {
        self.numbers.next().unwrap() % most
    }

    /// New in three of four cases, otherwise one of the latest again.
    fn id(&mut self) -> Vec<u8> {
        self.ids += 1;
        let back = [0, 0, 0, 1 + self.below(9) as u32][self.below(4)];
        u128::from(self.ids.saturating_sub(back))
            .to_be_bytes()
            .to_vec()
    }

    fn acquire(&mut self, wait_ms: u32) -> Operation {
        let lock = format!("x/{}", self.below(12));
        let client = format!("c{}", self.below(9));
        let mut acquire = grpc::acquire(&lock, &client, wait_ms);
        acquire.request_id = self.id();
        let option = match self.below(8) {
            0 => Some(With::Mode(v1::LockMode::Shared.into())),
            1 => Some(With::Mode(v1::LockMode::Update.into())),
            2 => Some(With::Permits(v1::Permits { count: 1, of: 9 })),
            3 => Some(With::Delays(v1::Delays {
                lock_delay_ms: 2_000,
                at_least_for_ms: 3_000,
            })),
            4 => Some(With::Also(v1::LockNames {
                locks: vec!["x/s1".to_owned(), "x/s2".to_owned()],
            })),
            5 if !self.grants.is_empty() => {
                let (_, granted) = self.one();
                acquire.lock_token = granted.lock_token;
                acquire.lease_duration_ms = 0;
                None
            }
            _ => None,
        };
        let option = option.map(|option| v1::AcquireOption {
            option: Some(option),
        });
        acquire.options.extend(option);
        Operation::Acquire(acquire)
    }

    /// One of its grants; it may be over.
    fn one(&mut self) -> (String, v1::Granted) {
        let at = self.below(self.grants.len());
        self.grants[at].clone()
    }

    fn operation(&mut self) -> Operation {
        let lock = format!("x/{}", self.below(12));
        if self.below(2) == 0 || self.grants.is_empty() {
            return self.acquire(0);
        }
        let (held, granted) = self.one();
        let number = granted.fencing_token;
        match self.below(10) {
            0 | 1 => Operation::Release(grpc::release(&held, &granted.lock_token)),
            2 => Operation::Renew(v1::RenewRequest {
                lock: held,
                lock_token: granted.lock_token,
                ..v1::RenewRequest::default()
            }),
            3 => Operation::Proclaim(v1::ProclaimRequest {
                lock: held,
                lock_token: granted.lock_token,
                fencing_token: 0,
                value: "here".to_owned(),
            }),
            4 => Operation::Abandon(v1::AbandonRequest {
                request_id: self.id(),
            }),
            5 => Operation::Break(v1::BreakRequest {
                lock: held,
                fencing_token: number,
                reason: "mine".to_owned(),
            }),
            6 => Operation::Open(v1::OpenRequest {
                lock,
                reason: "mine".to_owned(),
            }),
            7 => Operation::Resize(v1::ResizeRequest { lock, permits: 9 }),
            8 => Operation::Show(v1::ShowRequest { lock }),
            _ => Operation::Status(v1::StatusRequest {}),
        }
    }

    /// A frame of operations, and their answers.
    async fn asks(&mut self) {
        let operations: Vec<Operation> = (0..40).map(|_| self.operation()).collect();
        let locks = operations.iter().map(|operation| match operation {
            Operation::Acquire(acquire) => acquire.lock.clone(),
            _ => String::new(),
        });
        let locks: Vec<String> = locks.collect();
        put(&mut self.asking, operations).await;
        for (id, outcome) in replies(&mut self.asking, 40).await {
            if let Some(Outcome::Granted(granted)) = outcome {
                self.grants.push((locks[id - 1].clone(), granted));
            }
        }
        let surplus = self.grants.len().saturating_sub(30);
        self.grants.drain(..surplus);
    }

    /// Gives up so many requests that nobody made: each is remembered.
    async fn abandons(&mut self) {
        let from = 1 << 24;
        let ids = from + self.abandoned..from + self.abandoned + ABANDONED;
        let abandon = ids.map(|id| {
            let request_id = u128::from(id).to_be_bytes().to_vec();
            Operation::Abandon(v1::AbandonRequest { request_id })
        });
        put(&mut self.asking, abandon.collect()).await;
        let done = replies(&mut self.asking, ABANDONED as usize).await;
        let done = done
            .into_iter()
            .filter(|(_, outcome)| code_of(outcome.clone()).is_empty());
        self.abandoned += done.count() as u32;
    }

    /// Waits in a session, which may end at once.
    async fn waits(&mut self) {
        if self.waiting.is_none() {
            self.waiting = begin(self.server).await;
        }
        let wait: Vec<Operation> = (0..6).map(|_| self.acquire(60_000)).collect();
        let hangs_up = self.below(3) == 0;
        if let Some(waiting) = &mut self.waiting {
            put(waiting, wait).await;
            if hangs_up {
                self.waiting = None;
            }
        }
    }

    /// Waits over HTTP, where a place is reserved when the connection breaks.
    async fn waits_alone(&mut self) {
        let (lock, client) = (self.below(12), self.below(9));
        let id = u128::from_be_bytes(self.id().try_into().unwrap());
        let more = [r#", "mode": "shared""#, r#", "also": ["x/s1"]"#, ""][self.below(3)];
        let body = format!(
            r#"{{"client_id": "c{client}", "lease_duration_ms": 10000, "wait_ms": 60000, "request_id": "{id:032x}"{more}}}"#
        );
        let path = format!("/v1/locks/x%2F{lock}/acquire");
        let stream = http(self.server, "POST", &path, &body).await;
        match self.below(3) {
            0 => drop(stream),
            _ => self.http.extend(stream),
        }
        if self.http.len() > 6 {
            self.http.remove(0);
        }
    }

    /// Opens a session, a watch and many connections, or ends one of them.
    async fn comes_and_goes(&mut self) {
        self.more_sessions.extend(begin(self.server).await);
        if let Some(mut watch) = http(self.server, "GET", "/v1/watch?prefix=x%2F", "").await {
            let mut status = [0; 12];
            let read = soon(watch.read_exact(&mut status)).await;
            if read.is_ok() && status.ends_with(b"200") {
                self.watches.push(watch);
            }
        }
        if self.below(3) == 0 && !self.more_sessions.is_empty() {
            self.more_sessions.remove(0);
        }
        if self.below(3) == 0 && !self.watches.is_empty() {
            self.watches.remove(0);
        }
    }

    /// The tenant's use while as many connections as it can get are open.
    async fn uses(&self, server: &Server) -> Uses {
        let mut connections = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            connections.extend(connect(self.server).await);
        }
        let (locks, waiters) = room(server).await;
        let sessions = 1 + usize::from(self.waiting.is_some()) + self.more_sessions.len();
        let authorization = format!("Authorization: Bearer {}\r\n", token("observe"));
        let metrics = server.send("GET", "/metrics", &authorization, "").await;
        let (_, open) = metrics.body.split_once("\npalisade_connections ").unwrap();
        let open = open.lines().next().unwrap().parse().unwrap();
        let (watchers, sessions) = (self.watches.len() as u32, sessions as u32);
        [locks, waiters, watchers, sessions, open]
    }
}

async fn connect(server: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.3:0".parse().unwrap()).unwrap();
    soon(socket.connect(server)).await.ok()
}

/// A session of the tenant, if it is let in.
async fn begin(server: SocketAddr) -> Option<TcpStream> {
    let mut session = connect(server).await?;
    let mut bytes = frames::PREFACE_WITH_TOKEN.to_vec();
    frames::put_token(&mut bytes, &token("hold"));
    session.write_all(&bytes).await.ok()?;
    put(&mut session, vec![Operation::Status(v1::StatusRequest {})]).await;
    let length = soon(session.read_u32()).await.ok()?;
    let mut frame = vec![0; length as usize];
    soon(session.read_exact(&mut frame)).await.ok()?;
    let reply = Replies::decode(&*frame).ok()?.replies.pop()?;
    code_of(reply.outcome).is_empty().then_some(session)
}

async fn http(server: SocketAddr, method: &str, path: &str, body: &str) -> Option<TcpStream> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        token("hold"),
        body.len()
    );
    let mut stream = connect(server).await?;
    stream.write_all(request.as_bytes()).await.ok()?;
    Some(stream)
}

/// Sends operations whose ids are their places in the frame, from 1. A session that was not let in is closed.
async fn put(session: &mut TcpStream, operations: Vec<Operation>) {
    let mut bytes = Vec::new();
    let frame = frames::FrameBuilder::at_end(&mut bytes);
    for (id, operation) in (1..).zip(operations) {
        let operation = Some(operation);
        frame.put(&mut bytes, &v1::Request { id, operation });
    }
    frame.close(&mut bytes);
    let _ = session.write_all(&bytes).await;
}

async fn replies(session: &mut TcpStream, count: usize) -> Vec<(usize, Option<Outcome>)> {
    let mut all = Vec::new();
    while all.len() < count {
        let length = soon(session.read_u32()).await.unwrap();
        let mut frame = vec![0; length as usize];
        soon(session.read_exact(&mut frame)).await.unwrap();
        let replies = Replies::decode(&*frame).unwrap().replies;
        all.extend(
            replies
                .into_iter()
                .map(|reply| (reply.id as usize, reply.outcome)),
        );
    }
    all
}

/// The tenant's neighbour: a long lease, and a lock that it takes and releases.
struct Neighbour {
    session: TcpStream,
    long: v1::Granted,
    first: v1::AcquireRequest,
    token: u64,
}

impl Neighbour {
    async fn new(server: &Server) -> Neighbour {
        let mut session = open_session(server, Some(&token("elsewhere"))).await;
        let mut acquire = async |acquire: v1::AcquireRequest| {
            grpc::granted(ask_session(&mut session, Operation::Acquire(acquire)).await)
        };
        let long = acquire(grpc::acquire("other/long", "n", 0)).await;
        let mut first = grpc::acquire("other/first", "n", 0);
        first.request_id = vec![7; 16];
        let token = acquire(first.clone()).await.fencing_token;
        Neighbour {
            session,
            long,
            first,
            token,
        }
    }

    async fn goes_on(&mut self) {
        let renew = Operation::Renew(v1::RenewRequest {
            lock: "other/long".to_owned(),
            lock_token: self.long.lock_token.clone(),
            ..v1::RenewRequest::default()
        });
        let renewed = ask_session(&mut self.session, renew).await;
        assert!(matches!(renewed, Some(Outcome::Renewed(_))), "{renewed:?}");
        let acquire = Operation::Acquire(grpc::acquire("other/1", "n", 0));
        let granted = grpc::granted(ask_session(&mut self.session, acquire).await);
        let release = Operation::Release(grpc::release("other/1", &granted.lock_token));
        assert_eq!(code_of(ask_session(&mut self.session, release).await), "");
    }

    /// Its first request is still known: the answer is the first grant, or how that ended.
    async fn repeats(&mut self) {
        let again = Operation::Acquire(self.first.clone());
        let number = match ask_session(&mut self.session, again).await {
            Some(Outcome::Granted(granted)) => granted.fencing_token,
            Some(Outcome::Ended(ended)) => ended.fencing_token,
            other => panic!("{other:?}"),
        };
        assert_eq!(number, self.token, "a repeat is no second grant");
    }
}

/// The server's clock, which only this moves. A quota counts a closed lock and a reserved place by the machine's clock, so
/// between two readings the server's clock gains on the machine's.
struct Clock {
    begun: Instant,
    moved: Duration,
    /// The most that it was ahead.
    ahead: Duration,
}

#[expect(
    clippy::disallowed_methods,
    reason = "real time: the server's clock is kept ahead of it"
)]
impl Clock {
    fn new() -> Clock {
        Clock {
            begun: Instant::now(),
            moved: Duration::ZERO,
            ahead: Duration::ZERO,
        }
    }

    /// The tenant's use at a moment at which the clock is further ahead than ever before.
    async fn look(&mut self, tenant: &Tenant, server: &Server) -> Uses {
        let mut margin = Duration::from_millis(STEP_MS);
        loop {
            let before = self.ahead;
            let gain = (self.begun.elapsed() + before + margin).saturating_sub(self.moved);
            let gain = gain.max(Duration::from_millis(STEP_MS));
            let body = format!(r#"{{"ms": {}}}"#, gain.as_millis());
            let advance = ("POST", "/v1/clock/advance", body);
            assert_eq!(http_of(server, advance, Some(&token("admin"))).await, "");
            self.moved += gain;
            self.ahead = self
                .ahead
                .max(self.moved.saturating_sub(self.begun.elapsed()));
            let uses = tenant.uses(server).await;
            if self.moved.saturating_sub(self.begun.elapsed()) > before {
                return uses;
            }
            margin *= 2;
        }
    }
}

/// The most that the tenant had of each, in so many steps or until it has more than `beyond` says.
async fn tries(closed: &Closed, steps: u32, beyond: impl Fn(Uses) -> bool) -> (Uses, Tenant) {
    let server = &closed.server;
    let mut neighbour = Neighbour::new(server).await;
    let mut tenant = Tenant::new(server.addr).await;
    let mut clock = Clock::new();
    let mut most = Uses::default();
    for step in 0..steps {
        tenant.asks().await;
        tenant.waits().await;
        tenant.waits_alone().await;
        tenant.comes_and_goes().await;
        if step % ABANDON_EVERY == 0 {
            tenant.abandons().await;
        }
        neighbour.goes_on().await;
        let uses = clock.look(&tenant, server).await;
        for (most, now) in most.iter_mut().zip(uses) {
            *most = (*most).max(now);
        }
        if beyond(most) {
            break;
        }
    }
    neighbour.repeats().await;
    tenant.minutes = clock.moved.as_secs() / 60;
    (most, tenant)
}

fn bounds() -> Uses {
    let [locks, waiters, watchers, sessions] = QUOTAS.map(|(_, most)| most);
    [locks, waiters, watchers, sessions, CONNECTIONS + OTHERS]
}

#[tokio::test]
async fn a_tenant_that_tries_everything_for_a_minute_gets_its_quotas_and_no_more() {
    let closed = bounded_but("nothing").await;
    let over = |uses: Uses| uses.iter().zip(bounds()).any(|(used, most)| *used > most);
    let (most, tenant) = tries(&closed, STEPS, over).await;
    assert!(!over(most), "{most:?}, and its bounds are {:?}", bounds());
    // It had all that it may have, and made the authority remember more than it remembers.
    assert_eq!(most[..4], bounds()[..4]);
    assert!(tenant.abandoned > 131_072, "{}", tenant.abandoned);
    assert!(tenant.minutes > 0);
}

/// The control: each bound that is left out is passed by the same tenant.
#[tokio::test]
async fn a_bound_that_is_not_counted_is_passed_by_the_same_tenant() {
    let all = QUOTAS.map(|(bound, _)| bound).into_iter();
    for (at, bound) in all.chain(["connections"]).enumerate() {
        let closed = bounded_but(bound).await;
        let over = |uses: Uses| uses[at] > bounds()[at];
        let (most, _) = tries(&closed, 30, over).await;
        assert!(over(most), "{bound}: {most:?}");
    }
}
