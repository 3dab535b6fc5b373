//! The public keys of one authority, as it publishes them at `/.well-known/jwks.json`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::AuthorityId;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::Deserialize;

/// The public keys of one authority (a JWK set, RFC 7517, with the authority as `issuer`).
#[derive(Clone, Debug)]
pub struct Keys {
    issuer: AuthorityId,
    keys: Vec<(String, UnparsedPublicKey<[u8; 32]>)>,
}

/// A set of keys that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; it should be what the authority has at /.well-known/jwks.json")]
pub struct BadKeys(pub(super) String);

#[derive(Deserialize)]
struct JwkSet {
    issuer: String,
    keys: Vec<Jwk>,
}

/// Unknown members are ignored, as RFC 7517 requires.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    kid: Option<String>,
    x: Option<String>,
}

impl Keys {
    /// Parses a key set. Only Ed25519 keys are used.
    ///
    /// # Errors
    /// [`BadKeys`]: it is not a key set, names no authority, or has no key that can be used, or two of one name.
    pub fn parse(jwks: &[u8]) -> Result<Keys, BadKeys> {
        let set: JwkSet = serde_json::from_slice(jwks)
            .map_err(|error| BadKeys(format!("this is not a set of keys: {error}")))?;
        let issuer = AuthorityId::new(&set.issuer)
            .map_err(|invalid| BadKeys(format!("issuer: {invalid}")))?;
        let mut keys: Vec<(String, _)> = Vec::new();
        for jwk in set.keys {
            if jwk.kty != "OKP" || jwk.crv.as_deref() != Some("Ed25519") {
                continue;
            }
            let kid = jwk.kid.ok_or_else(|| BadKeys("a key has no kid".into()))?;
            let x = jwk.x.and_then(|x| URL_SAFE_NO_PAD.decode(x).ok());
            let x: Option<[u8; 32]> = x.and_then(|x| x.try_into().ok());
            let x = x.ok_or_else(|| BadKeys(format!("x of the key {kid:?} is not 32 bytes")))?;
            if keys.iter().any(|(known, _)| *known == kid) {
                return Err(BadKeys(format!("two keys are called {kid:?}")));
            }
            keys.push((kid, UnparsedPublicKey::new(&ED25519, x)));
        }
        if keys.is_empty() {
            return Err(BadKeys("it has no key for Ed25519".into()));
        }
        Ok(Keys { issuer, keys })
    }

    /// Returns the authority of the keys.
    #[must_use]
    pub const fn issuer(&self) -> &AuthorityId {
        &self.issuer
    }

    pub(super) fn find(&self, kid: &str) -> Option<&UnparsedPublicKey<[u8; 32]>> {
        let found = self.keys.iter().find(|(known, _)| known == kid);
        found.map(|(_, key)| key)
    }
}
