//! Peers over TLS: certificates that are refused, and the bytes that an attacker between two nodes can read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use palisade_replica::peers::{Introduction, Key, PROTOCOL, Peers, Security, Settings, Standing};
use palisade_replica::{NodeId, Profile, Transport as _};
use palisade_tls::issue::{CertificateAuthority, Validity};
use palisade_tls::{Reloaded, Server, ServerFiles};
use palisade_wal::Id;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::peers::key;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const HERE: &str = "127.0.0.1";

/// A private CA, and the certificates that it has issued.
struct Ca {
    dir: TempDir,
    authority: CertificateAuthority,
}

impl Ca {
    fn make() -> Ca {
        let dir = tempfile::tempdir().unwrap();
        let (authority, own) = CertificateAuthority::make(valid()).unwrap();
        std::fs::write(dir.path().join("ca.pem"), own.certificate).unwrap();
        Ca { dir, authority }
    }

    /// Writes a certificate for a host, and gives the files of a node with it.
    fn files(&self, host: &str, validity: Validity) -> ServerFiles {
        let file = |name: &str| self.dir.path().join(name);
        let issued = self.authority.issue(&[host], validity).unwrap();
        std::fs::write(file(&format!("{host}.pem")), issued.certificate).unwrap();
        std::fs::write(file(&format!("{host}.key")), issued.key).unwrap();
        ServerFiles {
            certificate: file(&format!("{host}.pem")),
            key: file(&format!("{host}.key")),
            client_ca: Some(file("ca.pem")),
            client_crl: None,
            certificate_optional: false,
        }
    }

    fn tls(&self, host: &str) -> Arc<Server> {
        server(self.files(host, valid()))
    }

    /// Replaces this CA's files with copies of another one's.
    fn replace_with(&self, other: &Ca) {
        let copy = |file: &Path| {
            let name = file.file_name().unwrap();
            std::fs::copy(file, self.dir.path().join(name)).unwrap();
        };
        for entry in std::fs::read_dir(other.dir.path()).unwrap() {
            copy(&entry.unwrap().path());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid by the wall clock"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

fn valid() -> Validity {
    Validity::days(now(), 1)
}

fn server(files: ServerFiles) -> Arc<Server> {
    Arc::new(Server::speaking(files, vec![PROTOCOL.to_vec()]).unwrap())
}

struct Node {
    node: NodeId,
    address: String,
    peers: Peers,
}

impl Node {
    /// A node that says it is at `name`, with the port that it listens on.
    async fn start(node: u64, name: &str, security: Security, members: &[(u64, &str)]) -> Node {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let members = members
            .iter()
            .map(|(node, address)| (NodeId(*node), (*address).to_owned()));
        let own = Introduction {
            node: NodeId(node),
            address: format!("{name}:{port}"),
            url: format!("https://client-{node}"),
            reads: 1,
            timers: Profile::default(),
            starts: 1,
            last: None,
            history: Vec::new(),
            standing: Standing::Member {
                authority: Id::from_bytes([0xaa; 16]),
                incarnation: Id::from_bytes([1; 16]),
                members: members.collect::<BTreeMap<_, _>>(),
            },
        };
        let settings = Settings {
            backoff: (Duration::from_millis(1), Duration::from_millis(4)),
            ..Settings::default()
        };
        let peers = Peers::new(security, settings, own);
        peers.answer(|_, message| async move { message });
        tokio::spawn(peers.serve(listener));
        Node {
            node: NodeId(node),
            address: format!("{HERE}:{port}"),
            peers,
        }
    }

    async fn call(&self, to: &Node, message: &[u8]) -> std::io::Result<Vec<u8>> {
        self.call_at(to, &to.address, message).await
    }

    async fn call_at(&self, to: &Node, at: &str, message: &[u8]) -> std::io::Result<Vec<u8>> {
        let message = message.to_vec();
        self.peers.call(to.node, at, message, PATIENCE).await
    }

    /// Why this node's last attempt to reach another one failed.
    fn refusal_of(&self, other: &Node) -> String {
        let status = self.peers.status().get(&other.node).cloned();
        status.unwrap_or_default().refusal.unwrap_or_default()
    }
}

fn with(key: Key, tls: Option<Arc<Server>>) -> Security {
    Security {
        key: Some(key),
        tls,
    }
}

#[tokio::test]
async fn nodes_with_certificates_call_each_other() {
    let ca = Ca::make();
    let secure = || with(key(1), Some(ca.tls(HERE)));
    let members = [(1, "127.0.0.1:1"), (2, "127.0.0.1:2")];
    let a = Node::start(1, HERE, secure(), &members).await;
    let b = Node::start(2, HERE, secure(), &members).await;
    // A short one and a long one: two connections.
    for size in [10, 1 << 20] {
        let message = vec![7; size];
        assert_eq!(a.call(&b, &message).await.unwrap(), message);
        assert_eq!(b.call(&a, &message).await.unwrap(), message);
    }
}

/// Each stranger knows the cluster's key, but does not have the right certificate. None of its messages reaches the
/// node, and the cluster goes on.
#[tokio::test]
async fn a_node_without_the_right_certificate_is_refused_and_told_why() {
    let (ca, other) = (Ca::make(), Ca::make());
    let members = [(1, "127.0.0.1:1"), (2, "127.0.0.1:2"), (3, "127.0.0.1:3")];
    let secure = || with(key(1), Some(ca.tls(HERE)));
    let a = Node::start(1, HERE, secure(), &members).await;
    let b = Node::start(2, HERE, secure(), &members).await;
    a.call(&b, b"before").await.unwrap();

    let expired = Validity {
        from: now() - Duration::from_secs(9_000),
        until: now() - Duration::from_secs(7_200),
    };
    let strangers = [
        ("another CA", other.tls(HERE), HERE, 9, "not trusted"),
        (
            "expired",
            server(ca.files(HERE, expired)),
            HERE,
            9,
            "expired",
        ),
        // A client of this CA that claims to be a new node here.
        (
            "another name",
            ca.tls("client-a"),
            HERE,
            9,
            "is not for 127.0.0.1",
        ),
        // The same client claims to be a member that has moved to the host of its certificate.
        (
            "another node",
            ca.tls("client-a"),
            "client-a",
            3,
            "reached at 127.0.0.1:3",
        ),
    ];
    for (what, tls, name, node, why) in strangers {
        let stranger = Node::start(node, name, with(key(1), Some(tls)), &[]).await;
        // The expired one trusts the CA, and so does the one with another name; they are refused for the
        // certificates that they show.
        let refused = stranger.call(&a, b"let me in").await;
        assert!(refused.is_err(), "{what}: {refused:?}");
        let told = stranger.refusal_of(&a);
        assert!(told.contains(why), "{what}: {told}");
        // Nor is it taken for a node when it is dialled.
        let dialled = a.call(&stranger, b"are you there").await;
        assert!(dialled.is_err(), "{what}: {dialled:?}");
        let why = a.refusal_of(&stranger);
        assert!(why.contains("certificate"), "{what}: {why}");
        stranger.peers.stop();
    }
    for _ in 0..3 {
        assert_eq!(a.call(&b, b"after").await.unwrap(), b"after");
        assert_eq!(b.call(&a, b"after").await.unwrap(), b"after");
    }
}

#[tokio::test]
async fn with_tls_at_one_side_only_both_are_told() {
    let ca = Ca::make();
    let secure = with(key(1), Some(ca.tls(HERE)));
    let a = Node::start(1, HERE, secure, &[]).await;
    let plain = Node::start(2, HERE, with(key(1), None), &[]).await;
    for (from, to, why) in [
        (&plain, &a, "speak TLS with each other"),
        (&a, &plain, "does not speak TLS"),
    ] {
        assert!(from.call(to, b"hello").await.is_err());
        let told = from.refusal_of(to);
        assert!(told.contains(why) && told.contains("--tls-cert"), "{told}");
    }
}

/// The key still counts: clients may have certificates of the same CA.
#[tokio::test]
async fn a_certificate_without_the_key_is_not_enough() {
    let ca = Ca::make();
    let a = Node::start(1, HERE, with(key(1), Some(ca.tls(HERE))), &[]).await;
    let stranger = Node::start(2, HERE, with(key(2), Some(ca.tls(HERE))), &[]).await;
    assert!(stranger.call(&a, b"hello").await.is_err());
    let told = stranger.refusal_of(&a);
    assert!(told.contains("different cluster keys"), "{told}");
}

/// Carries bytes to `to`, and keeps a copy of all of them.
async fn tap(to: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&to).await.unwrap();
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            for (mut from, mut to) in [(near_in, far_out), (far_in, near_out)] {
                let copy = Arc::clone(&copy);
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4_096];
                    while let Ok(read @ 1..) = from.read(&mut bytes).await {
                        copy.lock().unwrap().extend_from_slice(&bytes[..read]);
                        let _ = to.write_all(&bytes[..read]).await;
                    }
                });
            }
        }
    });
    (at, heard)
}

/// The log contains the keys of leases.
#[tokio::test]
async fn somebody_between_two_nodes_reads_nothing() {
    let ca = Ca::make();
    for tls in [true, false] {
        let secure = || with(key(1), tls.then(|| ca.tls(HERE)));
        let a = Node::start(1, HERE, secure(), &[]).await;
        let b = Node::start(2, HERE, secure(), &[]).await;
        let (at, heard) = tap(b.address.clone()).await;
        let secret = b"the key of a lease";
        a.call_at(&b, &at, secret).await.unwrap();
        let heard = heard.lock().unwrap();
        let found = heard.windows(secret.len()).any(|part| part == secret);
        // Without TLS it is there to be read.
        assert_eq!(found, !tls);
    }
}

/// Open connections go on. New ones present, and demand, the certificates that the files contain now.
#[tokio::test]
async fn new_certificates_are_in_force_for_new_connections() {
    let (ca, next) = (Ca::make(), Ca::make());
    let tls = ca.tls(HERE);
    let a = Node::start(1, HERE, with(key(1), Some(Arc::clone(&tls))), &[]).await;
    let b = Node::start(2, HERE, with(key(1), Some(ca.tls(HERE))), &[]).await;
    a.call(&b, b"before").await.unwrap();
    let later = Node::start(3, HERE, with(key(1), Some(next.tls(HERE))), &[]).await;
    assert!(later.call(&a, b"too early").await.is_err());
    assert!(a.call(&later, b"too early").await.is_err());

    ca.replace_with(&next);
    assert_eq!(tls.reload().unwrap(), Reloaded::Taken);
    for message in [b"one", b"two"] {
        until_answered(&later, &a, message).await;
        until_answered(&a, &later, message).await;
        a.call(&b, b"goes on").await.unwrap();
    }
}

/// A link that has failed rests for a moment.
async fn until_answered(from: &Node, to: &Node, message: &[u8]) {
    let answered = async {
        while from.call(to, message).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.unwrap();
}
