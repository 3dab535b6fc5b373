//! The compared systems and their servers.

use palisade_testbed::{Etcd, Instance, Nats, Postgres, Redis, ZooKeeper};

use super::drivers::{self, Connection, Terms};
use super::workload::{Work, Workload};
use crate::lane::Error;
use crate::{echo, palisade};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Palisade,
    PalisadeSocket,
    PalisadeCluster,
    RedisAlways,
    RedisSocket,
    RedisEverySecond,
    RedisNoFile,
    Etcd,
    EtcdCluster,
    ZooKeeper,
    Postgres,
    Nats,
    Echo,
}

/// Facts that a reader needs besides the figures.
pub(crate) struct Profile {
    pub(crate) system: System,
    /// The id that selects it.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// The durability of an acknowledgement.
    pub(crate) durable: &'static str,
    pub(crate) token: &'static str,
    pub(crate) lease: &'static str,
    /// The command that prints its version.
    version: &'static [&'static str],
}

pub(crate) const ALL: [Profile; 13] = [
    Profile {
        system: System::Palisade,
        id: "palisade",
        name: "Palisade",
        durable: "synced before every answer",
        token: "one counter for all locks, in the log entry of the grant",
        lease: "one for each grant",
        version: &[],
    },
    Profile {
        system: System::PalisadeSocket,
        id: "palisade-socket",
        name: "Palisade, socket",
        durable: "synced before every answer; over a Unix socket",
        token: "as above",
        lease: "one for each grant",
        version: &[],
    },
    Profile {
        system: System::PalisadeCluster,
        id: "palisade-3",
        name: "Palisade, 3 nodes",
        durable: "synced by two of three before every answer",
        token: "as above",
        lease: "one for each grant",
        version: &[],
    },
    Profile {
        system: System::RedisAlways,
        id: "redis-always",
        name: "Redis, always",
        durable: "synced before every answer",
        token: "INCR of one counter, in the script that takes the lock",
        lease: "expiry of each key",
        version: &[
            "dpkg-query",
            "--show",
            "--showformat=${Version}",
            "redis-server",
        ],
    },
    Profile {
        system: System::RedisSocket,
        id: "redis-socket",
        name: "Redis, socket",
        durable: "synced before every answer; over a Unix socket",
        token: "as above",
        lease: "expiry of each key",
        version: &[
            "dpkg-query",
            "--show",
            "--showformat=${Version}",
            "redis-server",
        ],
    },
    Profile {
        system: System::RedisEverySecond,
        id: "redis-everysec",
        name: "Redis, everysec",
        durable: "a second or two may be lost",
        token: "as above",
        lease: "expiry of each key",
        version: &[
            "dpkg-query",
            "--show",
            "--showformat=${Version}",
            "redis-server",
        ],
    },
    Profile {
        system: System::RedisNoFile,
        id: "redis-none",
        name: "Redis, no file",
        durable: "everything is lost",
        token: "as above; begins at 1 again",
        lease: "expiry of each key",
        version: &[
            "dpkg-query",
            "--show",
            "--showformat=${Version}",
            "redis-server",
        ],
    },
    Profile {
        system: System::Etcd,
        id: "etcd",
        name: "etcd",
        durable: "synced before every answer",
        token: "revision of the key's creation",
        lease: "one for each client",
        version: &["etcd", "--version"],
    },
    Profile {
        system: System::EtcdCluster,
        id: "etcd-3",
        name: "etcd, 3 nodes",
        durable: "synced by two of three before every answer",
        token: "revision of the key's creation",
        lease: "one for each client",
        version: &["etcd", "--version"],
    },
    Profile {
        system: System::ZooKeeper,
        id: "zookeeper",
        name: "ZooKeeper",
        durable: "synced before every answer",
        token: "transaction of the node's creation",
        lease: "one session for each client",
        version: &[
            "dpkg-query",
            "--show",
            "--showformat=${Version}",
            "zookeeper",
        ],
    },
    Profile {
        system: System::Postgres,
        id: "postgres",
        name: "PostgreSQL",
        durable: "synced before every answer",
        token: "counter in the lock's row",
        lease: "expiry in each row",
        version: &["psql", "--version"],
    },
    Profile {
        system: System::Nats,
        id: "nats",
        name: "NATS JetStream",
        durable: "written before every answer, synced every 2 minutes",
        token: "revision of the bucket",
        lease: "none",
        version: &[
            "dpkg-query",
            "--show",
            "--showformat=${Version}",
            "nats-server",
        ],
    },
    Profile {
        system: System::Echo,
        id: "echo",
        name: "echo, synced",
        durable: "synced before every answer",
        token: "a count of messages",
        lease: "none: what sockets and disk cost any server",
        version: &[],
    },
];

impl Profile {
    /// Whether each lock's lease is renewed separately, so that renewals can be compared.
    pub(crate) fn renews_each(&self) -> bool {
        !matches!(
            self.system,
            System::Etcd | System::EtcdCluster | System::ZooKeeper
        )
    }

    /// Whether it is Palisade, on one node or on three.
    pub(crate) fn is_palisade(&self) -> bool {
        matches!(
            self.system,
            System::Palisade | System::PalisadeSocket | System::PalisadeCluster
        )
    }

    /// Whether holding many locks is measured on it: a cluster, and a server behind another kind of socket, hold them
    /// like one node.
    pub(crate) fn holds(&self) -> bool {
        !matches!(
            self.system,
            System::PalisadeCluster
                | System::EtcdCluster
                | System::PalisadeSocket
                | System::RedisSocket
                | System::Echo
        )
    }

    /// Whether this work can be measured on this system.
    pub(crate) fn offers(&self, workload: &Workload) -> bool {
        match self.system {
            System::ZooKeeper => workload.work != Work::Renewals,
            System::Echo => workload.work == Work::Pairs && workload.lanes == 1,
            _ => true,
        }
    }

    /// The first line that its program or its Debian package prints; the version of this build for Palisade.
    pub(crate) fn version(&self) -> String {
        let [program, arguments @ ..] = self.version else {
            return env!("CARGO_PKG_VERSION").to_owned();
        };
        let program = match *program {
            "etcd" => Etcd::program(),
            program => program.into(),
        };
        let output = std::process::Command::new(program).args(arguments).output();
        let said = output.map(|output| output.stdout).unwrap_or_default();
        match String::from_utf8_lossy(&said).lines().next() {
            None => "unknown".to_owned(),
            Some(version) => version.trim_start_matches("etcd Version: ").to_owned(),
        }
    }
}

/// The name of the Unix socket in the folder of Redis.
const SOCKET: &str = "redis.socket";

/// A running server; dropping it ends it.
pub(crate) enum Server {
    Palisade(palisade::Server),
    PalisadeSocket(palisade::Server),
    PalisadeCluster(palisade::Cluster),
    Redis(Redis),
    RedisSocket(Redis),
    Etcd(Etcd),
    /// The leader is first.
    EtcdCluster(Vec<Etcd>),
    ZooKeeper(ZooKeeper),
    Postgres(Postgres),
    Nats(Nats),
    Echo(echo::Server),
}

impl Server {
    pub(crate) async fn start(system: System) -> Result<Server, Error> {
        let redis = |fsync| {
            let durable = ["--appendonly", "yes", "--appendfsync", fsync];
            Redis::start(&[&durable[..], &["--unixsocket", SOCKET]].concat())
        };
        let server = match system {
            System::Palisade => Server::Palisade(palisade::Server::start()?),
            System::PalisadeSocket => Server::PalisadeSocket(palisade::Server::start()?),
            System::PalisadeCluster => Server::PalisadeCluster(palisade::Cluster::start()?),
            System::RedisAlways => Server::Redis(redis("always")),
            System::RedisSocket => Server::RedisSocket(redis("always")),
            System::RedisEverySecond => Server::Redis(redis("everysec")),
            System::RedisNoFile => Server::Redis(Redis::start(&[])),
            // Its default limit of 2 GiB is too little for a million keys and their history.
            System::Etcd => Server::Etcd(Etcd::start(&["--quota-backend-bytes=8589934592"])),
            System::EtcdCluster => {
                let mut members = Etcd::cluster(3);
                members.sort_by_key(|member| !member.leads());
                Server::EtcdCluster(members)
            }
            System::ZooKeeper => {
                Server::ZooKeeper(ZooKeeper::start(&["-Xmx3g", "-Djute.maxbuffer=268435456"]))
            }
            System::Postgres => Server::Postgres(Postgres::start(&["max_connections=700"])),
            System::Nats => Server::Nats(Nats::start(&[])),
            System::Echo => Server::Echo(echo::Server::start()?),
        };
        match &server {
            Server::Postgres(own) => drivers::postgres::prepare(&own.url()).await?,
            Server::Nats(own) => drivers::nats::prepare(own.port()).await?,
            _ => {}
        }
        Ok(server)
    }

    pub(crate) fn instance(&self) -> &Instance {
        match self {
            Server::Palisade(own) | Server::PalisadeSocket(own) => own,
            Server::PalisadeCluster(own) => own.leader(),
            Server::Redis(own) | Server::RedisSocket(own) => own,
            Server::Etcd(own) => own,
            Server::EtcdCluster(members) => &members[0],
            Server::ZooKeeper(own) => own,
            Server::Postgres(own) => own,
            Server::Nats(own) => own,
            Server::Echo(own) => own,
        }
    }

    pub(crate) async fn open(&self, terms: Terms) -> Result<Box<dyn Connection>, Error> {
        let port = self.instance().port();
        Ok(match self {
            Server::Palisade(own) => {
                Box::new(drivers::palisade::Connection::open(&own.url(), terms).await?)
            }
            Server::PalisadeSocket(own) => {
                Box::new(drivers::palisade::Connection::open(&own.socket_url(), terms).await?)
            }
            Server::PalisadeCluster(own) => {
                Box::new(drivers::palisade::Connection::open(&own.url(), terms).await?)
            }
            Server::Redis(_) => {
                let address = drivers::redis::Address::Port(port);
                Box::new(drivers::redis::Connection::open(&address, terms).await?)
            }
            Server::RedisSocket(own) => {
                let address = drivers::redis::Address::Socket(own.dir().join(SOCKET));
                Box::new(drivers::redis::Connection::open(&address, terms).await?)
            }
            Server::Etcd(_) | Server::EtcdCluster(_) => {
                Box::new(drivers::etcd::Connection::open(port, terms).await?)
            }
            Server::ZooKeeper(_) => {
                Box::new(drivers::zookeeper::Connection::open(port, terms).await?)
            }
            Server::Postgres(own) => {
                Box::new(drivers::postgres::Connection::open(&own.url(), terms).await?)
            }
            Server::Nats(_) => Box::new(drivers::nats::Connection::open(port, terms).await?),
            Server::Echo(_) => Box::new(drivers::echo::Connection::open(port).await?),
        })
    }
}
