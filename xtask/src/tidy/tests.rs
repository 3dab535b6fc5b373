//! Each rule against files that keep it and files that break it.

use super::{Finding, RULES, words};
use crate::tree::Tree;

/// Checks that the rule finds exactly these places, as `path:line`, in these files.
fn finds(id: &str, files: &[(&str, &str)], expected: &[&str]) {
    let rule = RULES.iter().find(|rule| rule.id == id).unwrap();
    let found = (rule.find)(&Tree::of(files));
    let place = |Finding { path, line, .. }: &Finding| format!("{path}:{line}");
    let places: Vec<String> = found.iter().map(place).collect();
    assert_eq!(places, expected, "{id} in {files:?} found {found:?}");
}

#[test]
fn every_rule_has_an_example_that_breaks_it_and_one_that_does_not() {
    let here: String = include_str!("tests.rs").split_whitespace().collect();
    for rule in RULES {
        let call = format!("finds(\"{}\",", rule.id);
        let examples = here.split(&call).skip(1);
        let examples = examples.map(|rest| rest.split(");").next().unwrap_or_default());
        let (good, bad): (Vec<&str>, Vec<&str>) =
            examples.partition(|example| example.trim_end_matches(',').ends_with("&[]"));
        assert!(!bad.is_empty() && !good.is_empty(), "{}", rule.id);
    }
}

#[test]
fn ignored_test() {
    let broken = "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n/// ```rust,ignore\n#[cfg_attr(not(x), ignore)]\n";
    finds(
        "ignored-test",
        &[("a.rs", broken)],
        &["a.rs:2", "a.rs:4", "a.rs:5"],
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
    let reason = |reason: &str| format!("//! A.\n// long file: {reason}\n{}", text(1_000));
    finds("long-file", &[("a.rs", &reason("one flat dispatch"))], &[]);
    finds("long-file", &[("a.rs", &reason(""))], &["a.rs:1"]);
    let mild = |lines| super::long_files(&Tree::of(&[("a.rs", &text(lines))]))[0].mild;
    assert!(mild(999) && !mild(1_000));
}

#[test]
fn type_name() {
    let file = |text| {
        [
            ("crates/a/src/a.rs", "pub(in crate::b) struct Fit;\n"),
            text,
        ]
    };
    for text in [
        "\nenum Fit {}\n",
        "\n    pub trait Fit: Sized {}\n",
        "\npub type Fit<T> = T;\n",
    ] {
        finds(
            "type-name",
            &file(("crates/b/src/b.rs", text)),
            &["crates/b/src/b.rs:2"],
        );
    }
    finds(
        "type-name",
        &file(("crates/b/src/b.rs", "    type Fit = u8;\nstruct Fits;\n")),
        &[],
    );
    finds(
        "type-name",
        &file(("crates/b/src/b.rs", "mod tests {\n    struct Fit;\n}\n")),
        &[],
    );
    finds(
        "type-name",
        &file(("crates/b/tests/b.rs", "struct Fit;\n")),
        &[],
    );
    let errors = [
        ("crates/a/src/a.rs", "struct Error;\n"),
        ("crates/b/src/b.rs", "enum Error {}\n"),
    ];
    finds("type-name", &errors, &[]);
}

#[test]
fn seam() {
    let at = |name: &str| format!("crates/palisade-replica/src/{name}");
    let (node, engine) = (at("node/mod.rs"), at("engine/mod.rs"));
    finds(
        "seam",
        &[(&node, "use openraft::Raft;\n")],
        &[&format!("{node}:1")],
    );
    finds("seam", &[(&engine, "use openraft::Raft;\n")], &[]);
    let at = |name: &str| format!("crates/palisade-pipeline/src/{name}");
    let (orderer, part, driver) = (at("orderer.rs"), at("orderer/intake.rs"), at("driver.rs"));
    for line in [
        "use tokio::time::Instant;\n",
        "use std::{io, mem};\n",
        "    super::clock::wall()\n",
    ] {
        let both = [format!("{part}:1"), format!("{orderer}:1")];
        finds(
            "seam",
            &[(&part, line), (&orderer, line)],
            &[&both[0], &both[1]],
        );
        finds("seam", &[(&driver, line)], &[]);
    }
    finds(
        "seam",
        &[(&part, "// No tokio here.\nuse std::mem;\n")],
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
        &[summary, one, ("docs/two.md", "\n")],
        &["docs/two.md:1"],
    );
}

const STATED: (&str, &str) = (
    "docs/promise/rules.md",
    "| id | rule |\n|---|---|\n| **A1** | one, see F11 |\n| <a id=\"f11\"></a>F11 | two |\n\n**I5.** three\n",
);

#[test]
fn an_id_is_stated_once_and_where_it_is_cited() {
    let test = (
        "crates/a/tests/held.rs",
        "// A1 – F11, I5; RFC 12, X256, a.A9, A9_b\n#[test]\nfn one_holder() {}\n",
    );
    let promises = |text: &'static str| ("docs/promise/guarantees.md", text);
    let kept = promises(
        "| | promise | rule | tests |\n|---|---|---|---|\n| G1 | A | A1, F11, I5 | a `held::one_holder`, `held` |\n",
    );
    finds("ids", &[STATED, test, kept], &[]);
    // The same in one table, which is elsewhere.
    let one = (
        "docs/rules.md",
        "| id | what | tests |\n|---|---|---|\n| A1 | one | `one_holder` |\n| G1 | two, by A1 | – |\n",
    );
    finds(
        "ids",
        &[one, ("a.py", "# A1 and G1\n"), test],
        &["crates/a/tests/held.rs:1"; 0],
    );
    for (path, line) in [
        ("b.rs", "/// By A2.\n"),
        ("b.py", "# (A1–A3)\n"),
        ("b.go", "// **G7**\n"),
        ("docs/b.md", "[A4](rules.md)\n"),
    ] {
        finds(
            "ids",
            &[STATED, test, kept, (path, line)],
            &[&format!("{path}:1")],
        );
    }
    finds(
        "ids",
        &[STATED, test, kept, ("b.py", "import x  # noqa: A402\n")],
        &[],
    );
    let again = ("docs/promise/more/rules.md", "| A1 | again |\n");
    finds(
        "ids",
        &[STATED, test, kept, again],
        &["docs/promise/more/rules.md:1"],
    );
    let unanswered =
        promises("| | promise | rule | tests |\n|---|---|---|---|\n| G1 | A | A1, I5 | – |\n");
    finds("ids", &[STATED, unanswered], &["docs/promise/rules.md:4"]);
}

#[test]
fn a_test_that_a_table_names_exists() {
    let test = ("crates/a/tests/held.rs", "#[test]\nfn one_holder() {}\n");
    let product = ("crates/a/src/lib.rs", "fn two_holders() {}\n");
    let page = |last: &str| {
        format!("| attack | test |\n|---|---|\n| a `x` | {last} |\n\n| verb | `not_a_test` |\n")
    };
    finds(
        "ids",
        &[
            test,
            product,
            ("docs/access.md", &page("`one_holder`, `held.rs`")),
        ],
        &[],
    );
    for gone in [
        "`two_holders`",
        "`one_holder` and `three`",
        "`freed::one_holder`",
    ] {
        finds(
            "ids",
            &[test, product, ("docs/access.md", &page(gone))],
            &["docs/access.md:3"],
        );
    }
}

#[test]
fn sleeping_test() {
    for (path, line) in [
        ("a/tests/b.rs", "std::thread::sleep(a);"),
        ("a/tests/b.rs", "sleep(a).await;"),
        ("a/tests/b.rs", "thread::sleep(a); // real time:"),
        ("clients/python/tests/test_b.py", "    time.sleep(1)"),
        ("clients/go/b_test.go", "time.Sleep(time.Second)"),
        ("clients/java/src/test/java/B.java", "Thread.sleep(50);"),
        ("clients/typescript/test/b.test.ts", "await sleep(5);"),
        (
            "clients/typescript/test/b.test.ts",
            "setTimeout(() => {}, 5);",
        ),
    ] {
        finds("sleeping-test", &[(path, line)], &[&format!("{path}:1")]);
        finds(
            "sleeping-test",
            &[(&path.replace("test", "product"), line)],
            &[],
        );
        let excused = format!("// real time: the kernel kills the child\n{line}\n");
        finds("sleeping-test", &[(path, &excused)], &[]);
    }
    let mixed = "fn a() { sleep(b) }\nmod tests {\nfn c() { sleep(d) }\n";
    finds("sleeping-test", &[("src/a.rs", mixed)], &["src/a.rs:3"]);
    let fine = "thread::sleep(a); // real time: the kernel kills the child\nclock.sleep(a);\nlet a = \"sleep(b)\";\nfn sleep(a: u8) {}\nasleep(a);\n";
    finds("sleeping-test", &[("tests/a.rs", fine)], &[]);
    let wrapped = "def pause(ms):\n    time.sleep(ms) # real time: as long as asked\npause(50)\n";
    finds(
        "sleeping-test",
        &[("tests/a.py", wrapped)],
        &["tests/a.py:3"],
    );
}

#[test]
fn test_program() {
    let suite = ("crates/a/tests/suite/main.rs", "mod b;\n");
    let other = "crates/a/tests/other.rs";
    let reason =
        "//! Limits.\n//!\n//! A program of its own: it lowers the limits of its process.\n";
    finds(
        "test-program",
        &[suite, (other, "//! A program of its own:\n")],
        &[other].map(|_| "crates/a/tests/other.rs:1"),
    );
    finds("test-program", &[suite, (other, reason)], &[]);
    for path in [
        "crates/b/tests/other.rs",
        "crates/a/tests/suite/held.rs",
        "crates/a/src/tests/other.rs",
    ] {
        finds("test-program", &[suite, (path, "//! A test.\n")], &[]);
    }
}

#[test]
fn word() {
    for (nots, say) in words::ROWS {
        for not in nots.split(',') {
            finds("word", &[("a.md", &format!("A {not}.\n"))], &["a.md:1"]);
            finds(
                "word",
                &[("a.md", &format!("a `{not}` b \"{not}\" c\n"))],
                &[],
            );
        }
        finds("word", &[("a.md", say)], &[]);
    }
    finds(
        "word",
        &[("a.md", "a\n\nThe Fence\nToken, a fence-token\n")],
        &["a.md:3", "a.md:4"],
    );
    finds(
        "word",
        &[("a.rs", "/// unlock it\nfn a() {}\n")],
        &["a.rs:1"],
    );
    finds(
        "word",
        &[
            ("a.rs", "// unlock it\n"),
            ("a.md", "a fence, token by token\n"),
        ],
        &[],
    );
}
