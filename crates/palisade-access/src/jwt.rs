//! JWTs of issuers that the access file names (RFC 7519), such as the service account tokens of Kubernetes.
//!
//! ```text
//!   text ─► length ─► three parts ─► header ─► issuer ─► its key ─► signature ─► audience, subject, expiry ─► Jwt
//! ```
//!
//! The algorithm is the key's own. A token that names another one, `none` and HMAC among them, is refused by name: a key
//! set has no secret keys, and a public key is never taken for one. No critical header parameter is supported, so a token
//! with one is refused as well (RFC 7515, 4.1.11). Before the signature is verified, only the issuer is read from the
//! payload, because the key is in the issuer's key set.
//!
//! ring checks the signatures; TLS uses it here, too. The libraries for JWTs bring another provider of cryptography, or
//! have none and take a hook whose code would be this module's.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use sha2::{Digest as _, Sha256};

/// No JWT has more bytes.
pub const MAX_BYTES: usize = 8_192;

/// By how many seconds the clocks of issuer and server may differ.
pub const LEEWAY: u64 = 30;

/// The content of a JWT whose issuer was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    pub(crate) issuer: Box<str>,
    audience: Box<str>,
    pub(crate) subject: Box<str>,
    key: Fingerprint,
    /// Seconds since 1970, as in the token.
    not_before: u64,
    expires: u64,
}

type Fingerprint = [u8; 32];

/// Why nobody is known by a JWT. The message contains nothing that lets anybody act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJwt {
    /// It is not looked at.
    #[error("the JWT has {0} bytes, and at most {MAX_BYTES} are taken")]
    TooLong(usize),
    /// It is not a JWT.
    #[error("the JWT is malformed: {0}; is it complete?")]
    Malformed(&'static str),
    /// It has a critical header parameter that is not supported.
    #[error("the JWT has critical header members (crit), and this server knows none")]
    Critical,
    /// No issuer of the file is its own.
    #[error("the JWT is of the issuer {0}, and the access file has no [[auth.issuers]] with it")]
    Issuer(Quoted),
    /// It does not name its key.
    #[error("the JWT names no key (kid), and the key set of its issuer has several")]
    NoKey,
    /// The key set does not have its key.
    #[error(
        "the JWT is signed with the key {0}, which the server's key set {1:?} does not have: when the issuer has new \
         keys, that file needs them"
    )]
    Key(Quoted, PathBuf),
    /// The key is for another algorithm.
    #[error("the JWT says that its algorithm is {0}, and its key is for {1}")]
    Algorithm(Quoted, &'static str),
    /// The signature is not the key's.
    #[error("the JWT's signature is wrong: its issuer did not sign this")]
    Forged,
    /// It is for another service.
    #[error(
        "the JWT is for the audience {0}, and this server is {1}: ask its issuer for one with that audience"
    )]
    Audience(Quoted, Box<str>),
    /// It would never end.
    #[error("the JWT does not say when it expires (exp)")]
    Endless,
    /// It names nobody.
    #[error("the JWT names no subject (sub)")]
    Nobody,
    /// It is over.
    #[error("the JWT expired at {}, and by this server's clock it is {}: send a new one", time(*.0), time(*.1))]
    Expired(u64, u64),
    /// Its time has not begun.
    #[error("the JWT is not valid before {}, and by this server's clock it is {}", time(*.0), time(*.1))]
    Early(u64, u64),
    /// Its issuer, audience or key is no longer in force.
    #[error(
        "the JWT is of an issuer, for an audience or signed with a key that is no longer in force: send a new one"
    )]
    Withdrawn,
    /// No principal has its subject.
    #[error("no principal has the subject {0} of the issuer {1:?}: add it to subjects")]
    Subject(Quoted, Box<str>),
}

/// Text of a caller, as it may be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Quoted(Box<str>);

impl Quoted {
    fn of(text: &str) -> Quoted {
        let most = 200;
        let shown: String = text.chars().take(most).collect();
        let more = if shown.len() < text.len() { "…" } else { "" };
        Quoted(format!("{shown:?}{more}").into())
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Quoted {
    fn from(text: &str) -> Quoted {
        Quoted::of(text)
    }
}

/// Seconds since 1970, for people.
fn time(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok();
    let at = at.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.map_or_else(|| format!("second {seconds}"), |at| at.to_string())
}

/// An issuer whose JWTs are accepted.
#[derive(Clone, Debug)]
pub(crate) struct Issuer {
    pub(crate) audience: Box<str>,
    /// The file with its key set.
    pub(crate) file: PathBuf,
    /// Empty until the file is read.
    pub(crate) keys: Keys,
}

/// A key set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
struct Key {
    kid: Option<Box<str>>,
    kind: KeyKind,
    fingerprint: Fingerprint,
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        (&self.kid, self.kind.algorithm(), self.fingerprint)
            == (&other.kid, other.kind.algorithm(), other.fingerprint)
    }
}

#[derive(Clone, Debug)]
enum KeyKind {
    Point(Algorithm<dyn VerificationAlgorithm>, Vec<u8>),
    Rsa(Algorithm<RsaParameters>, Vec<u8>, Vec<u8>),
}

struct Algorithm<T: ?Sized + 'static>(&'static str, &'static T);

impl<T: ?Sized> Clone for Algorithm<T> {
    fn clone(&self) -> Self {
        Algorithm(self.0, self.1)
    }
}

impl<T: ?Sized> fmt::Debug for Algorithm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl KeyKind {
    fn algorithm(&self) -> &'static str {
        match self {
            KeyKind::Point(algorithm, _) => algorithm.0,
            KeyKind::Rsa(algorithm, ..) => algorithm.0,
        }
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            KeyKind::Point(algorithm, point) => {
                UnparsedPublicKey::new(algorithm.1, point).verify(message, signature)
            }
            KeyKind::Rsa(algorithm, n, e) => {
                RsaPublicKeyComponents { n, e }.verify(algorithm.1, message, signature)
            }
        };
        verified.is_ok()
    }
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<Jwk>,
}

/// Further members are ignored, as RFC 7517 asks.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
}

impl Jwk {
    /// The key; `None` for one of another kind or use.
    fn kind(&self) -> Result<Option<KeyKind>, String> {
        let kid = self.kid.as_deref().unwrap_or_default();
        let bytes = |name: &str, text: &Option<String>| {
            let text = text.as_ref();
            let bytes = text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
            bytes.ok_or_else(|| format!("{name} of the key {kid:?} is not base64url"))
        };
        let point = |length: usize| {
            let (x, y) = (bytes("x", &self.x)?, bytes("y", &self.y)?);
            if x.len() == length && y.len() == length {
                // Uncompressed: SEC 1, 2.3.3.
                Ok([&[4], &*x, &*y].concat())
            } else {
                Err(format!(
                    "x and y of the key {kid:?} need {length} bytes each"
                ))
            }
        };
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return Ok(None);
        }
        Ok(match (&*self.kty, self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => {
                let x = bytes("x", &self.x)?;
                if x.len() != 32 {
                    return Err(format!("x of the key {kid:?} needs 32 bytes"));
                }
                Some(KeyKind::Point(Algorithm("EdDSA", &ED25519), x))
            }
            ("EC", Some("P-256")) => Some(KeyKind::Point(
                Algorithm("ES256", &ECDSA_P256_SHA256_FIXED),
                point(32)?,
            )),
            ("EC", Some("P-384")) => Some(KeyKind::Point(
                Algorithm("ES384", &ECDSA_P384_SHA384_FIXED),
                point(48)?,
            )),
            ("RSA", _) => {
                let algorithm = match self.alg.as_deref() {
                    None | Some("RS256") => Algorithm("RS256", &RSA_PKCS1_2048_8192_SHA256),
                    Some("RS384") => Algorithm("RS384", &RSA_PKCS1_2048_8192_SHA384),
                    Some("RS512") => Algorithm("RS512", &RSA_PKCS1_2048_8192_SHA512),
                    Some(_) => return Ok(None),
                };
                let (n, e) = (bytes("n", &self.n)?, bytes("e", &self.e)?);
                if !(256..=1_024).contains(&n.len()) {
                    return Err(format!("the key {kid:?} needs 2048 to 8192 bits"));
                }
                Some(KeyKind::Rsa(algorithm, n, e))
            }
            _ => None,
        })
    }
}

impl Keys {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Reads a key set. Keys of other kinds are left out.
    pub(crate) fn parse(text: &[u8]) -> Result<Keys, String> {
        let set: JwkSet = serde_json::from_slice(text)
            .map_err(|error| format!("this is not a JWK set ({{\"keys\": [...]}}): {error}"))?;
        let mut keys: Vec<Key> = Vec::new();
        for jwk in set.keys {
            let Some(kind) = jwk.kind()? else { continue };
            let kid: Option<Box<str>> = jwk.kid.map(Into::into);
            if keys.iter().any(|known| known.kid == kid) {
                return Err(format!("two keys are called {:?}", kid.unwrap_or_default()));
            }
            let digest = match &kind {
                KeyKind::Point(_, point) => Sha256::digest(point),
                KeyKind::Rsa(_, n, e) => Sha256::new().chain_update(n).chain_update(e).finalize(),
            };
            keys.push(Key {
                kid,
                kind,
                fingerprint: digest.into(),
            });
        }
        if keys.is_empty() {
            Err("it has no key for RS256, RS384, RS512, ES256, ES384 or EdDSA".to_owned())
        } else {
            Ok(Keys(keys))
        }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct IssuerClaim {
    iss: String,
}

#[derive(Deserialize)]
struct Claims {
    sub: Option<String>,
    aud: Option<Audience>,
    exp: Option<f64>,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Jwt {
    /// Verifies everything but the times; `find` has the issuers.
    pub(crate) fn verify<'a>(
        text: &str,
        find: impl FnOnce(&str) -> Option<&'a Issuer>,
    ) -> Result<Jwt, BadJwt> {
        if text.len() > MAX_BYTES {
            return Err(BadJwt::TooLong(text.len()));
        }
        let mut parts = text.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadJwt::Malformed("it does not have three parts"));
        };
        let signed = &text.as_bytes()[..header.len() + 1 + payload.len()];
        let (header, payload) = (decoded(header)?, decoded(payload)?);
        let signature = decoded(signature)?;
        let header: Header = json(&header)?;
        if header.crit.is_some() {
            return Err(BadJwt::Critical);
        }
        let IssuerClaim { iss } = json(&payload)?;
        let issuer = find(&iss).ok_or_else(|| BadJwt::Issuer((&*iss).into()))?;
        let key = issuer.key(header.kid.as_deref())?;
        let algorithm = key.kind.algorithm();
        if header.alg != algorithm {
            return Err(BadJwt::Algorithm((&*header.alg).into(), algorithm));
        }
        if !key.kind.verifies(signed, &signature) {
            return Err(BadJwt::Forged);
        }
        let claims: Claims = json(&payload)?;
        let audiences = match claims.aud {
            None => Vec::new(),
            Some(Audience::One(one)) => vec![one],
            Some(Audience::Several(several)) => several,
        };
        if !audiences
            .iter()
            .any(|audience| **audience == *issuer.audience)
        {
            let named = Quoted::of(&audiences.join(", "));
            return Err(BadJwt::Audience(named, issuer.audience.clone()));
        }
        let subject = claims.sub.filter(|subject| !subject.is_empty());
        Ok(Jwt {
            subject: subject.ok_or(BadJwt::Nobody)?.into(),
            issuer: iss.into(),
            audience: issuer.audience.clone(),
            key: key.fingerprint,
            not_before: claims.nbf.map_or(Ok(0), seconds)?,
            expires: seconds(claims.exp.ok_or(BadJwt::Endless)?)?,
        })
    }

    /// Whether it is valid at this instant, in seconds since 1970 by the server's wall clock.
    ///
    /// # Errors
    /// [`BadJwt::Expired`], [`BadJwt::Early`].
    pub fn check_time(&self, now: u64) -> Result<(), BadJwt> {
        if now >= self.expires.saturating_add(LEEWAY) {
            return Err(BadJwt::Expired(self.expires, now));
        }
        if now.saturating_add(LEEWAY) < self.not_before {
            return Err(BadJwt::Early(self.not_before, now));
        }
        Ok(())
    }

    /// Whether a verified token would be verified again: a key may have been withdrawn since.
    pub(crate) fn check_issuer(&self, issuer: Option<&Issuer>) -> Result<(), BadJwt> {
        let in_force = issuer.is_some_and(|issuer| {
            let mut keys = issuer.keys.0.iter();
            issuer.audience == self.audience && keys.any(|key| key.fingerprint == self.key)
        });
        if in_force {
            Ok(())
        } else {
            Err(BadJwt::Withdrawn)
        }
    }

    pub(crate) fn unknown(&self) -> BadJwt {
        BadJwt::Subject((&*self.subject).into(), self.issuer.clone())
    }
}

impl Issuer {
    fn key(&self, kid: Option<&str>) -> Result<&Key, BadJwt> {
        match (kid, &*self.keys.0) {
            (None, [only]) => Ok(only),
            (None, _) => Err(BadJwt::NoKey),
            (Some(kid), keys) => {
                let found = keys.iter().find(|key| key.kid.as_deref() == Some(kid));
                found.ok_or_else(|| BadJwt::Key(kid.into(), self.file.clone()))
            }
        }
    }

    /// The key set's file, as seen from the access file's folder.
    pub(crate) fn path(&self, access_file: &Path) -> PathBuf {
        access_file
            .parent()
            .unwrap_or(Path::new(""))
            .join(&self.file)
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, BadJwt> {
    let decoded = URL_SAFE_NO_PAD.decode(part);
    decoded.map_err(|_| BadJwt::Malformed("a part is not base64url"))
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadJwt> {
    serde_json::from_slice(bytes).map_err(|_| BadJwt::Malformed("a part is not the JSON of a JWT"))
}

/// A date of a JWT, which may have a fraction.
fn seconds(date: f64) -> Result<u64, BadJwt> {
    // Until the year 9999.
    let fits = (0.0..253_402_300_800.0).contains(&date);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range"
    )]
    fits.then_some(date as u64)
        .ok_or(BadJwt::Malformed("exp or nbf is no date"))
}
