//! The nodes of one authority, and the search for its leader.
//!
//! ```text
//!   link lost ─► the leader as last heard ─► the addresses given, in order ─► pause, 10 – 250 ms ─► again
//!                        ▲                            │                        │
//!                        └── `not_leader`, its URL ◄──┴── asked every 25 ms ◄──┘
//! ```
//!
//! During the pause the first node that answered is asked again and again, on the same connection, so that the end of an
//! election is noticed without a connection for each question.
//!
//! All connections of a client share one search, so there is one attempt at a time for each address. The search also
//! follows a leader that is not among the given addresses: **the client trusts the given servers, and the addresses
//! that they name**. It refuses a node with another authority id, because fences are bound to the id. The id is not
//! secret, so this catches a wrong address, not an attacker.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::select;
use hyper_util::client::legacy::connect::HttpConnector;
use palisade_core::{AuthorityId, Span, Timestamp};
use palisade_proto::v1 as pb;
use palisade_tls::{ClientFiles, Connector, Io};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::address::Address;
use super::connection::Connection;
use super::request::Request;
use super::wire;
use crate::clock::{BootClock, Clock as _};
use crate::fault::{Fault, Reason};
use crate::options::BearerToken;
use crate::random;
use crate::retry::before;

/// The nodes of one authority.
pub(super) struct Nodes {
    given: Vec<Address>,
    /// For addresses with `https://`.
    tls: Option<palisade_tls::TlsClient>,
    token: Option<BearerToken>,
    /// Locked during a search.
    known: Mutex<LastKnown>,
    /// Ends the pauses of all connections: one of them knows where to look.
    found: Notify,
    /// Whether a node ever named another one, so that a single address belongs to a cluster.
    cluster: AtomicBool,
    /// How often watches and single calls moved to the next node.
    call_moves: AtomicUsize,
}

/// The knowledge from earlier searches.
#[derive(Default)]
struct LastKnown {
    /// The leader's last known address.
    leader: Option<Address>,
    /// Addresses that did not answer in time, and the instant until which others are tried first.
    silent: Vec<(Address, Timestamp)>,
    /// The last search, if it failed: the reason, and when the next one may begin.
    missed: Option<Missed>,
    pause: Pause,
    /// The first node of the last search that answered and does not lead.
    follower: Option<Follower>,
}

/// A node that does not lead.
struct Follower {
    address: Address,
    connection: Connection,
    /// The leader's URL, if the node named one. It goes on naming one that died until it hears of the next one.
    names: Option<Box<str>>,
}

/// A session at the leader.
pub(super) struct LeaderSession {
    pub(super) connection: Connection,
    pub(super) authority: AuthorityId,
    pub(super) address: Address,
}

/// The hint that the end of a connection gives to the next search.
#[derive(Default)]
pub(super) struct Clue {
    /// The URL that the server named as the leader's.
    pub(super) leader: Option<Box<str>>,
    /// The address of a server that has stopped answering.
    pub(super) silent: Option<Address>,
}

/// A search that found no leader.
#[derive(Clone, Debug)]
pub(super) struct Missed {
    pub(super) fault: Fault,
    /// Whether a node answered that it does not lead, so that a leader may appear soon.
    pub(super) nobody_leads: bool,
    /// When the next search may begin.
    pub(super) until: Timestamp,
}

/// The reason why an address did not lead to a session with the leader.
enum NoSession {
    /// The node does not lead; the leader's URL, if the node knows it.
    Elsewhere(Box<Connection>, Option<Box<str>>),
    /// It did not answer in time.
    Silent(Fault),
    Fault(Fault),
}

/// One search.
#[derive(Default)]
struct Search {
    tried: Vec<Address>,
    faults: Vec<Fault>,
    nobody_leads: bool,
}

impl Nodes {
    /// Reads the files if an address has `https://`.
    pub(super) fn new(
        given: Vec<Address>,
        (files, token): (&ClientFiles, Option<&BearerToken>),
    ) -> Result<Nodes, Fault> {
        if (files.ca.is_some() || files.own.is_some())
            && let Some(socket) = given.iter().find(|address| address.socket().is_some())
        {
            return Err(Fault::invalid(format!(
                "{socket} has no TLS, so no certificate is shown or checked there: the server knows the client's uid; \
                 leave the certificates out"
            )));
        }
        if token.is_some()
            && let Some(open) = given.iter().find(|address| !address.keeps_secrets())
        {
            return Err(Fault::invalid(format!(
                "a token is not sent to {open} without TLS, because others could read it; write https://"
            )));
        }
        let secure = given.iter().any(Address::is_secure);
        let tls = secure
            .then(|| palisade_tls::TlsClient::new(files))
            .transpose();
        Ok(Nodes {
            given,
            tls: tls.map_err(|error| Fault::invalid(Reason::caused_by(error)))?,
            token: token.cloned(),
            known: Mutex::default(),
            found: Notify::new(),
            cluster: AtomicBool::new(false),
            call_moves: AtomicUsize::new(0),
        })
    }

    /// Parses the leader's address that a node named; `None` if it must not be followed. It must use TLS exactly if the
    /// given addresses do, because a server without TLS cannot prove its identity, and a client without TLS has no CAs.
    /// The token must be safe to send to it. It cannot be a Unix socket, because the path would refer to this machine,
    /// not the node's.
    fn named(&self, url: &str) -> Option<Address> {
        let address = Address::parse(url).ok()?;
        let shown = self.token.is_none() || address.keeps_secrets();
        let fits = shown && address.is_secure() == self.tls.is_some();
        (fits && address.socket().is_none()).then_some(address)
    }

    /// Whether there is another node to try.
    pub(super) fn several(&self) -> bool {
        self.given.len() > 1 || self.cluster.load(Ordering::Relaxed)
    }

    /// Opens a session at the leader.
    pub(super) async fn connect(
        &self,
        expected: Option<&AuthorityId>,
        clue: Clue,
    ) -> Result<LeaderSession, Missed> {
        let mut known = self.known.lock().await;
        let now = BootClock.now();
        known.silent.retain(|(_, until)| now < *until);
        if let Some(silent) = clue.silent {
            known.leader = known.leader.take().filter(|leader| *leader != silent);
            known.silent.push((silent, now.after(REST)));
        }
        if let Some(hint) = clue.leader.and_then(|url| self.named(&url)) {
            known.leader = Some(hint);
        } else if let Some(missed) = &known.missed
            && now < missed.until
        {
            // Another connection has just searched without success.
            return Err(missed.clone());
        }
        known.follower = None;
        let mut search = Search::default();
        if let Some(found) = self.search(&mut known, &mut search, expected).await {
            (known.missed, known.pause, known.follower) = (None, Pause::default(), None);
            self.found.notify_waiters();
            return Ok(found);
        }
        let missed = Missed {
            nobody_leads: search.nobody_leads,
            fault: search.fault(),
            until: BootClock.now().after(known.pause.next()),
        };
        known.missed = Some(missed.clone());
        Err(missed)
    }

    /// Waits until the next search may begin, or a node that does not lead has heard of another leader, or leads.
    pub(super) async fn pause(&self, missed: &Missed) {
        let ask = pin!(async {
            let follower = self.known.lock().await.follower.take();
            let Some(mut follower) = follower else {
                return pending().await;
            };
            let leader = loop {
                BootClock.sleep_until(BootClock.now().after(ASK)).await;
                let Ok(outcome) = follower.connection.ask(status()).await else {
                    return pending().await;
                };
                match wire::leads_elsewhere(&outcome.into()) {
                    None => break Some(follower.address),
                    Some(names) if names.is_some() && names != follower.names => {
                        break names.and_then(|url| self.named(&url));
                    }
                    Some(_) => {}
                }
            };
            let mut known = self.known.lock().await;
            known.leader = leader.or(known.leader.take());
            known.missed = None;
            self.found.notify_waiters();
        });
        let found = pin!(self.found.notified());
        // Whichever comes first ends the pause.
        let _ = before(&BootClock, missed.until, select(ask, found)).await;
    }

    async fn search(
        &self,
        known: &mut LastKnown,
        search: &mut Search,
        expected: Option<&AuthorityId>,
    ) -> Option<LeaderSession> {
        let mut hint = known.leader.take();
        while let Some(address) = hint
            .take()
            .filter(|address| search.may_follow(address, self.given.len()))
            .or_else(|| self.next(known, search))
        {
            search.tried.push(address.clone());
            known.silent.retain(|(silent, _)| *silent != address);
            match self.open(&address, expected).await {
                Ok((connection, authority)) => {
                    known.leader = Some(address.clone());
                    return Some(LeaderSession {
                        connection,
                        authority,
                        address,
                    });
                }
                Err(NoSession::Elsewhere(connection, leader)) => {
                    search.nobody_leads = true;
                    self.cluster.store(true, Ordering::Relaxed);
                    search.faults.push(elsewhere(&address, leader.as_deref()));
                    hint = leader.as_deref().and_then(|url| self.named(url));
                    known.follower.get_or_insert(Follower {
                        address,
                        connection: *connection,
                        names: leader,
                    });
                }
                Err(NoSession::Silent(fault)) => {
                    known.silent.push((address, BootClock.now().after(REST)));
                    search.faults.push(fault);
                }
                Err(NoSession::Fault(fault)) => search.faults.push(fault),
            }
        }
        None
    }

    /// Returns the next of the given addresses. It skips a recently silent one while others answer.
    fn next(&self, known: &LastKnown, search: &Search) -> Option<Address> {
        let now = BootClock.now();
        let rests = |address: &&Address| {
            let mut silent = known.silent.iter();
            silent.any(|(silent, until)| silent == *address && now < *until)
        };
        let mut left = self
            .given
            .iter()
            .filter(|address| !search.tried.contains(address));
        let awake = left.clone().find(|address| !rests(address));
        let any = left.next().filter(|_| !search.nobody_leads);
        awake.or(any).cloned()
    }

    /// Opens a session and checks the node's authority.
    async fn open(
        &self,
        address: &Address,
        expected: Option<&AuthorityId>,
    ) -> Result<(Connection, AuthorityId), NoSession> {
        let connect = self.connect_timeout();
        let (opening, ping) = if self.several() {
            (OPENING_ONE_OF_SEVERAL, PING_ONE_OF_SEVERAL)
        } else {
            (OPENING, PING)
        };
        let late = |limit: Duration| {
            NoSession::Silent(Fault::unreachable(format!(
                "{address} did not answer in {limit:?}"
            )))
        };
        let at = |fault: Fault| NoSession::Fault(fault.at(address));
        let open = async {
            let stream = timeout(connect, connect_to(address)).await;
            let stream = stream.map_err(|_| late(connect))?;
            let stream =
                stream.map_err(|error| at(Fault::unreachable(Reason::caused_by(error))))?;
            let stream = match (&self.tls, stream) {
                (Some(tls), Io::Plain(stream)) => {
                    let stream = tls.connect(address.host(), stream).await;
                    Io::Tls(Box::new(stream.map_err(|error| at(no_handshake(error)))?))
                }
                (_, stream) => stream,
            };
            let mut connection = Connection::new(stream, ping, self.token().as_ref());
            let outcome = connection.ask(status()).await.map_err(at)?.into();
            if let Some(leader) = wire::leads_elsewhere(&outcome) {
                return Err(NoSession::Elsewhere(Box::new(connection), leader));
            }
            let status = wire::status(outcome).map_err(NoSession::Fault)?;
            Ok((connection, status.authority))
        };
        let opened = timeout(opening, open).await;
        let (connection, authority) = opened.unwrap_or_else(|_| Err(late(opening)))?;
        same_authority(address, &authority, expected).map_err(NoSession::Fault)?;
        Ok((connection, authority))
    }

    /// Returns the current token.
    pub(super) fn token(&self) -> Option<BearerToken> {
        self.token.as_ref().map(BearerToken::current)
    }

    /// Opens connections to a node for gRPC.
    pub(super) fn connector(&self, to: &Address) -> Connector {
        if let Some(path) = to.socket() {
            return Connector::to_socket(path);
        }
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(self.connect_timeout()));
        Connector::new(http, self.tls.as_ref().map(palisade_tls::TlsClient::http2))
    }

    /// Returns the node for watches and single calls, which every node serves. It stays the same until it fails.
    pub(super) fn for_calls(&self) -> &Address {
        &self.given[self.call_moves.load(Ordering::Relaxed) % self.given.len()]
    }

    /// Moves to the next node after a failure.
    pub(super) fn move_calls(&self) {
        self.call_moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how long a node may take to accept a connection.
    pub(super) fn connect_timeout(&self) -> Duration {
        if self.several() {
            CONNECT_ONE_OF_SEVERAL
        } else {
            OPENING
        }
    }
}

impl Search {
    /// Whether this search should still try this address, which a node named.
    fn may_follow(&self, address: &Address, given: usize) -> bool {
        !self.tried.contains(address) && self.tried.len() < given + REDIRECTS
    }

    /// Returns the fault of a search without a leader, by what the caller may do next.
    fn fault(mut self) -> Fault {
        if self.faults.len() == 1
            && let Some(only) = self.faults.pop()
        {
            return only;
        }
        let reasons: Vec<_> = self
            .faults
            .iter()
            .map(|fault| fault.reason().to_string())
            .collect();
        let reasons = reasons.join("; ");
        let all = |kind: fn(&Fault) -> bool| self.faults.iter().all(kind);
        if all(|fault| matches!(fault, Fault::Unreachable(_))) {
            Fault::unreachable(reasons)
        } else if let Some(Fault::Denied(code, _)) = self.faults.first()
            && all(|fault| matches!(fault, Fault::Denied(..)))
        {
            Fault::Denied(*code, reasons.into())
        } else if all(|fault| !fault.is_transient()) {
            Fault::invalid(reasons)
        } else {
            Fault::unavailable(reasons)
        }
    }
}

/// The question that only a leader answers.
fn status() -> Request {
    pb::request::Operation::Status(pb::StatusRequest {}).into()
}

/// Opens a connection, before TLS.
async fn connect_to(address: &Address) -> io::Result<Io> {
    if let Some(path) = address.socket() {
        return Io::to_socket(path).await;
    }
    let stream = TcpStream::connect(address.to_string()).await?;
    // Frames are small; waiting to fill a segment would add 40 ms to each.
    let _ = stream.set_nodelay(true);
    Ok(Io::Plain(stream))
}

/// Converts the error of a TLS handshake.
fn no_handshake(error: io::Error) -> Fault {
    match palisade_tls::explain(&error) {
        Some(why) => Fault::invalid(Reason::new(why).quoting(error)),
        None => Fault::unreachable(Reason::new("the TLS handshake broke off").because(error)),
    }
}

fn elsewhere(address: &Address, leader: Option<&str>) -> Fault {
    let leader = match leader {
        Some(leader) => format!("it names {leader} as the leader"),
        None => "it knows of no leader".to_owned(),
    };
    Fault::unavailable(format!("{address} does not lead, and {leader}"))
}

/// Checks that a node belongs to the expected authority, if one is expected.
pub(super) fn same_authority(
    address: &Address,
    found: &AuthorityId,
    expected: Option<&AuthorityId>,
) -> Result<(), Fault> {
    match expected.filter(|expected| *expected != found) {
        None => Ok(()),
        Some(expected) => Err(Fault::unavailable(format!(
            "{address} is authority {found}, not {expected}: tokens of two authorities are never mixed. Give the \
             addresses of one authority"
        ))),
    }
}

/// Pauses between searches. The nominal length doubles up to [`LONGEST`]; each pause takes a random time between half
/// of it and all of it.
pub(super) struct Pause(Span);

impl Default for Pause {
    fn default() -> Pause {
        Pause(SHORTEST)
    }
}

impl Pause {
    pub(super) fn next(&mut self) -> Span {
        let half = self.0.as_nanos() / 2;
        self.0 = self.0.plus(self.0).min(LONGEST);
        // Without random bytes there is no jitter; no decision depends on it.
        let part = random::bytes().map_or(0, |[low, high, ..]| u16::from_le_bytes([low, high]));
        Span::from_nanos(half + half * u64::from(part) / (1 << 16))
    }
}

const SHORTEST: Span = Span::from_millis(20);
const LONGEST: Span = Span::from_millis(250);

/// How often a node that does not lead is asked during a pause. An election takes some hundred milliseconds, and each caller
/// asks: more often would take the processors that the election needs.
const ASK: Span = Span::from_millis(25);

/// The time allowed from the first packet to an open session.
const OPENING: Duration = Duration::from_secs(10);

/// The same if there is another node to try, and how long a node may then take to accept the connection.
const OPENING_ONE_OF_SEVERAL: Duration = Duration::from_secs(2);
const CONNECT_ONE_OF_SEVERAL: Duration = Duration::from_secs(1);

/// The interval of the checks of a connection. The second check closes the connection to a silent server.
const PING: Duration = Duration::from_secs(3);
const PING_ONE_OF_SEVERAL: Duration = Duration::from_secs(1);

/// How long an address that did not answer in time is skipped while others answer.
const REST: Span = Span::from_millis(2_000);

/// The most addresses, beyond the given ones, that one search follows.
const REDIRECTS: usize = 3;

#[cfg(test)]
mod tests {
    use palisade_core::Code;
    use palisade_pipeline::{Leading, durable};

    use super::*;

    #[test]
    fn pauses_grow_from_10_to_250_ms_and_differ() {
        let mut pause = Pause::default();
        let mut whole = SHORTEST;
        for _ in 0..10 {
            let half = Span::from_nanos(whole.as_nanos() / 2);
            let next = pause.next();
            assert!((half..=whole).contains(&next), "{next:?} of {whole:?}");
            whole = whole.plus(whole).min(LONGEST);
        }
        assert_eq!(whole, LONGEST);
        assert_ne!([pause.next(), pause.next()], [pause.next(), pause.next()]);
    }

    /// A client notices the end of an election while it pauses, on each of its connections: the node that it asks names
    /// another leader, or leads itself. The control is a node that goes on naming the leader that died.
    #[tokio::test]
    async fn a_pause_ends_when_there_is_another_leader() {
        let dir = tempfile::tempdir().unwrap();
        let authority = durable::open(dir.path(), &durable::Settings::default()).unwrap();
        let handle = authority.pipeline.handle.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let settings = palisade_server::net::Settings::default();
        let serving = palisade_server::net::serve(
            listener.into(),
            handle.clone(),
            None,
            settings,
            Box::pin(pending()),
        );
        tokio::spawn(serving);
        let given = Address::list(&url).unwrap();
        let nodes = Nodes::new(given, (&ClientFiles::default(), None)).unwrap();
        let later = |span: Span| BootClock.now().after(span);
        let at = |url: &str| Leading::At(url.into());
        let (dead, next) = ("http://127.0.0.1:1", "http://127.0.0.1:2");
        for (leading, found) in [
            (at(dead), None),
            (at(next), Some(next)),
            (Leading::Here, Some(&*url)),
        ] {
            handle.set_leader(at(dead));
            nodes.known.lock().await.missed = None;
            let mut missed = nodes.connect(None, Clue::default()).await.err().unwrap();
            assert!(missed.nobody_leads);
            handle.set_leader(leading);
            missed.until = later(match found {
                Some(_) => Span::from_millis(3_600_000),
                None => ASK.plus(ASK).plus(ASK),
            });
            let both = async { tokio::join!(nodes.pause(&missed), nodes.pause(&missed)) };
            timeout(Duration::from_secs(30), both).await.unwrap();
            let known = nodes.known.lock().await;
            match found {
                Some(found) => assert_eq!(known.leader, Address::parse(found).ok()),
                None => assert!(BootClock.now() >= missed.until, "control"),
            }
            assert_eq!(known.missed.is_none(), found.is_some());
        }
    }

    #[test]
    fn a_leader_without_tls_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        #[expect(
            clippy::disallowed_methods,
            reason = "a certificate is valid by the wall clock"
        )]
        let validity = palisade_tls::issue::Validity::days(std::time::SystemTime::now(), 1);
        let (_, issued) = palisade_tls::issue::CertificateAuthority::make(validity).unwrap();
        std::fs::write(&ca, issued.certificate).unwrap();
        let files = ClientFiles {
            ca: Some(ca),
            own: None,
        };
        let nodes = |url: &str| Nodes::new(Address::list(url).unwrap(), (&files, None)).unwrap();
        let secure = nodes("https://a:1");
        assert_eq!(secure.named("http://b:1"), None);
        assert_eq!(secure.named("palisade://b:1"), None);
        // Controls: with TLS, and where there was none from the start.
        assert!(secure.named("https://b:1").is_some());
        assert!(nodes("http://a:1").named("http://b:1").is_some());
    }

    #[test]
    fn a_unix_socket_is_given_and_never_followed() {
        fn local(files: &ClientFiles) -> Result<Nodes, Fault> {
            let token = BearerToken::new("pal_x").unwrap();
            Nodes::new(Address::list("unix:/run/s").unwrap(), (files, Some(&token)))
        }
        let nodes = local(&ClientFiles::default()).unwrap();
        assert_eq!(nodes.named("unix:///run/docker.sock"), None);
        // Controls: a port of this machine is followed, and other addresses not with a token.
        assert!(nodes.named("http://127.0.0.1:1").is_some());
        assert_eq!(nodes.named("http://10.0.0.1:1"), None);
        let ca = Some("ca.pem".into());
        let own = Some(("c.pem".into(), "c.key".into()));
        for files in [ClientFiles { ca, own: None }, ClientFiles { ca: None, own }] {
            let refused = local(&files).err().unwrap().to_string();
            assert!(refused.contains("unix:///run/s has no TLS"), "{refused}");
        }
    }

    #[test]
    fn a_search_follows_few_addresses_and_each_once() {
        let address = |port: usize| Address::parse(&format!("http://a:{port}")).unwrap();
        let mut search = Search::default();
        let mut port = 1;
        while search.may_follow(&address(port), 2) {
            search.tried.push(address(port));
            assert!(!search.may_follow(&address(port), 2), "once");
            port += 1;
        }
        assert_eq!(search.tried.len(), 2 + REDIRECTS);
    }

    #[test]
    fn a_search_in_vain_says_what_helps() {
        let fault = |faults: &[Fault]| {
            let faults = faults.to_vec();
            let search = Search {
                faults,
                ..Search::default()
            };
            search.fault()
        };
        let (unreachable, invalid) = (Fault::unreachable("a"), Fault::invalid("b"));
        assert_eq!(fault(std::slice::from_ref(&invalid)), invalid);
        assert_eq!(
            fault(&[unreachable.clone(), unreachable.clone()]),
            Fault::unreachable("a; a")
        );
        assert_eq!(
            fault(&[invalid.clone(), invalid.clone()]),
            Fault::invalid("b; b")
        );
        let denied = |why: &str| Fault::Denied(Code::Forbidden, why.into());
        assert_eq!(fault(&[denied("c"), denied("d")]), denied("c; d"));
        assert_eq!(
            fault(&[denied("c"), invalid.clone()]),
            Fault::invalid("c; b")
        );
        assert_eq!(fault(&[unreachable, invalid]), Fault::unavailable("a; b"));
    }
}
