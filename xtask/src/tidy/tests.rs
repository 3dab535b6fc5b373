//! Each rule against files that keep it and files that break it.

use super::{Finding, RULES};
use crate::source::{Tree, squeezed};

/// Checks that the rule finds exactly these places, as `path:line`, in these files.
fn finds(id: &str, files: &[(&str, &str)], expected: &[&str]) {
    let tree = Tree::of(files);
    let rule = RULES.iter().find(|rule| rule.id == id);
    let found = rule
        .map(|rule| (rule.find)(&tree))
        .unwrap_or_else(|| panic!("no rule is called {id}"));
    let places: Vec<String> = found
        .iter()
        .map(|Finding { path, line, .. }| format!("{path}:{line}"))
        .collect();
    assert_eq!(places, expected, "{id} in {files:?} found {found:?}");
}

#[test]
fn every_rule_has_an_example_that_breaks_it() {
    let here = include_str!("tests.rs");
    for rule in RULES {
        let call = format!("finds(\"{}\",", rule.id);
        let broad = format!("finds(\n        \"{}\",", rule.id);
        let wide = format!("finds(\n            \"{}\",", rule.id);
        let all = [call, broad, wide];
        let uses = all
            .iter()
            .flat_map(|call| here.match_indices(call).map(|(at, _)| &here[at..]));
        let (good, bad): (Vec<&str>, Vec<&str>) = uses.partition(|example| {
            let call = squeezed(example.split(");\n").next().unwrap_or_default());
            call.trim_end_matches(',').ends_with("&[]")
        });
        assert!(
            !bad.is_empty() && !good.is_empty(),
            "{} wants an example that breaks it and one that does not",
            rule.id
        );
        assert!(!rule.why.is_empty() && !rule.fix.is_empty(), "{}", rule.id);
    }
}

#[test]
fn ignored_test() {
    finds(
        "ignored-test",
        &[(
            "a.rs",
            "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n/// ```rust,ignore\nfn b() {}\n",
        )],
        &["a.rs:2", "a.rs:4"],
    );
    finds(
        "ignored-test",
        &[("a.rs", "#[cfg_attr(not(x), ignore)]\nfn a() {}\n")],
        &["a.rs:1"],
    );
    finds(
        "ignored-test",
        &[("a.rs", "// #[ignore]\n/// ```no_run\nfn ignore() {}\n")],
        &[],
    );
}

#[test]
fn long_file() {
    let text = |lines: usize| "a\n".repeat(lines);
    finds(
        "long-file",
        &[("a.rs", &text(599)), ("a.md", &text(2_000))],
        &[],
    );
    finds("long-file", &[("a.rs", &text(600))], &["a.rs:1"]);
    finds("long-file", &[("a.rs", &text(1_000))], &["a.rs:1"]);
    finds(
        "long-file",
        &[(
            "a.rs",
            &format!("//! A.\n\n// long file: one flat dispatch\n{}", text(1_000)),
        )],
        &[],
    );
    finds(
        "long-file",
        &[("a.rs", &format!("// long file: \n{}", text(1_000)))],
        &["a.rs:1"],
    );
    let mild = |lines| {
        super::long_files(&Tree::of(&[("a.rs", &text(lines))]))
            .iter()
            .map(|found| found.mild)
            .collect::<Vec<_>>()
    };
    assert_eq!((mild(999), mild(1_000)), (vec![true], vec![false]));
}

#[test]
fn engine_seam() {
    let line = "use openraft::Raft;\n";
    let at = |name: &str| format!("crates/palisade-replica/src/{name}");
    let (node, engine) = (at("node/mod.rs"), at("engine/mod.rs"));
    finds("engine-seam", &[(&node, line)], &[&format!("{node}:1")]);
    finds("engine-seam", &[(&engine, line)], &[]);
}

#[test]
fn orderer_io() {
    let at = |name: &str| format!("crates/palisade-pipeline/src/{name}");
    let (orderer, part, driver) = (at("orderer.rs"), at("orderer/intake.rs"), at("driver.rs"));
    for line in [
        "use tokio::time::Instant;\n",
        "use std::{io, mem};\n",
        "    let start = std::time::Instant::now();\n",
        "    rustix::time::clock_gettime(id)\n",
        "use super::super::random;\n",
        "    super::clock::wall()\n",
    ] {
        finds("orderer-io", &[(&part, line)], &[&format!("{part}:1")]);
        finds(
            "orderer-io",
            &[(&orderer, line)],
            &[&format!("{orderer}:1")],
        );
        finds("orderer-io", &[(&driver, line)], &[]);
    }
    let pure = "// No tokio here.\nuse std::mem;\nlet manual_clock = false;\n";
    finds("orderer-io", &[(&part, pure)], &[]);
}

#[test]
fn link() {
    let other = (
        "docs/b.md",
        "# One: two & three\n\n## Same\n\n## Same\n\n<a id=\"hand\"></a>\n",
    );
    for fine in [
        "[a](docs/b.md), ![b](./docs/b.md \"title\"), [c](https://a.b/c), [d](mailto:a@b.c)\n",
        "[a](docs/b.md#one-two--three) [b](docs/b.md#same-1) [c](docs/b.md#hand) [d](#here)\n\n# Here\n",
        "`[a](nowhere.md)`\n\n```\n[a](nowhere.md)\n```\n",
        "[a]: docs/b.md\n[^1]: nowhere.md\n[d](docs) [e](/docs/b.md) [f](<docs/b.md>)\n",
    ] {
        finds("link", &[("a.md", fine), other], &[]);
    }
    for dead in [
        "[a](nowhere.md)",
        "[a]: nowhere.md",
        "[a](docs/b.md#four)",
        "[a](#gone)",
        "[a](../docs/b.md)",
        "![a](docs/a.png)",
    ] {
        finds(
            "link",
            &[("a.md", &format!("\n{dead}\n")), other],
            &["a.md:2"],
        );
    }
    finds(
        "link",
        &[
            ("docs/c.md", "[up](../a.md) [side](b.md)\n"),
            ("a.md", "a\n"),
            other,
        ],
        &[],
    );
}

#[test]
fn contents() {
    let summary = (
        "docs/SUMMARY.md",
        "- [One](one.md)\n  - [Two](deep/two.md)\n",
    );
    let (one, two) = (("docs/one.md", "\n"), ("docs/deep/two.md", "\n"));
    finds("contents", &[summary, one, two, ("a.md", "\n")], &[]);
    finds(
        "contents",
        &[summary, one, two, ("docs/three.md", "\n")],
        &["docs/three.md:1"],
    );
}

#[test]
fn guarantees() {
    let rules = (
        "docs/promise/rules.md",
        "| rule | |\n|---|---|\n| **A1** | one |\n| **F11** | two |\n",
    );
    let test = ("crates/a/tests/held.rs", "#[test]\nfn one_holder() {}\n");
    let page = |text: &'static str| ("docs/promise/guarantees.md", text);
    let kept = page(
        "| G1 | A. | A1 | a `one_holder`, b `held::one_holder` and `held` |\n| G2 | B. | F11 | – |\n",
    );
    finds("guarantees", &[rules, test, kept], &[]);
    finds("guarantees", &[("README.md", "no such page yet\n")], &[]);
    let renamed = page("| G1 | A. | A1 | a `two_holders` |\n| G2 | B | F11, F1 | `one_holder` |\n");
    finds(
        "guarantees",
        &[rules, test, renamed],
        &["docs/promise/guarantees.md:1"],
    );
    let twice = page("| G1 | A. | A1 | `one_holder` |\n| G1 | B. | F11 | – |\n");
    finds(
        "guarantees",
        &[rules, test, twice],
        &["docs/promise/guarantees.md:2"],
    );
    let unanswered = page("| G1 | A, `not_a_test`. | A1 | `one_holder` |\n");
    finds(
        "guarantees",
        &[rules, test, unanswered],
        &["docs/promise/rules.md:4"],
    );
}

#[test]
fn attacks() {
    let test = ("crates/a/tests/held.rs", "#[test]\nfn one_holder() {}\n");
    let page = |text: &'static str| ("docs/operate/access.md", text);
    let kept = page(
        "| attack | rule | test |\n|---|---|---|\n| a `x` | b | `one_holder`, `held.rs` |\n| c | d | – |\n\n\
         | verb | `not_a_test` |\n",
    );
    finds("attacks", &[test, kept], &[]);
    let renamed = page("| attack | test |\n|---|---|\n| a | `one_holder` and `two_holders` |\n");
    finds("attacks", &[test, renamed], &["docs/operate/access.md:3"]);
}

#[test]
fn line_ends() {
    finds(
        "line-ends",
        &[
            ("a.rs", "a\n    b\n"),
            ("empty.rs", ""),
            ("a/golden/a.txt", "a\r\n"),
            ("a.md", "a\tb\n"),
        ],
        &[],
    );
    finds(
        "line-ends",
        &[("a.rs", "a\nb\r\n"), ("b.md", "a\nb"), ("c.rs", "a\n\tb\n")],
        &["a.rs:2", "b.md:2", "c.rs:2"],
    );
}

#[test]
fn sleeping_test() {
    for line in [
        "std::thread::sleep(a);",
        "sleep(a).await;",
        "tokio::time::sleep_until(a).await;",
        "thread::sleep(a); // real time:",
    ] {
        finds("sleeping-test", &[("tests/a.rs", line)], &["tests/a.rs:1"]);
        finds(
            "sleeping-test",
            &[("src/a.rs", &format!("#[test]\nfn a() {{\n{line}\n}}\n"))],
            &["src/a.rs:3"],
        );
        finds("sleeping-test", &[("src/a.rs", line)], &[]);
    }
    for line in [
        "thread::sleep(a); // real time: the kernel kills the child",
        "clock.sleep(a);",
        "fn sleep(a: u8) {}",
        "asleep(a);",
    ] {
        finds("sleeping-test", &[("tests/a.rs", line)], &[]);
    }
}

#[test]
fn test_program() {
    let suite = ("crates/a/tests/suite/main.rs", "mod b;\n");
    let other = "crates/a/tests/other.rs";
    finds(
        "test-program",
        &[suite, (other, "//! A test.\n")],
        &["crates/a/tests/other.rs:1"],
    );
    finds(
        "test-program",
        &[suite, (other, "//! A program of its own:\n")],
        &["crates/a/tests/other.rs:1"],
    );
    let reason =
        "//! Limits.\n//!\n//! A program of its own: it lowers the limits of its process.\n";
    finds("test-program", &[suite, (other, reason)], &[]);
    for path in [
        "crates/b/tests/other.rs",
        "crates/a/tests/suite/held.rs",
        "crates/a/src/tests/other.rs",
    ] {
        finds("test-program", &[suite, (path, "//! A test.\n")], &[]);
    }
}
