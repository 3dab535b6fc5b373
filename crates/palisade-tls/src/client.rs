//! The CAs that a client trusts, and the certificate that it presents.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::files::{self, Error};
use crate::provider::{VERSIONS, provider};

/// A client's connection.
pub use tokio_rustls::client::TlsStream as Stream;

/// The certificate files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The CAs of the servers, in PEM; `None` trusts the CAs of this machine.
    pub ca: Option<PathBuf>,
    /// The client's own certificate and its key, in PEM.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A client's certificates. Cloning is cheap.
///
/// A certificate may be valid for an hour while the client runs for weeks, so each new connection reads the files
/// again. If they are unusable, for example because only one of two is replaced yet, the former certificates stay in
/// use.
#[derive(Clone)]
pub struct TlsClient {
    source: Arc<CertificateSource>,
    protocol: Option<Arc<[u8]>>,
}

/// The source of the certificates.
struct CertificateSource {
    /// `None` if they are fixed.
    files: Option<ClientFiles>,
    taken: Mutex<Taken>,
}

/// The certificates in use.
struct Taken {
    contents: FileBytes,
    config: Arc<ClientConfig>,
}

/// The contents of the CA's file, the certificate and its key.
type FileBytes = [Vec<u8>; 3];

impl TlsClient {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// [`Error`] names the file and what is wrong with it.
    pub fn new(files: &ClientFiles) -> Result<TlsClient, Error> {
        let contents = contents(files)?;
        let config = config(files, &contents)?;
        Ok(TlsClient {
            source: Arc::new(CertificateSource {
                files: Some(files.clone()),
                taken: Mutex::new(Taken { contents, config }),
            }),
            protocol: None,
        })
    }

    /// Creates a client that trusts these CAs and presents this certificate.
    pub(crate) fn presenting(
        roots: RootCertStore,
        own: Option<Own>,
    ) -> Result<TlsClient, rustls::Error> {
        let taken = Taken {
            contents: FileBytes::default(),
            config: presenting(roots.into(), own)?,
        };
        Ok(TlsClient {
            source: Arc::new(CertificateSource {
                files: None,
                taken: Mutex::new(taken),
            }),
            protocol: None,
        })
    }

    /// Returns the same certificates for HTTP/2 connections.
    #[must_use]
    pub fn http2(&self) -> TlsClient {
        self.speaking(b"h2")
    }

    /// Returns the same certificates for HTTP/1.1 connections.
    #[must_use]
    pub fn http1(&self) -> TlsClient {
        self.speaking(b"http/1.1")
    }

    pub(crate) fn speaking(&self, protocol: &[u8]) -> TlsClient {
        TlsClient {
            source: Arc::clone(&self.source),
            protocol: Some(protocol.into()),
        }
    }

    /// Performs the handshake on a connected stream, with the certificates that the files contain now. The server's
    /// certificate must contain `host`: a name, or an IP address (in brackets or not).
    ///
    /// # Errors
    /// The error of the handshake; [`explain`](crate::explain()) describes it.
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
        let mut config = self.source.config();
        if let Some(protocol) = &self.protocol {
            let mut speaking = ClientConfig::clone(&config);
            speaking.alpn_protocols = vec![protocol.to_vec()];
            config = Arc::new(speaking);
        }
        TlsConnector::from(config).connect(name, stream).await
    }
}

impl CertificateSource {
    /// Returns the certificates from the files, or the former ones if the files are unusable.
    fn config(&self) -> Arc<ClientConfig> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(files) = &self.files
            && let Ok(now) = contents(files)
            && now != taken.contents
            && let Ok(config) = config(files, &now)
        {
            *taken = Taken {
                contents: now,
                config,
            };
        }
        Arc::clone(&taken.config)
    }
}

fn contents(files: &ClientFiles) -> Result<FileBytes, Error> {
    let read = |path: Option<&PathBuf>| path.map_or(Ok(Vec::new()), |path| files::read(path));
    let own = files.own.as_ref();
    Ok([
        read(files.ca.as_ref())?,
        read(own.map(|(certificate, _)| certificate))?,
        read(own.map(|(_, key)| key))?,
    ])
}

fn config(
    files: &ClientFiles,
    [ca, certificate, key]: &FileBytes,
) -> Result<Arc<ClientConfig>, Error> {
    let own = match &files.own {
        None => None,
        Some((certificate_file, key_file)) => Some((
            files::certificates(certificate_file, certificate)?,
            files::key(key_file, key)?,
        )),
    };
    let roots = match &files.ca {
        Some(path) => files::roots(path, ca)?,
        None => of_this_machine()?,
    };
    presenting(roots.into(), own).map_err(|error| match &files.own {
        Some((certificate, key)) => Error::Pair {
            certificate: certificate.clone(),
            key: key.clone(),
            why: error.to_string(),
        },
        None => Error::Roots(error.to_string()),
    })
}

fn presenting(
    roots: Arc<RootCertStore>,
    own: Option<Own>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, private)) => builder.with_client_auth_cert(chain, private)?,
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A certificate with its intermediate certificates, and its key.
type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Parses a name, or an IP address (in brackets or not).
pub(crate) fn server_name(host: &str) -> Option<ServerName<'static>> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    ServerName::try_from(bare.unwrap_or(host).to_owned()).ok()
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
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
