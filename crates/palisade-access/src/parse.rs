//! The text of an access file.

use std::collections::BTreeSet;

use serde::Deserialize;
use toml::{Table, Value};

use crate::access::Rule;
use crate::token::is_id;
use crate::{ANONYMOUS, Access, Principal, Secret, Verb};

/// What is wrong with an access file; the message names the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

#[derive(Deserialize)]
struct File {
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
}

#[derive(Deserialize)]
struct PrincipalEntry {
    name: String,
    #[serde(default)]
    certificates: Vec<String>,
}

#[derive(Deserialize)]
struct TokenEntry {
    id: String,
    principal: String,
    sha256: String,
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

/// The keys of each table.
const KEYS: [(&str, &[&str]); 4] = [
    ("principals", &["name", "certificates"]),
    ("tokens", &["id", "principal", "sha256"]),
    ("revoked", &["id"]),
    ("rules", &["principal", "prefix", "verbs"]),
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
        let file: File = Value::Table(table)
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
    let mut access = Access::default();
    let mut principals = BTreeSet::from([Principal(ANONYMOUS.into())]);
    for entry in section.principals {
        let principal = named(&entry.name)?;
        if !principals.insert(principal.clone()) {
            return Err(Error(format!(
                "[[auth.principals]]: {principal} is there twice, or reserved"
            )));
        }
        for name in entry.certificates {
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
        if access
            .tokens
            .insert(entry.id.into(), (secret, principal))
            .is_some()
        {
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
        let printable = entry
            .prefix
            .bytes()
            .all(|byte| (b' '..=b'~').contains(&byte));
        if !printable || entry.prefix.len() > 255 {
            return Err(Error(format!(
                "{place}: a prefix has at most 255 bytes of printable ASCII, as the name of a lock"
            )));
        }
        access.rules.entry(principal).or_default().push(Rule {
            prefix: entry.prefix.into(),
            verbs,
        });
    }
    Ok(access)
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
