//! The program's bill of materials: a CycloneDX document from what cargo resolved.

use std::collections::{BTreeMap, BTreeSet};

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

/// The document, from the output of `cargo metadata`. Tools of tests and of the build are not in it, because they are not in
/// the program.
///
/// # Errors
/// The output is not what cargo prints, or has no such program.
pub(super) fn document(metadata: &str) -> Result<String, String> {
    let metadata: Metadata =
        serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let is_program = |package: &&Package| package.name == PROGRAM && package.source.is_none();
    let program = metadata.packages.iter().find(is_program);
    let program = program.ok_or("cargo metadata names no palisade")?;
    let edges: BTreeMap<&str, Vec<&str>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), ordinary(node)))
        .collect();
    let (mut inside, mut next) = (BTreeSet::new(), vec![program.id.as_str()]);
    while let Some(id) = next.pop() {
        if inside.insert(id) {
            next.extend(edges.get(id).into_iter().flatten());
        }
    }
    let packages = metadata.packages.iter();
    let parts = packages.filter(|package| inside.contains(package.id.as_str()));
    let (parts, names): (Vec<Value>, BTreeMap<&str, String>) = parts
        .map(|package| (component(package), (package.id.as_str(), url(package))))
        .unzip();
    let dependencies: Vec<Value> = inside
        .iter()
        .map(|id| {
            let on = edges.get(id).into_iter().flatten();
            let on: Vec<&String> = on.filter_map(|id| names.get(id)).collect();
            json!({ "ref": names.get(id), "dependsOn": on })
        })
        .collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(program) },
        "components": parts,
        "dependencies": dependencies,
    });
    Ok(format!("{document:#}\n"))
}

fn ordinary(node: &Node) -> Vec<&str> {
    let is_ordinary = |edge: &&Edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none());
    let edges = node.deps.iter().filter(is_ordinary);
    edges.map(|edge| edge.pkg.as_str()).collect()
}

fn component(package: &Package) -> Value {
    let kind = match package.name == PROGRAM {
        true => "application",
        false => "library",
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
        let package = |name: &str, source: Value| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source });
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
        let document: Value =
            serde_json::from_str(&document(&metadata.to_string()).unwrap()).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<&Value> = components.iter().map(|part| &part["name"]).collect();
        assert_eq!(names, [PROGRAM, "near", "far"]);
        assert_eq!(
            components[1]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert!(super::document("{}").is_err());
    }
}
