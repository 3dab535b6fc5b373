//! The files of the repository, and Rust source seen without its strings and comments.
//!
//! ```text
//! text  │ let url = "http://a"; // see todo!()        what a person reads
//! code  │ let url = "        ";                       what the compiler acts on
//! docs  │ (the text of `///` and `//!` lines only)    what rustdoc prints
//! ```
//! All three have the same lines, so a finding in one points at the right place in the file.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Every file git knows or would add, with paths relative to the root.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

pub(crate) struct File {
    pub(crate) path: String,
    /// `None` when the bytes are not UTF-8.
    pub(crate) text: Option<String>,
    rust: Option<Rust>,
}

struct Rust {
    code: String,
    docs: String,
    /// For each line: is it inside a `#[cfg(test)]` or `#[test]` item, or in a file of tests?
    tests: Vec<bool>,
}

impl Tree {
    /// Reads the working tree at `root`.
    ///
    /// # Errors
    /// git is missing, this is not a clone, or a file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        // The owner of a checkout may differ from the user in a container; listing names is harmless.
        let listed = crate::shell::read(
            Command::new("git")
                .args([
                    "-c",
                    "safe.directory=*",
                    "ls-files",
                    "-coz",
                    "--exclude-standard",
                ])
                .current_dir(root),
        )?;
        let mut files = Vec::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            let full = root.join(path);
            // Deleted but still in the index, or a link: nothing to read here.
            let Ok(facts) = fs::symlink_metadata(&full) else {
                continue;
            };
            if !facts.is_file() {
                continue;
            }
            let bytes = fs::read(&full).map_err(|error| format!("{path}: {error}"))?;
            let text = String::from_utf8(bytes).ok();
            files.push(File::new(path, text));
        }
        Ok(Self::new(files))
    }

    fn new(mut files: Vec<File>) -> Self {
        let elsewhere: Vec<String> = files.iter().flat_map(test_modules_elsewhere).collect();
        for file in &mut files {
            let belongs = |module: &String| {
                file.path
                    .strip_prefix(module.as_str())
                    .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            if elsewhere.iter().any(belongs) {
                file.mark_as_test();
            }
        }
        Self { files }
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Is there a file or a directory at this path?
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Where `#[cfg(test)] mod name;` keeps its lines: the path without its ending.
fn test_modules_elsewhere(file: &File) -> Vec<String> {
    let Some(rust) = &file.rust else {
        return Vec::new();
    };
    let stem = file.path.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let home = if matches!(name, "lib" | "main" | "mod") {
        folder
    } else {
        stem
    };
    let in_tests = rust
        .code
        .lines()
        .zip(&rust.tests)
        .filter(|(_, test)| **test);
    in_tests
        .filter_map(|(line, _)| line.split_once("mod ")?.1.split_once(';'))
        .map(|(module, _)| format!("{home}/{}", module.trim()))
        .collect()
}

impl File {
    pub(crate) fn new(path: &str, text: Option<String>) -> Self {
        let rust = text
            .as_deref()
            .filter(|_| path.ends_with(".rs"))
            .map(|text| {
                let (code, docs) = separate(text);
                let whole = is_test_path(path) || squeezed(&code).starts_with("#![cfg(test)]");
                let tests = if whole {
                    vec![true; text.lines().count()]
                } else {
                    test_lines(&code)
                };
                Rust { code, docs, tests }
            });
        Self {
            path: path.to_owned(),
            text,
            rust,
        }
    }

    fn mark_as_test(&mut self) {
        if let Some(rust) = &mut self.rust {
            rust.tests.fill(true);
        }
    }

    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    pub(crate) fn has_ending(&self, endings: &[&str]) -> bool {
        self.path
            .rsplit_once('.')
            .is_some_and(|(_, ending)| endings.contains(&ending))
    }

    /// Rust source with strings and comments blanked; empty for other files.
    pub(crate) fn code(&self) -> &str {
        self.rust.as_ref().map_or("", |rust| &rust.code)
    }

    /// The text of the doc comments, blank elsewhere; empty for other files.
    pub(crate) fn docs(&self) -> &str {
        self.rust.as_ref().map_or("", |rust| &rust.docs)
    }

    /// Is this line (from 1) test code?
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.rust
            .as_ref()
            .is_some_and(|rust| rust.tests.get(line - 1).copied().unwrap_or(false))
    }

    /// The lines of `code`, numbered from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code().lines())
    }

    /// The lines of the text, numbered from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text().lines())
    }
}

fn is_test_path(path: &str) -> bool {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    folders
        .split('/')
        .any(|folder| matches!(folder, "tests" | "benches" | "fuzz"))
        || matches!(name, "tests.rs" | "test.rs")
        || name.ends_with("_test.rs")
        || name.ends_with("_tests.rs")
}

/// Without any white space.
pub(crate) fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Which lines belong to items under a test attribute.
fn test_lines(code: &str) -> Vec<bool> {
    let bytes = code.as_bytes();
    let mut marks = vec![false; code.lines().count()];
    let mut from = 0;
    while let Some(start) = code[from..].find("#[").map(|at| from + at) {
        let end = closing(bytes, start + 1);
        from = end;
        if !is_test_attribute(&squeezed(&code[start..end])) {
            continue;
        }
        let end = item_end(bytes, end);
        let (first, last) = (line_of(code, start), line_of(code, end.saturating_sub(1)));
        for mark in marks.iter_mut().take(last).skip(first - 1) {
            *mark = true;
        }
        from = end;
    }
    marks
}

fn is_test_attribute(attribute: &str) -> bool {
    let inner = attribute.trim_start_matches("#[").trim_end_matches(']');
    if let Some(condition) = inner.strip_prefix("cfg(") {
        // `any(test, …)` is compiled into the product too, so it is not test code.
        return condition.starts_with("test)") || condition.starts_with("all(test,");
    }
    let path = inner.split('(').next().unwrap_or_default();
    matches!(
        path.rsplit("::").next(),
        Some("test" | "rstest" | "test_case")
    )
}

/// The end of the bracket that opens at `open`: the position after its partner.
fn closing(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    bytes.len()
}

/// The end of the item that follows its attributes: after its block or its semicolon.
fn item_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'{' => return closing(bytes, at),
            b';' => return at + 1,
            b'(' | b'[' => at = closing(bytes, at),
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The line, from 1, of a byte position.
pub(crate) fn line_of(text: &str, position: usize) -> usize {
    1 + text
        .as_bytes()
        .iter()
        .take(position)
        .filter(|byte| **byte == b'\n')
        .count()
}

/// Splits Rust source into code (strings and comments blanked) and doc text (all else blanked).
fn separate(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut docs: Vec<u8> = bytes
        .iter()
        .map(|byte| if *byte == b'\n' { b'\n' } else { b' ' })
        .collect();
    let mut blank = |from: usize, to: usize| {
        for byte in code
            .iter_mut()
            .take(to)
            .skip(from)
            .filter(|byte| **byte != b'\n')
        {
            *byte = b' ';
        }
    };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = match rest {
            [b'/', b'/', ..] | [b'/', b'*', ..] => {
                let end = comment_end(bytes, at);
                if is_doc(rest) {
                    docs[at + 3..end].copy_from_slice(&bytes[at + 3..end]);
                }
                blank(at, end);
                end
            }
            [b'"', ..] => {
                let end = string_end(bytes, at);
                blank(at + 1, end.saturating_sub(1).max(at + 1));
                end
            }
            [b'\'', ..] => {
                let end = character_end(text, at);
                blank(at, end);
                end.max(at + 1)
            }
            _ => at + 1,
        };
        at = end;
    }
    let own = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (own(code), own(docs))
}

fn is_doc(comment: &[u8]) -> bool {
    match comment {
        [b'/', b'/', b'/', b'/', ..] | [b'/', b'*', b'*', b'*' | b'/', ..] => false,
        [b'/', b'/', b'/' | b'!', ..] | [b'/', b'*', b'*' | b'!', ..] => true,
        _ => false,
    }
}

fn comment_end(bytes: &[u8], start: usize) -> usize {
    if bytes[start + 1] == b'/' {
        return bytes[start..]
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(bytes.len(), |length| start + length);
    }
    let (mut depth, mut at) = (0_usize, start);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The end of the string that opens with the quotation mark at `quote`, raw or not.
fn string_end(bytes: &[u8], quote: usize) -> usize {
    let hashes = bytes[..quote]
        .iter()
        .rev()
        .take_while(|byte| **byte == b'#')
        .count();
    let before = &bytes[..quote - hashes];
    let word = before
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
        .count();
    let raw = matches!(&before[before.len() - word..], b"r" | b"br" | b"cr");
    let mut at = quote + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if !raw => at += 2,
            b'"' if !raw => return at + 1,
            b'"' if bytes[at + 1..]
                .iter()
                .take_while(|byte| **byte == b'#')
                .count()
                >= hashes =>
            {
                return at + 1;
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of the character literal at `quote`; `quote` itself for a lifetime.
fn character_end(text: &str, quote: usize) -> usize {
    let rest = &text[quote + 1..];
    let mut characters = rest.char_indices();
    match characters.next() {
        Some((_, '\\')) => {
            // The escaped character may itself be a quotation mark.
            let closing = rest
                .char_indices()
                .skip(2)
                .find(|(_, character)| *character == '\'');
            closing.map_or(quote, |(at, _)| quote + at + 2)
        }
        Some(_) => match characters.next() {
            Some((at, '\'')) => quote + at + 2,
            _ => quote,
        },
        None => quote,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        separate(text).0
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        for (text, expected) in [
            ("a(\"b\") // c", "a(\" \")     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            ("r#\"a\"b\"# + c", "r#\"   \"# + c"),
            ("\"\\\"a\" b", "\"   \" b"),
            ("'\"' b", "    b"),
            ("'\\'' b", "     b"),
            ("&'a str, 'é'", "&'a str,     "),
            ("b\"x\" c\"y\"", "b\" \" c\" \""),
            ("\"a\nb\" c", "\" \n \" c"),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }

    #[test]
    fn doc_text_is_what_rustdoc_prints() {
        let (_, docs) =
            separate("/// one\n//! two\n// three\n//// four\n/** five */ let a = \"/// six\";\n");
        let words: Vec<&str> = docs.split_whitespace().collect();
        assert_eq!(words, ["one", "two", "five", "*/"]);
    }

    #[test]
    fn test_items_are_told_from_the_product() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n#[tokio::test(flavor = \"x\")]\n\
                    async fn d(x: [u8; 2]) {\n}\n#[cfg(any(test, feature = \"f\"))]\nfn e() {}\n#[cfg(not(test))]\nfn f() {}\n";
        let file = File::new("a/src/lib.rs", Some(text.to_owned()));
        let found: Vec<usize> = (1..=13).filter(|line| file.is_test(*line)).collect();
        assert_eq!(found, [2, 3, 4, 5, 7, 8, 9]);
    }

    #[test]
    fn a_test_module_in_its_own_file_is_test_code() {
        let rust = |path: &str, text: &str| File::new(path, Some(text.to_owned()));
        let tree = Tree::new(vec![
            rust("a/src/lib.rs", "#[cfg(test)]\nmod harness;\nmod real;\n"),
            rust("a/src/harness.rs", "fn a() {}\n"),
            rust("a/src/real.rs", "#[cfg(test)]\nmod deep;\n"),
            rust("a/src/real/deep.rs", "fn a() {}\n"),
        ]);
        let found: Vec<bool> = tree.files.iter().map(|file| file.is_test(1)).collect();
        assert_eq!(found, [true, true, true, true]);
        assert!(!tree.files[0].is_test(3));
        assert!(
            tree.file("a/src/real.rs")
                .is_some_and(|file| !file.is_test(3))
        );
    }

    #[test]
    fn the_tree_knows_directories() {
        let tree = Tree::of(&[("docs/a.md", "a\n")]);
        assert!(
            tree.has("docs") && tree.has("docs/a.md") && !tree.has("doc") && !tree.has("docs/a")
        );
    }

    impl Tree {
        /// A tree of these files.
        pub(crate) fn of(files: &[(&str, &str)]) -> Self {
            let read = files
                .iter()
                .map(|(path, text)| File::new(path, Some((*text).to_owned())));
            Self::new(read.collect())
        }
    }
}
