//! The text of an access file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;
use toml::{Table, Value};

use crate::access::{AccessRule, KnownToken};
use crate::jwt::{Issuer, Keys};
use crate::quota::Quotas;
use crate::token::is_id;
use crate::{ANONYMOUS, Access, Bound, Principal, QuotaBounds, Secret, Verb, network};

/// A mistake in an access file; the message names the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

#[derive(Deserialize)]
struct AccessFile {
    auth: Section,
}

#[derive(Deserialize)]
struct Section {
    #[serde(default)]
    principals: Vec<PrincipalEntry>,
    #[serde(default)]
    tokens: Vec<TokenEntry>,
    #[serde(default)]
    revoked: Vec<RevokedEntry>,
    #[serde(default)]
    rules: Vec<RuleEntry>,
    #[serde(default)]
    quotas: Vec<QuotaEntry>,
    #[serde(default)]
    audit: Vec<AuditEntry>,
    #[serde(default)]
    issuers: Vec<IssuerEntry>,
}

#[derive(Deserialize)]
struct PrincipalEntry {
    name: String,
    #[serde(default)]
    certificates: Vec<String>,
    #[serde(default)]
    uids: Vec<i64>,
    #[serde(default)]
    subjects: Vec<String>,
    /// The issuer of the subjects, if there are several issuers.
    issuer: Option<String>,
}

#[derive(Deserialize)]
struct TokenEntry {
    id: String,
    principal: String,
    sha256: String,
    /// When it ends: a date and a time with a zone.
    expires: Option<String>,
}

#[derive(Deserialize)]
struct RevokedEntry {
    id: String,
}

#[derive(Deserialize)]
struct RuleEntry {
    principal: String,
    prefix: String,
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct QuotaEntry {
    prefix: Option<String>,
    principal: Option<String>,
    address: Option<String>,
    locks: Option<i64>,
    waiters: Option<i64>,
    watchers: Option<i64>,
    sessions: Option<i64>,
    bytes: Option<i64>,
    requests_per_second: Option<i64>,
}

#[derive(Deserialize)]
struct AuditEntry {
    prefix: String,
}

#[derive(Deserialize)]
struct IssuerEntry {
    issuer: String,
    audience: String,
    keys: PathBuf,
}

/// The keys of each table.
const KEYS: [(&str, &[&str]); 7] = [
    (
        "principals",
        &["name", "certificates", "uids", "subjects", "issuer"],
    ),
    ("issuers", &["issuer", "audience", "keys"]),
    ("tokens", &["id", "principal", "sha256", "expires"]),
    ("revoked", &["id"]),
    ("rules", &["principal", "prefix", "verbs"]),
    (
        "quotas",
        &[
            "prefix",
            "principal",
            "address",
            Bound::Locks.name(),
            Bound::Waiters.name(),
            Bound::Watchers.name(),
            Bound::Sessions.name(),
            Bound::Bytes.name(),
            Bound::Requests.name(),
        ],
    ),
    ("audit", &["prefix"]),
];

impl Access {
    /// Reads and checks the text of an access file, as [`file`](mod@crate::file) shows it.
    ///
    /// # Errors
    /// [`Error`] names the first mistake; nothing is taken then.
    pub fn parse(text: &str) -> Result<Access, Error> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            // The library shows the line, which may be that of a hash: no secret.
            Error(error.to_string().trim_end().to_owned())
        })?;
        check_keys(&table)?;
        let file: AccessFile = Value::Table(table)
            .try_into()
            .map_err(|error: toml::de::Error| Error(error.message().to_owned()))?;
        build(file.auth)
    }
}

/// Refuses a key that is not known, and names the one that was probably meant.
fn check_keys(table: &Table) -> Result<(), Error> {
    known(table, "the file", &["auth"])?;
    let Some(Value::Table(auth)) = table.get("auth") else {
        return Err(Error("the section [auth] is missing".to_owned()));
    };
    let sections = KEYS.map(|(name, _)| name);
    known(auth, "[auth]", &sections)?;
    for (name, keys) in KEYS {
        let entries = auth.get(name).and_then(Value::as_array);
        for entry in entries.into_iter().flatten().filter_map(Value::as_table) {
            known(entry, &format!("[[auth.{name}]]"), keys)?;
        }
    }
    Ok(())
}

fn known(table: &Table, place: &str, keys: &[&str]) -> Result<(), Error> {
    let Some(key) = table.keys().find(|key| !keys.contains(&&***key)) else {
        return Ok(());
    };
    let near = |known: &&&str| strsim::damerau_levenshtein(key, known);
    let nearest = keys
        .iter()
        .min_by_key(near)
        .filter(|known| near(known) <= 3);
    Err(Error(match nearest {
        Some(nearest) => format!("{place}: unknown key {key:?}; is {nearest:?} meant?"),
        None => format!(
            "{place}: unknown key {key:?}; the keys are {}",
            keys.join(", ")
        ),
    }))
}

fn build(section: Section) -> Result<Access, Error> {
    let mut access = Access {
        issuers: issuers(section.issuers)?,
        ..Access::default()
    };
    let mut principals = BTreeSet::from([Principal(ANONYMOUS.into())]);
    for entry in section.principals {
        let principal = named(&entry.name)?;
        if !principals.insert(principal.clone()) {
            return Err(Error(format!(
                "[[auth.principals]]: {principal} is there twice, or reserved"
            )));
        }
        for name in &entry.certificates {
            let old = access
                .certificates
                .insert(name.as_str().into(), principal.clone());
            if let Some(old) = old {
                let why = format!(
                    "[[auth.principals]]: the certificate {name:?} is that of {old} and of {principal}"
                );
                return Err(Error(why));
            }
        }
        if entry.issuer.is_some() || !entry.subjects.is_empty() {
            let issuer = issuer_of(&access, &entry)?;
            for subject in &entry.subjects {
                let key = (issuer.clone(), subject.as_str().into());
                if let Some(old) = access.subjects.insert(key, principal.clone()) {
                    return Err(Error(format!(
                        "[[auth.principals]]: the subject {subject:?} of {issuer:?} is that of {old} and of {principal}"
                    )));
                }
            }
        }
        for uid in entry.uids {
            let uid = self::uid(uid)?;
            if let Some(old) = access.uids.insert(uid, principal.clone()) {
                let why = format!(
                    "[[auth.principals]]: the uid {uid} is that of {old} and of {principal}"
                );
                return Err(Error(why));
            }
        }
    }
    let find = |name: &str, place: &str| {
        let found = principals.iter().find(|principal| principal.name() == name);
        found.cloned().ok_or_else(|| {
            let near = |known: &&Principal| strsim::damerau_levenshtein(name, known.name());
            let nearest = principals
                .iter()
                .min_by_key(near)
                .filter(|known| near(known) <= 3);
            let nearest = nearest.map_or(String::new(), |nearest| format!("; is {nearest} meant?"));
            Error(format!("{place}: there is no principal {name:?}{nearest}"))
        })
    };
    for entry in section.tokens {
        let place = format!("[[auth.tokens]] {:?}", entry.id);
        let principal = find(&entry.principal, &place)?;
        if principal.name() == ANONYMOUS {
            return Err(Error(format!("{place}: {ANONYMOUS} has no token")));
        }
        if !is_id(&entry.id) {
            return Err(Error(format!(
                "{place}: an id has 1 to 32 letters and digits"
            )));
        }
        let secret = Secret::parse(&entry.sha256).ok_or_else(|| {
            Error(format!(
                "{place}: sha256 must be 64 hexadecimal digits, in lower case"
            ))
        })?;
        let expires = entry.expires.map(|text| {
            let at = text.parse::<jiff::Timestamp>().ok();
            let at = at.and_then(|at| u64::try_from(at.as_second()).ok());
            at.ok_or_else(|| {
                let example = "2030-01-31T12:00:00Z";
                Error(format!(
                    "{place}: expires must be a date and a time, such as {example:?}"
                ))
            })
        });
        let known = KnownToken {
            secret,
            principal,
            expires: expires.transpose()?,
        };
        if access.tokens.insert(entry.id.into(), known).is_some() {
            return Err(Error(format!("{place}: the id is there twice")));
        }
    }
    for entry in section.revoked {
        access.tokens.remove(&*entry.id);
    }
    for entry in section.rules {
        let place = format!("[[auth.rules]] for {:?}", entry.principal);
        let principal = find(&entry.principal, &place)?;
        let verbs: Result<Vec<Verb>, String> =
            entry.verbs.iter().map(|verb| verb.parse()).collect();
        let verbs = verbs.map_err(|why| Error(format!("{place}: {why}")))?;
        if verbs.is_empty() {
            return Err(Error(format!(
                "{place}: verbs is empty, so the rule grants nothing"
            )));
        }
        check_prefix(&entry.prefix, &place)?;
        access.rules.entry(principal).or_default().push(AccessRule {
            prefix: entry.prefix.into(),
            verbs,
        });
    }
    for entry in section.quotas {
        add_quota(&mut access.quotas, entry, find)?;
    }
    for AuditEntry { prefix } in section.audit {
        let place = format!("[[auth.audit]] for the prefix {prefix:?}");
        check_prefix(&prefix, &place)?;
        if !access.audited.insert(prefix.into()) {
            return Err(Error(format!("{place}: it is there twice")));
        }
    }
    let ids = principals.into_iter();
    access.by_id = ids.filter_map(|of| Some((of.id()?, of))).collect();
    Ok(access)
}

fn issuers(entries: Vec<IssuerEntry>) -> Result<BTreeMap<Box<str>, Issuer>, Error> {
    let mut issuers = BTreeMap::new();
    for entry in entries {
        let place = format!("[[auth.issuers]] {:?}", entry.issuer);
        if entry.issuer.is_empty() || entry.audience.is_empty() {
            return Err(Error(format!(
                "{place}: issuer and audience must not be empty"
            )));
        }
        let issuer = Issuer {
            audience: entry.audience.into(),
            file: entry.keys,
            keys: Keys::default(),
        };
        if issuers.insert(entry.issuer.into(), issuer).is_some() {
            return Err(Error(format!("{place}: it is there twice")));
        }
    }
    Ok(issuers)
}

/// The issuer of a principal's subjects.
fn issuer_of(access: &Access, entry: &PrincipalEntry) -> Result<Box<str>, Error> {
    let place = format!("[[auth.principals]] {:?}", entry.name);
    let names: Vec<&str> = access.issuers().map(|(name, ..)| name).collect();
    let known = names.join(", ");
    match (entry.issuer.as_deref(), &*names) {
        _ if entry.subjects.is_empty() => Err(Error(format!(
            "{place}: issuer says whose subjects it has, and there are no subjects"
        ))),
        (_, []) => Err(Error(format!(
            "{place}: subjects are those of JWTs, and there are no [[auth.issuers]]"
        ))),
        (None, [only]) => Ok((*only).into()),
        (None, _) => Err(Error(format!(
            "{place}: whose subjects are these? Give the key issuer: one of {known}"
        ))),
        (Some(named), _) if names.contains(&named) => Ok(named.into()),
        (Some(named), _) => Err(Error(format!(
            "{place}: there is no [[auth.issuers]] with the issuer {named:?}; there is {known}"
        ))),
    }
}

fn check_prefix(prefix: &str, place: &str) -> Result<(), Error> {
    let printable = prefix.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if printable && prefix.len() <= 255 {
        return Ok(());
    }
    Err(Error(format!(
        "{place}: a prefix has at most 255 bytes of printable ASCII, as the name of a lock"
    )))
}

fn add_quota(
    quotas: &mut Quotas,
    entry: QuotaEntry,
    find: impl Fn(&str, &str) -> Result<Principal, Error>,
) -> Result<(), Error> {
    let (place, is_new) = match (&entry.prefix, &entry.principal, &entry.address) {
        (Some(prefix), None, None) => {
            let place = format!("[[auth.quotas]] for the prefix {prefix:?}");
            check_prefix(prefix, &place)?;
            if entry.sessions.is_some() {
                return Err(Error(format!(
                    "{place}: a session belongs to no prefix; give sessions to a principal or an address"
                )));
            }
            let bounds = bounds(&entry, &place)?;
            let old = quotas.prefixes.insert(prefix.as_str().into(), bounds);
            (place, old.is_none())
        }
        (None, Some(name), None) => {
            let place = format!("[[auth.quotas]] for the principal {name:?}");
            let bounds = bounds(&entry, &place)?;
            let old = match &**name {
                EACH => quotas.each_principal.replace(bounds),
                name => quotas.principals.insert(find(name, &place)?, bounds),
            };
            (place, old.is_none())
        }
        (None, None, Some(text)) => {
            let place = format!("[[auth.quotas]] for the address {text:?}");
            let bounds = bounds(&entry, &place)?;
            let old = match &**text {
                EACH => quotas.each_address.replace(bounds),
                text => {
                    let address = text.parse().map_err(|_| {
                        Error(format!(
                            "{place}: this is no IP address; \"*\" is each of them"
                        ))
                    })?;
                    quotas.addresses.insert(network(address), bounds)
                }
            };
            (place, old.is_none())
        }
        _ => {
            let why = "[[auth.quotas]]: each needs exactly one of prefix, principal and address";
            return Err(Error(why.to_owned()));
        }
    };
    if is_new {
        Ok(())
    } else {
        Err(Error(format!("{place}: it is there twice")))
    }
}

fn bounds(entry: &QuotaEntry, place: &str) -> Result<QuotaBounds, Error> {
    let mut bounds = QuotaBounds::default();
    for (bound, given) in [
        (Bound::Locks, entry.locks),
        (Bound::Waiters, entry.waiters),
        (Bound::Watchers, entry.watchers),
        (Bound::Sessions, entry.sessions),
        (Bound::Bytes, entry.bytes),
        (Bound::Requests, entry.requests_per_second),
    ] {
        // Below one operation nothing would ever pass.
        let least = if bound == Bound::Bytes { 1_024 } else { 1 };
        let most = 1_000_000_000;
        let name = bound.name();
        bounds.0[bound as usize] = match given.map(u64::try_from) {
            None => None,
            Some(Ok(given)) if (least..=most).contains(&given) => Some(given),
            Some(_) => {
                return Err(Error(format!(
                    "{place}: {name} must be an integer in {least} ..= {most}"
                )));
            }
        };
    }
    if bounds == QuotaBounds::default() {
        Err(Error(format!("{place}: it bounds nothing")))
    } else {
        Ok(bounds)
    }
}

/// The key of the quota for each principal, or each address, that has no quota of its own.
const EACH: &str = "*";

/// The uid that the kernel reports for every user whom it cannot name, such as those of another user namespace.
const UNMAPPED: u32 = 65_534;

fn uid(given: i64) -> Result<u32, Error> {
    let uid = u32::try_from(given).ok().filter(|uid| *uid != u32::MAX);
    match uid {
        Some(UNMAPPED) => Err(Error(format!(
            "[[auth.principals]]: uids: {UNMAPPED} is nobody in particular: the kernel reports it for every user that it \
             cannot name, such as those of containers"
        ))),
        Some(uid) => Ok(uid),
        None => Err(Error(format!(
            "[[auth.principals]]: uids: {given} is no uid; one is in 0 ..= {}",
            u32::MAX - 1
        ))),
    }
}

fn named(name: &str) -> Result<Principal, Error> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/@".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(known) {
        return Ok(Principal(name.into()));
    }
    Err(Error(format!(
        "[[auth.principals]]: {name:?} is no name; it has 1 to 64 letters, digits and -._/@"
    )))
}
