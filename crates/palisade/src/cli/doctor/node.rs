//! One node as it answers: everything is asked at once, and each question has its own bound.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Span;
use palisade_pipeline::clock::wall;
use palisade_proto::json::{ClusterReply, HealthReply, ReadyReply, WhoamiReply};
use palisade_tls::Io;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::cluster::{Error, Nodes};

/// An address that does not resolve, connect or answer within this time is one that hangs.
pub(super) const RESOLVE: Duration = Duration::from_secs(2);
pub(super) const CONNECT: Duration = Duration::from_secs(2);
pub(super) const ANSWER: Duration = Duration::from_secs(4);

/// A node, as far as it answered.
pub(super) struct AskedNode {
    pub(super) url: String,
    /// The addresses of its name; none for an IP address and a socket.
    pub(super) addresses: Vec<String>,
    pub(super) answers: Result<Box<NodeAnswers>, NotReached>,
}

/// Why nothing could be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotReached {
    Name(String),
    Connection(String),
}

/// The answers of a node that accepts connections.
pub(super) struct NodeAnswers {
    pub(super) health: Result<HealthReply, Error>,
    pub(super) took: Span,
    pub(super) ready: Result<ReadyReply, Error>,
    pub(super) whoami: Result<Whoami, Error>,
    pub(super) cluster: Result<ClusterReply, Error>,
    pub(super) metrics: Result<Metrics, Error>,
    /// The version that it says it has, however strange its other answers are.
    pub(super) version: Option<String>,
    /// The questions that it answered in JSON of an unknown form: it may be of another version.
    pub(super) strange: Vec<&'static str>,
}

/// The caller as the server knows it, and the times of this machine's wall clock around the question.
#[derive(Clone)]
pub(super) struct Whoami {
    pub(super) reply: WhoamiReply,
    pub(super) asked_ms: u64,
    pub(super) heard_ms: u64,
}

impl AskedNode {
    /// Asks a node for everything. It takes at most the three bounds together.
    pub(super) async fn ask(nodes: &Nodes, url: &str) -> AskedNode {
        let (addresses, reached) = reach(url).await;
        let answers = match reached {
            Ok(()) => Ok(Box::new(NodeAnswers::of(nodes, url).await)),
            Err(why) => Err(why),
        };
        AskedNode {
            url: url.to_owned(),
            addresses,
            answers,
        }
    }

    /// Its answers, if it has given any.
    pub(super) fn answers(&self) -> Option<&NodeAnswers> {
        let answers = self.answers.as_deref().ok()?;
        (answers.health.is_ok() || answers.is_strange("/healthz")).then_some(answers)
    }

    pub(super) fn cluster(&self) -> Option<&ClusterReply> {
        self.answers()?.cluster.as_ref().ok()
    }

    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.answers()?.metrics.as_ref().ok()
    }

    pub(super) fn introduction(&self) -> Option<&Whoami> {
        self.answers()?.whoami.as_ref().ok()
    }
}

impl NodeAnswers {
    async fn of(nodes: &Nodes, url: &str) -> NodeAnswers {
        let health = async {
            let begin = BootClock.now();
            let reply = JsonAnswer::ask(nodes, url, "/healthz").await;
            (reply, BootClock.now().since(begin))
        };
        let whoami = async {
            let asked_ms = wall().0;
            let told = JsonAnswer::ask(nodes, url, "/v1/whoami").await;
            let heard_ms = wall().0;
            told.map(|reply| Whoami {
                reply,
                asked_ms,
                heard_ms,
            })
        };
        let metrics = async {
            let answer = nodes.get(url, "/metrics", ANSWER).await?;
            answer.text(url).map(|text| Metrics::of(&text))
        };
        let ((health, took), ready, whoami, cluster, metrics) = tokio::join!(
            health,
            JsonAnswer::ask(nodes, url, "/readyz"),
            whoami,
            JsonAnswer::ask(nodes, url, "/v1/cluster"),
            metrics
        );
        let metrics: Result<Metrics, Error> = metrics;
        let told = whoami.json.as_ref();
        let version = told.and_then(|told| told.get("version")?.as_str().map(str::to_owned));
        let counted = || metrics.as_ref().ok()?.version.clone();
        NodeAnswers {
            strange: [
                health.strange(),
                ready.strange(),
                whoami.strange(),
                cluster.strange(),
            ]
            .into_iter()
            .flatten()
            .collect(),
            version: version.or_else(counted),
            health: health.reply,
            took,
            ready: ready.reply,
            whoami: whoami.reply,
            cluster: cluster.reply,
            metrics,
        }
    }

    /// Whether it answered this question in JSON that this program does not know.
    pub(super) fn is_strange(&self, path: &str) -> bool {
        self.strange.contains(&path)
    }
}

/// An answer, and its JSON if it is an object.
struct JsonAnswer<T> {
    path: &'static str,
    reply: Result<T, Error>,
    json: Option<Value>,
}

impl<T: DeserializeOwned> JsonAnswer<T> {
    async fn ask(nodes: &Nodes, url: &str, path: &'static str) -> JsonAnswer<T> {
        let answer = nodes.get(url, path, ANSWER).await;
        let text = answer.as_ref().map(|answer| answer.text(url));
        let json = match text {
            Ok(Ok(text)) => serde_json::from_str(&text).ok().filter(Value::is_object),
            _ => None,
        };
        JsonAnswer {
            path,
            reply: answer.and_then(|answer| answer.read(url)),
            json,
        }
    }
}

impl<T> JsonAnswer<T> {
    fn map<U>(self, make: impl FnOnce(T) -> U) -> JsonAnswer<U> {
        JsonAnswer {
            path: self.path,
            reply: self.reply.map(make),
            json: self.json,
        }
    }

    /// Its path, if it is JSON that is not understood.
    fn strange(&self) -> Option<&'static str> {
        (self.reply.is_err() && self.json.is_some()).then_some(self.path)
    }
}

/// Resolves the name in a URL, and tries to connect.
async fn reach(url: &str) -> (Vec<String>, Result<(), NotReached>) {
    let refused = |why: io::Error| NotReached::Connection(why.to_string());
    if let Some(path) = url.strip_prefix("unix:") {
        let path = Path::new(path.strip_prefix("//").unwrap_or(path));
        let connected = within(CONNECT, Io::to_socket(path)).await;
        return (Vec::new(), connected.map(drop).map_err(refused));
    }
    let Some(place) = place(url) else {
        let why = "not a URL; write http://host:7420".to_owned();
        return (Vec::new(), Err(NotReached::Name(why)));
    };
    let found = match within(RESOLVE, lookup_host(place)).await {
        Ok(found) => found.collect::<Vec<_>>(),
        Err(why) => return (Vec::new(), Err(NotReached::Name(why.to_string()))),
    };
    let mut names: Vec<String> = found.iter().map(|at| at.ip().to_string()).collect();
    names.dedup();
    let connected = within(CONNECT, TcpStream::connect(&*found)).await;
    (names, connected.map(drop).map_err(refused))
}

/// The host and port of a URL.
fn place(url: &str) -> Option<(String, u16)> {
    let uri: hyper::Uri = url.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    let usual = if uri.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    Some((host, uri.port_u16().unwrap_or(usual)))
}

async fn within<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match timeout(patience, work).await {
        Ok(done) => done,
        Err(_) => {
            let why = format!("no answer within {} s", patience.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        }
    }
}

/// The metrics of a node, in Prometheus' text format.
#[derive(Default)]
pub(super) struct Metrics {
    values: BTreeMap<String, f64>,
    pub(super) version: Option<String>,
    /// The fingerprints of the keys of its `lock_token`s.
    pub(super) keys: Vec<String>,
}

impl Metrics {
    pub(super) fn of(text: &str) -> Metrics {
        let mut metrics = Metrics::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let label = |family: &str, label: &str| {
                let rest = name.strip_prefix(family)?.strip_prefix('{')?;
                let rest = rest.strip_prefix(label)?.strip_prefix("=\"")?;
                rest.strip_suffix("\"}").map(str::to_owned)
            };
            if let Some(version) = label("palisade_build_info", "version") {
                metrics.version = Some(version);
            } else if let Some(key) = label("palisade_lock_token_key_info", "fingerprint") {
                metrics.keys.push(key);
            } else if let Ok(value) = value.parse() {
                metrics.values.insert(name.to_owned(), value);
            }
        }
        metrics.keys.sort_unstable();
        metrics
    }

    /// A whole number; `None` for one that this server does not have, and for 0 where that means none.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        let value = *self.values.get(name)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float saturates"
        )]
        Some(value as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_by_name_and_label() {
        let metrics = Metrics::of(
            "# HELP palisade_locks Locks held\n# TYPE palisade_locks gauge\npalisade_locks 3\n\
             palisade_build_info{version=\"1.2.3\"} 1\nprocess_max_fds 18446744073709551615\n\
             palisade_lock_token_key_info{fingerprint=\"bb\"} 1\npalisade_lock_token_key_info{fingerprint=\"aa\"} 1\nodd\n",
        );
        assert_eq!(metrics.count("palisade_locks"), Some(3));
        assert_eq!(metrics.count("process_max_fds"), Some(u64::MAX));
        assert_eq!(metrics.count("palisade_leases"), None);
        assert_eq!(metrics.version.as_deref(), Some("1.2.3"));
        assert_eq!(metrics.keys, ["aa", "bb"]);
    }

    #[test]
    fn a_url_names_a_place() {
        for (url, host, port) in [
            ("http://10.0.0.1:7420", "10.0.0.1", 7_420),
            ("https://[::1]:7420/", "::1", 7_420),
            ("http://locks.example.org", "locks.example.org", 80),
        ] {
            assert_eq!(place(url), Some((host.to_owned(), port)), "{url}");
        }
        assert_eq!(place("http://a b"), None);
    }
}
