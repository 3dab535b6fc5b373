//! Why a connection over TLS failed, in words.

use std::io;

use rustls::{AlertDescription as Alert, CertificateError, Error, InvalidMessage};

/// The reason of a failed handshake, or of a connection that ended with an alert, with the remedy. `None` if TLS is
/// not the reason.
#[must_use]
pub fn explain(error: &io::Error) -> Option<String> {
    explain_to(error, &CLIENT)
}

/// The flags that a message names.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// The CA that the other side's certificate must be of.
    pub ca: &'static str,
    /// The certificate and key of this side.
    pub own: &'static str,
    /// The remedy if only one side speaks TLS.
    pub plain: &'static str,
}

pub(crate) const CLIENT: Flags = Flags {
    ca: "--ca-file",
    own: "--client-cert and --client-key",
    plain: "for a server without TLS, write http://",
};

/// The flags of a port that has clients on the other side.
pub const PORT: Flags = Flags {
    ca: "--tls-client-ca",
    own: "--tls-cert and --tls-key",
    plain: "a client of a port with TLS writes https://",
};

/// As [`explain`], for programs with other flags.
#[must_use]
pub fn explain_to(error: &io::Error, flags: &Flags) -> Option<String> {
    let mut cause = error
        .get_ref()
        .map(|inner| inner as &(dyn std::error::Error + 'static));
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<Error>() {
            return Some(reason(error, flags));
        }
        cause = inner
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .map(|inner| inner as &(dyn std::error::Error + 'static))
            .or_else(|| inner.source());
    }
    None
}

fn reason(error: &Error, flags: &Flags) -> String {
    match error {
        Error::InvalidCertificate(why) => certificate(why, flags),
        Error::NoCertificatesPresented => {
            "no client certificate was presented; one is needed here".to_owned()
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            format!("the other side does not speak TLS here; {}", flags.plain)
        }
        Error::AlertReceived(alert) => refused(*alert, flags),
        Error::PeerIncompatible(why) => {
            format!("the two sides have no version or cipher of TLS in common ({why:?})")
        }
        other => other.to_string(),
    }
}

/// Explains the fault of the other side's certificate.
fn certificate(why: &CertificateError, flags: &Flags) -> String {
    let renew = "make a new one (`palisade auth cert`), or set the clock";
    match why {
        CertificateError::Expired => format!("its certificate has expired; {renew}"),
        CertificateError::ExpiredContext { time, not_after } => {
            let ago = time.as_secs().saturating_sub(not_after.as_secs());
            format!("its certificate expired {} ago; {renew}", length(ago))
        }
        CertificateError::NotValidYet => format!("its certificate is not valid yet; {renew}"),
        CertificateError::NotValidYetContext { time, not_before } => {
            let ahead = not_before.as_secs().saturating_sub(time.as_secs());
            format!("its certificate is not valid for another {}; {renew}", length(ahead))
        }
        CertificateError::Revoked => {
            "its certificate was revoked by its CA; make a new one".to_owned()
        }
        CertificateError::UnknownRevocationStatus => {
            "no list says whether its certificate was revoked; put the list of its CA into the file of --tls-client-crl".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("its certificate is of a CA that is not trusted here; name the right CA with {}", flags.ca)
        }
        CertificateError::NotValidForName => {
            "its certificate is for another name; use a name that is in it".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let named = match &presented[..] {
                [] => "no name".to_owned(),
                names => names.join(", "),
            };
            format!(
                "its certificate is for {named}, not for {}; use a name that is in it, or make one with this name",
                expected.to_str()
            )
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not made for this purpose (a server's for a client, or a client's for a server)"
                .to_owned()
        }
        other => format!("its certificate cannot be used: {other}"),
    }
}

/// The other side refused.
fn refused(alert: Alert, flags: &Flags) -> String {
    let what = match alert {
        Alert::CertificateRequired => {
            return format!(
                "a client certificate is needed; give one with {}",
                flags.own
            );
        }
        Alert::UnknownCA => "it is of a CA that is not trusted there",
        Alert::CertificateExpired => "it has expired, or is not valid yet",
        Alert::CertificateRevoked => "it was revoked",
        Alert::DecryptError => "its signature is wrong: it may be of a CA that was replaced",
        Alert::BadCertificate | Alert::CertificateUnknown | Alert::UnsupportedCertificate => {
            "it cannot be used there"
        }
        Alert::AccessDenied => "it is not admitted there",
        other => return format!("the other side ended the handshake: {other:?}"),
    };
    format!(
        "the certificate of this side was refused: {what}; see {}",
        flags.own
    )
}

/// A length of time in one unit.
fn length(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
