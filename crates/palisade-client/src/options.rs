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
    /// The number of connections to the server over which requests are spread, for authorities that use
    /// connections. One connection carries hundreds of thousands of operations a second.
    pub connections: usize,
    /// The safety margins of holders for clock error and their own delays.
    pub caution: Caution,
    /// How long an operation is repeated while the authority does not answer, or none of its nodes leads. A waiting
    /// request gets this time in addition to its wait, for an answer that is still out.
    pub patience: Duration,
    /// The certificates for `https://` addresses.
    #[cfg(feature = "palisade")]
    pub tls: palisade_tls::ClientFiles,
    /// The bearer token that shows who this client is. It is sent to `https://` addresses and to loopback only.
    #[cfg(feature = "palisade")]
    pub token: Option<BearerToken>,
}

/// A bearer token: `pal_…`, or a JWT. Its text is secret, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken {
    text: Box<str>,
    /// Where to read it again.
    file: Option<Arc<Path>>,
}

impl BearerToken {
    /// Takes a token's text.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if it does not have the form of one; the message does not repeat it.
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

    /// Takes the token in a file, which is read again for each new connection: Kubernetes replaces the file of a
    /// service account before its token expires.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if the file cannot be read, or as [`BearerToken::new`].
    pub fn from_file(path: &Path) -> Result<BearerToken, Fault> {
        let at = |why: Reason| Fault::Invalid(why.at(&path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| at(Reason::caused_by(error)))?;
        let token = BearerToken::new(&text).map_err(|fault| at(fault.reason().clone()))?;
        Ok(BearerToken {
            file: Some(path.into()),
            ..token
        })
    }

    /// The token as it is in its file now; the same one if the file cannot be used at the moment.
    #[must_use]
    pub fn current(&self) -> BearerToken {
        let read = self.file.as_deref().map(BearerToken::from_file);
        read.and_then(Result::ok).unwrap_or_else(|| self.clone())
    }

    /// Whether a new connection may have another token than this one.
    #[cfg(feature = "palisade")]
    pub(crate) fn is_renewed(&self) -> bool {
        self.file.is_some()
    }

    /// The text, as it was read.
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
            #[cfg(feature = "palisade")]
            tls: palisade_tls::ClientFiles::default(),
            #[cfg(feature = "palisade")]
            token: None,
        }
    }
}
