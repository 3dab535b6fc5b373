//! A URL selects the authority.

use std::sync::Arc;

use crate::client::Options;
use crate::fault::Fault;
use crate::service::LockService;

/// What may stand before `://`, and the feature that it needs.
const KNOWN: &[(&str, &str)] = &[
    ("palisade", "palisade"),
    ("http", "palisade"),
    ("https", "palisade"),
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
/// | `etcd://host[:2379][,host…][/root]` | an etcd cluster | `etcd` |
/// | `zookeeper://host[:2181][,host…][/root]` | a ZooKeeper ensemble | `zookeeper` |
/// | `redis://[user[:password]@]host[:6379][/database][?replicas=N]` | one Redis primary | `redis` |
/// | `postgres://[user[:password]@]host[:5432]/database` | a table in PostgreSQL | `postgres` |
///
/// What one of them cannot do is answered with [`Fault::Unsupported`].
///
/// # Errors
/// [`Fault::Invalid`] for an address that cannot be meant or an authority that this build was made
/// without, [`Fault::Unavailable`] if nothing answers there. A password never gets into a message.
pub async fn connect(url: &str, options: &Options) -> Result<Arc<dyn LockService>, Fault> {
    // Where every authority is left out there is nothing to set.
    let _ = options;
    match scheme(url)? {
        #[cfg(feature = "palisade")]
        "palisade" | "http" | "https" => Ok(Arc::new(
            crate::palisade::Palisade::connect(url, options.connections).await?,
        )),
        #[cfg(feature = "etcd")]
        "etcd" => Ok(Arc::new(crate::etcd::Etcd::connect(url).await?)),
        #[cfg(feature = "redis")]
        "redis" => Ok(Arc::new(crate::redis::Redis::connect(url).await?)),
        "redlock" => Err(Fault::unsupported(
            "grant fencing tokens: Redlock has none, and what needs a token does not run on it; see the \
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
    match url.split_once("://") {
        Some((scheme, _)) => Ok(scheme),
        None => Err(Fault::invalid(format!(
            "{url:?} is no authority's address: a scheme is missing, as in palisade://host or \
             http://host:port"
        ))),
    }
}

fn unknown(scheme: &str) -> Fault {
    let known = KNOWN.iter().find(|(name, _)| *name == scheme);
    let Some((_, feature)) = known else {
        let known: Vec<_> = KNOWN.iter().map(|(name, _)| format!("{name}://")).collect();
        return Fault::invalid(format!(
            "there is no authority for {scheme}://; known are {}",
            known.join(", ")
        ));
    };
    Fault::invalid(format!(
        "{scheme}:// needs palisade-client's feature \"{feature}\", which this build was made without"
    ))
}

/// The URL as it may be printed: what stands before an `@` in it, and what follows a `?`, is left out.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, _)) => (rest, "?…"),
        None => (rest, ""),
    };
    match rest.rsplit_once('@') {
        Some((_, rest)) => format!("{scheme}://…@{rest}{query}"),
        None => format!("{scheme}://{rest}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_names_what_is_known() {
        let message = unknown("consul").to_string();
        assert!(
            message.contains("consul://") && message.contains("etcd://"),
            "{message}"
        );
    }

    #[test]
    fn a_scheme_that_was_left_out_names_its_feature() {
        let message = unknown("zookeeper").to_string();
        assert!(message.contains("\"zookeeper\""), "{message}");
    }

    #[test]
    fn a_missing_scheme_is_said_to_be_missing() {
        let message = scheme("127.0.0.1:7420").unwrap_err().to_string();
        assert!(message.contains("scheme"), "{message}");
    }

    #[test]
    fn secrets_are_not_printed() {
        for (url, printed) in [
            (
                "postgres://u:p@ss@host/db?password=x",
                "postgres://…@host/db?…",
            ),
            ("etcd://host:2379/root", "etcd://host:2379/root"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(without_secrets(url), printed);
        }
    }
}
