//! Sequencers: fencing tokens that this authority signs (rules Q1 and Q2), and the file with its keys.
//!
//! ```text
//!   renew (shows the lease's key) ─► show ─► what is held ─► sign, on a network thread ─► compact JWS
//!   DATA/sequencer.keys ──► public halves at /.well-known/jwks.json ──► fences
//! ```
//!
//! The file is JSON, readable by its owner only: `format` (1), `authority`, `incarnation`, `signing` (the id of the key that
//! signs) and `keys`, each with `kid` and `seed` (32 bytes in base64url). An id is made of the key's thumbprint (RFC 7638). All keys are
//! published; one signs. So a new key is published first, and signs when every fence has it. The file is read again whenever it
//! has changed. A backup does not contain it, and a file of another incarnation is replaced: a restore makes a new key.
//!
//! The first key is random. The nodes of a cluster all make the same one, from the secret that they share: each of them may
//! lead, and a fence accepts the sequencers of any leader.
//!
//! Fences read the form of a sequencer in `palisade_fence::sequencer`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_access::replace::{self, NotEdited};
use palisade_core::{LockName, LockView, Slots, Token};
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::secrets::{self, ClusterSecret};
use palisade_pipeline::Identity;

/// The name of the file in a server's data directory.
pub const KEY_FILE: &str = "sequencer.keys";

/// The keys with which an authority signs sequencers, as its file has them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequencerKeys {
    format: u32,
    authority: String,
    incarnation: String,
    signing: String,
    keys: Vec<StoredKey>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredKey {
    kid: String,
    seed: String,
}

/// A file of keys that cannot be used. No message contains a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The operating system's error.
    #[error("{}: {source}", file.display())]
    Io {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a file of keys, or of a later version.
    #[error(
        "{}: {why}; put a copy of it back, or remove it: then a new key is made, and every fence needs the new \
         /.well-known/jwks.json", file.display()
    )]
    Damaged {
        /// Which file.
        file: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// It is of another authority.
    #[error(
        "{}: these are the keys of the authority {named}, and this is {here}; remove the file, and a new key is made",
        file.display()
    )]
    Foreign {
        /// Which file.
        file: PathBuf,
        /// The authority that it names.
        named: String,
        /// This one.
        here: String,
    },
    /// No key has this id.
    #[error("there is no key {0:?}; `palisade auth key ls` lists them")]
    NoSuchKey(String),
    /// The key that signs cannot be removed.
    #[error("{0:?} is the key that signs; let another one sign first: palisade auth key use KID")]
    Signing(String),
}

impl SequencerKeys {
    /// The keys of a new authority: one.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn new(identity: &Identity) -> io::Result<SequencerKeys> {
        SequencerKeys::beginning_with(identity, &secrets::random()?)
    }

    fn beginning_with(identity: &Identity, seed: &[u8; 32]) -> io::Result<SequencerKeys> {
        let mut keys = SequencerKeys {
            format: FORMAT,
            authority: identity.authority.as_str().to_owned(),
            incarnation: identity.incarnation.clone(),
            signing: String::new(),
            keys: Vec::new(),
        };
        keys.signing = keys.put(seed)?;
        Ok(keys)
    }

    /// Adds a key that is published and does not sign yet. Returns its id.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn add(&mut self) -> io::Result<String> {
        self.put(&secrets::random()?)
    }

    /// The key of this seed is published from now on. Returns its id.
    fn put(&mut self, seed: &[u8; 32]) -> io::Result<String> {
        let pair = pair(seed).ok_or_else(|| io::Error::other("the key cannot be used"))?;
        let kid = id(&pair);
        if self.known(&kid).is_err() {
            self.keys.push(StoredKey {
                kid: kid.clone(),
                seed: URL_SAFE_NO_PAD.encode(seed),
            });
        }
        Ok(kid)
    }

    /// Lets a published key sign from now on. The former one stays published.
    ///
    /// # Errors
    /// [`KeyFileError::NoSuchKey`].
    pub fn sign_with(&mut self, kid: &str) -> Result<(), KeyFileError> {
        self.known(kid)?;
        kid.clone_into(&mut self.signing);
        Ok(())
    }

    /// Removes a key: once the fences have the new set, they reject the sequencers that it signed.
    ///
    /// # Errors
    /// [`KeyFileError::NoSuchKey`], [`KeyFileError::Signing`].
    pub fn remove(&mut self, kid: &str) -> Result<(), KeyFileError> {
        self.known(kid)?;
        if kid == self.signing {
            return Err(KeyFileError::Signing(kid.to_owned()));
        }
        self.keys.retain(|key| key.kid != kid);
        Ok(())
    }

    /// The ids of the keys, the oldest first, and whether each signs.
    pub fn list(&self) -> impl Iterator<Item = (&str, bool)> {
        let keys = self.keys.iter();
        keys.map(|key| (key.kid.as_str(), key.kid == self.signing))
    }

    fn known(&self, kid: &str) -> Result<(), KeyFileError> {
        if self.keys.iter().any(|key| key.kid == kid) {
            Ok(())
        } else {
            Err(KeyFileError::NoSuchKey(kid.to_owned()))
        }
    }

    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// [`KeyFileError::Io`], [`KeyFileError::Damaged`].
    pub fn read(path: &Path) -> Result<Option<SequencerKeys>, KeyFileError> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| failed(path, source))?,
        };
        SequencerKeys::parse(path, &text).map(Some)
    }

    fn parse(path: &Path, text: &[u8]) -> Result<SequencerKeys, KeyFileError> {
        let damaged = |why| KeyFileError::Damaged {
            file: path.to_owned(),
            why,
        };
        let keys: SequencerKeys =
            serde_json::from_slice(text).map_err(|_| damaged("it is not a file of keys"))?;
        if keys.format != FORMAT {
            return Err(damaged("it is of another format than 1"));
        }
        keys.ready()
            .map(|_| keys)
            .ok_or_else(|| damaged("a key in it cannot be used"))
    }

    /// Changes the keys in a file that exists, durably. `change` may be called again, on the keys that another program has
    /// written meanwhile.
    ///
    /// # Errors
    /// [`KeyFileError::Io`], [`KeyFileError::Damaged`], the error of `change`.
    pub fn change<T>(
        path: &Path,
        mut change: impl FnMut(&mut SequencerKeys) -> Result<T, KeyFileError>,
    ) -> Result<T, KeyFileError> {
        let mut done = None;
        let edited = replace::edit(path, |text| {
            let mut keys = SequencerKeys::parse(path, text)?;
            done = Some(change(&mut keys)?);
            let text = serde_json::to_vec_pretty(&keys).map_err(io::Error::other);
            text.map_err(|source| failed(path, source))
        });
        match (edited, done) {
            (Ok(()), Some(done)) => Ok(done),
            (Ok(()), None) => unreachable!("a file is replaced by an edited one"),
            (Err(NotEdited::Io(source)), _) => Err(failed(path, source)),
            (Err(NotEdited::Refused(error)), _) => Err(error),
        }
    }

    /// Writes a file: durable when it returns, and readable by its owner only. A reader sees the old one or the new one.
    ///
    /// # Errors
    /// [`KeyFileError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), KeyFileError> {
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other);
        text.and_then(|text| secrets::write(path, &text))
            .map_err(|source| failed(path, source))
    }

    /// Why a new authority does not take these.
    pub(super) fn of_another(self, path: &Path) -> KeyFileError {
        KeyFileError::Foreign {
            file: path.to_owned(),
            named: self.authority,
            here: "a new one".to_owned(),
        }
    }

    /// The keys, ready for use.
    fn ready(&self) -> Option<Ready> {
        let mut signing = None;
        let mut published = Vec::new();
        for key in &self.keys {
            let seed = URL_SAFE_NO_PAD.decode(&key.seed).ok()?;
            let pair = pair(&seed).filter(|pair| id(pair) == key.kid)?;
            published.push(json!({
                "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig",
                "kid": key.kid, "x": URL_SAFE_NO_PAD.encode(pair.public_key()),
            }));
            if key.kid == self.signing {
                signing = Some(pair);
            }
        }
        let header = json!({"alg": "EdDSA", "kid": self.signing, "typ": "palisade-sequencer"});
        Some(Ready {
            pair: signing?,
            header: URL_SAFE_NO_PAD.encode(header.to_string()),
            published: json!({"issuer": self.authority, "keys": published}),
        })
    }
}

/// Keys in use.
struct Ready {
    pair: Ed25519KeyPair,
    /// Encoded.
    header: String,
    published: Value,
}

/// Signs for an authority.
pub(super) struct Signer {
    path: PathBuf,
    identity: Identity,
    keys: RwLock<(Option<Stamp>, Arc<Ready>)>,
}

/// Inode, length and change time of a file: another one means that it was written again. The time alone is too coarse.
type Stamp = (u64, u64, SystemTime);

/// The mode of a grant, and the slots of a semaphore.
pub(super) struct HeldAs {
    mode: &'static str,
    slots: Slots,
}

impl HeldAs {
    /// The grant with this token, as a look at the lock shows it; `None` if it has ended.
    pub(super) fn find(view: &LockView, token: Token) -> Option<HeldAs> {
        if view.permits.is_some() {
            let mut holders = view.readers.iter();
            let holder = holders.find(|reader| reader.holder.token == token)?;
            return Some(HeldAs {
                mode: "permits",
                slots: holder.slots,
            });
        }
        view.holder.as_ref().filter(|held| held.token == token)?;
        Some(HeldAs {
            mode: match view.reader_count {
                0 => "exclusive",
                _ => "shared",
            },
            slots: Slots::default(),
        })
    }
}

impl Signer {
    /// Reads the keys, and makes some where there are none of this incarnation; `begins` is told first, with the
    /// incarnation of the keys that were there.
    pub(super) fn open(
        path: &Path,
        identity: &Identity,
        cluster: Option<&ClusterSecret>,
        begins: impl FnOnce(Option<&str>),
    ) -> Result<Signer, KeyFileError> {
        let failed = |source| failed(path, source);
        let first = cluster.map(|cluster| {
            let incarnation = &identity.incarnation;
            cluster.derive(&["sequencers", identity.authority.as_str(), incarnation])
        });
        let keys = match SequencerKeys::read(path)? {
            Some(keys) if keys.authority != identity.authority.as_str() => {
                return Err(KeyFileError::Foreign {
                    file: path.to_owned(),
                    named: keys.authority,
                    here: identity.authority.as_str().to_owned(),
                });
            }
            Some(keys) if keys.incarnation == identity.incarnation => keys,
            old => {
                begins(old.as_ref().map(|old| &*old.incarnation));
                let keys = match &first {
                    Some(first) => SequencerKeys::beginning_with(identity, first),
                    None => SequencerKeys::new(identity),
                };
                let keys = keys.map_err(failed)?;
                keys.write(path)?;
                tracing::info!(file = %path.display(), kid = keys.signing, "made a key for sequencers");
                keys
            }
        };
        let ready = keys.ready().ok_or_else(|| KeyFileError::Damaged {
            file: path.to_owned(),
            why: "a key in it cannot be used",
        })?;
        Ok(Signer {
            keys: RwLock::new((stamp(path), Arc::new(ready))),
            path: path.to_owned(),
            identity: identity.clone(),
        })
    }

    /// The keys in force: those of the file, if it can be used.
    fn current(&self) -> Arc<Ready> {
        let now = stamp(&self.path);
        {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            // A file that is gone is not a reason to stop signing.
            if now.is_none() || keys.0 == now {
                return Arc::clone(&keys.1);
            }
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.0 != now {
            keys.0 = now;
            let read = SequencerKeys::read(&self.path).ok().flatten();
            let own = read.filter(|read| {
                read.authority == self.identity.authority.as_str()
                    && read.incarnation == self.identity.incarnation
            });
            match own.and_then(|own| own.ready()) {
                Some(ready) => keys.1 = Arc::new(ready),
                None => tracing::error!(
                    "{} cannot be used, and the old keys for sequencers stay in force",
                    self.path.display()
                ),
            }
        }
        Arc::clone(&keys.1)
    }

    /// The public keys.
    pub(super) fn published(&self) -> Value {
        self.current().published.clone()
    }

    /// Signs a grant.
    pub(super) fn sign(
        &self,
        lock: &LockName,
        token: Token,
        held: &HeldAs,
        principal: Option<&str>,
    ) -> String {
        let mut payload = json!({
            "iss": self.identity.authority.as_str(), "lock": lock.as_str(), "mode": held.mode,
            "token": token.get(),
        });
        let slots: Vec<u32> = held.slots.iter().collect();
        if !slots.is_empty() {
            payload["slots"] = slots.into();
        }
        if let Some(principal) = principal {
            payload["sub"] = principal.into();
        }
        let keys = self.current();
        let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
        let signed = format!("{}.{payload}", keys.header);
        let signature = keys.pair.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn pair(seed: &[u8]) -> Option<Ed25519KeyPair> {
    Ed25519KeyPair::from_seed_unchecked(seed).ok()
}

/// The id of a key: the first 16 hexadecimal digits of its thumbprint, which is the hash of the members that make the key, in
/// this order and without spaces (RFC 7638).
fn id(pair: &Ed25519KeyPair) -> String {
    let x = URL_SAFE_NO_PAD.encode(pair.public_key());
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    let hash = digest(&SHA256, members.as_bytes());
    hash.as_ref()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.modified().ok()?))
}

fn failed(path: &Path, source: io::Error) -> KeyFileError {
    KeyFileError::Io {
        file: path.to_owned(),
        source,
    }
}

const FORMAT: u32 = 1;
