//! External tools test the lock server against its OpenAPI document.
//!
//! Schemathesis sends requests that the document allows and forbids, and checks the answers against it;
//! `PALISADE_JUDGE_EXAMPLES` sets how many for each operation. openapi-python-client generates a client, all of whose
//! modules must be importable.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::{Server, text};
use palisade_core::GrantOption;
use palisade_testbed::python_tool;
use serde_json::Value;

fn tool(program: &str) -> PathBuf {
    let found = python_tool("judges", program);
    let missing = "is missing: run `cargo xtask test`, which installs it, or install it from PyPI";
    assert!(found.exists(), "{program} {missing}");
    found
}

/// Statuses that are no contradiction: a denial answers a correct request.
const SETTINGS: &str = r#"
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "409", "410", "412", "429"]
"#;

fn schemathesis(server: &Server, document: &Value, more: &[&str]) -> Output {
    let examples = std::env::var("PALISADE_JUDGE_EXAMPLES").unwrap_or_else(|_| "8".to_owned());
    let (settings, file) = (
        server.file("schemathesis.toml"),
        server.file("testable_document.json"),
    );
    std::fs::write(&settings, SETTINGS).unwrap();
    std::fs::write(&file, document.to_string()).unwrap();
    Command::new(tool("schemathesis"))
        .arg("--config-file")
        .arg(settings)
        .args(["--no-color", "run", "--url", &server.url, "--seed", "1"])
        .args([
            "--max-examples",
            &examples,
            "--continue-on-failure",
            "--no-shrink",
        ])
        // Non-ASCII text is bounded in bytes, which a document cannot express.
        .args(["--generation-codec", "ascii"])
        .args(more)
        .arg(file)
        .current_dir(server.dir.path())
        .output()
        .unwrap()
}

/// The cursor of refused writes, in the pattern of all cursors.
const REFUSED_CURSOR: &str = "|r:[0-9]{1,19}";

fn document() -> Value {
    serde_json::to_value(palisade_server::net::openapi()).unwrap()
}

/// The document without rules that a schema cannot express well: one id for two requests is refused, and a lease that
/// is not named by its key needs a duration. (As a schema, that would make generators write two types.)
fn testable_document() -> Value {
    let mut document = document();
    let body = document
        .pointer_mut("/components/schemas/AcquireBody")
        .unwrap();
    let properties = body["properties"].as_object_mut().unwrap();
    assert!(properties.remove("request_id").is_some());
    // Nor that this needs a request id.
    assert!(properties.remove("poll_ms").is_some());
    // The schema cannot say that one number is at most the other, nor that a mode and permits go together, or
    // an upgrade and a lease.
    assert!(properties.remove("permits").is_some());
    // Nor that these belong to exclusive grants.
    for option in GrantOption::all() {
        assert!(properties.remove(option.field()).is_some(), "{option:?}");
    }
    assert!(properties.remove("also").is_some());
    body["properties"]["lease_duration_ms"]["type"] = "integer".into();
    let required = body["required"].as_array_mut().unwrap();
    required.push("lease_duration_ms".into());
    // Nor that no two items are the same grant, whatever else they say.
    let grants = document.pointer_mut("/components/schemas/ListenBody/properties/grants/maxItems");
    *grants.unwrap() = 1.into();
    // Nor which cursors are those of refused writes.
    let asked = document.pointer_mut("/paths/~1v1~1history/get/parameters");
    let asked = asked.unwrap().as_array_mut().unwrap();
    asked.retain(|parameter| parameter["name"] != "refused");
    let cursor = asked
        .iter_mut()
        .find(|parameter| parameter["name"] == "cursor");
    let pattern = &mut cursor.unwrap()["schema"]["pattern"];
    *pattern = pattern.as_str().unwrap().replace(REFUSED_CURSOR, "").into();
    let modes = document.pointer_mut("/components/schemas/LockMode/enum");
    modes
        .unwrap()
        .as_array_mut()
        .unwrap()
        .retain(|mode| mode != "permits" && mode != "upgrade");
    document
}

/// How many operations a document describes; each has one answer at least.
fn operations(document: &Value) -> usize {
    let paths = document["paths"].as_object().unwrap();
    let of = |path: &Value| path.as_object().unwrap().clone();
    let all = paths.values().flat_map(|path| of(path).into_values());
    all.filter(|operation| operation["responses"].is_object())
        .count()
}

#[test]
fn schemathesis_finds_no_contradiction_and_a_planted_one() {
    let server = Server::with(&["--clock", "manual"]);
    let mut testable_document = testable_document();
    // Without the watch: its events never end.
    let phases = ["--phases", "examples,coverage,fuzzing"];
    // Without the number of permits: a plain lock in use has none, whatever the document says of the body.
    let permits = "/v1/locks/{resource_id}/permits";
    let without = ["--exclude-path", "/v1/watch", "--exclude-path", permits];
    let all = [&phases[..], &without].concat();
    let tested = format!("Tested: {}\n", operations(&testable_document) - 2);
    let output = schemathesis(&server, &testable_document, &all);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains(&tested), "{tested} is not in {said}");
    // Control: a document that allows more than the server accepts.
    let ttl = "/components/schemas/AcquireBody/properties/lease_duration_ms/minimum";
    *testable_document.pointer_mut(ttl).unwrap() = 0.into();
    let acquire = "/v1/locks/{resource_id}/acquire";
    let some = ["--phases", "coverage", "--include-path", acquire];
    let output = schemathesis(&server, &testable_document, &some);
    let said = text(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("Schema-valid request rejected"), "{said}");
}

#[test]
fn every_module_of_a_generated_client_can_be_imported() {
    let server = Server::start();
    let file = server.file("openapi.json");
    std::fs::write(&file, document().to_string()).unwrap();
    let client = server.file("client");
    let output = Command::new(tool("openapi-python-client"))
        .args(["generate", "--meta", "none", "--path"])
        .arg(&file)
        .arg("--output-path")
        .arg(&client)
        .output()
        .unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("Endpoint will not be generated"), "{said}");
    let program = "import importlib, pkgutil, client\n\
        names = [m.name for m in pkgutil.walk_packages(client.__path__, 'client.')]\n\
        print(sum(1 for name in names if importlib.import_module(name)))";
    let output = Command::new(tool("python3"))
        .args(["-c", program])
        .current_dir(server.dir.path())
        .output()
        .unwrap();
    let modules: u32 = text(&output.stdout).trim().parse().unwrap_or(0);
    assert!(
        output.status.success() && modules > 40,
        "{modules}: {}",
        text(&output.stderr)
    );
}
