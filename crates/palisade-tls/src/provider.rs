//! The provider of cryptography, and the versions of TLS.

use std::sync::Arc;

/// The one provider of cryptography.
pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The versions of the protocol, newest first.
pub(crate) const VERSIONS: &[&rustls::SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];
