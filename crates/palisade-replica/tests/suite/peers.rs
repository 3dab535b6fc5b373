//! Peers on real sockets: calls, and the attempts of strangers.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use palisade_replica::peers::{Introduction, Key, PeerHistory, Peers, Settings, Standing};
use palisade_replica::{Leader, LogId, NodeId, Profile, Transport as _};
use palisade_wal::Id;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn key(byte: u8) -> Key {
    Key::new([byte; 32]).unwrap()
}

struct Node {
    node: NodeId,
    address: String,
    peers: Peers,
    serving: JoinHandle<()>,
}

fn introduction(node: u64, address: &str, starts: u64) -> Introduction {
    Introduction {
        node: NodeId(node),
        address: address.to_owned(),
        url: format!("http://client-{node}"),
        reads: 1,
        timers: Profile::default(),
        starts,
        last: None,
        history: Vec::new(),
        standing: Standing::Member {
            authority: Id::from_bytes([0xaa; 16]),
            incarnation: Id::from_bytes([1; 16]),
            members: BTreeMap::new(),
        },
    }
}

/// Fails at once where the defaults would wait.
fn settings() -> Settings {
    Settings {
        backoff: (Duration::from_millis(1), Duration::from_millis(4)),
        ..Settings::default()
    }
}

impl Node {
    async fn start_at(node: u64, key: Option<Key>, at: &str, starts: u64) -> Node {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = Peers::new(key, settings(), introduction(node, &address, starts));
        // Answers with the node that asked.
        peers.answer(move |from, message| async move {
            let mut answer = format!("{node} to {from}: ").into_bytes();
            answer.extend_from_slice(&message[..message.len().min(20)]);
            answer
        });
        Node {
            node: NodeId(node),
            address,
            serving: tokio::spawn(peers.serve(listener)),
            peers,
        }
    }

    async fn start(node: u64, key: Option<Key>) -> Node {
        Node::start_at(node, key, "127.0.0.1:0", 1).await
    }

    async fn call(&self, to: &Node, message: &[u8]) -> std::io::Result<String> {
        let answer = self
            .peers
            .call(to.node, &to.address, message.to_vec(), PATIENCE);
        answer
            .await
            .map(|answer| String::from_utf8(answer).unwrap())
    }

    /// Calls until it is answered: a link that has failed rests for a moment.
    async fn call_until_answered(&self, to: &Node, message: &[u8]) -> String {
        loop {
            if let Ok(answer) = self.call(to, message).await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    }

    fn refusal_of(&self, other: &Node) -> Option<String> {
        self.peers.status().get(&other.node)?.refusal.clone()
    }

    async fn stop(self) {
        self.peers.stop();
        self.serving.await.unwrap();
    }
}

async fn three() -> [Node; 3] {
    [
        Node::start(1, Some(key(1))).await,
        Node::start(2, Some(key(1))).await,
        Node::start(3, Some(key(1))).await,
    ]
}

#[tokio::test]
async fn nodes_call_each_other_in_both_directions_and_know_each_other() {
    let nodes = three().await;
    for from in &nodes {
        for to in nodes.iter().filter(|to| to.node != from.node) {
            let expect = format!("{} to {}: hello", to.node.0, from.node);
            assert_eq!(from.call(to, b"hello").await.unwrap(), expect);
            let status = from.peers.status()[&to.node].clone();
            assert!(
                status.connected && status.round_trip.is_some(),
                "{status:?}"
            );
            assert_eq!((status.address, status.refusal), (to.address.clone(), None));
            let url = Some(format!("http://client-{}", to.node.0));
            assert_eq!(from.peers.client_url(to.node), url);
        }
    }
}

#[tokio::test]
async fn a_node_that_goes_away_is_unreachable_until_it_comes_back() {
    let [a, b, _] = three().await;
    a.call(&b, b"1").await.unwrap();
    let (address, node) = (b.address.clone(), b.node);
    b.stop().await;
    loop {
        let gone = a.peers.call(node, &address, b"2".to_vec(), PATIENCE).await;
        match gone.unwrap_err().kind() {
            ErrorKind::ConnectionRefused => break,
            // The call that found the connection broken.
            kind => assert_eq!(kind, ErrorKind::ConnectionReset),
        }
    }
    assert!(!a.peers.status()[&node].connected);
    let back = Node::start_at(2, Some(key(1)), &address, 2).await;
    let answer = a.call_until_answered(&back, b"3").await;
    assert_eq!(answer, format!("2 to {}: 3", a.node));
    assert!(a.peers.status()[&node].connected);
}

#[tokio::test]
async fn a_node_without_the_key_or_with_another_one_is_refused_on_both_sides() {
    let a = Node::start(1, Some(key(1))).await;
    for (wrong, why) in [(Some(key(2)), "different cluster keys"), (None, "has none")] {
        let other = Node::start(2, wrong).await;
        for (from, to) in [(&a, &other), (&other, &a)] {
            let refused = from.call(to, b"hello").await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let refusal = from.refusal_of(to).unwrap();
            assert!(
                refusal.contains(why) && refusal.contains("--cluster-key-file"),
                "{refusal}"
            );
        }
        other.stop().await;
    }
    let (c, d) = (Node::start(3, None).await, Node::start(4, None).await);
    c.call(&d, b"without a key on both").await.unwrap();
}

#[tokio::test]
async fn another_node_at_an_address_and_an_older_copy_are_refused_with_what_to_type() {
    let [a, b, c] = three().await;
    let call = a
        .peers
        .call(b.node, &c.address, b"hello".to_vec(), PATIENCE);
    assert_eq!(call.await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let refusal = a.refusal_of(&b).unwrap();
    assert!(
        refusal.contains("palisade cluster replace 0000000000000002 0000000000000003"),
        "{refusal}"
    );

    a.call_until_answered(&b, b"hello").await;
    let address = b.address.clone();
    b.stop().await;
    let copy = Node::start_at(2, Some(key(1)), &address, 0).await;
    loop {
        assert!(a.call(&copy, b"hello").await.is_err());
        if let Some(refusal) = a
            .refusal_of(&copy)
            .filter(|why| why.contains("started 1 times"))
        {
            assert!(refusal.contains("says 0"), "{refusal}");
            break;
        }
        tokio::task::yield_now().await;
    }
    // It hears of the loss, looks into its own directory, and goes silent.
    let mut told = copy.peers.lost();
    let why = told.wait_for(Option::is_some).await.unwrap().clone();
    let why = why.unwrap();
    assert!(
        why.contains("started 1 times") && why.contains("0 starts"),
        "{why}"
    );
    assert!(copy.call(&a, b"hello").await.is_err());
}

/// The first message on a connection.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    frame
}

/// Reads until the other side closes.
async fn all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn a_stranger_gets_no_further_than_a_hello() {
    let quick = Settings {
        handshake: Duration::from_millis(50),
        ..settings()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peers = Peers::new(Some(key(1)), quick, introduction(1, &address, 1));
    peers.answer(|_, _| async { panic!("a stranger was answered") });
    let serving = tokio::spawn(peers.serve(listener));
    for sent in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        framed(b"garbage"),
        framed(&[1; 200]),
        u32::MAX.to_le_bytes().to_vec(),
        1_000_u32.to_le_bytes().to_vec(),
        framed(b"")[..2].to_vec(),
        // Nothing: it is closed when the time is over.
        Vec::new(),
    ] {
        let mut stranger = TcpStream::connect(&address).await.unwrap();
        stranger.write_all(&sent).await.unwrap();
        assert_eq!(all(&mut stranger).await, b"", "{sent:?}");
    }
    peers.stop();
    serving.await.unwrap();
}

#[tokio::test]
async fn strangers_have_so_many_places_and_give_them_back() {
    let few = Settings {
        handshake: PATIENCE,
        strangers: (3, 64),
        ..settings()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peers = Peers::new(Some(key(1)), few, introduction(1, &address, 1));
    tokio::spawn(peers.serve(listener));
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    // It is closed at once: the time for a handshake is not over before the test is.
    let mut late = TcpStream::connect(&address).await.unwrap();
    assert_eq!(all(&mut late).await, b"");
    let other = Peers::new(Some(key(1)), settings(), introduction(2, "elsewhere", 1));
    assert!(other.meet(&address).await.is_err());
    drop(silent);
    while other.meet(&address).await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// A man in the middle answers a dialer with the dialer's own words, and with those of its own port.
#[tokio::test]
async fn what_a_node_says_is_no_answer_to_itself() {
    let victim = Node::start(1, Some(key(1))).await;
    for with_port in [false, true] {
        let mirror = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = mirror.local_addr().unwrap().to_string();
        let port = victim.address.clone();
        let mirroring = tokio::spawn(async move {
            let (mut dialer, _) = mirror.accept().await.unwrap();
            if with_port {
                let mut port = TcpStream::connect(port).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut dialer, &mut port).await;
            } else {
                let (mut from, mut to) = dialer.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            }
        });
        let why = victim.peers.meet(&address).await.unwrap_err();
        if with_port {
            assert!(why.contains("same id"), "{why}")
        } else {
            assert!(why.contains("different cluster keys"), "{why}")
        }
        mirroring.await.unwrap();
    }
}

/// A connection to a node that lets this many bytes through at first, and the rest on demand.
async fn narrow_way_to(node: &Node, first: u64, rest: Arc<Notify>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let to = node.address.clone();
    tokio::spawn(async move {
        while let Ok((dialer, _)) = listener.accept().await {
            let (to, rest) = (TcpStream::connect(&to).await.unwrap(), Arc::clone(&rest));
            let ((mut from_dialer, mut to_dialer), (mut from, mut to)) =
                (dialer.into_split(), to.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from, &mut to_dialer).await });
            tokio::spawn(async move {
                let mut begin = (&mut from_dialer).take(first);
                tokio::io::copy(&mut begin, &mut to).await.unwrap();
                rest.notified().await;
                let _ = tokio::io::copy(&mut from_dialer, &mut to).await;
            });
        }
    });
    address
}

/// A part of a snapshot is stuck on its way; heartbeats are still answered.
#[tokio::test]
async fn a_long_message_does_not_hold_up_short_ones() {
    let [a, b, _] = three().await;
    b.peers
        .answer(|_, message| async move { message.len().to_string().into_bytes() });
    let rest = Arc::new(Notify::new());
    let address = narrow_way_to(&b, 100_000, Arc::clone(&rest)).await;
    let call = |message: Vec<u8>| {
        let (peers, to, address) = (a.peers.clone(), b.node, address.clone());
        async move { peers.call(to, &address, message, PATIENCE).await.unwrap() }
    };
    let mut part = std::pin::pin!(call(vec![7; 1 << 20]));
    let mut heartbeats = std::pin::pin!(async {
        for _ in 0..100 {
            assert_eq!(call(vec![7; 9]).await, b"9");
        }
    });
    tokio::select! {
        _ = &mut part => panic!("it was not stuck"),
        () = &mut heartbeats => {}
    }
    rest.notify_one();
    assert_eq!(part.await, b"1048576");
}

#[tokio::test]
async fn a_call_that_is_not_answered_in_time_fails_and_the_connection_goes_on() {
    let [a, b, _] = three().await;
    b.peers.answer(|_, message| async move {
        match message.as_slice() {
            b"never" => std::future::pending().await,
            _ => message,
        }
    });
    let within = Duration::from_millis(20);
    a.call(&b, b"1").await.unwrap();
    let never = a.peers.call(b.node, &b.address, b"never".to_vec(), within);
    assert_eq!(never.await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(a.call(&b, b"2").await.unwrap(), "2");
}

#[tokio::test]
async fn a_node_that_is_not_ready_is_unreachable() {
    let a = Node::start(1, None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let blank = Peers::new(None, settings(), introduction(2, &address, 1));
    tokio::spawn(blank.serve(listener));
    let call = a
        .peers
        .call(NodeId(2), &address, b"hello".to_vec(), PATIENCE);
    let refused = call.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(refused.to_string().contains("not ready"), "{refused}");
}

fn entry(term: u64, index: u64) -> LogId {
    let leader = Leader {
        term,
        node: NodeId(1),
    };
    LogId { leader, index }
}

/// A node knows that another one had acknowledged entry 9, and says so when they meet, whichever of the two dials. A node that
/// lacks the entry answers nobody any more. One that has it goes on, and refuses the other node's claim (the control). A later
/// term makes no difference.
#[tokio::test]
async fn a_node_that_is_told_that_it_lost_entries_looks_into_its_own_log() {
    let (older, newer) = (entry(3, 0), entry(5, 4));
    for (last, history, lost) in [
        (entry(3, 8), vec![older], true),
        (entry(5, 12), vec![older, newer], true),
        (entry(3, 9), vec![older], false),
    ] {
        for teller_dials in [true, false] {
            let (a, b) = (
                Node::start(1, Some(key(1))).await,
                Node::start(2, Some(key(1))).await,
            );
            let mut history_of_a = PeerHistory::default();
            history_of_a.met(&introduction(2, &b.address, 1));
            history_of_a.lost(NodeId(2), entry(3, 9));
            let (dir, id) = (tempfile::tempdir().unwrap(), Id::from_bytes([1; 16]));
            let path = dir.path().join("peers");
            std::fs::write(&path, history_of_a.to_text(id)).unwrap();
            drop(a.peers.remember(path, id).unwrap());
            let own = Introduction {
                last: Some(last),
                history: history.clone(),
                ..introduction(2, &b.address, 1)
            };
            // It introduces itself with the log it had, so it is let in if it lost nothing.
            b.peers.introduce(move || own.clone());
            let met = if teller_dials {
                a.call(&b, b"hello").await
            } else {
                b.call(&a, b"hello").await
            };
            assert_eq!(met.is_err(), lost, "{last}, {teller_dials}");
            let mut told = b.peers.lost();
            if lost {
                let told = tokio::time::timeout(PATIENCE, told.wait_for(Option::is_some));
                let why = told.await.unwrap().unwrap().clone().unwrap();
                assert!(
                    why.contains("must not vote") && why.contains("entry 9"),
                    "{why}"
                );
                assert!(
                    why.contains("Keep the directory") && !why.contains("empty"),
                    "{why}"
                );
                assert!(b.call(&a, b"hello").await.is_err(), "it is silent");
            }
            assert_eq!(b.peers.lost().borrow().is_some(), lost);
            assert_eq!(*a.peers.lost().borrow(), None, "it told the other one");
        }
    }
}

/// The other side has its own record of the node's log, but the node's own record decides.
#[tokio::test]
async fn a_node_that_has_what_it_is_said_to_have_lost_refuses_the_teller() {
    let (a, b) = (
        Node::start(1, Some(key(1))).await,
        Node::start(2, Some(key(1))).await,
    );
    let mut history = PeerHistory::default();
    history.lost(NodeId(2), entry(3, 9));
    let (dir, id) = (tempfile::tempdir().unwrap(), Id::from_bytes([1; 16]));
    let path = dir.path().join("peers");
    std::fs::write(&path, history.to_text(id)).unwrap();
    drop(a.peers.remember(path, id).unwrap());
    // Its first introduction names fewer entries than it has later, when it hears of the loss.
    let asked = std::sync::atomic::AtomicU64::new(0);
    let address = b.address.clone();
    b.peers.introduce(move || {
        let is_first = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        Introduction {
            last: (!is_first).then_some(entry(3, 9)),
            history: vec![entry(3, 0)],
            ..introduction(2, &address, 1)
        }
    });
    assert!(b.call(&a, b"hello").await.is_err());
    assert_eq!(*b.peers.lost().borrow(), None);
    let refusal = b.refusal_of(&a).unwrap();
    assert!(refusal.contains("This node has it"), "{refusal}");
}

/// A process that hangs has connections, and answers nothing. The control is the same node that answers.
#[tokio::test]
async fn a_node_that_answers_nothing_is_not_among_those_that_answer() {
    let [a, b, c] = three().await;
    let nodes = [&a, &b, &c].map(|node| (node.node, node.address.clone()));
    let nodes = BTreeMap::from(nodes);
    let all: Vec<NodeId> = nodes.keys().copied().collect();
    assert_eq!(Vec::from_iter(a.peers.answering(&nodes).await), all);
    b.peers.answer(|_, _| std::future::pending());
    let answering = a.peers.answering(&nodes).await;
    assert_eq!(Vec::from_iter(answering), [a.node, c.node]);
    let status = a.peers.status()[&b.node].clone();
    assert!(status.connected, "the connection stands: {status:?}");
    assert!(!status.is_alive(), "{status:?}");
}
