//! Selection of the authority by URL.

use std::sync::Arc;

use crate::fault::Fault;
use crate::options::Options;
use crate::secrets::without_secrets;
use crate::service::{LockService, Operation};

/// The URL schemes, and the feature that each one needs.
const KNOWN: &[(&str, &str)] = &[
    ("palisade", "palisade"),
    ("http", "palisade"),
    ("https", "palisade"),
    ("unix", "palisade"),
    ("etcd", "etcd"),
    ("zookeeper", "zookeeper"),
    ("redis", "redis"),
    ("redlock", "redlock"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
];

/// Connects to the authority that `url` names.
///
/// | URL | authority | feature |
/// |---|---|---|
/// | `palisade://host[:7420]`, `http://host:port` | a Palisade server | `palisade` |
/// | `https://host:port` | the same with TLS, see [`Options`]'s `tls` | `palisade` |
/// | `unix:///run/palisade.sock`, `unix:/run/palisade.sock` | one on this machine, at its Unix socket | `palisade` |
/// | `http://a:7420,http://b:7420,http://c:7420` | a cluster of them, see the module `palisade` | `palisade` |
/// | `etcd://host[:2379][,host…][/root]` | an etcd cluster | `etcd` |
/// | `zookeeper://host[:2181][,host…][/root]` | a ZooKeeper ensemble | `zookeeper` |
/// | `redis://[user[:password]@]host[:6379][/database][?replicas=N]` | one Redis primary | `redis` |
/// | `postgres://[user[:password]@]host[:5432]/database` | a table in PostgreSQL | `postgres` |
///
/// An operation that an authority does not have returns [`Fault::Unsupported`].
///
/// # Errors
/// [`Fault::Invalid`] for an address that is not valid or an authority that is not part of this build,
/// [`Fault::Unreachable`] if nothing answers there. A message never contains a password.
///
/// Not an `async fn`: with those, the code of every authority would be generated in each program that connects.
pub fn connect<'a>(url: &'a str, options: &'a Options) -> Operation<'a, Arc<dyn LockService>> {
    Box::pin(connect_to(url, options))
}

async fn connect_to(url: &str, options: &Options) -> Result<Arc<dyn LockService>, Fault> {
    // In a build without any authority there is nothing to configure.
    let _ = options;
    match scheme(url)? {
        #[cfg(feature = "palisade")]
        "palisade" | "http" | "https" | "unix" => Ok(Arc::new(
            crate::palisade::Palisade::connect_within(
                url,
                options.connections,
                options.patience,
                (&options.tls, options.token.as_ref()),
            )
            .await?,
        )),
        #[cfg(feature = "etcd")]
        "etcd" => Ok(Arc::new(crate::etcd::Etcd::connect(url).await?)),
        #[cfg(feature = "redis")]
        "redis" => Ok(Arc::new(crate::redis::Redis::connect(url).await?)),
        "redlock" => Err(Fault::unsupported(
            "grant fencing tokens: Redlock has none, and a fence requires them; see the \
             module palisade_client::redlock",
        )),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Ok(Arc::new(crate::zookeeper::ZooKeeper::connect(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(
            crate::postgres::Postgres::connect(url, options.connections).await?,
        )),
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> Result<&str, Fault> {
    if url.starts_with("unix:") {
        return Ok("unix");
    }
    match url.split_once("://") {
        Some((scheme, _)) => Ok(scheme),
        None => Err(Fault::invalid(format!(
            "{:?} is not the address of an authority: a scheme is missing, as in palisade://host, \
             http://host:port or unix:///path",
            without_secrets(url)
        ))),
    }
}

fn unknown(scheme: &str) -> Fault {
    let known = KNOWN.iter().find(|(name, _)| *name == scheme);
    let Some((_, feature)) = known else {
        let known: Vec<_> = KNOWN.iter().map(|(name, _)| format!("{name}://")).collect();
        return Fault::invalid(format!(
            "there is no authority for {scheme}://; the known schemes are {}",
            known.join(", ")
        ));
    };
    Fault::invalid(format!(
        "{scheme}:// needs palisade-client's feature \"{feature}\", which is not part of this build"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_is_reported_with_the_known_ones() {
        let message = unknown("consul").to_string();
        assert!(
            message.contains("consul://") && message.contains("etcd://"),
            "{message}"
        );
    }

    #[test]
    fn a_scheme_missing_from_the_build_names_its_feature() {
        let message = unknown("zookeeper").to_string();
        assert!(message.contains("\"zookeeper\""), "{message}");
    }

    #[test]
    fn a_missing_scheme_is_said_to_be_missing() {
        let message = scheme("u:secret@127.0.0.1:7420").unwrap_err().to_string();
        assert!(message.contains("scheme"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
