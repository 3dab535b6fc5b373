//! Rules about crates: what each may depend on, and what the core may name.

use super::Finding;
use crate::source::{File, Tree, squeezed};

pub(crate) const CORE: &str = "crates/palisade-core";

/// All that palisade-core may depend on, directly or not.
pub(crate) const CORE_DEPENDENCIES: &[&str] = &["foldhash", "hashbrown"];

/// What palisade-core must not name outside its tests.
pub(crate) const CORE_BANS: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::*",
    "time::Instant",
    "time::SystemTime",
    "time::UNIX_EPOCH",
    "std::collections::*",
    "collections::HashMap",
    "collections::HashSet",
    "collections::hash_map",
    "collections::hash_set",
    "RandomState",
    "getrandom",
    "rand",
    "tokio",
    "async",
    "print",
    "println",
    "eprint",
    "eprintln",
];

/// The column "knows nothing of" of the map, as dependencies. A name ending in `*` is a prefix.
const KNOWS_NOTHING_OF: &[(&str, &[&str])] = &[
    ("palisade-core", &["palisade*"]),
    (
        "palisade-proto",
        &[
            "palisade-client",
            "palisade-fence",
            "palisade-server",
            "palisade-wal",
        ],
    ),
    (
        "palisade-wal",
        &[
            "palisade*",
            "tokio*",
            "futures*",
            "async-*",
            "mio",
            "hyper*",
            "axum*",
            "tonic*",
            "socket2",
        ],
    ),
    // The log is an optional dependency, behind one file: see the rule `log-seam`.
    ("palisade-server", &["palisade-client", "palisade-fence"]),
    ("palisade-client", &["palisade-fence"]),
    (
        "palisade-fence",
        &[
            "palisade-client",
            "palisade-server",
            "etcd-client",
            "zookeeper-client",
        ],
    ),
];

/// Programs and tools: nothing is built on them.
const LEAVES: &[&str] = &[
    "palisade",
    "palisade-lab",
    "palisade-peers",
    "palisade-testbed",
    "xtask",
];

/// A line below `[dependencies]`: the package that is meant, not the name it is given.
struct Dependency {
    package: String,
    line: usize,
}

/// The normal dependencies of a manifest, also those of single targets; not dev- or build-dependencies.
fn dependencies(manifest: &File) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    let (mut listing, mut table) = (false, false);
    for (number, line) in manifest.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']').trim();
            let normal = |name: &str| {
                name == "dependencies"
                    || (name.starts_with("target.") && name.ends_with(".dependencies"))
            };
            listing = normal(header);
            let single = header.rsplit_once('.').filter(|(above, _)| normal(above));
            table = single.is_some();
            found.extend(single.map(|(_, name)| Dependency {
                package: unquoted(name),
                line: number,
            }));
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let renamed = value
            .split_once("package")
            .and_then(|(_, rest)| rest.split('"').nth(1))
            .map(str::to_owned);
        if listing {
            let name = key.split('.').next().unwrap_or_default();
            found.push(Dependency {
                package: renamed.unwrap_or_else(|| unquoted(name)),
                line: number,
            });
        } else if table
            && key.trim() == "package"
            && let Some(last) = found.last_mut()
        {
            last.package = unquoted(value);
        }
    }
    found
}

fn unquoted(text: &str) -> String {
    text.trim().trim_matches(['"', '\'']).to_owned()
}

fn manifests(tree: &Tree) -> impl Iterator<Item = (&str, &File)> {
    tree.files.iter().filter_map(|file| {
        let name = file
            .path
            .strip_prefix("crates/")?
            .strip_suffix("/Cargo.toml")?;
        (!name.contains('/')).then_some((name, file))
    })
}

pub(super) fn core_dependencies(tree: &Tree) -> Vec<Finding> {
    let Some(manifest) = tree.file(&format!("{CORE}/Cargo.toml")) else {
        return Vec::new();
    };
    let extra = dependencies(manifest)
        .into_iter()
        .filter(|found| !CORE_DEPENDENCIES.contains(&found.package.as_str()));
    extra
        .map(|found| {
            Finding::new(
                &manifest.path,
                found.line,
                format!("`{}` is not on the list", found.package),
            )
        })
        .collect()
}

pub(super) fn forbidden_dependencies(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    for (name, manifest) in manifests(tree) {
        let row = KNOWS_NOTHING_OF
            .iter()
            .find(|(owner, _)| *owner == name)
            .map_or(&[][..], |(_, row)| row);
        for Dependency { package, line } in dependencies(manifest) {
            let matches = |ban: &&str| match ban.strip_suffix('*') {
                Some(prefix) => package.starts_with(prefix),
                None => package == **ban,
            };
            let leaf = LEAVES.contains(&package.as_str()) && !LEAVES.contains(&name);
            if leaf || row.iter().any(matches) {
                all.push(Finding::new(
                    &manifest.path,
                    line,
                    format!("{name} knows nothing of `{package}`"),
                ));
            }
        }
    }
    all
}

pub(super) fn empty_crates(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    for folder in &tree.crates {
        let manifest = format!("{folder}/Cargo.toml");
        let Some(file) = tree.file(&manifest) else {
            all.push(Finding::new(folder, 1, "a directory without a manifest"));
            continue;
        };
        let description = file
            .lines()
            .find_map(|(_, line)| line.strip_prefix("description"));
        if description.is_none_or(|text| text.trim_matches([' ', '=', '"']).len() < 10) {
            all.push(Finding::new(&manifest, 1, "no description"));
        }
        let sources = tree
            .files
            .iter()
            .filter(|file| file.path.starts_with(&format!("{folder}/src/")));
        if sources
            .map(|file| squeezed(file.code()))
            .all(|code| matches!(code.as_str(), "" | "fnmain(){}"))
        {
            all.push(Finding::new(folder, 1, "nothing in its src"));
        }
    }
    all
}

pub(super) fn impure_core(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    let sources = tree
        .files
        .iter()
        .filter(|file| file.path.starts_with(&format!("{CORE}/src/")));
    for file in sources {
        for (line, path) in paths(file.code()) {
            let ban = CORE_BANS.iter().find(|ban| names(&path, ban));
            if let Some(ban) = ban.filter(|_| !file.is_test(line)) {
                all.push(Finding::new(
                    &file.path,
                    line,
                    format!("`{ban}` in the pure core"),
                ));
            }
        }
    }
    all
}

/// Does the path contain the banned one, segment by segment? A ban of one segment is a crate, a type or a macro.
fn names(path: &[&str], ban: &str) -> bool {
    let ban: Vec<&str> = ban.split("::").collect();
    match ban.as_slice() {
        // A crate comes first in a path; elsewhere the word may be somebody's method.
        [single] if single.starts_with(char::is_lowercase) => path.first() == Some(single),
        _ => path.windows(ban.len()).any(|window| window == ban),
    }
}

/// Every path the code names, with its line; `use a::{b, c::d}` names `a::b` and `a::c::d`.
fn paths(code: &str) -> Vec<(usize, Vec<&str>)> {
    let tokens = tokens(code);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        at = read_path(&tokens, at, &[], &mut found);
    }
    found
}

fn read_path<'a>(
    tokens: &[(usize, &'a str)],
    mut at: usize,
    prefix: &[&'a str],
    found: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    let (line, first) = tokens[at];
    at += 1;
    // After a dot stands a method or a field, which is nobody's path.
    let member = prefix.is_empty() && at >= 2 && tokens[at - 2].1 == ".";
    let glob = first == "*" && !prefix.is_empty();
    if member || !(is_word(first) || glob) {
        return at;
    }
    let mut path = prefix.to_vec();
    path.push(first);
    while let [(_, "::"), (_, next), ..] = &tokens[at..] {
        if *next == "{" {
            at += 2;
            while tokens.get(at).is_some_and(|(_, token)| *token != "}") {
                at = read_path(tokens, at, &path, found);
            }
            return at + 1;
        }
        if !is_word(next) && *next != "*" {
            break;
        }
        path.push(next);
        at += 2;
    }
    found.push((line, path));
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single other characters, with their lines.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest
                .find(|next: char| !(next.is_alphanumeric() || next == '_'))
                .unwrap_or(rest.len());
            let length = if word > 0 {
                word
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            found.push((number, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    found
}
