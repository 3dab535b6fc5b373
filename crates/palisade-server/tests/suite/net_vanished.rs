//! A waiter whose machine vanished: its packets, and those to it, are lost.
//!
//! The kernel answers for a process on this machine, even a stopped one; so the waiter connects from a network
//! namespace of its own, whose cable is then cut. Where none can be made the test says so and looks at the
//! timers of the sockets instead.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::net_support::{Server, Wish, acquire_and_wait};
use palisade_server::shell::Settings;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace with one cable to this one.
struct Namespace {
    name: String,
    cable: String,
    /// The first three numbers of the addresses on the cable.
    network: String,
}

impl Namespace {
    /// `None` where this user may not make one, or `ip` (iproute2) is missing.
    fn new() -> Option<Namespace> {
        let id = std::process::id();
        let namespace = Namespace {
            name: format!("palisade-{id}"),
            cable: format!("pv{id}"),
            network: format!("10.{}.{}", 64 + id / 256 % 64, id % 256),
        };
        let Namespace {
            name,
            cable,
            network,
        } = &namespace;
        let made = [
            format!("netns add {name}"),
            format!("link add {cable} type veth peer name far netns {name}"),
            format!("addr add {network}.1/24 dev {cable}"),
            format!("link set {cable} up"),
            format!("-n {name} addr add {network}.2/24 dev far"),
            format!("-n {name} link set far up"),
        ]
        .iter()
        .all(|command| ip(command));
        made.then_some(namespace)
    }

    /// A connection from inside.
    fn connect(&self, to: SocketAddr) -> TcpStream {
        let path = format!("/run/netns/{}", self.name);
        // A thread that moved stays there, so it is one of its own.
        let moved = std::thread::spawn(move || {
            let inside = File::open(path).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&inside), kind).unwrap();
            TcpStream::connect(to).unwrap()
        });
        moved.join().unwrap()
    }

    fn cut(&self) {
        assert!(ip(&format!("link set {} down", self.cable)));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.cable));
        ip(&format!("netns del {}", self.name));
    }
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

async fn patient(peer_timeout: Duration, host: &str) -> Server {
    let shell = Settings {
        peer_timeout,
        ..Settings::default()
    };
    Server::at(&format!("{host}:0"), Wish::shell(shell)).await
}

/// Stands in the queue of a lock, over HTTP/1.1.
async fn wait_in(server: &Server, connect: impl FnOnce(SocketAddr) -> TcpStream) -> TcpStream {
    server.lock("x", "holder").await;
    let mut waiting = connect(server.addr);
    waiting.write_all(acquire_and_wait().as_bytes()).unwrap();
    server.waiters(1).await;
    waiting
}

/// Whether the kernel has a keep-alive timer on the server's end of a connection (`tr` of `/proc/net/tcp`).
fn has_keep_alive(server: &Server, client: &TcpStream) -> bool {
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let (here, there) = (port(server.addr), port(client.local_addr().unwrap()));
    let is_it = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        let mut ends_with = |end: &str| columns.next().is_some_and(|text| text.ends_with(end));
        ends_with(&here) && ends_with(&there)
    };
    // One reading of the table may miss a line while other connections end.
    let line = (0..8).find_map(|_| {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().find(is_it).map(str::to_owned)
    });
    let line = line.expect("the connection is in /proc/net/tcp");
    let timer = line.split_whitespace().nth(5).unwrap();
    timer.starts_with("02:")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_machine_vanished_leaves_its_queue() {
    let hour = Duration::from_secs(3_600);
    let Some(namespace) = Namespace::new() else {
        eprintln!(
            "NO NETWORK NAMESPACE could be made (root and iproute2 are needed): only the timers are looked at"
        );
        let server = patient(Duration::from_secs(25), "127.0.0.1").await;
        let waiting = wait_in(&server, |to| TcpStream::connect(to).unwrap()).await;
        assert!(has_keep_alive(&server, &waiting));
        return;
    };
    let host = format!("{}.1", namespace.network);
    let server = patient(Duration::from_secs(2), &host).await;
    // The control waits an hour, as the kernel's default is two.
    let control = patient(hour, &host).await;
    let waiting = wait_in(&server, |to| namespace.connect(to)).await;
    let forgotten = wait_in(&control, |to| namespace.connect(to)).await;
    assert!(has_keep_alive(&server, &waiting));
    namespace.cut();
    server.waiters(0).await;
    assert_eq!(
        control.status().await.waiters,
        1,
        "the control noticed it, so this shows nothing"
    );
    drop((waiting, forgotten));
}
