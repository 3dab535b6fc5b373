//! Which servers a client trusts, and what it presents.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::files::{self, Error};
use crate::provider::{VERSIONS, provider};

/// A connection of a client.
pub use tokio_rustls::client::TlsStream as Stream;

/// The files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The CAs of the servers in PEM; without it, those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// The client's own certificate and its key in PEM.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A client's certificates. Cloning is cheap.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
}

impl Client {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`Error`] names the file and what is wrong with it.
    pub fn new(files: &ClientFiles) -> Result<Client, Error> {
        let roots = match &files.ca {
            Some(path) => files::roots(path, &files::read(path)?)?,
            None => of_this_machine()?,
        };
        let own = match &files.own {
            None => None,
            Some((certificate, key)) => Some((
                files::certificates(certificate, &files::read(certificate)?)?,
                files::key(key, &files::read(key)?)?,
            )),
        };
        Client::presenting(roots, own).map_err(|error| match &files.own {
            Some((certificate, key)) => Error::Pair {
                certificate: certificate.clone(),
                key: key.clone(),
                why: error.to_string(),
            },
            None => Error::Roots(error.to_string()),
        })
    }

    /// Trusts these CAs, and presents this certificate.
    pub(crate) fn presenting(
        roots: RootCertStore,
        own: Option<Own>,
    ) -> Result<Client, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)?
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, private)) => builder.with_client_auth_cert(chain, private)?,
        };
        config.resumption = Resumption::disabled();
        Ok(Client {
            config: Arc::new(config),
        })
    }

    /// The same certificates, for a connection that speaks HTTP/2.
    #[must_use]
    pub fn http2(&self) -> Client {
        self.speaking(b"h2")
    }

    /// The same certificates, for a connection that speaks HTTP/1.1.
    #[must_use]
    pub fn http1(&self) -> Client {
        self.speaking(b"http/1.1")
    }

    pub(crate) fn speaking(&self, protocol: &[u8]) -> Client {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Client {
            config: Arc::new(config),
        }
    }

    /// Does the handshake on a stream that is connected. `host` is what the server's certificate must contain: a name, or
    /// an IP address (in brackets or not).
    ///
    /// # Errors
    /// Why it failed; [`explain`](crate::explain()) says it in words.
    pub async fn connect<T>(&self, host: &str, stream: T) -> io::Result<Stream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let name = server_name(host).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{host:?} is neither a host name nor an IP address"),
            )
        })?;
        TlsConnector::from(Arc::clone(&self.config))
            .connect(name, stream)
            .await
    }
}

/// A certificate, with those between it and its CA, and its key.
type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A name, or an IP address (in brackets or not).
pub(crate) fn server_name(host: &str) -> Option<ServerName<'static>> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    ServerName::try_from(bare.unwrap_or(host).to_owned()).ok()
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

fn of_this_machine() -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Error::Roots(
            "this machine has no list of trusted CAs (on Debian: apt install ca-certificates); name the server's CA \
             with --ca-file or PALISADE_CA_FILE"
                .to_owned(),
        ));
    }
    Ok(roots)
}
