//! Every server starts, answers, is killed, and comes back with its data.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_testbed::{
    Direction, Etcd, Instance, MariaDb, Moto, Nats, Postgres, Proxy, Redis, ZooKeeper,
};

fn restarts_after_a_kill(server: &Instance) -> (u32, PathBuf) {
    let first = server.pid();
    server.kill();
    assert!(
        TcpStream::connect(server.address()).is_err(),
        "the port is still open"
    );
    server.start_again();
    assert_ne!(server.pid(), first);
    TcpStream::connect(server.address()).unwrap();
    (server.pid(), server.dir().to_owned())
}

fn assert_gone((pid, dir): (u32, PathBuf)) {
    assert!(!PathBuf::from(format!("/proc/{pid}")).exists());
    assert!(!dir.exists());
}

fn send(redis: std::net::SocketAddr, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(redis)?;
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut buffer = [0; 100];
    let length = stream.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

#[test]
fn redis_keeps_synced_data_and_stops_when_paused() {
    let redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    assert_eq!(send(redis.address(), "SET a 7").unwrap(), "+OK\r\n");
    redis.pause();
    send(redis.address(), "GET a").unwrap_err();
    redis.resume();
    let left = restarts_after_a_kill(&redis);
    assert_eq!(send(redis.address(), "GET a").unwrap(), "$1\r\n7\r\n");
    drop(redis);
    assert_gone(left);
}

#[test]
fn every_other_server_starts_and_stops() {
    macro_rules! each {
        ($($server:ident)*) => {$(
            let server = $server::start(&[]);
            let left = restarts_after_a_kill(&server);
            drop(server);
            assert_gone(left);
        )*};
    }
    each! { Postgres MariaDb Etcd ZooKeeper Nats Moto }
}

/// The number of processes that work in a folder.
fn workers(dir: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap();
    let folders =
        processes.filter_map(|entry| std::fs::read_link(entry.ok()?.path().join("cwd")).ok());
    folders.filter(|folder| folder.starts_with(dir)).count()
}

/// PostgreSQL's workers are in their own process groups, and their memory keeps the next server from
/// starting.
#[test]
fn a_killed_postgres_leaves_no_process_behind() {
    let postgres = Postgres::start(&[]);
    let connections = [(); 20].map(|()| TcpStream::connect(postgres.address()).unwrap());
    while workers(postgres.dir()) < connections.len() {
        std::thread::yield_now();
    }
    postgres.kill();
    assert_eq!(workers(postgres.dir()), 0);
    postgres.start_again();
}

#[test]
fn a_shared_server_is_started_once() {
    assert_eq!(Redis::shared().pid(), Redis::shared().pid());
}

#[test]
fn a_relay_holds_back_cuts_and_heals() {
    let redis = Redis::shared();
    let proxy = Proxy::to(redis.address());
    assert_eq!(send(proxy.addr(), "PING").unwrap(), "+PONG\r\n");
    proxy.hold(Direction::Back);
    send(proxy.addr(), "SET held 1").unwrap_err();
    assert_eq!(send(redis.address(), "GET held").unwrap(), "$1\r\n1\r\n");
    proxy.let_go(Direction::Back);
    let mut open = TcpStream::connect(proxy.addr()).unwrap();
    proxy.cut();
    assert_eq!(open.read(&mut [0]).unwrap_or(0), 0, "it was cut");
    let refused = send(proxy.addr(), "PING");
    assert!(
        refused.is_err() || refused.as_ref().is_ok_and(String::is_empty),
        "{refused:?}"
    );
    proxy.heal();
    assert_eq!(send(proxy.addr(), "PING").unwrap(), "+PONG\r\n");
    assert!(proxy.accepted() >= 4);
}
