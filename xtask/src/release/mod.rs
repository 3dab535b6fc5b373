//! `cargo xtask release VERSION`: everything that is published, in one folder, from a clean tree. RELEASING.md says what is in
//! it, and what the releaser does with it.
//!
//! ```text
//! refuse ── version · tree · changelog · packages · evidence · golden data · public interface
//! make   ── deploy/release/program.py: archive, wheel, image   deploy/debian/build   cargo package
//!           deploy/release/packages.py: Python, npm, Go, Maven   mdbook   parts, licences, checksums
//! check ── deploy/check_release.py: each package is installed, used and removed
//! ```

mod evidence;
mod golden;
pub(crate) mod interface;
pub(crate) mod packages;

use std::path::{Path, PathBuf};
use std::process::Command;

use packages::{Facts, Kind, PACKAGES};

use crate::prerequisites::{BOOK, RELEASE};
use crate::shell::{cargo, read, root, run, target, without_this_crate};
use crate::tree::Tree;

const WHAT: &str = "release takes a version, and then --program FILE for a static program that is already built, and --rehearse, \
                    which tells what would be refused and goes on";

/// The domain that stands for one that nobody owns yet; in two parts, so that deploy/release/own leaves it.
const PLACEHOLDER: &str = concat!("//palisade", ".example/");

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    version: String,
    /// It is built where none is named.
    program: Option<PathBuf>,
    rehearse: bool,
}

impl Plan {
    /// # Errors
    /// No version is named, or an argument is unknown.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let (version, mut rest) = match arguments {
            [version, rest @ ..] if !version.starts_with('-') => ((*version).to_owned(), rest),
            _ => return Err(WHAT.to_owned()),
        };
        let mut plan = Self {
            version,
            program: None,
            rehearse: false,
        };
        loop {
            rest = match rest {
                [] => return Ok(plan),
                ["--program", file, rest @ ..] => {
                    plan.program = Some(PathBuf::from(file));
                    rest
                }
                ["--rehearse", rest @ ..] => {
                    plan.rehearse = true;
                    rest
                }
                _ => return Err(WHAT.to_owned()),
            };
        }
    }

    /// True when the folder is complete.
    pub(crate) fn run(&self) -> bool {
        let made = Tree::read(&root()).and_then(|tree| {
            self.program_is_there()?;
            let facts = Facts::of(&tree)?;
            let refused = self.refused(&tree, &facts)?;
            for reason in &refused {
                println!("release: {reason}");
            }
            if refused.is_empty() || self.rehearse {
                self.make(&tree, &facts)
            } else {
                Err(format!("refused, {} reasons above", refused.len()))
            }
        });
        match &made {
            Ok(out) => println!("release: {}", out.display()),
            Err(complaint) => println!("release: {complaint}"),
        }
        made.is_ok()
    }

    /// It is asked first: the folder of the last release is removed before the program is used.
    fn program_is_there(&self) -> Result<(), String> {
        match &self.program {
            Some(file) if !file.is_file() => Err(format!(
                "--program {} is no file: `deploy/build_static FOLDER` makes FOLDER/usr/bin/palisade, or leave --program out",
                file.display()
            )),
            _ => Ok(()),
        }
    }

    /// Why this tree is not to be released.
    fn refused(&self, tree: &Tree, facts: &Facts) -> Result<Vec<String>, String> {
        let mut reasons = Vec::new();
        if self.version != facts.version {
            reasons.push(format!(
                "Cargo.toml has version {}, not {}",
                facts.version, self.version
            ));
        }
        let changed = git(&["status", "--porcelain"])?;
        if !changed.is_empty() {
            reasons.push(format!(
                "not committed, or unknown to git:\n{}",
                changed.trim_end()
            ));
        }
        reasons.extend(changes(tree, &self.version).err());
        reasons.extend(packages::check().err());
        reasons.extend(evidence::stale(tree)?);
        reasons.extend(golden::refused(&self.version)?);
        reasons.extend(interface::refused(Some(&self.version))?);
        Ok(reasons)
    }

    fn make(&self, tree: &Tree, facts: &Facts) -> Result<PathBuf, String> {
        let out = target().join(format!("release-{}", self.version));
        if out.exists() {
            std::fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
        for folder in ["crates", "debian", "deploy"] {
            let folder = out.join(folder);
            std::fs::create_dir_all(&folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let write = |name: &str, text: &str| {
            let file = out.join(name);
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
        };
        let time = git(&["log", "-1", "--format=%ct"])?;
        let in_time = |program: PathBuf| {
            let mut command = Command::new(program);
            command.env("SOURCE_DATE_EPOCH", time.trim());
            command
        };

        let parts = crate::package::parts()?;
        write("palisade.cdx.json", &parts.document())?;
        write("LICENSES-OF-PARTS.txt", &parts.licences())?;
        write(
            "CHANGES.md",
            &changes(tree, &self.version).unwrap_or_default(),
        )?;

        step("the program: archive, wheel, image");
        let program = self.program(&in_time)?;
        self.says_its_commit(&program)?;
        let mut pack = in_time(root().join("deploy/release/program.py"));
        pack.arg(&program).args([&facts.version, &facts.repository]);
        pack.arg(out.join("LICENSES-OF-PARTS.txt")).arg(&out);
        run(pack.args(self.rehearse.then_some("--rehearse")))?;

        step("the Debian package");
        let program = match &self.program {
            Some(_) => program,
            None => crate::package::build()?,
        };
        let mut debian = in_time(root().join("deploy/debian/build"));
        debian.arg(&program).arg(format!("{}-1", facts.version));
        debian.arg(out.join("debian"));
        run(debian.arg(out.join("LICENSES-OF-PARTS.txt")))?;

        step("the packages of other languages");
        let tools = RELEASE.ensure(&target())?;
        let mut pack = in_time(root().join("deploy/release/packages.py"));
        pack.arg(&out)
            .args([&facts.version, &facts.repository])
            .arg(tools);
        run(pack.args(PACKAGES.iter().map(packages::Package::to_argument)))?;

        step("the crates");
        self.crates(tree, &out)?;
        step("the book, and what runs the image");
        book_and_deploy(&out)?;

        let mut sums = Command::new("sh");
        sums.args([
            "-c",
            "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum",
        ]);
        write("SHA256SUMS", &read(sums.current_dir(&out))?)?;
        step("installed, each package by its own tool");
        run(Command::new(root().join("deploy/check_release.py")).arg(&out))?;
        let mut pages = Command::new(root().join("deploy/check_first_hour.py"));
        run(pages.arg("--release").arg(&out))?;
        let go = PACKAGES.iter().filter(|package| package.kind == Kind::Go);
        let tags = go.map(|package| format!("{}/v{}", package.folder, self.version));
        let tags: Vec<String> = [format!("v{}", self.version)]
            .into_iter()
            .chain(tags)
            .collect();
        println!("release: its tags are {}", tags.join(", "));
        if facts.repository.contains(PLACEHOLDER) {
            println!(
                "release: NOT TO BE PUBLISHED: {} is a placeholder (RELEASING.md, First: the names)",
                facts.repository
            );
        }
        Ok(out)
    }

    /// Packs them, and builds each from its package.
    fn crates(&self, tree: &Tree, out: &Path) -> Result<(), String> {
        // A rehearsal does not build each of them again from its package.
        let verify = if self.rehearse {
            &["package", "--no-verify", "--allow-dirty"][..]
        } else {
            &["package"][..]
        };
        let crates = packages::crates(tree);
        let names = crates
            .iter()
            .filter_map(|(folder, _)| folder.rsplit('/').next());
        let names: Vec<String> = names.map(|name| format!("--package={name}")).collect();
        run(cargo(verify).args(["--locked", "--quiet"]).args(names))?;
        for (folder, _) in &crates {
            let name = folder.rsplit('/').next().unwrap_or_default();
            let file = format!("{name}-{}.crate", self.version);
            let (from, to) = (
                target().join("package").join(&file),
                out.join("crates").join(&file),
            );
            std::fs::copy(&from, to).map_err(|error| format!("{}: {error}", from.display()))?;
        }
        Ok(())
    }

    /// The static program.
    fn program(&self, in_time: &impl Fn(PathBuf) -> Command) -> Result<PathBuf, String> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let place = target().join("static");
        let mut build = in_time(root().join("deploy/build_static"));
        without_this_crate(&mut build);
        run(build.arg(&place))?;
        Ok(place.join("usr/bin/palisade"))
    }

    fn says_its_commit(&self, program: &Path) -> Result<(), String> {
        let says = read(Command::new(program).arg("--version"))?;
        let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
        if says.contains(&format!("({},", commit.trim())) || self.rehearse {
            Ok(())
        } else {
            Err(format!(
                "{} is {}, and the commit is {commit}",
                program.display(),
                says.trim()
            ))
        }
    }
}

fn book_and_deploy(out: &Path) -> Result<(), String> {
    let mut book = Command::new(BOOK.ensure(&target())?.join("bin/mdbook"));
    run(book
        .arg("build")
        .arg("--dest-dir")
        .arg(out.join("book"))
        .arg(root()))?;
    for name in ["alerts.yaml", "compose", "grafana.json", "kubernetes"] {
        let mut copy = Command::new("cp");
        copy.arg("-R").arg(root().join("deploy").join(name));
        run(copy.arg(out.join("deploy")))?;
    }
    Ok(())
}

fn step(name: &str) {
    println!("── {name}");
}

fn git(arguments: &[&str]) -> Result<String, String> {
    read(Command::new("git").args(arguments).current_dir(root()))
}

/// The changelog's chapter of this version.
///
/// # Errors
/// There is none, or it has no entry.
fn changes(tree: &Tree, version: &str) -> Result<String, String> {
    let file = tree.files.iter().find(|file| file.path == "CHANGELOG.md");
    let text = file.map_or("", |file| &file.text);
    let begin = format!("\n## {version} (");
    let Some((_, after)) = text.split_once(&begin) else {
        return Err(format!("CHANGELOG.md has no line `## {version} (DATE)`"));
    };
    let chapter = after.split("\n## ").next().unwrap_or_default();
    if chapter.contains("\n- ") {
        Ok(format!("{}{}\n", begin.trim_start(), chapter.trim_end()))
    } else {
        Err(format!("CHANGELOG.md has no entry for {version}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_named_and_perhaps_a_program() {
        let plan = Plan::parse(&["0.1.0", "--rehearse", "--program", "a/b"]).unwrap();
        assert_eq!(plan.program, Some(PathBuf::from("a/b")));
        assert!(plan.rehearse && plan.version == "0.1.0");
        for mistake in [&[][..], &["--rehearse"], &["1", "--program"], &["1", "2"]] {
            assert!(Plan::parse(mistake).is_err(), "{mistake:?}");
        }
    }

    #[test]
    fn a_program_that_is_no_file_is_refused_before_anything_is_removed() {
        let there = |file: &str| {
            Plan::parse(&["0.1.0", "--program", file])
                .unwrap()
                .program_is_there()
        };
        let refused = there("no/such/program").unwrap_err();
        assert!(refused.contains("no/such/program is no file") && refused.contains("build_static"));
        assert!(there(env!("CARGO_MANIFEST_DIR")).is_err());
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(there(manifest), Ok(()));
    }

    #[test]
    fn the_changes_of_a_version_are_its_chapter() {
        let of = |text: &str| changes(&Tree::of(&[("CHANGELOG.md", text)]), "1.2.0");
        let text = "# Changelog\n\n## Unreleased\n\n- c\n\n## 1.2.0 (2026-12-01)\n\n- b\n\n## 1.1.0 (2026-11-01)\n\n- a\n";
        assert_eq!(of(text).unwrap(), "## 1.2.0 (2026-12-01)\n\n- b\n");
        assert!(of("# Changelog\n\n## Unreleased\n\n- c\n").is_err());
        assert!(of("# Changelog\n\n## 1.2.0 (2026-12-01)\n\n## 1.1.0 (x)\n\n- a\n").is_err());
    }
}
