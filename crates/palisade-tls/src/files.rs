//! Certificates and keys in files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// The reason why certificates or a key are unusable. The message names the file and the next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file does not contain the expected PEM.
    #[error("{}: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The certificate and the key do not match, or the library refuses them.
    #[error("{} and {} cannot be used together: {why}", certificate.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of its key.
        key: PathBuf,
        /// The problem.
        why: String,
    },
    /// This machine has no trusted certificates.
    #[error("{0}")]
    Roots(String),
}

/// Reads a file of at most 1 MiB.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > MOST_BYTES {
        return Err(content(
            path,
            format!("{size} bytes; at most {MOST_BYTES} are read"),
        ));
    }
    fs::read(path).map_err(failed)
}

/// Parses the certificates in a PEM file, in their order.
pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| content(path, format!("not a PEM file: {error}")))?;
    if all.is_empty() {
        let why = "no certificate in it; it should begin with -----BEGIN CERTIFICATE-----";
        return Err(content(path, why));
    }
    Ok(all)
}

/// Parses the private key in a PEM file. A message never contains any of it.
pub(crate) fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        content(
            path,
            "no private key in it; it should contain -----BEGIN PRIVATE KEY-----, without a passphrase",
        )
    })
}

/// Parses the CA certificates in a PEM file.
pub(crate) fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        let added = roots.add(certificate);
        added.map_err(|error| {
            content(
                path,
                format!("a certificate that cannot be trusted: {error}"),
            )
        })?;
    }
    Ok(roots)
}

/// Parses the lists of revoked certificates in a PEM file.
pub(crate) fn revocations(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| content(path, format!("not a PEM file: {error}")))?;
    if all.is_empty() {
        let why =
            "no list of revoked certificates in it; it should begin with -----BEGIN X509 CRL-----";
        return Err(content(path, why));
    }
    Ok(all)
}

pub(crate) fn content(path: &Path, why: impl Into<String>) -> Error {
    Error::Content {
        path: path.to_owned(),
        why: why.into(),
    }
}

const MOST_BYTES: u64 = 1 << 20;
