//! The crates with features, compiled as their users compile them: all features together hide what one of them lacks.

use crate::check::with;
use crate::shell::{root, run, target};
use crate::tree::Tree;

/// Crates whose code a feature only adds to. Each feature alone is enough for them: code that compiles with A and with
/// B compiles with both, unless a condition says "not A", or "A and B", and [`check`] finds those.
const ADDED_TO: [&str; 2] = ["palisade-authorities", "palisade-fence"];
/// Crates where a feature also takes something away: every pair.
const SWITCHED: [&str; 2] = ["palisade-client", "palisade-pipeline"];

/// Compiles each crate with each feature alone, or each pair, and no warning.
pub(crate) fn check() -> Result<String, String> {
    let tree = Tree::read(&root())?;
    let conditions: Vec<String> = (tree.files.iter())
        .filter(|file| {
            ADDED_TO
                .iter()
                .any(|name| file.path.starts_with(&format!("crates/{name}/src/")))
        })
        .flat_map(|file| {
            (switches(&file.text).into_iter())
                .map(|condition| format!("{}: {condition}", file.path))
        })
        .collect();
    if !conditions.is_empty() {
        return Err(format!(
            "conditions that a single feature does not show; write them as additions, or list the crate as one whose \
             pairs are compiled:\n   {}",
            conditions.join("\n   ")
        ));
    }
    hack(&["--each-feature", "--exclude-all-features"], &ADDED_TO)?;
    hack(&["--feature-powerset", "--depth=2"], &SWITCHED)?;
    Ok(String::new())
}

fn hack(sets: &[&str], packages: &[&str]) -> Result<String, String> {
    let scope = [
        "hack",
        "clippy",
        "--quiet",
        "--locked",
        "--lib",
        "--exclude-features=default,conformance",
    ];
    with("cargo-hack", |tool| {
        let packages = packages.iter().map(|name| format!("--package={name}"));
        // A folder of its own: neither this nor another build waits for the other.
        run(tool
            .env("CARGO_TARGET_DIR", target().join("features"))
            .args(scope)
            .args(sets)
            .args(packages)
            .args(["--", "-D", "warnings"]))
    })
}

/// The conditions of a source text that negate or join features. One that only silences a lint removes no code.
fn switches(text: &str) -> Vec<String> {
    let dense: String = text.split_whitespace().collect();
    (dense.match_indices("cfg"))
        .filter_map(|(at, _)| condition(&dense[at..]))
        .filter(|it| it.contains("feature=") && (it.contains("not(") || it.contains("all(")))
        .filter(|it| !it.contains(",allow(") && !it.contains(",expect("))
        .map(str::to_owned)
        .collect()
}

/// The `cfg(…)`, `cfg!(…)` or `cfg_attr(…)` at the beginning of a text without spaces.
fn condition(text: &str) -> Option<&str> {
    let open = text.find('(')?;
    if !matches!(&text[..open], "cfg" | "cfg!" | "cfg_attr") {
        return None;
    }
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(&text[..=at]),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::switches;

    #[test]
    fn finds_conditions_that_one_feature_does_not_show() {
        let text = "#[cfg(feature = \"a\")] mod a; #[cfg(any(test, feature = \"b\"))] mod b;\n#[cfg(\n    not(feature = \
                    \"a\")\n)] mod c; if cfg!(all(feature = \"a\", feature = \"b\")) {} #[cfg(not(test))] mod d; let cfg = f(x); \
                    #[cfg_attr(not(feature = \"a\"), allow(dead_code, reason = \"b needs it\"))] mod e;";
        let found = [
            "cfg(not(feature=\"a\"))",
            "cfg!(all(feature=\"a\",feature=\"b\"))",
        ];
        assert_eq!(switches(text), found);
    }
}
