//! Translates between the `lock_token` and `request_id` that clients have and the keys in the log (rule I9).
//!
//! ```text
//!   log, snapshots, backups: a lease's key, a request's id ◄─ AES-128 under DATA/lock_token.key ─► what clients have
//! ```
//!
//! A repeated acquire gets the same `lock_token`, also after a restart and from any node, so a hash in the log would not do.
//! The log contains a key, and the client gets that key encrypted: one block of AES, the same each time. A stolen log or
//! backup is useless without the key file: the server accepts none of the keys in it. The gate encrypts and decrypts for all
//! interfaces; the code behind it sees only keys of the log.
//!
//! A lease's key begins with [`MARK`], which tells under which of several keys it was encrypted, and that what a caller shows
//! was encrypted at all.
//!
//! A backup does not contain the file. Where it is lost, a new one is made: holders then lose their leases, which expire, and
//! a repeated request is a new one.

use std::fs;
use std::io;
use std::path::Path;

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt as _, BlockCipherEncrypt as _, KeyInit as _};
use palisade_core::{LeaseKey, Outcome, RequestId, Under};

use super::secrets::{self, ClusterSecret};
use palisade_pipeline::{Answer, MARK, Request};

/// The name of the file in a server's data directory: 32 random bytes.
pub const LOCK_TOKEN_FILE: &str = "lock_token.key";

/// The keys: each `lock_token` is encrypted with the first one, and others are from before. Without any, clients have the keys
/// of the log.
pub(super) struct LeaseKeys(Vec<Ciphers>);

struct Ciphers {
    leases: Aes128,
    requests: Aes128,
    fingerprint: String,
}

impl Ciphers {
    fn new(secret: &[u8; 32]) -> Ciphers {
        let (mut leases, mut requests) = ([0; 16], [0; 16]);
        leases.copy_from_slice(&secret[..16]);
        requests.copy_from_slice(&secret[16..]);
        Ciphers {
            leases: Aes128::new(&leases.into()),
            requests: Aes128::new(&requests.into()),
            fingerprint: fingerprint(secret),
        }
    }
}

/// Tells keys apart without giving anything of them away: 32 bits of an HMAC under the key, which is random.
fn fingerprint(secret: &[u8; 32]) -> String {
    let derived = ClusterSecret(*secret).derive(&["fingerprint of a lock token key"]);
    derived[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The fingerprint of the key in a server's data directory, as its metrics show it; `None` if there is no file.
///
/// # Errors
/// The file cannot be read, or is not a key.
pub fn lock_token_fingerprint(data: &Path) -> io::Result<Option<String>> {
    let secret = LeaseKeys::read(&data.join(LOCK_TOKEN_FILE))?;
    Ok(secret.as_ref().map(fingerprint))
}

impl LeaseKeys {
    /// The fingerprints of the keys.
    pub(super) fn fingerprints(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|ciphers| &*ciphers.fingerprint)
    }

    /// Reads the file, and makes it where there is none. A node of a cluster uses the key of all nodes and makes none. With
    /// the file of a single server, it accepts the keys that this server granted.
    pub(super) fn open(
        path: Option<&Path>,
        cluster: Option<&ClusterSecret>,
    ) -> io::Result<LeaseKeys> {
        let of_cluster = cluster.map(|cluster| cluster.derive(&["lock tokens"]));
        let of_file = path.map(|path| match LeaseKeys::read(path)? {
            Some(secret) => Ok(Some(secret)),
            None if of_cluster.is_some() => Ok(None),
            None => {
                let secret = secrets::random()?;
                secrets::write(path, &secret).map(|()| Some(secret))
            }
        });
        let all = of_cluster.into_iter().chain(of_file.transpose()?.flatten());
        Ok(LeaseKeys(all.map(|secret| Ciphers::new(&secret)).collect()))
    }

    /// Reads the key from the file; `None` if there is no file.
    pub(super) fn read(path: &Path) -> io::Result<Option<[u8; 32]>> {
        match fs::read(path) {
            Ok(secret) => secret.try_into().map(Some).map_err(|_| {
                let why = "it does not have 32 bytes; put a copy of it back, or remove it: then the server makes a new one, \
                           and every holder loses its lease";
                io::Error::new(io::ErrorKind::InvalidData, why)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Turns the caller's form of a key into the log's form.
    #[inline]
    pub(super) fn decrypt(&self, request: &mut Request) {
        let Some(Ciphers { requests, .. }) = self.0.first() else {
            return;
        };
        match request {
            Request::Acquire(wish) => {
                if let Some(id) = &mut wish.request {
                    *id = RequestId::from_bytes(encrypted(requests, *id.as_bytes()));
                }
                if let Under::Existing { key, .. } = &mut wish.under {
                    *key = self.known(key);
                }
            }
            Request::Renew { grant, .. }
            | Request::Proclaim { grant, .. }
            | Request::Release(grant) => grant.key = self.known(&grant.key),
            Request::Listen(grants) => {
                for listened in grants {
                    listened.grant.key = self.known(&listened.grant.key);
                }
            }
            Request::Abandon(id) => {
                *id = RequestId::from_bytes(encrypted(requests, *id.as_bytes()));
            }
            _ => {}
        }
    }

    /// Turns the log's form of a key into the caller's form.
    #[inline]
    pub(super) fn encrypt(&self, answer: &mut Answer) {
        if let Some(Ciphers { leases, .. }) = self.0.first()
            && let Answer::Outcome(Outcome::Granted(granted)) = answer
        {
            granted.key = LeaseKey::from_bytes(encrypted(leases, *granted.key.as_bytes()));
        }
    }

    /// Decrypts the key that a client shows. Anything else, such as a key read from a log, decrypts to a key that no lease
    /// has.
    fn known(&self, shown: &LeaseKey) -> LeaseKey {
        let decrypted = self.0.iter().map(|Ciphers { leases, .. }| {
            let mut block = (*shown.as_bytes()).into();
            leases.decrypt_block(&mut block);
            LeaseKey::from_bytes(block.into())
        });
        let mut marked = decrypted.filter(is_marked);
        marked.next().unwrap_or(LeaseKey::from_bytes([0; 16]))
    }
}

fn encrypted(cipher: &Aes128, bytes: [u8; 16]) -> [u8; 16] {
    let mut block = bytes.into();
    cipher.encrypt_block(&mut block);
    block.into()
}

fn is_marked(key: &LeaseKey) -> bool {
    key.as_bytes().starts_with(&MARK)
}

#[cfg(test)]
mod tests {
    use palisade_core::{GrantRef, LockName};

    use super::*;

    fn marked(rest: u8) -> LeaseKey {
        let mut bytes = [rest; 16];
        bytes[..MARK.len()].copy_from_slice(&MARK);
        LeaseKey::from_bytes(bytes)
    }

    /// The form in which a client gets this key.
    fn shown(tokens: &LeaseKeys, key: LeaseKey) -> LeaseKey {
        LeaseKey::from_bytes(encrypted(&tokens.0[0].leases, *key.as_bytes()))
    }

    /// The key that is looked up in the log when a client shows this one.
    fn asked(tokens: &LeaseKeys, shown: LeaseKey) -> LeaseKey {
        let mut request = Request::Release(GrantRef {
            lock: LockName::new("l").unwrap(),
            key: shown,
            token: None,
        });
        tokens.decrypt(&mut request);
        match request {
            Request::Release(grant) => grant.key,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_key_of_the_log_is_of_no_use_and_its_encrypted_form_is() {
        let [tokens, others] =
            [[7; 32], [8; 32]].map(|secret| LeaseKeys(vec![Ciphers::new(&secret)]));
        let plain = LeaseKeys(Vec::new());
        for rest in 0..=255 {
            let key = marked(rest);
            let token = shown(&tokens, key);
            assert_eq!(asked(&tokens, token), key);
            assert_ne!(asked(&tokens, key), key, "read in a log");
            assert_ne!(asked(&others, token), key, "another server's file");
            // The control: without the file, a key from the log is enough.
            assert_eq!(asked(&plain, key), key);
            let bare = LeaseKey::from_bytes([rest; 16]);
            let none = LeaseKey::from_bytes([0; 16]);
            assert_eq!(asked(&tokens, bare), none, "it has no mark");
            assert_eq!(asked(&tokens, shown(&tokens, bare)), none);
        }
    }

    #[test]
    fn an_id_of_a_request_is_the_same_each_time_and_not_what_the_log_has() {
        let mut secret = [7; 32];
        secret[16..].fill(8);
        let tokens = LeaseKeys(vec![Ciphers::new(&secret)]);
        let id = RequestId::from_bytes([3; 16]);
        let (mut first, mut again) = (Request::Abandon(id), Request::Abandon(id));
        tokens.decrypt(&mut first);
        tokens.decrypt(&mut again);
        let ids = [&first, &again].map(|request| match request {
            Request::Abandon(id) => *id,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids[0], ids[1]);
        assert_ne!(ids[0], id);
        // Nor is it what a lease's key would become.
        assert_ne!(
            ids[0].as_bytes(),
            shown(&tokens, LeaseKey::from_bytes([3; 16])).as_bytes()
        );
    }

    #[test]
    fn a_file_is_made_once_and_a_damaged_one_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_TOKEN_FILE);
        let open = |cluster: Option<&ClusterSecret>| LeaseKeys::open(Some(&path), cluster);
        let cluster = ClusterSecret([1; 32]);
        let node = open(Some(&cluster)).unwrap();
        assert!(!path.exists(), "a node has the cluster's key");
        let shown_by =
            |keys: &LeaseKeys| keys.fingerprints().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(shown_by(&node).len(), 1);
        let token = shown(&open(None).unwrap(), marked(1));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(asked(&open(None).unwrap(), token), marked(1));
        // A single server became a member: its earlier grants continue, and every node accepts the keys that the cluster
        // grants.
        let member = open(Some(&cluster)).unwrap();
        assert_eq!(asked(&member, token), marked(1));
        // The two keys of this node show that the other nodes lack one of them.
        let of_file = lock_token_fingerprint(dir.path()).unwrap().unwrap();
        assert_eq!(shown_by(&member), [shown_by(&node), vec![of_file]].concat());
        let granted = shown(&member, marked(2));
        let joiner = LeaseKeys::open(None, Some(&cluster)).unwrap();
        assert_eq!(asked(&joiner, granted), marked(2));
        assert_ne!(
            asked(&joiner, token),
            marked(1),
            "it needs a copy of the file"
        );
        fs::write(&path, "short").unwrap();
        let Err(refused) = open(None) else {
            panic!("a short file was taken");
        };
        assert!(refused.to_string().contains("32 bytes"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"short");
    }
}
