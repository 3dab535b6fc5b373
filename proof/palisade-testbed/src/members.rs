//! Servers with one member or with several that elect a leader.

use std::path::{Path, PathBuf};

use crate::folder::free_port;
use crate::instance::{Instance, Recipe, answer, answers_with, data, nothing, owned};

/// etcd, with one member or several.
pub struct Etcd(pub(crate) Instance);

impl Etcd {
    /// Debian's, or the one that `PALISADE_ETCD` names: `proof/kubernetes/build` builds the newest.
    pub fn program() -> PathBuf {
        std::env::var_os("PALISADE_ETCD").map_or_else(|| "/usr/bin/etcd".into(), PathBuf::from)
    }

    /// Starts one member with these additional arguments.
    pub fn start(arguments: &[&str]) -> Etcd {
        Etcd(Instance::start(etcd(owned(arguments))))
    }

    /// Starts a cluster with this number of members.
    pub fn cluster(members: usize) -> Vec<Etcd> {
        let ports = ports(members, 2);
        let peers: Vec<String> = ports
            .iter()
            .map(|ports| format!("m{}=http://127.0.0.1:{}", ports[1], ports[1]))
            .collect();
        let start = |ports: Vec<u16>| {
            let name = format!("--name=m{}", ports[1]);
            let all = format!("--initial-cluster={}", peers.join(","));
            Etcd(Instance::start_on(etcd(vec![name, all]), ports))
        };
        at_once(ports, start)
    }

    /// Whether it leads its cluster.
    pub fn leads(&self) -> bool {
        let status = answer(self.port(), ETCD_STATUS, "\"raftTerm\"");
        let id = |name: &str| {
            let (_, rest) = status.split_once(&format!("\"{name}\":\""))?;
            rest.split('"').next()
        };
        id("leader").is_some() && id("leader") == id("member_id")
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }
}

const ETCD_STATUS: &[u8] = b"POST /v3/maintenance/status HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";

fn etcd(more: Vec<String>) -> Recipe {
    Recipe {
        name: "etcd",
        install: "install the Debian package etcd-server",
        ports: 2,
        prepare: nothing(),
        command: Box::new(move |dir, ports| {
            let url = |port: u16| format!("http://127.0.0.1:{port}");
            let (client, peer) = (url(ports[0]), url(ports[1]));
            let mut command = vec![Etcd::program().display().to_string()];
            command.extend([
                format!("--data-dir={}", data(dir)),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
            ]);
            command.extend(owned(&["--logger=zap", "--log-level=error"]));
            // If an argument appears twice, etcd uses the last one.
            command.extend(more.clone());
            command
        }),
        ready: |port| answers_with(port, ETCD_STATUS, "\"leader\""),
    }
}

/// Chooses this number of ports for each of this number of servers.
fn ports(servers: usize, each: usize) -> Vec<Vec<u16>> {
    let server = |_| (0..each).map(|_| free_port()).collect();
    (0..servers).map(server).collect()
}

/// Starts in parallel servers that become ready only together.
fn at_once<S: Send>(ports: Vec<Vec<u16>>, start: impl Fn(Vec<u16>) -> S + Sync) -> Vec<S> {
    std::thread::scope(|scope| {
        let start = &start;
        let starting: Vec<_> = ports
            .into_iter()
            .map(|ports| scope.spawn(move || start(ports)))
            .collect();
        let started = starting.into_iter().map(|one| one.join());
        started
            .map(|one| one.expect("a server that starts"))
            .collect()
    })
}

/// ZooKeeper, standalone or an ensemble, with a tick of 500 ms: sessions of 1 to 60 seconds.
pub struct ZooKeeper(pub(crate) Instance);

impl ZooKeeper {
    /// Starts a standalone server with these Java options, such as `-Dznode.container.checkIntervalMs=1000`.
    pub fn start(options: &[&str]) -> ZooKeeper {
        ZooKeeper(Instance::start(zookeeper(owned(options), String::new(), 1)))
    }

    /// Starts an ensemble with this number of members.
    pub fn ensemble(members: usize) -> Vec<ZooKeeper> {
        let ports = ports(members, 3);
        let mut lines = "initLimit=60\nsyncLimit=10\n".to_owned();
        for (ports, id) in ports.iter().zip(1..) {
            let (quorum, election) = (ports[1], ports[2]);
            lines.push_str(&format!("server.{id}=127.0.0.1:{quorum}:{election}\n"));
        }
        let all = ports.clone();
        let start = |ports: Vec<u16>| {
            let id = 1 + all.iter().position(|one| *one == ports).unwrap_or(0);
            ZooKeeper(Instance::start_on(
                zookeeper(Vec::new(), lines.clone(), id),
                ports,
            ))
        };
        at_once(ports, start)
    }

    /// Whether it leads its ensemble.
    pub fn leads(&self) -> bool {
        answers_with(self.port(), b"srvr", "Mode: leader")
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port())
    }
}

fn zookeeper(options: Vec<String>, lines: String, id: usize) -> Recipe {
    Recipe {
        name: "zookeeper",
        install: "install the Debian packages zookeeper and default-jre-headless",
        ports: 1,
        prepare: Box::new(move |dir| {
            let jar = Path::new(ZOOKEEPER_JAR);
            assert!(
                jar.exists(),
                "{ZOOKEEPER_JAR} is missing: install the Debian package zookeeper"
            );
            std::fs::create_dir(data(dir)).expect("a folder in the server's folder");
            std::fs::write(dir.join("data/myid"), id.to_string()).expect("a file in it");
        }),
        command: Box::new(move |dir, ports| {
            let config = dir.join("zoo.cfg");
            let text = format!(
                "tickTime=500\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
                 maxClientCnxns=0\nmaxSessionTimeout=60000\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n{lines}",
                data(dir),
                ports[0]
            );
            std::fs::write(&config, text).expect("a file in the server's folder");
            let mut command = owned(&["/usr/bin/java", "-Xmx192m", "-cp", ZOOKEEPER_JAR]);
            command.extend(options.clone());
            command.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
            command.push(config.display().to_string());
            command
        }),
        ready: |port| answers_with(port, b"srvr", "Mode:"),
    }
}

const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";
