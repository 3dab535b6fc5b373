//! The dependencies that each crate may have: the column "must be absent" of the map in ARCHITECTURE.md, checked against what
//! cargo itself resolves.
//!
//! The core has no clock, no I/O and no randomness because it is `no_std`: the compiler refuses the rest. Left to
//! check here is that it stays so, and that no dependency brings back what the attribute keeps out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::shell::{cargo, read, root, run};

const CORE: &str = "palisade-core";

/// All that the core may depend on, directly or not. Both are `no_std` without their default features.
const CORE_DEPENDENCIES: &[&str] = &["ecow", "foldhash"];

/// A target without a standard library: what builds for it cannot read a clock.
const BARE: &str = "wasm32-unknown-unknown";

/// Crates, and what they must not depend on directly. A name that ends in `*` is a prefix.
const ABSENT: &[(&str, &[&str])] = &[
    (
        "palisade-proto",
        &[
            "palisade-client",
            "palisade-fence",
            "palisade-pipeline",
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
    // Without its feature `durable` it does not have the log's crate either, so the compiler keeps the rest from naming it.
    (
        "palisade-pipeline",
        &[
            "palisade-access",
            "palisade-client",
            "palisade-fence",
            "palisade-proto",
            "palisade-server",
            "palisade-tls",
            "hyper*",
            "axum*",
            "tonic*",
            "socket2",
        ],
    ),
    // How the log is made durable is not known to the network.
    (
        "palisade-server",
        &["palisade-client", "palisade-fence", "palisade-wal"],
    ),
    (
        "palisade-replica",
        &[
            "palisade-client",
            "palisade-fence",
            "palisade-proto",
            "palisade-server",
        ],
    ),
    // The client of one server; other lock services and their drivers are in palisade-authorities.
    (
        "palisade-client",
        &[
            "palisade-fence",
            "palisade-server",
            "palisade-wal",
            "redis",
            "tokio-postgres",
            "zookeeper-client",
        ],
    ),
    (
        "palisade-authorities",
        &["palisade-fence", "palisade-pipeline", "palisade-server"],
    ),
    ("palisade-fence", &["palisade-client", "palisade-server"]),
    (
        "palisade-access",
        &["palisade*", "tokio*", "hyper*", "axum*", "getrandom"],
    ),
    (
        "palisade-history",
        &[
            "palisade-access",
            "palisade-pipeline",
            "palisade-proto",
            "palisade-server",
            "palisade-wal",
            "tokio*",
            "hyper*",
            "axum*",
        ],
    ),
    ("palisade-tls", &["palisade*"]),
    ("palisade-draw", &["*"]),
];

/// Programs, tools, and what programs choose from: only others of them use these, and what is in [`PROOF`].
const LEAVES: &[&str] = &["palisade", "palisade-authorities", "palisade-draw", "xtask"];

/// The folder of what proves the rest. What ships needs none of it, except in its own tests.
const PROOF: &str = "proof";

/// The part of `cargo metadata` that is needed here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

impl Package {
    fn is_proof(&self) -> bool {
        let room = self.manifest_path.parent().and_then(Path::parent);
        room.is_some_and(|room| room.ends_with(PROOF))
    }
}

#[derive(Deserialize)]
struct Dependency {
    /// The package that is meant, whatever name the manifest gives it.
    name: String,
    /// `None` is an ordinary dependency; the others are `dev` and `build`.
    kind: Option<String>,
}

/// # Errors
/// A crate depends on what must be absent from it, or the core could do something other than compute.
pub(crate) fn check() -> Result<String, String> {
    let metadata = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let metadata: Metadata = serde_json::from_str(&read(&mut cargo(&metadata))?)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let tree = [
        "tree",
        "--locked",
        "--package",
        CORE,
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ];
    let library = root().join("crates").join(CORE).join("src/lib.rs");
    let library = std::fs::read_to_string(&library)
        .map_err(|error| format!("{}: {error}", library.display()))?;
    let mut wrong = forbidden(&metadata);
    wrong.extend(off_the_list(&read(&mut cargo(&tree))?));
    if !is_no_std(&library) {
        wrong.push(format!(
            "{CORE} is not `no_std` any more, or takes `std` back"
        ));
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n   "));
    }
    let crates = metadata.packages.len();
    if !is_installed(BARE) {
        return Ok(format!("{crates} crates"));
    }
    run(&mut cargo(&[
        "build",
        "--locked",
        "--release",
        "--package",
        CORE,
        "--target",
        BARE,
    ]))?;
    Ok(format!("{crates} crates; {CORE} builds for {BARE}"))
}

fn forbidden(metadata: &Metadata) -> Vec<String> {
    let mut wrong = Vec::new();
    let proofs = metadata
        .packages
        .iter()
        .filter(|package| package.is_proof());
    let proofs: BTreeSet<&str> = proofs.map(|package| &*package.name).collect();
    for package in &metadata.packages {
        let owner = package.name.as_str();
        let absent = ABSENT
            .iter()
            .find(|(name, _)| *name == owner)
            .map_or(&[][..], |(_, absent)| absent);
        let ordinary = package.dependencies.iter();
        for Dependency { name, .. } in ordinary.filter(|dependency| dependency.kind.is_none()) {
            let matches = |ban: &&str| match ban.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *ban,
            };
            let name = name.as_str();
            let is_free = package.is_proof();
            let on_a_leaf = LEAVES.contains(&name) && !LEAVES.contains(&owner);
            let on_proof = proofs.contains(name);
            if (!is_free && (on_a_leaf || on_proof)) || absent.iter().any(matches) {
                wrong.push(format!("{owner} must not depend on `{name}`"));
            }
        }
    }
    wrong
}

/// The dependencies of the core that are not allowed, and those that the list names in vain; `tree` is the list of cargo.
fn off_the_list(tree: &str) -> Vec<String> {
    let names = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let found: BTreeSet<&str> = names.filter(|name| *name != CORE).collect();
    let allowed: BTreeSet<&str> = CORE_DEPENDENCIES.iter().copied().collect();
    let extra = found
        .difference(&allowed)
        .map(|extra| format!("{CORE} depends on `{extra}`, which is not on its list"));
    let gone = allowed
        .difference(&found)
        .map(|gone| format!("the list of {CORE} names `{gone}`, which it no longer needs"));
    extra.chain(gone).collect()
}

/// Whether the attribute stands, and `std` is there for unit tests only.
fn is_no_std(library: &str) -> bool {
    let lines: Vec<&str> = library.lines().map(str::trim).collect();
    let excused = lines
        .windows(2)
        .filter(|pair| pair[1].starts_with("extern crate std"))
        .all(|pair| pair[0] == "#[cfg(test)]");
    lines.contains(&"#![no_std]") && excused
}

fn is_installed(target: &str) -> bool {
    let place = read(
        Command::new("rustc")
            .args(["--print", "target-libdir", "--target", target])
            .current_dir(root()),
    );
    place.is_ok_and(|path| Path::new(path.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on a package with this dependency, beside a lab that is a proof.
    fn wrong(owner: &str, dependency: &str, kind: Option<&str>) -> Vec<String> {
        let package = |name: &str, dependencies: Vec<Dependency>| Package {
            name: name.to_owned(),
            manifest_path: match name {
                "palisade-lab" | "palisade-peers" => format!("/r/proof/{name}/Cargo.toml").into(),
                _ => format!("/r/crates/{name}/Cargo.toml").into(),
            },
            dependencies,
        };
        let dependency = Dependency {
            name: dependency.to_owned(),
            kind: kind.map(str::to_owned),
        };
        let packages = vec![
            package(owner, vec![dependency]),
            package("palisade-lab", Vec::new()),
        ];
        forbidden(&Metadata { packages })
    }

    #[test]
    fn what_must_be_absent_is_found_unless_only_tests_or_the_build_need_it() {
        for (owner, dependency) in [
            ("palisade-wal", "tokio-util"),
            ("palisade-wal", "palisade-core"),
            ("palisade-pipeline", "hyper-util"),
            ("palisade-pipeline", "palisade-server"),
            ("palisade-server", "palisade-client"),
            ("palisade-server", "palisade-wal"),
            ("palisade-server", "palisade-fence"),
            ("palisade-history", "palisade-wal"),
            ("palisade-client", "palisade-fence"),
            ("palisade-client", "palisade-server"),
            ("palisade-client", "redis"),
            ("palisade-authorities", "palisade-fence"),
            ("palisade-authorities", "palisade-pipeline"),
            ("palisade-fence", "palisade-authorities"),
            ("palisade-fence", "palisade-client"),
            ("palisade-fence", "palisade-server"),
            ("palisade-server", "palisade"),
            ("palisade-server", "palisade-draw"),
            ("palisade-draw", "serde"),
            ("palisade", "palisade-lab"),
            ("palisade-client", "palisade-lab"),
        ] {
            let said = wrong(owner, dependency, None);
            assert_eq!(said.len(), 1, "{owner} on {dependency}: {said:?}");
            for kind in ["dev", "build"] {
                assert!(wrong(owner, dependency, Some(kind)).is_empty());
            }
        }
        for (owner, dependency) in [
            ("palisade", "palisade-wal"),
            ("palisade-pipeline", "palisade-wal"),
            ("palisade", "palisade-authorities"),
            ("palisade", "palisade-draw"),
            ("palisade-fence", "palisade-wal"),
            ("palisade-lab", "palisade-draw"),
            ("palisade-peers", "palisade-lab"),
        ] {
            assert!(wrong(owner, dependency, None).is_empty(), "{owner}");
        }
    }

    #[test]
    fn the_core_depends_on_its_list_no_more_and_no_less() {
        let exact = "palisade-core v0.1.0 (/a)\necow v0.3.1\nfoldhash v0.2.0\n";
        assert!(off_the_list(exact).is_empty());
        assert!(off_the_list(&format!("{exact}libc v0.2.0\n"))[0].contains("`libc`"));
        assert!(off_the_list("ecow v0.3.1\n")[0].contains("names `foldhash`"));
    }

    #[test]
    fn std_may_come_back_for_unit_tests_only() {
        let head = "//! A.\n\n#![no_std]\n\nextern crate alloc;\n";
        assert!(is_no_std(head));
        assert!(is_no_std(&format!(
            "{head}#[cfg(test)]\nextern crate std;\n"
        )));
        assert!(!is_no_std(&format!("{head}extern crate std;\n")));
        assert!(!is_no_std("//! `#![no_std]` is not set.\n"));
    }

    #[test]
    fn an_unknown_target_is_not_installed() {
        assert!(!is_installed("no-such-target"));
        let host = read(Command::new("rustc").arg("-vV"));
        let host = host
            .as_deref()
            .ok()
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("host: ")));
        assert!(host.is_some_and(is_installed));
    }
}
