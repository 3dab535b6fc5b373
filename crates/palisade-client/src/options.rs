//! The settings of a client, and its bearer token.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::holder::Caution;

use crate::fault::{Fault, Reason};

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of connections that share the requests, for authorities that use connections. One connection to a
    /// Palisade server carries hundreds of thousands of operations a second.
    pub connections: usize,
    /// The margins that holders allow for clock errors and for their own delays.
    pub caution: Caution,
    /// How long an operation is retried while the authority does not answer or has no leader. A waiting request waits
    /// this long beyond its wait for an outstanding answer.
    pub patience: Duration,
    /// Whether a fence's refusal of a lease's token is reported to the authority in the background, for its history
    /// ([`Lease::pass`](crate::Lease::pass)).
    pub report_refusals: bool,
    /// Whether the client listens for the ends of its grants and for requests that wait for its locks
    /// ([`Lease::notices`](crate::Lease::notices)). Without, it learns both from its renewals.
    pub notices: bool,
    /// The certificates for `https://` addresses.
    #[cfg(feature = "palisade")]
    pub tls: palisade_tls::ClientFiles,
    /// The bearer token that authenticates this client. It is sent to `https://` addresses and to loopback only.
    #[cfg(feature = "palisade")]
    pub token: Option<BearerToken>,
}

/// A bearer token: `pal_…`, or a JWT. Its text is secret and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken {
    text: Box<str>,
    /// The file to read it from again.
    file: Option<Arc<Path>>,
}

impl BearerToken {
    /// Creates a bearer token from its text.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if the text does not have the form of a token; the message does not repeat the text.
    pub fn new(text: &str) -> Result<BearerToken, Fault> {
        let text = text.trim();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let fits = text.len() <= 8_192 && text.bytes().all(plain);
        if fits && (text.starts_with("pal_") || text.split('.').count() == 3) {
            let (text, file) = (text.into(), None);
            return Ok(BearerToken { text, file });
        }
        Err(Fault::invalid(
            "not a token; a token begins with pal_, or is a JWT of three parts with dots between them",
        ))
    }

    /// Reads a bearer token from a file. Each new connection reads the file again, because Kubernetes replaces the file
    /// of a service account before its token expires.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if the file cannot be read or does not contain a token; see [`BearerToken::new`].
    pub fn from_file(path: &Path) -> Result<BearerToken, Fault> {
        let at = |why: Reason| Fault::Invalid(why.at(&path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| at(Reason::caused_by(error)))?;
        let token = BearerToken::new(&text).map_err(|fault| at(fault.reason().clone()))?;
        Ok(BearerToken {
            file: Some(path.into()),
            ..token
        })
    }

    /// Reads the file again and returns its token. Returns this token if there is no file, or if it is unusable at the
    /// moment.
    #[must_use]
    pub fn current(&self) -> BearerToken {
        let read = self.file.as_deref().map(BearerToken::from_file);
        read.and_then(Result::ok).unwrap_or_else(|| self.clone())
    }

    /// Whether a new connection may need a newer token.
    #[cfg(feature = "palisade")]
    pub(crate) fn is_renewed(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the secret text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 1,
            caution: Caution::DEFAULT,
            patience: Duration::from_secs(5),
            report_refusals: true,
            notices: true,
            #[cfg(feature = "palisade")]
            tls: palisade_tls::ClientFiles::default(),
            #[cfg(feature = "palisade")]
            token: None,
        }
    }
}
