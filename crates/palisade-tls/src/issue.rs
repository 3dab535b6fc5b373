//! A small private CA, for tests and home networks: one key that signs everything.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData as _, RevokedCertParams, SanType, SerialNumber, string::Ia5String,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_cert::der::Decode as _;

/// Why a certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name is no host name, IP address or SPIFFE id.
    #[error(
        "{0:?} is no name for a certificate; write a host name, an IP address or spiffe://domain/path"
    )]
    Name(String),
    /// The key of the CA is unusable.
    #[error("the key of the CA cannot be used: {0}")]
    Key(String),
    /// The library refused.
    #[error("cannot make the certificate: {0}")]
    Library(#[from] rcgen::Error),
}

/// From when until when a certificate is valid, by the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// The first instant.
    pub from: SystemTime,
    /// The last instant.
    pub until: SystemTime,
}

impl Validity {
    /// `days` from `now`. It begins an hour earlier, for clocks that run late.
    #[must_use]
    pub fn days(now: SystemTime, days: u32) -> Validity {
        Validity {
            from: now - Duration::from_secs(60 * 60),
            until: now + Duration::from_secs(u64::from(days) * 24 * 60 * 60),
        }
    }
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate in PEM.
    pub certificate: String,
    /// The key in PEM (PKCS #8). Secret.
    pub key: String,
}

/// A private CA.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
}

/// Checks names for a certificate, before anything is made.
///
/// # Errors
/// [`Error::Name`] for a name that cannot be in a certificate.
pub fn check_names(names: &[impl AsRef<str>]) -> Result<(), Error> {
    names
        .iter()
        .try_for_each(|name| san(name.as_ref()).map(drop))
}

impl CertificateAuthority {
    /// Makes a CA.
    ///
    /// # Errors
    /// [`Error::Library`], for example without random bytes.
    pub fn make(validity: Validity) -> Result<(CertificateAuthority, Issued), Error> {
        let key = KeyPair::generate()?;
        let mut params = params_of_ca(&key)?;
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let issued = Issued {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        };
        let issuer = Issuer::new(params, key);
        Ok((CertificateAuthority { issuer }, issued))
    }

    /// The CA with this key in PEM.
    ///
    /// # Errors
    /// [`Error::Key`] if that is no key.
    pub fn load(key: &str) -> Result<CertificateAuthority, Error> {
        // The error of the library may quote the key.
        let key = KeyPair::from_pem(key)
            .map_err(|_| Error::Key("it is no private key in PEM".to_owned()))?;
        let params = params_of_ca(&key)?;
        let issuer = Issuer::new(params, key);
        Ok(CertificateAuthority { issuer })
    }

    /// Makes a certificate with these names: host names, IP addresses, SPIFFE ids. It serves a server and a client.
    ///
    /// # Errors
    /// [`Error::Name`] for a name that cannot be in a certificate.
    pub fn issue(&self, names: &[impl AsRef<str>], validity: Validity) -> Result<Issued, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let all: Result<Vec<_>, _> = names.iter().map(|name| san(name.as_ref())).collect();
        params.subject_alt_names = all?;
        params.distinguished_name = DistinguishedName::new();
        if let Some(first) = names.first() {
            let name = &mut params.distinguished_name;
            name.push(DnType::CommonName, first.as_ref());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        Ok(Issued {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl CertificateAuthority {
    /// Makes the list of the certificates of this CA, each in PEM, that are revoked: a CRL in PEM.
    ///
    /// # Errors
    /// [`Error::Name`] for a text that is no certificate.
    pub fn revoke(&self, certificates: &[&str], validity: Validity) -> Result<String, Error> {
        let revoked = certificates.iter().map(|pem| {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok();
            let serial = certificate.and_then(|der| serial(&der));
            Ok(RevokedCertParams {
                serial_number: serial.ok_or_else(|| Error::Name((*pem).to_owned()))?,
                revocation_time: validity.from.into(),
                reason_code: None,
                invalidity_date: None,
            })
        });
        let params = CertificateRevocationListParams {
            this_update: validity.from.into(),
            next_update: validity.until.into(),
            // Each list is newer than those before it.
            crl_number: SerialNumber::from(seconds(validity.from)),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect::<Result<_, Error>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.pem()?)
    }
}

fn serial(certificate: &CertificateDer<'_>) -> Option<SerialNumber> {
    let read = x509_cert::Certificate::from_der(certificate).ok()?;
    let serial = read.tbs_certificate().serial_number();
    Some(SerialNumber::from_slice(serial.as_bytes()))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// The name of the CA follows from its key, so the key alone is enough to go on issuing.
fn params_of_ca(key: &KeyPair) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    let tail = key.der_bytes().iter().rev().take(6);
    let id: String = tail.map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = DistinguishedName::new();
    let name = &mut params.distinguished_name;
    name.push(DnType::CommonName, format!("Palisade private CA {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn san(name: &str) -> Result<SanType, Error> {
    let wrong = || Error::Name(name.to_owned());
    if let Ok(address) = name.parse() {
        return Ok(SanType::IpAddress(address));
    }
    let text = Ia5String::try_from(name).map_err(|_| wrong())?;
    if name.starts_with("spiffe://") {
        return Ok(SanType::URI(text));
    }
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
    let host = !name.is_empty() && name.len() <= 253 && name.bytes().all(known);
    host.then_some(SanType::DnsName(text)).ok_or_else(wrong)
}
