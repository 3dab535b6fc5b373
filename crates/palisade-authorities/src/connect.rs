//! Selection of the authority by URL.

use std::sync::Arc;

use palisade_client::clock::BootClock;
use palisade_client::service::Operation;
use palisade_client::{Client, Error, Fault, LockService, Options};

/// The URL schemes of other systems, and the feature that each one needs.
const KNOWN: &[(&str, &str)] = &[
    ("etcd", "etcd"),
    ("zookeeper", "zookeeper"),
    ("redis", "redis"),
    ("redlock", "redlock"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
];

/// The schemes of Palisade's servers.
const OWN: &[&str] = &["palisade", "http", "https", "unix"];

/// Connects to the authority that `url` names.
///
/// | URL | authority | feature |
/// |---|---|---|
/// | `etcd://host[:2379][,host…][/root]` | an etcd cluster | `etcd` |
/// | `zookeeper://host[:2181][,host…][/root]` | a ZooKeeper ensemble | `zookeeper` |
/// | `redis://[user[:password]@]host[:6379][/database][?replicas=N]` | one Redis primary | `redis` |
/// | `postgres://[user[:password]@]host[:5432]/database` | a table in PostgreSQL | `postgres` |
/// | `palisade://`, `http://`, `https://`, `unix:` | a Palisade server: see [`palisade_client::connect`] | `palisade` |
///
/// An operation that an authority does not support returns [`Fault::Unsupported`].
///
/// # Errors
/// [`Fault::Invalid`] for an invalid address or an authority that this build does not include, [`Fault::Unreachable`]
/// if nothing answers there. A message never contains a password.
///
/// It is not an `async fn`, because each program that connects would then compile the code of every authority again.
pub fn connect<'a>(url: &'a str, options: &'a Options) -> Operation<'a, Arc<dyn LockService>> {
    Box::pin(connect_to(url, options))
}

/// Creates a client of the authority that `url` names, like [`Client::connect_with`], but also for other systems than
/// Palisade.
///
/// # Errors
/// As [`connect()`].
pub async fn client(url: &str, options: Options) -> Result<Client, Error> {
    let service = connect(url, &options).await?;
    Client::with(service, Arc::new(BootClock), &options)
}

async fn connect_to(url: &str, options: &Options) -> Result<Arc<dyn LockService>, Fault> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    match scheme {
        #[cfg(feature = "etcd")]
        Some("etcd") => Ok(Arc::new(crate::etcd::Etcd::connect(url).await?)),
        #[cfg(feature = "redis")]
        Some("redis") => Ok(Arc::new(crate::redis::Redis::connect(url).await?)),
        Some("redlock") => Err(Fault::unsupported(
            "grant fencing tokens: Redlock has none, and a fence requires them; see the \
             module palisade_authorities::redlock",
        )),
        #[cfg(feature = "zookeeper")]
        Some("zookeeper") => Ok(Arc::new(crate::zookeeper::ZooKeeper::connect(url).await?)),
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => Ok(Arc::new(
            crate::postgres::Postgres::connect(url, options.connections).await?,
        )),
        Some(other) if !OWN.contains(&other) && !url.starts_with("unix:") => Err(unknown(other)),
        _ => palisade_client::connect(url, options).await,
    }
}

fn unknown(scheme: &str) -> Fault {
    let known = KNOWN.iter().find(|(name, _)| *name == scheme);
    let Some((_, feature)) = known else {
        let others = KNOWN.iter().map(|(name, _)| name);
        let known = OWN.iter().chain(others).map(|name| format!("{name}://"));
        let known: Vec<_> = known.collect();
        return Fault::invalid(format!(
            "there is no authority for {scheme}://; the known schemes are {}",
            known.join(", ")
        ));
    };
    Fault::invalid(format!(
        "{scheme}:// needs palisade-authorities's feature \"{feature}\", which is not part of this build"
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
}
