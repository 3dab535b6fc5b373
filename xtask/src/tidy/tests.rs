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
fn unfinished() {
    finds(
        "unfinished",
        &[(
            "a.rs",
            "fn a() {\n    todo!()\n}\n// dbg!(x)\nfn b() { unimplemented!(); }\n",
        )],
        &["a.rs:2", "a.rs:5"],
    );
    finds(
        "unfinished",
        &[(
            "a.rs",
            "#[cfg(test)]\nmod tests {\n  fn a() { dbg!(1); }\n}\n",
        )],
        &["a.rs:3"],
    );
    finds(
        "unfinished",
        &[
            ("a.rs", "let a = \"todo!\"; my_todo!();\n"),
            ("a.md", "todo!\n"),
        ],
        &[],
    );
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
fn unwrap() {
    finds(
        "unwrap",
        &[(
            "a/src/a.rs",
            "a.unwrap();\nb.unwrap_err();\nc.expect(\"written reason\");\n",
        )],
        &["a/src/a.rs:1", "a/src/a.rs:2"],
    );
    finds(
        "unwrap",
        &[("a/build.rs", "a.unwrap();\n")],
        &["a/build.rs:1"],
    );
    finds(
        "unwrap",
        &[
            ("a/tests/a.rs", "a.unwrap();\n"),
            ("a/src/tests.rs", "a.unwrap();\n"),
        ],
        &[],
    );
    finds(
        "unwrap",
        &[(
            "a/src/a.rs",
            "#[cfg(test)]\nmod tests {\n    fn a() { a.unwrap(); }\n}\n// a.unwrap()\na.unwrap_or(1);\n",
        )],
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
fn core_pure() {
    const FILE: &str = "crates/palisade-core/src/a.rs";
    for line in [
        "use std::time::Instant;",
        "use std::{collections::{BTreeMap, HashMap}, fmt};",
        "use std::fs;",
        "use std::{net::IpAddr};",
        "use std::io::Write as _;",
        "use std::time::*;",
        "let a = std::thread::spawn(b);",
        "use std::time; fn a() { time::SystemTime::now(); }",
        "use std::collections; type A = collections::HashSet<u8>;",
        "let a: std::collections::hash_map::Entry;",
        "foldhash::fast::RandomState::default()",
        "let a = rand::random();",
        "async fn a() {}",
        "println!(\"a\");",
        "tokio::spawn(a);",
    ] {
        finds(
            "core-pure",
            &[(FILE, line)],
            &["crates/palisade-core/src/a.rs:1"],
        );
    }
    for line in [
        "use std::{collections::{BTreeMap, VecDeque}, time::Duration};",
        "use hashbrown::{HashMap, HashSet};",
        "use crate::time::Timestamp;",
        "use crate::time::*;",
        "// std::time::Instant",
        "self.print(); a.rand();",
        "#[cfg(test)] mod tests { use std::fs; }",
    ] {
        finds(
            "core-pure",
            &[
                (FILE, line),
                ("crates/palisade-wal/src/a.rs", "use std::fs;"),
            ],
            &[],
        );
    }
}

#[test]
fn core_dependencies() {
    const FILE: &str = "crates/palisade-core/Cargo.toml";
    let manifest = "[dependencies]\nhashbrown.workspace = true\nfoldhash = { version = \"1\" } # hash\n\n[dev-dependencies]\nproptest = \"1\"\n";
    finds("core-dependencies", &[(FILE, manifest)], &[]);
    finds(
        "core-dependencies",
        &[(
            FILE,
            &format!("{manifest}[dependencies.serde]\nversion = \"1\"\n"),
        )],
        &["crates/palisade-core/Cargo.toml:7"],
    );
    finds(
        "core-dependencies",
        &[(FILE, "[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n")],
        &["crates/palisade-core/Cargo.toml:2"],
    );
    finds(
        "core-dependencies",
        &[(
            FILE,
            "[dependencies]\nhashbrown = { package = \"evil\", version = \"1\" }\n",
        )],
        &["crates/palisade-core/Cargo.toml:2"],
    );
    finds(
        "core-dependencies",
        &[(
            "crates/palisade-wal/Cargo.toml",
            "[dependencies]\nserde = \"1\"\n",
        )],
        &[],
    );
}

#[test]
fn knows_nothing_of() {
    for (owner, dependency) in [
        ("palisade-core", "palisade-proto"),
        ("palisade-wal", "tokio-util"),
        ("palisade-wal", "palisade-core"),
        ("palisade-server", "palisade-client"),
        ("palisade-server", "palisade-fence"),
        ("palisade-client", "palisade-fence"),
        ("palisade-fence", "palisade-client"),
        ("palisade-fence", "palisade-server"),
        ("palisade-server", "palisade"),
    ] {
        let path = format!("crates/{owner}/Cargo.toml");
        let place = format!("{path}:2");
        finds(
            "knows-nothing-of",
            &[(
                &path,
                &format!("[dependencies]\n{dependency}.workspace = true\n"),
            )],
            &[&place],
        );
        finds(
            "knows-nothing-of",
            &[(
                &path,
                &format!("[dependencies]\na = {{ package = \"{dependency}\" }}\n"),
            )],
            &[&place],
        );
        finds(
            "knows-nothing-of",
            &[(
                &path,
                &format!("[dev-dependencies]\n{dependency}.workspace = true\n"),
            )],
            &[],
        );
    }
    let fine = [
        (
            "crates/palisade/Cargo.toml",
            "[dependencies]\npalisade-wal.workspace = true\npalisade-fence.workspace = true\n",
        ),
        (
            "crates/palisade-fence/Cargo.toml",
            "[dependencies]\npalisade-wal.workspace = true\ntokio.workspace = true\n",
        ),
        (
            "crates/palisade-lab/Cargo.toml",
            "[dependencies]\npalisade-peers.workspace = true\n",
        ),
    ];
    finds("knows-nothing-of", &fine, &[]);
}

#[test]
fn log_seam() {
    let using = "use palisade_wal::Wal;\n";
    finds(
        "log-seam",
        &[("crates/palisade-server/src/pipeline/log.rs", using)],
        &["crates/palisade-server/src/pipeline/log.rs:1"],
    );
    finds(
        "log-seam",
        &[
            ("crates/palisade-server/src/durable.rs", using),
            ("crates/palisade-server/tests/crash.rs", using),
            ("crates/palisade-fence/src/store/mod.rs", using),
        ],
        &[],
    );
}

#[test]
fn empty_crate() {
    let manifest = ("crates/a/Cargo.toml", "description = \"Does a thing\"\n");
    finds(
        "empty-crate",
        &[manifest, ("crates/a/src/main.rs", "fn main() { a(); }\n")],
        &[],
    );
    finds(
        "empty-crate",
        &[manifest, ("crates/a/src/main.rs", "//! A.\nfn main() {}\n")],
        &["crates/a:1"],
    );
    finds("empty-crate", &[manifest], &["crates/a:1"]);
    finds(
        "empty-crate",
        &[("crates/a/README.md", "a\n")],
        &["crates/a:1"],
    );
    let vague = [
        ("crates/a/Cargo.toml", "description = \"x\"\n"),
        ("crates/a/src/lib.rs", "fn a() {}\n"),
    ];
    finds("empty-crate", &vague, &["crates/a/Cargo.toml:1"]);
}

#[test]
fn front_door() {
    let readme = (
        "README.md",
        "cargo run --release -- serve\ncargo xtask test\n",
    );
    let script = (".ci/run", "#!/usr/bin/env bash\ncargo xtask test\n");
    finds("front-door", &[readme, script], &[]);
    finds("front-door", &[], &["README.md:1", ".ci/run:1"]);
    finds(
        "front-door",
        &[("README.md", "cargo run\n"), script],
        &["README.md:1", "README.md:1"],
    );
    finds(
        "front-door",
        &[readme, (".ci/run", "cargo xtask test\n")],
        &[".ci/run:1"],
    );
    finds(
        "front-door",
        &[readme, (".ci/run", "#!/bin/sh\n# cargo xtask test\n")],
        &[".ci/run:1"],
    );
}

#[test]
fn machine_path() {
    for path in super::MACHINE_PATHS {
        finds(
            "machine-path",
            &[("a.txt", &format!("in {path}a\n")), ("Cargo.lock", path)],
            &["a.txt:1"],
        );
    }
    finds(
        "machine-path",
        &[("a.txt", "network/a /tmp/a /usr/bin\n")],
        &[],
    );
}

#[test]
fn registry_host() {
    for host in super::REGISTRY_HOSTS {
        finds(
            "registry-host",
            &[
                ("a.md", &format!("from {host}\n")),
                ("ui/package-lock.json", host),
            ],
            &["a.md:1"],
        );
    }
    finds(
        "registry-host",
        &[("a.md", "https://docs.rs/tokio, Debian, npm\n")],
        &[],
    );
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
fn guarantees() {
    let all: String = (1..=12)
        .map(|number| format!("A{number} "))
        .chain((1..=10).map(|number| format!("(F{number}) ")))
        .collect();
    finds("guarantees", &[("docs/guarantees.md", &all)], &[]);
    finds("guarantees", &[("README.md", "no such page yet\n")], &[]);
    finds(
        "guarantees",
        &[("docs/guarantees.md", &all.replace("A1 ", ""))],
        &["docs/guarantees.md:1"],
    );
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
