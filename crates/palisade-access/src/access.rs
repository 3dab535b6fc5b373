//! Principals, their credentials, and the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::jwt::Issuer;
use crate::quota::Quotas;
use crate::{BadJwt, BadToken, BearerToken, Jwt, Secret, Verb, token};

/// The principal without a credential. It exists only where a rule names it.
pub const ANONYMOUS: &str = "anonymous";

/// A name that rules can mention.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(pub(crate) Arc<str>);

impl Principal {
    /// The stored form of a principal: the first half of the SHA-256 of its name; `None` for [`ANONYMOUS`]. Nobody can
    /// find a second name with the same 128 bits.
    #[must_use]
    pub fn id(&self) -> Option<[u8; 16]> {
        let id = || {
            let mut id = [0; 16];
            id.copy_from_slice(&Sha256::digest(self.0.as_bytes())[..16]);
            id
        };
        (self.name() != ANONYMOUS).then(id)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A caller's credentials. A token takes precedence over a certificate, and both over a uid: a token is sent on purpose,
/// and every process has a uid.
#[derive(Clone, Debug, Default)]
pub struct Credential {
    /// A bearer token.
    pub token: Option<Bearer>,
    /// The names in a client certificate that TLS has checked.
    pub names: Arc<[Box<str>]>,
    /// The uid of its process, by the word of the kernel: for a Unix socket.
    pub uid: Option<u32>,
}

/// A bearer token of either kind.
#[derive(Clone, Debug)]
pub enum Bearer {
    /// One of this access file.
    Token(BearerToken),
    /// One of an issuer; it was verified.
    Jwt(Arc<Jwt>),
}

/// The callers that a server knows, and their rights.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The principals of tokens, by the token's id.
    pub(crate) tokens: BTreeMap<Box<str>, KnownToken>,
    /// By a name in a certificate.
    pub(crate) certificates: BTreeMap<Box<str>, Principal>,
    /// By the uid of a process of this machine. They are no names beside those of certificates: a CA could issue one for
    /// "uid:0".
    pub(crate) uids: BTreeMap<u32, Principal>,
    /// By the name that is in their JWTs.
    pub(crate) issuers: BTreeMap<Box<str>, Issuer>,
    /// By issuer and subject of a JWT.
    pub(crate) subjects: BTreeMap<(Box<str>, Box<str>), Principal>,
    pub(crate) rules: BTreeMap<Principal, Vec<AccessRule>>,
    pub(crate) quotas: Quotas,
    /// The prefixes whose grants are to be recorded.
    pub(crate) audited: BTreeSet<Box<str>>,
    /// Every principal of the file, by its stored form.
    pub(crate) by_id: BTreeMap<[u8; 16], Principal>,
}

/// A token of the access file.
#[derive(Clone, Debug)]
pub(crate) struct KnownToken {
    pub(crate) secret: Secret,
    pub(crate) principal: Principal,
    /// From then on it counts for nothing, in seconds since 1970 by the server's wall clock.
    pub(crate) expires: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct AccessRule {
    pub(crate) prefix: Box<str>,
    pub(crate) verbs: Vec<Verb>,
}

/// No principal has the caller's credentials. The message repeats no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Nothing was shown.
    #[error(
        "who is asking? send a token (Authorization: Bearer pal_…), or connect with a client certificate"
    )]
    Nothing,
    /// The token is not known, or no longer.
    #[error("the token {0} is unknown or was revoked")]
    Token(Box<str>),
    /// The token has ended.
    #[error("the token {0} expired: make a new one with `palisade auth token new`")]
    Expired(Box<str>),
    /// It is not a token of this file, and not a JWT that counts here.
    #[error(transparent)]
    Jwt(#[from] BadJwt),
    /// It is not a token at all.
    #[error(transparent)]
    Malformed(#[from] BadToken),
    /// No name of the certificate is known.
    #[error("no principal has a certificate with the name {0}")]
    Certificate(Box<str>),
    /// No principal has the uid.
    #[error("no principal has the uid {0}, and no token was sent")]
    Uid(u32),
}

/// No rule grants this action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{principal} may not {verb} {what}: no rule grants it{also}")]
pub struct Denied {
    /// The caller.
    pub principal: Principal,
    /// The action.
    pub verb: Verb,
    what: String,
    also: String,
}

impl Access {
    /// Reads the text of a bearer token. A JWT is verified, except for its times.
    ///
    /// # Errors
    /// [`Unknown`] says why it counts for nothing.
    pub fn bearer(&self, text: &str) -> Result<Bearer, Unknown> {
        if self.issuers.is_empty() || text.starts_with(token::START) {
            return Ok(Bearer::Token(BearerToken::parse(text)?));
        }
        let jwt = Jwt::verify(text, |issuer| self.issuers.get(issuer))?;
        Ok(Bearer::Jwt(Arc::new(jwt)))
    }

    /// Authenticates these credentials. `now` is in seconds since 1970 by the server's wall clock, to which the times of
    /// JWTs refer.
    ///
    /// # Errors
    /// [`Unknown`] says why nobody is known by it.
    pub fn identify(&self, credential: &Credential, now: u64) -> Result<Principal, Unknown> {
        if let Some(Bearer::Jwt(jwt)) = &credential.token {
            jwt.check_time(now)?;
            jwt.check_issuer(self.issuers.get(&jwt.issuer))?;
            let subject = (jwt.issuer.clone(), jwt.subject.clone());
            let principal = self.subjects.get(&subject).cloned();
            return Ok(principal.ok_or_else(|| jwt.unknown())?);
        }
        if let Some(Bearer::Token(token)) = &credential.token {
            let found = self.tokens.get(token.id());
            // A lookup by an id tells nothing of the secret; the comparison of secrets takes equally long.
            return match found.filter(|known| known.secret.is(token.secret())) {
                Some(known) if known.expires.is_some_and(|expires| now >= expires) => {
                    Err(Unknown::Expired(token.id().into()))
                }
                Some(known) => Ok(known.principal.clone()),
                None => Err(Unknown::Token(token.id().into())),
            };
        }
        let mut names = credential.names.iter();
        let by_name = names.find_map(|name| self.certificates.get(name));
        let by_uid = || credential.uid.and_then(|uid| self.uids.get(&uid));
        if let Some(principal) = by_name.or_else(by_uid) {
            return Ok(principal.clone());
        }
        if let Some((anonymous, _)) = self.rules.get_key_value(&Principal(ANONYMOUS.into())) {
            return Ok(anonymous.clone());
        }
        Err(match (credential.names.first(), credential.uid) {
            (Some(name), _) => Unknown::Certificate(name.clone()),
            (None, Some(uid)) => Unknown::Uid(uid),
            (None, None) => Unknown::Nothing,
        })
    }

    /// Whether a credential that [`Access::identify`] has found expires. If so, identify it again later, because it may
    /// expire while its connection lasts.
    #[must_use]
    pub fn ends(&self, credential: &Credential) -> bool {
        match &credential.token {
            Some(Bearer::Jwt(_)) => true,
            Some(Bearer::Token(token)) => {
                let known = self.tokens.get(token.id());
                known.is_some_and(|known| known.expires.is_some())
            }
            None => false,
        }
    }

    /// Whether a principal may do this with a lock. Returns the prefix of the rule that grants it.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn decide(&self, principal: &Principal, verb: Verb, lock: &str) -> Result<&str, Denied> {
        let granting = self
            .granting(principal, verb)
            .find(|prefix| lock.starts_with(*prefix));
        granting.ok_or_else(|| self.denied(principal, verb, format!("the lock {lock}")))
    }

    /// Whether a principal may do this with every lock whose name begins with `prefix`.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn decide_all(
        &self,
        principal: &Principal,
        verb: Verb,
        prefix: &str,
    ) -> Result<(), Denied> {
        let mut granting = self.granting(principal, verb);
        if granting.any(|granted| prefix.starts_with(granted)) {
            Ok(())
        } else {
            Err(self.denied(principal, verb, format!("all {}", locks_of(prefix))))
        }
    }

    /// With which locks, of those whose names begin with `prefix`, a principal may do this: with those whose names begin
    /// with one of the prefixes returned. They are sorted, none begins with another one, and there is at least one.
    ///
    /// # Errors
    /// [`Denied`] if it may do this with no such lock.
    pub fn decide_some<'a>(
        &'a self,
        principal: &Principal,
        verb: Verb,
        prefix: &'a str,
    ) -> Result<Vec<&'a str>, Denied> {
        let granting = self.granting(principal, verb);
        let mut parts: Vec<&str> = granting
            .filter_map(|granted| {
                if prefix.starts_with(granted) {
                    Some(prefix)
                } else {
                    granted.starts_with(prefix).then_some(granted)
                }
            })
            .collect();
        parts.sort_unstable();
        // A prefix comes directly before the names that begin with it.
        parts.dedup_by(|longer, shorter| longer.starts_with(*shorter));
        if parts.is_empty() {
            Err(self.denied(principal, verb, format!("any of the {}", locks_of(prefix))))
        } else {
            Ok(parts)
        }
    }

    /// Whether a principal may do this with any lock at all.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn decide_any(&self, principal: &Principal, verb: Verb) -> Result<(), Denied> {
        match self.granting(principal, verb).next() {
            Some(_) => Ok(()),
            None => Err(self.denied(principal, verb, "any lock".to_owned())),
        }
    }

    /// The principal of this name.
    #[must_use]
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let found = self.all_principals();
        found
            .into_iter()
            .find(|principal| principal.name() == name)
            .cloned()
    }

    /// Every principal that somebody may be, some more than once.
    pub(crate) fn all_principals(&self) -> impl Iterator<Item = &Principal> {
        let with_rules = self.rules.keys();
        let with_tokens = self.tokens.values().map(|known| &known.principal);
        with_rules
            .chain(with_tokens)
            .chain(self.certificates.values())
            .chain(self.uids.values())
            .chain(self.subjects.values())
    }

    /// The issuers of JWTs, with their audience and how many keys they have.
    pub fn issuers(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        let issuers = self.issuers.iter();
        issuers.map(|(name, issuer)| (&**name, &*issuer.audience, issuer.keys.count()))
    }

    /// The principal that is stored as this [`Principal::id`], if the file names it.
    #[must_use]
    pub fn stored(&self, id: [u8; 16]) -> Option<&Principal> {
        self.by_id.get(&id)
    }

    /// The prefixes whose grants are to be recorded.
    pub fn audited(&self) -> impl Iterator<Item = &str> {
        self.audited.iter().map(|prefix| &**prefix)
    }

    /// Whether the grants of this lock are to be recorded.
    #[must_use]
    pub fn audits(&self, lock: &str) -> bool {
        self.audited().any(|prefix| lock.starts_with(prefix))
    }

    /// The ids of the tokens that are not revoked, whose they are, and when they end, in seconds since 1970.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, &Principal, Option<u64>)> {
        let tokens = self.tokens.iter();
        tokens.map(|(id, known)| (&**id, &known.principal, known.expires))
    }

    /// The prefixes of the rules that grant `verb`.
    fn granting<'a>(&'a self, principal: &Principal, verb: Verb) -> impl Iterator<Item = &'a str> {
        let rules = self.rules.get(principal).into_iter().flatten();
        let granting =
            rules.filter(move |rule| rule.verbs.iter().any(|granted| granted.grants(verb)));
        granting.map(|rule| &*rule.prefix)
    }

    fn denied(&self, principal: &Principal, verb: Verb, what: String) -> Denied {
        let prefixes: Vec<&str> = self.granting(principal, verb).collect();
        let also = match &prefixes[..] {
            [] => String::new(),
            prefixes => format!(" (it may {verb} what begins with {})", prefixes.join(", ")),
        };
        Denied {
            principal: principal.clone(),
            verb,
            what,
            also,
        }
    }
}

/// A prefix as a message describes it.
fn locks_of(prefix: &str) -> String {
    match prefix {
        "" => "locks".to_owned(),
        prefix => format!("locks that begin with {prefix}"),
    }
}
