//! Five Redis primaries for Redlock; the clock of one can be moved.
//!
//! With all five running, the algorithm stays exclusive: a client needs three, and a second client gets at most the one
//! that forgot. So two are stopped while the other three grant a holder; they return, and then the clock of one of the
//! three jumps: the lock is free at three primaries while the holder still believes in it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::chaos::fixture::shim::{Shim, Warp};
use crate::chaos::process::{Line, Process};
use crate::chaos::server::Victim;
use crate::chaos::stop::Stop;

/// The primaries.
pub(super) struct Primaries {
    ports: Vec<u16>,
    processes: Vec<Process>,
    warp: Warp,
}

const PRIMARIES: usize = 5;
/// The primary whose clock can be moved.
const JUMPS: usize = 2;
/// The primaries that are stopped now and then.
const AWAY: std::ops::Range<usize> = 3..PRIMARIES;

impl Primaries {
    pub(super) fn start(folder: &Path) -> Result<Primaries, String> {
        let shim = Shim::build(folder)?;
        let mut primaries = Primaries {
            ports: Vec::new(),
            processes: Vec::new(),
            warp: Warp::new(folder.join("redis-clock"))?,
        };
        for at in 0..PRIMARIES {
            let environment = if at == JUMPS {
                [shim.environment(), primaries.warp.environment()].concat()
            } else {
                Vec::new()
            };
            primaries.add(folder, environment)?;
        }
        Ok(primaries)
    }

    fn add(&mut self, folder: &Path, environment: Vec<(String, String)>) -> Result<(), String> {
        let port = TcpListener::bind(LOOPBACK).and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| error.to_string())?.port();
        let (number, dir) = (port.to_string(), folder.display().to_string());
        let words = [
            "redis-server",
            "--port",
            &number,
            "--bind",
            "127.0.0.1",
            "--dir",
            &dir,
            "--save",
            "",
        ];
        let line = Line {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            environment,
            ..Line::default()
        };
        let process = Process::start(&line, &folder.join("redis.log"), drop);
        self.processes
            .push(process.map_err(|error| error.to_string())?);
        self.ports.push(port);
        let ready = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let never = Stop::default();
        for _ in 0..TRIES {
            if ready() {
                return Ok(());
            }
            never.comes_within(Duration::from_millis(10));
        }
        Err("redis-server does not start: install the Debian package redis-server".to_owned())
    }
}

impl Victim for Primaries {
    fn url(&self) -> String {
        let hosts: Vec<String> = self
            .ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redlock://{}", hosts.join(","))
    }

    fn pause(&self) {
        self.processes[AWAY].iter().for_each(Process::stop);
    }

    fn resume(&self) {
        self.processes[AWAY].iter().for_each(Process::resume);
    }

    fn kill(&self) {}

    fn lives(&self) -> bool {
        true
    }

    fn start_again(&self) -> Result<(), String> {
        Ok(())
    }

    fn jump(&self, seconds: i64) -> Result<(), String> {
        self.warp.wall(seconds)
    }
}

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const TRIES: u32 = 1_000;
