//! The files of the repository, line by line.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Every file git knows or would add, with paths relative to the root.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

pub(crate) struct File {
    pub(crate) path: String,
    /// Empty where the bytes are not UTF-8.
    pub(crate) text: String,
}

impl Tree {
    /// Reads the working tree at `root`.
    ///
    /// # Errors
    /// git is missing, this is not a clone, or a file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        // The owner of a checkout may differ from the user in a container; listing names is harmless.
        let list = ["ls-files", "-coz", "--exclude-standard"];
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*"]).args(list);
        let listed = crate::shell::read(git.current_dir(root))?;
        let mut files = Vec::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            let full = root.join(path);
            // A file that was deleted is still in the index, and a link has no text of its own.
            if fs::symlink_metadata(&full).is_ok_and(|facts| facts.is_file()) {
                let bytes = fs::read(&full).map_err(|error| format!("{path}: {error}"))?;
                let text = String::from_utf8(bytes).unwrap_or_default();
                let path = path.to_owned();
                files.push(File { path, text });
            }
        }
        Ok(Self { files })
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Self {
            files: files.iter().map(own).collect(),
        }
    }
}

impl File {
    pub(crate) fn has_ending(&self, endings: &[&str]) -> bool {
        let ending = self.path.rsplit_once('.').map(|(_, ending)| ending);
        ending.is_some_and(|ending| endings.contains(&ending))
    }

    /// The lines of the text, numbered from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The lines of test code: all of a file that contains nothing else, and otherwise those from the module of unit tests on,
    /// which stands at the end of a file.
    pub(crate) fn test_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let whole = self.path.split('/').any(is_of_tests);
        let outside = move |(_, line): &(usize, &str)| !whole && !line.starts_with("mod tests {");
        self.lines().skip_while(outside)
    }

    /// The text for people: a page, or the documentation comments of Rust code. Code and quotations are blank.
    pub(crate) fn prose(&self) -> String {
        let page = self.has_ending(&["md"]);
        let rust = self.has_ending(&["rs"]);
        let mut fenced = false;
        let prose = self.text.lines().map(|line| {
            let comment = line.trim_start();
            let comment = ["/// ", "//! "]
                .iter()
                .find_map(|mark| comment.strip_prefix(mark));
            let line = if page {
                line
            } else {
                comment.filter(|_| rust).unwrap_or("")
            };
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            if fenced || fence {
                String::new()
            } else {
                without(&without(line, '`'), '"')
            }
        });
        prose.collect::<Vec<_>>().join("\n")
    }
}

/// Whether a file or folder of this name contains tests only, or programs that check others.
fn is_of_tests(name: &str) -> bool {
    const NAMES: [&str; 8] = [
        "benches",
        "controls",
        "fuzz",
        "holder-suite",
        "howto",
        "test",
        "tests",
        "tests.rs",
    ];
    NAMES.contains(&name) || name.ends_with("_test.go") || name.starts_with("check_")
}

/// The line with a mark in place of what stands between each pair of marks, so that the words around it are no neighbours.
fn without(line: &str, mark: char) -> String {
    let parts: Vec<&str> = line.split(mark).collect();
    let kept = |(number, part): (usize, &&str)| {
        if number % 2 == 1 && number + 1 < parts.len() {
            String::new()
        } else {
            (*part).to_owned()
        }
    };
    let kept: Vec<String> = parts.iter().enumerate().map(kept).collect();
    kept.join(&mark.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_pages_and_documentation_without_code_and_quotations() {
        let prose = |path: &str, text: &str| Tree::of(&[(path, text)]).files[0].prose();
        assert_eq!(prose("a.md", "a `b` \"c\" d `e\n"), "a `` \"\" d `e");
        assert_eq!(prose("a.md", "a\n```\nb\n```\nc\n"), "a\n\n\n\nc");
        assert_eq!(prose("a.rs", "/// a\n//! b\n// c\nd();\n"), "a\nb\n\n");
        assert_eq!(prose("a.txt", "a\n"), "");
    }

    #[test]
    fn test_code_is_told_from_the_product() {
        let lines = |path: &str, text: &str| {
            let tree = Tree::of(&[(path, text)]);
            tree.files[0]
                .test_lines()
                .map(|(line, _)| line)
                .collect::<Vec<_>>()
        };
        let text = "#[cfg(test)]\nfn a() {}\nmod tests {\n";
        assert_eq!(lines("a/src/lib.rs", text), [3]);
        for whole in [
            "a/tests/suite/b.rs",
            "clients/go/a_test.go",
            "deploy/check_image.py",
            "a/src/tests.rs",
        ] {
            assert_eq!(lines(whole, "a\nb\n"), [1, 2], "{whole}");
        }
        assert!(lines("clients/go/palisade.go", "a\nb\n").is_empty());
    }
}
