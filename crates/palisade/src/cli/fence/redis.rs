//! Fences in a Redis server, or in all masters of a Redis Cluster.

use std::ops::RangeInclusive;

use palisade_fence::redis::{Operator, slot};
use palisade_fence::{Admin as _, Error, FenceState, Listed, Rearm};
use palisade_proto::Code;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Value,
    cmd,
};
use tokio::net::TcpStream;

use super::super::failure::{FAILED, Failure};
use super::kind::PAGE;
use super::tls;

/// The masters of a server; one, if it is not a cluster.
pub(super) struct RedisMasters(Vec<Master>);

struct Master {
    address: String,
    connection: MultiplexedConnection,
    slots: Vec<RangeInclusive<u16>>,
}

impl RedisMasters {
    pub(super) async fn open(url: &str) -> Result<RedisMasters, Failure> {
        // The scheme says whether TLS is spoken; the driver is built without it.
        let (plain, tls) = match url.strip_prefix("rediss://") {
            Some(rest) => (format!("redis://{rest}"), true),
            None => (url.to_owned(), false),
        };
        let info = plain.as_str().into_connection_info().map_err(|error| {
            Failure::usage(format!("--url: {error}"))
                .hint("for example redis://127.0.0.1:6379/0, or rediss:// with TLS")
        })?;
        let tls = tls.then(|| tls::client(tls::ca())).transpose()?;
        let mut first = connect(&info, tls.as_ref()).await?;
        let given = match info.addr() {
            ConnectionAddr::Tcp(host, _) => host.clone(),
            _ => String::new(),
        };
        let mut masters = Vec::new();
        for (host, port, slots) in masters_of(&mut first, &given).await? {
            let at = ConnectionAddr::Tcp(host.clone(), port);
            let connection = connect(&info.clone().set_addr(at), tls.as_ref()).await?;
            let address = format!("{host}:{port}");
            masters.push(Master {
                address,
                connection,
                slots,
            });
        }
        if masters.is_empty() {
            masters.push(Master {
                address: info.addr().to_string(),
                connection: first,
                slots: vec![0..=LAST_SLOT],
            });
        }
        Ok(RedisMasters(masters))
    }

    /// How many masters there are.
    pub(super) fn masters(&self) -> usize {
        self.0.len()
    }

    /// Installs the library everywhere, and tries it there.
    pub(super) async fn install(&mut self) -> Result<(), Failure> {
        let all = self.0.len();
        for (at, master) in self.0.iter_mut().enumerate() {
            let done = palisade_fence::redis::install(&mut master.connection).await;
            let tried = match done {
                Ok(()) => tries(master).await,
                Err(fault) => Err(Failure::from(fault)
                    .hint("the library needs Redis 7; older servers run the script with EVALSHA")),
            };
            tried.map_err(|failure| {
                let (address, why) = (&master.address, &failure.message);
                let message = format!("{address}: {why}; {at} of {all} masters have the library");
                Failure { message, ..failure }
            })?;
        }
        Ok(())
    }

    pub(super) async fn uninstall(&mut self) -> Result<(), Failure> {
        for master in &mut self.0 {
            palisade_fence::redis::uninstall(&mut master.connection).await?;
        }
        Ok(())
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        let connection = self.master_of(resource);
        Ok(Operator::new(connection).show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        let mut all = Vec::new();
        for master in &mut self.0 {
            let mut operator = Operator::new(&mut master.connection);
            all.extend(operator.list(prefix, after, PAGE).await?);
        }
        all.sort_by(|a, b| a.resource.cmp(&b.resource));
        all.truncate(PAGE as usize);
        Ok(all)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        let connection = self.master_of(resource);
        Ok(Operator::new(connection).rearm(resource, with).await?)
    }

    /// The connection to the master that has this resource's mark. A name that no mark can have goes to the first one.
    fn master_of(&mut self, resource: &str) -> &mut MultiplexedConnection {
        let slot = slot(&mark(resource));
        let has = |master: &Master| master.slots.iter().any(|range| range.contains(&slot));
        let at = self.0.iter().position(has).unwrap_or(0);
        &mut self.0[at].connection
    }
}

const LAST_SLOT: u16 = 16_383;

fn mark(resource: &str) -> String {
    format!("palisade:fence:{{{resource}}}")
}

async fn connect(
    info: &ConnectionInfo,
    tls: Option<&palisade_tls::TlsClient>,
) -> Result<MultiplexedConnection, Failure> {
    let unavailable = |error: String| {
        Failure::new(FAILED, Code::Unavailable, error).hint("is Redis running there?")
    };
    let Some(tls) = tls else {
        let client = Client::open(info.clone()).map_err(|error| unavailable(error.to_string()))?;
        let connected = client.get_multiplexed_async_connection().await;
        return connected.map_err(|error| unavailable(error.to_string()));
    };
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        return Err(Failure::usage("--url: rediss:// needs a host and a port"));
    };
    let stream = TcpStream::connect((host.as_str(), *port)).await;
    let stream = stream.map_err(|error| unavailable(format!("{host}:{port}: {error}")))?;
    let stream = tls::connect(tls, host, stream).await;
    let stream = stream.map_err(|error| unavailable(format!("{host}:{port}: {error}")))?;
    let settings = AsyncConnectionConfig::default();
    let made =
        MultiplexedConnection::new_with_config(info.redis_settings(), stream, settings).await;
    let (connection, driver) = made.map_err(|error| unavailable(error.to_string()))?;
    // It ends with the connection.
    tokio::spawn(driver);
    Ok(connection)
}

type MasterSlots = Vec<(String, u16, Vec<RangeInclusive<u16>>)>;

/// The masters of a cluster, with their slots; none if the server is not a cluster. A master that does not know its
/// own address gets the one in the URL.
async fn masters_of(
    connection: &mut MultiplexedConnection,
    given: &str,
) -> Result<MasterSlots, Failure> {
    let mut info = cmd("INFO");
    let info: String = info
        .arg("cluster")
        .query_async(connection)
        .await
        .map_err(Error::from)?;
    if !info.contains("cluster_enabled:1") {
        return Ok(Vec::new());
    }
    let mut slots = cmd("CLUSTER");
    let listed: Vec<Vec<Value>> = slots
        .arg("SLOTS")
        .query_async(connection)
        .await
        .map_err(Error::from)?;
    let mut found: MasterSlots = Vec::new();
    for row in &listed {
        let strange = || Failure::local(format!("CLUSTER SLOTS answered {row:?}"));
        let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = row.as_slice() else {
            return Err(strange());
        };
        let [host, Value::Int(port), ..] = master.as_slice() else {
            return Err(strange());
        };
        let host = match host {
            Value::BulkString(name) if !name.is_empty() => {
                String::from_utf8_lossy(name).into_owned()
            }
            _ => given.to_owned(),
        };
        let number = |number: &i64| u16::try_from(*number).map_err(|_| strange());
        let (port, range) = (number(port)?, number(from)?..=number(to)?);
        match found.iter_mut().find(|one| one.0 == host && one.1 == port) {
            Some((_, _, ranges)) => ranges.push(range),
            None => found.push((host, port, vec![range])),
        }
    }
    if found.is_empty() {
        Err(Failure::local("the cluster has no slots: create it first"))
    } else {
        Ok(found)
    }
}

/// Claims a resource that nobody uses, and removes its mark in the same step.
async fn tries(master: &mut Master) -> Result<(), Failure> {
    let slots = &master.slots;
    let mine = (0_u32..)
        .map(|number| mark(&format!("palisade install {number}")))
        .find(|mark| slots.iter().any(|range| range.contains(&slot(mark))))
        .ok_or_else(|| Failure::local("a master without slots"))?;
    let mut steps = redis::pipe();
    steps.atomic();
    steps
        .cmd("FCALL")
        .arg("palisade_claim")
        .arg(1)
        .arg(&mine)
        .arg(1);
    steps.cmd("DEL").arg(&mine);
    let tried: Result<(String, i64), _> = steps.query_async(&mut master.connection).await;
    match tried {
        Ok((token, 1)) if token == "1" => Ok(()),
        Ok(other) => Err(Failure::local(format!(
            "the library is installed but does not work: a claim answered {other:?}"
        ))),
        Err(error) => Err(Failure::local(format!(
            "the library is installed but does not work: a claim failed: {error}"
        ))),
    }
}
