//! The server side of TLS: the certificate that a port presents, and the CAs that it trusts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{Error as Tls, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode as _;
use x509_cert::time::{Time, Validity};

use crate::client::{TlsClient, server_name};
use crate::files::{self, Error, content};
use crate::provider::{VERSIONS, provider};

/// The files of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate in PEM, followed by those between it and its CA.
    pub certificate: PathBuf,
    /// The key of the certificate in PEM.
    pub key: PathBuf,
    /// The CA of the clients in PEM: with it, a client without a certificate of this CA is refused.
    pub client_ca: Option<PathBuf>,
    /// The list of certificates that this CA has revoked (CRL), in PEM. A client with a certificate in it is refused, and so
    /// is a client of a CA that has no list there.
    pub client_crl: Option<PathBuf>,
    /// Lets in a client without a certificate; it authenticates inside TLS. A certificate of another CA is still refused.
    pub certificate_optional: bool,
}

/// A port's certificates, which can be replaced while it serves.
#[derive(Debug)]
pub struct Server {
    files: ServerFiles,
    /// The protocols that the port speaks inside TLS, by preference.
    protocols: Vec<Vec<u8>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_force: InForce,
    /// The number of times that new files were loaded.
    generation: u64,
    /// The contents that it was made of.
    taken: FileBytes,
    /// When they end.
    ends: Ends,
    /// The contents that differed from them at the last look, and whether they were refused.
    seen: Option<(FileBytes, bool)>,
}

/// The configuration of new connections.
#[derive(Debug)]
struct InForce {
    config: Arc<ServerConfig>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// The contents of all files.
type FileBytes = [Vec<u8>; 4];

/// When the content of a port's files ends: the first end in each file, in seconds since 1970. `None` without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The last second in which the port's own certificate is valid.
    pub certificate: Option<u64>,
    /// The last second in which the CA of the clients is valid.
    pub client_ca: Option<u64>,
    /// When a newer list of revoked certificates is due from the CA. The old list counts on.
    pub client_crl: Option<u64>,
}

/// The result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// New connections get the new certificates.
    Taken,
    /// The files are as they were.
    Unchanged,
}

impl Server {
    /// Reads and checks the files. `http2` says whether the port speaks HTTP/2.
    ///
    /// # Errors
    /// [`Error`] names the file and what is wrong with it.
    pub fn new(files: ServerFiles, http2: bool) -> Result<Server, Error> {
        let h2 = http2.then(|| b"h2".to_vec());
        Server::speaking(
            files,
            h2.into_iter().chain([b"http/1.1".to_vec()]).collect(),
        )
    }

    /// As [`Server::new`], for a port that speaks these protocols, by preference.
    ///
    /// # Errors
    /// As [`Server::new`].
    pub fn speaking(files: ServerFiles, protocols: Vec<Vec<u8>>) -> Result<Server, Error> {
        let taken = contents(&files)?;
        let in_force = config(&files, &taken, &protocols)?;
        let ends = ends(&files, &taken);
        Ok(Server {
            files,
            protocols,
            state: Mutex::new(State {
                in_force,
                generation: 0,
                taken,
                ends,
                seen: None,
            }),
        })
    }

    /// Reads the files again. New connections use them; open ones go on, and [`Server::would_admit`] says whether they still
    /// may.
    ///
    /// # Errors
    /// [`Error`] if the files cannot be used; then the old ones stay in force.
    pub fn reload(&self) -> Result<Reloaded, Error> {
        let read = contents(&self.files)?;
        let mut state = self.state();
        state.seen = None;
        self.take(&mut state, read)
    }

    /// As [`Server::reload`], if the files have changed and were the same at the last two looks: a certificate and its
    /// key are two files, and between the writing of one and the other they do not belong together.
    ///
    /// # Errors
    /// As [`Server::reload`], once for each change.
    pub fn reload_if_changed(&self) -> Result<Reloaded, Error> {
        // A file that is being replaced may not exist for a moment.
        let Ok(read) = contents(&self.files) else {
            return Ok(Reloaded::Unchanged);
        };
        let mut state = self.state();
        match state.seen.take() {
            _ if read == state.taken => Ok(Reloaded::Unchanged),
            Some((seen, refused)) if seen == read => {
                let taken = if refused {
                    Ok(Reloaded::Unchanged)
                } else {
                    self.take(&mut state, read.clone())
                };
                if refused || taken.is_err() {
                    state.seen = Some((read, true));
                }
                taken
            }
            _ => {
                state.seen = Some((read, false));
                Ok(Reloaded::Unchanged)
            }
        }
    }

    fn take(&self, state: &mut State, read: FileBytes) -> Result<Reloaded, Error> {
        if read == state.taken {
            return Ok(Reloaded::Unchanged);
        }
        state.in_force = config(&self.files, &read, &self.protocols)?;
        state.generation += 1;
        state.ends = ends(&self.files, &read);
        (state.taken, state.seen) = (read, None);
        Ok(Reloaded::Taken)
    }

    /// Does the handshake of one connection. It has no time limit of its own.
    ///
    /// # Errors
    /// Why it failed; [`explain`](crate::explain()) says it in words. The stream comes back. Unless somebody reads it, a peer
    /// that still sends may lose the answer it was sent.
    pub async fn accept<T>(&self, stream: T) -> Result<TlsStream<T>, (io::Error, T)>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.state().in_force.config);
        let accepting = TlsAcceptor::from(config).accept(stream);
        accepting.into_fallible().await
    }

    /// The number of times that new files were loaded. A handshake that began before a load uses the old files.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Whether a client that shows this certificate would be let in now, by the wall clock in seconds since 1970. After new
    /// files were loaded it may not be: the certificate was revoked, or its CA was replaced.
    #[must_use]
    pub fn would_admit(&self, shown: &Certificate, now: u64) -> bool {
        let Some(verifier) = self.state().in_force.verifier.clone() else {
            return true;
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        let verified = verifier.verify_client_cert(&shown.own, &shown.between, now);
        verified.is_ok()
    }

    /// The file of the certificate.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// Whether the certificate that is in force now is for this host.
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        self.own().is_some_and(|own| own.is_for(host))
    }

    /// When the certificates and lists in force end, by the wall clock.
    #[must_use]
    pub fn ends(&self) -> Ends {
        self.state().ends
    }

    /// Why clients refuse the certificate that is in force, at this time by the wall clock in seconds since 1970, with the
    /// remedy. `None` while it is valid.
    #[must_use]
    pub fn out_of_date(&self, now: u64) -> Option<String> {
        let validity = self.own()?.validity()?;
        let at = |time: &Time| time.to_unix_duration().as_secs();
        let what = if at(&validity.not_after) < now {
            format!("expired at {}", validity.not_after)
        } else if now < at(&validity.not_before) {
            format!("is not valid before {}", validity.not_before)
        } else {
            return None;
        };
        Some(format!(
            "the certificate {} {what}, so clients refuse it: put a new one and its key in place of it (`palisade auth cert` \
             makes one for a test or a home network), or set the clock; it is taken without a restart",
            self.files.certificate.display()
        ))
    }

    fn own(&self) -> Option<Certificate> {
        let [pem, ..] = &self.state().taken;
        let chain = files::certificates(&self.files.certificate, pem).unwrap_or_default();
        chain.into_iter().next().map(Certificate::alone)
    }

    /// A client with the certificates that are in force now: it presents those of this port, trusts the CA of its
    /// clients and speaks its first protocol. For servers that are each other's clients.
    ///
    /// # Errors
    /// [`Error`] if there is no CA, or the certificates cannot be used this way.
    pub fn client(&self) -> Result<TlsClient, Error> {
        let [certificate, key, client_ca, _] = self.state().taken.clone();
        let Some(ca) = &self.files.client_ca else {
            return Err(content(
                &self.files.certificate,
                "no CA is named for the other side",
            ));
        };
        let own = (
            files::certificates(&self.files.certificate, &certificate)?,
            files::key(&self.files.key, &key)?,
        );
        let client =
            TlsClient::presenting(files::roots(ca, &client_ca)?, Some(own)).map_err(|error| {
                Error::Pair {
                    certificate: self.files.certificate.clone(),
                    key: self.files.key.clone(),
                    why: error.to_string(),
                }
            })?;
        Ok(match self.protocols.first() {
            Some(protocol) => client.speaking(protocol),
            None => client,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The certificate that one side shows; the handshake has checked it.
#[derive(Clone, Debug)]
pub struct Certificate {
    own: CertificateDer<'static>,
    /// Those between it and its CA that were shown with it.
    between: Vec<CertificateDer<'static>>,
}

impl Certificate {
    /// `None` if the client showed none.
    #[must_use]
    pub fn of<T>(stream: &TlsStream<T>) -> Option<Certificate> {
        let (own, between) = stream.get_ref().1.peer_certificates()?.split_first()?;
        let owned = |shown: &CertificateDer<'_>| shown.clone().into_owned();
        Some(Certificate {
            own: owned(own),
            between: between.iter().map(owned).collect(),
        })
    }

    fn alone(own: CertificateDer<'static>) -> Certificate {
        let between = Vec::new();
        Certificate { own, between }
    }

    /// Its DNS names and URIs, such as SPIFFE ids.
    #[must_use]
    pub fn names(&self) -> Vec<Box<str>> {
        let Ok(read) = webpki::EndEntityCert::try_from(&self.own) else {
            return Vec::new();
        };
        let hosts = read.valid_dns_names();
        hosts.chain(read.valid_uri_names()).map(Box::from).collect()
    }

    /// The last second in which it is valid, since 1970 by the wall clock. A certificate without one was never valid.
    #[must_use]
    pub fn expires(&self) -> u64 {
        let validity = self.validity();
        validity.map_or(0, |valid| valid.not_after.to_unix_duration().as_secs())
    }

    fn validity(&self) -> Option<Validity> {
        let read = x509_cert::Certificate::from_der(&self.own).ok()?;
        Some(*read.tbs_certificate().validity())
    }

    /// The first certificate in a PEM file, which is the one that names its owner.
    ///
    /// # Errors
    /// [`Error`] names the file and what is wrong with it.
    pub fn in_file(path: &Path) -> Result<Certificate, Error> {
        let all = files::certificates(path, &files::read(path)?)?;
        let own = all.into_iter().next();
        let own = own.ok_or_else(|| files::content(path, "no certificate in it"))?;
        Ok(Certificate::alone(own))
    }

    /// Whether it is for this host: a name, or an IP address (in brackets or not).
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        let read = webpki::EndEntityCert::try_from(&self.own).ok();
        read.zip(server_name(host))
            .is_some_and(|(certificate, name)| {
                certificate.verify_is_valid_for_subject_name(&name).is_ok()
            })
    }
}

/// These files are in force, so they can be read.
fn ends(files: &ServerFiles, [certificate, _, client_ca, client_crl]: &FileBytes) -> Ends {
    let all = |path: &Path, pem: &[u8]| files::certificates(path, pem).unwrap_or_default();
    let own = all(&files.certificate, certificate).into_iter().next();
    let trusted = files.client_ca.as_deref().map(|path| all(path, client_ca));
    let lists = files.client_crl.as_deref();
    let lists = lists.and_then(|path| files::revocations(path, client_crl).ok());
    Ends {
        certificate: own.map(|own| Certificate::alone(own).expires()),
        client_ca: trusted.and_then(|all| {
            let ends = all.into_iter().map(|one| Certificate::alone(one).expires());
            ends.min()
        }),
        client_crl: lists.and_then(|lists| {
            let next = |list: &[u8]| {
                let next = CertificateList::<Rfc5280>::from_der(list)
                    .ok()?
                    .tbs_cert_list
                    .next_update?;
                Some(next.to_unix_duration().as_secs())
            };
            lists.iter().filter_map(|list| next(list)).min()
        }),
    }
}

fn contents(files: &ServerFiles) -> Result<FileBytes, Error> {
    let read = |path: &Option<PathBuf>| path.as_deref().map_or(Ok(Vec::new()), files::read);
    Ok([
        files::read(&files.certificate)?,
        files::read(&files.key)?,
        read(&files.client_ca)?,
        read(&files.client_crl)?,
    ])
}

/// Checks the certificates of clients; `None` where nobody has to show one.
fn verifier(
    files: &ServerFiles,
    [_, _, client_ca, client_crl]: &FileBytes,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, Error> {
    let Some(path) = &files.client_ca else {
        return Ok(None);
    };
    let roots = files::roots(path, client_ca)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    // Only the last certificate of a chain is looked up: the CA lists only certificates that it issued itself.
    let verifier = match &files.client_crl {
        Some(path) => verifier
            .with_crls(files::revocations(path, client_crl)?)
            .only_check_end_entity_revocation(),
        None => verifier,
    };
    let verifier = if files.certificate_optional {
        verifier.allow_unauthenticated().build()
    } else {
        verifier.build()
    };
    Ok(Some(
        verifier.map_err(|error| content(path, error.to_string()))?,
    ))
}

fn config(
    files: &ServerFiles,
    contents @ [certificate, key, _, _]: &FileBytes,
    protocols: &[Vec<u8>],
) -> Result<InForce, Error> {
    let chain = files::certificates(&files.certificate, certificate)?;
    let private = files::key(&files.key, key)?;
    let pair = |error: Tls| Error::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        why: match error {
            Tls::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
            other => other.to_string(),
        },
    };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(pair)?;
    let verifier = verifier(files, contents)?;
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
    };
    let mut config = builder.with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = protocols.to_vec();
    // See the head of the crate: nothing is resumed.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let config = Arc::new(config);
    Ok(InForce { config, verifier })
}
