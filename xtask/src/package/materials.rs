//! The program's bill of materials: a CycloneDX document from what cargo resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

/// The program whose parts are listed.
const PROGRAM: &str = "palisade";

/// The part of `cargo metadata` that is needed here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    /// `None` for what is in this repository.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `None` is an ordinary dependency; the others are `dev` and `build`.
    kind: Option<String>,
}

/// What is in the program, from the output of `cargo metadata`. Tools of tests and of the build are not in it.
pub(crate) struct Parts {
    metadata: Metadata,
    /// Their ids.
    inside: BTreeSet<String>,
}

impl Parts {
    /// # Errors
    /// The output is not what cargo prints, or has no such program.
    pub(crate) fn of(metadata: &str) -> Result<Self, String> {
        let metadata: Metadata =
            serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
        let is_program = |package: &&Package| package.name == PROGRAM && package.source.is_none();
        let program = metadata.packages.iter().find(is_program);
        let program = program.ok_or("cargo metadata names no palisade")?;
        let edges = edges(&metadata);
        let (mut inside, mut next) = (BTreeSet::new(), vec![program.id.as_str()]);
        while let Some(id) = next.pop() {
            if inside.insert(id.to_owned()) {
                next.extend(edges.get(id).into_iter().flatten());
            }
        }
        Ok(Self { metadata, inside })
    }

    fn packages(&self) -> impl Iterator<Item = &Package> {
        let packages = self.metadata.packages.iter();
        packages.filter(|package| self.inside.contains(&package.id))
    }

    /// A CycloneDX document.
    pub(crate) fn document(&self) -> String {
        let edges = edges(&self.metadata);
        let (parts, names): (Vec<Value>, BTreeMap<&str, String>) = self
            .packages()
            .map(|package| (component(package), (package.id.as_str(), url(package))))
            .unzip();
        let dependencies: Vec<Value> = self
            .inside
            .iter()
            .map(|id| {
                let on = edges.get(id.as_str()).into_iter().flatten();
                let on: Vec<&String> = on.filter_map(|id| names.get(id)).collect();
                json!({ "ref": names.get(id.as_str()), "dependsOn": on })
            })
            .collect();
        let is_program = |package: &&Package| package.name == PROGRAM && package.source.is_none();
        let document = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "component": self.packages().find(is_program).map(component) },
            "components": parts,
            "dependencies": dependencies,
        });
        format!("{document:#}\n")
    }

    /// The licences and notices that came with the parts, each text once, below the names of the parts that have it.
    pub(crate) fn licences(&self) -> String {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for package in self.packages().filter(|package| package.source.is_some()) {
            let license = package.license.as_deref().unwrap_or("see below");
            let name = format!("{} {} ({license})", package.name, package.version);
            let found = texts_beside(&package.manifest_path);
            if found.is_empty() {
                texts.entry(String::new()).or_default().push(name.clone());
            }
            for text in found {
                texts.entry(text).or_default().push(name.clone());
            }
        }
        let mut chapters: Vec<String> = texts
            .iter()
            .map(|(text, names)| format!("{}\n\n{}\n", names.join("\n"), text.trim()))
            .collect();
        chapters.sort();
        chapters.join(&format!("\n{}\n\n", "-".repeat(80)))
    }
}

/// The files beside a manifest that are named like a licence.
fn texts_beside(manifest: &Path) -> BTreeSet<String> {
    const BEGINNINGS: [&str; 4] = ["licen", "copying", "copyright", "notice"];
    let files = manifest
        .parent()
        .and_then(|home| std::fs::read_dir(home).ok());
    let files = files.into_iter().flatten().flatten();
    let named = files.filter(|file| {
        let name = file.file_name().to_string_lossy().to_lowercase();
        BEGINNINGS.iter().any(|begin| name.starts_with(begin))
    });
    named
        .filter_map(|file| std::fs::read_to_string(file.path()).ok())
        .map(|text| text.replace("\r\n", "\n"))
        .collect()
}

fn edges(metadata: &Metadata) -> BTreeMap<&str, Vec<&str>> {
    let nodes = metadata.resolve.nodes.iter();
    nodes
        .map(|node| (node.id.as_str(), ordinary(node)))
        .collect()
}

fn ordinary(node: &Node) -> Vec<&str> {
    let is_ordinary = |edge: &&Edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none());
    let edges = node.deps.iter().filter(is_ordinary);
    edges.map(|edge| edge.pkg.as_str()).collect()
}

fn component(package: &Package) -> Value {
    let kind = if package.name == PROGRAM {
        "application"
    } else {
        "library"
    };
    let licenses: Vec<Value> = package
        .license
        .iter()
        // Older manifests have a slash for "or".
        .map(|license| json!({ "expression": license.replace('/', " OR ") }))
        .collect();
    json!({
        "type": kind,
        "bom-ref": url(package),
        "name": package.name,
        "version": package.version,
        "purl": url(package),
        "licenses": licenses,
    })
}

fn url(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_program_is_listed_and_what_only_tests_need_is_not() {
        let package = |name: &str, source: Value| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "manifest_path": "none/Cargo.toml", "source": source });
        let edge =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package(PROGRAM, Value::Null),
                package("near", json!("registry")),
                package("far", json!("registry")),
                package("tests", json!("registry")),
            ],
            "resolve": { "nodes": [
                { "id": PROGRAM, "deps": [edge("near", Value::Null), edge("tests", json!("dev"))] },
                { "id": "near", "deps": [edge("far", Value::Null)] },
                { "id": "far", "deps": [] },
                { "id": "tests", "deps": [] },
            ] },
        });
        let parts = Parts::of(&metadata.to_string()).unwrap();
        let document: Value = serde_json::from_str(&parts.document()).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<&Value> = components.iter().map(|part| &part["name"]).collect();
        assert_eq!(names, [PROGRAM, "near", "far"]);
        assert_eq!(
            components[1]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        let licences = parts.licences();
        assert!(licences.contains("far 1.0.0 (MIT/Apache-2.0)") && !licences.contains("tests"));
        assert!(Parts::of("{}").is_err());
    }
}
