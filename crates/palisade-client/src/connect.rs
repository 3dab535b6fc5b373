//! Connections to the server that a URL names.

use std::sync::Arc;

use crate::fault::Fault;
use crate::options::Options;
use crate::secrets::without_secrets;
use crate::service::{LockService, Operation};

/// Connects to the Palisade server, or the cluster, that `url` names.
///
/// | URL | authority |
/// |---|---|
/// | `palisade://host[:7420]`, `http://host:port` | a server |
/// | `https://host:port` | the same with TLS, see [`Options`]'s `tls` |
/// | `unix:///run/palisade.sock`, `unix:/run/palisade.sock` | one on this machine, at its Unix socket |
/// | `http://a:7420,http://b:7420,http://c:7420` | a cluster of them, see the module `palisade` |
///
/// `palisade_authorities::connect` also connects to etcd, ZooKeeper, PostgreSQL and Redis.
///
/// # Errors
/// [`Fault::Invalid`] for an invalid address or another system's, [`Fault::Unreachable`] if nothing answers there. A
/// message never contains a password.
///
/// It is not an `async fn`, because each program that connects would then compile the code of a connection again.
pub fn connect<'a>(url: &'a str, options: &'a Options) -> Operation<'a, Arc<dyn LockService>> {
    Box::pin(connect_to(url, options))
}

async fn connect_to(url: &str, options: &Options) -> Result<Arc<dyn LockService>, Fault> {
    match scheme(url)? {
        "palisade" | "http" | "https" | "unix" => server(url, options).await,
        other => Err(Fault::invalid(format!(
            "{other}:// is not the address of a Palisade server, which begins with palisade://, http://, https:// or \
             unix:; etcd, ZooKeeper, PostgreSQL and Redis are in the crate palisade-authorities"
        ))),
    }
}

#[cfg(feature = "palisade")]
async fn server(url: &str, options: &Options) -> Result<Arc<dyn LockService>, Fault> {
    let Options {
        connections,
        patience,
        ..
    } = *options;
    let shown = (&options.tls, options.token.as_ref());
    let server = crate::palisade::Palisade::connect_within(url, connections, patience, shown);
    Ok(Arc::new(server.await?))
}

#[cfg(not(feature = "palisade"))]
async fn server(_: &str, _: &Options) -> Result<Arc<dyn LockService>, Fault> {
    Err(Fault::invalid(
        "the address of a Palisade server needs palisade-client's feature \"palisade\", which is not part of this build",
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_address_of_another_system_names_the_crate_that_takes_it() {
        let refused = connect("etcd://127.0.0.1:2379", &Options::default()).await;
        let message = refused.err().unwrap().to_string();
        assert!(
            message.contains("etcd://") && message.contains("palisade-authorities"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_scheme_is_said_to_be_missing() {
        let message = scheme("u:secret@127.0.0.1:7420").unwrap_err().to_string();
        assert!(message.contains("scheme"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
