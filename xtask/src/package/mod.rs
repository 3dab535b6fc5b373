//! The packages: the Debian package, its test, the crates, a list of what is inside, checksums.
//!
//! ```text
//! deb ── deploy/debian/build ──► target/dist/palisade_VERSION_ARCH.deb
//! test ── two revisions of it ──► deploy/check_package.py: install, start, upgrade, remove, purge
//! image ── deploy/Dockerfile, a static program ──► deploy/check_image.py: build, start, kill, start
//! kubernetes ── deploy/kubernetes, deploy/compose ──► deploy/check_kubernetes.py, check_compose.py: schemas, and what the containers run
//! crates ── cargo publish --dry-run: every crate that is published, packed and built from its package, in their order
//! all ── deb, and beside it the program's parts (CycloneDX) and the checksums of both
//! ```

mod materials;

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use materials::Parts;

use crate::prerequisites::{BUILDAH, ensure, ensure_environment, environment};
use crate::shell::{cargo, read, root, run, target};

const WHAT: &str = "package takes deb, test, image, kubernetes, crates or all, and then --program FILE for a binary that is already \
                    built";

/// The package to make, and the program to make it from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    product: Product,
    /// It is built, as one unit, where none is named.
    program: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
enum Product {
    Deb,
    Test,
    Image,
    Kubernetes,
    Crates,
    All,
}

impl Plan {
    /// # Errors
    /// No product is named, or an argument is unknown.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let (product, rest) = match arguments {
            ["deb", rest @ ..] => (Product::Deb, rest),
            ["test", rest @ ..] => (Product::Test, rest),
            ["image", rest @ ..] => (Product::Image, rest),
            ["kubernetes", rest @ ..] => (Product::Kubernetes, rest),
            ["crates"] => (Product::Crates, &[][..]),
            ["all", rest @ ..] => (Product::All, rest),
            _ => return Err(WHAT.to_owned()),
        };
        let program = match rest {
            [] => None,
            ["--program", file] => Some(PathBuf::from(file)),
            _ => return Err(WHAT.to_owned()),
        };
        Ok(Self { product, program })
    }

    /// True when it was made, or when the package does what it must.
    pub(crate) fn run(&self) -> bool {
        let outcome = match self.product {
            Product::Deb => self.package().map(|_| ()),
            Product::Test => self.program().and_then(|program| check(&program)),
            Product::Image => self.image(),
            Product::Kubernetes => self.program().and_then(|program| {
                ensure_environment("kubernetes", &target())?;
                check_kubernetes(&program)
            }),
            Product::Crates => crates(),
            Product::All => self.package().and_then(|package| describe(&package)),
        };
        outcome
            .inspect_err(|complaint| println!("package: {complaint}"))
            .is_ok()
    }

    fn package(&self) -> Result<PathBuf, String> {
        let package = deb(&self.program()?, "1", "xz")?;
        println!("{}", package.display());
        Ok(package)
    }

    /// Of a static program, which is built unless one is named.
    fn image(&self) -> Result<(), String> {
        ensure(BUILDAH)?;
        let mut test = Command::new(root().join("deploy/check_image.py"));
        if let Some(program) = &self.program {
            test.arg("--program").arg(program);
        }
        run(&mut test)
    }

    fn program(&self) -> Result<PathBuf, String> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        build()
    }
}

/// Builds the program as one unit, and returns its file. It names no folder of this machine, as in deploy/build_static.
pub(crate) fn build() -> Result<PathBuf, String> {
    let home = std::env::var("CARGO_HOME").or_else(|_| {
        let home = std::env::var("HOME").map_err(|_| "neither CARGO_HOME nor HOME is set")?;
        Ok::<_, String>(format!("{home}/.cargo"))
    })?;
    let places = [
        (home.as_str(), "/cargo"),
        (&root().display().to_string(), "/palisade"),
    ];
    let flags = |flag: &str| {
        let flags = places
            .iter()
            .map(|(from, to)| format!("{flag}={from}={to}"));
        flags.collect::<Vec<_>>().join(" ")
    };
    let mut build = cargo(&[
        "build",
        "--locked",
        "--profile",
        "packaged",
        "--package",
        "palisade",
    ]);
    build.env("RUSTFLAGS", flags("--remap-path-prefix"));
    build.env("RUSTC_WORKSPACE_WRAPPER", "");
    run(build.env("CFLAGS", flags("-ffile-prefix-map")))?;
    Ok(target().join("packaged/palisade"))
}

/// Makes the package of this revision and returns its file. An equal program makes an equal package.
fn deb(program: &Path, revision: &str, compression: &str) -> Result<PathBuf, String> {
    let dist = target().join("dist");
    std::fs::create_dir_all(&dist).map_err(|error| format!("{}: {error}", dist.display()))?;
    // Cargo gives the version of this crate, which is the workspace's.
    let version = format!("{}-{revision}", env!("CARGO_PKG_VERSION"));
    let mut build = Command::new(root().join("deploy/debian/build"));
    build.env("PALISADE_DEB_COMPRESSION", compression);
    let printed = read(build.arg(program).arg(version).arg(dist))?;
    Ok(PathBuf::from(printed.trim()))
}

/// Puts the list of the program's parts and the checksums beside the package.
fn describe(package: &Path) -> Result<(), String> {
    let materials = parts()?.document();
    let dist = package.with_file_name("");
    let write = |name: &str, text: &str| {
        let file = dist.join(name);
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("{}", file.display());
        Ok::<_, String>(())
    };
    write("palisade.cdx.json", &materials)?;
    let name = package.file_name().unwrap_or_default();
    let mut sums = Command::new("sha256sum");
    sums.arg(name).arg("palisade.cdx.json").current_dir(&dist);
    write("SHA256SUMS", &read(&mut sums)?)
}

/// The parts of the program, on this machine's platform.
pub(crate) fn parts() -> Result<Parts, String> {
    let metadata = ["metadata", "--locked", "--format-version", "1"];
    let target = read(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let mut metadata = cargo(&metadata);
    Parts::of(&read(metadata.args(["--filter-platform", target.trim()]))?)
}

/// Packs every crate that is published, and builds each from its package, which finds files that are only in the repository.
fn crates() -> Result<(), String> {
    run(&mut cargo(&[
        "publish",
        "--dry-run",
        "--workspace",
        "--locked",
    ]))
}

/// Installs, starts, upgrades, removes and purges the package on a copy of this machine, in half a minute. Needs root.
///
/// # Errors
/// The package could not be built, or does not do what it must; the test prints what.
fn check(program: &Path) -> Result<(), String> {
    // It takes longer to compress a development build than to test it.
    let test = |revision| deb(program, revision, "none");
    let (old, new) = (test("0test1")?, test("0test2")?);
    let mut test = Command::new("timeout");
    test.arg("300").arg(root().join("deploy/check_package.py"));
    let outcome = run(test.args([&old, &new]));
    for package in [&old, &new] {
        std::fs::remove_file(package).map_err(|error| format!("{}: {error}", package.display()))?;
    }
    outcome
}

/// Starts what the Kubernetes manifests and the compose files start, in a minute. Needs root.
///
/// # Errors
/// A manifest is no manifest, or its containers do not do what they must; the test prints what.
fn check_kubernetes(program: &Path) -> Result<(), String> {
    let python = environment(&target(), "kubernetes").join("bin/python");
    for test in ["deploy/check_kubernetes.py", "deploy/check_compose.py"] {
        let mut bounded = Command::new("timeout");
        bounded.arg("300").arg(&python).arg(root().join(test));
        run(bounded.arg(program))?;
    }
    Ok(())
}

/// Upgrades three nodes one after the other under load, from this program to itself, in ten seconds. It fails, and prints why,
/// when a caller or a token comes to harm.
pub(crate) fn upgrade(program: &Path) -> Command {
    let mut test = Command::new("timeout");
    test.arg("120").arg(root().join("deploy/check_upgrade.py"));
    test.args([program, program]).current_dir(root());
    test
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_named_and_perhaps_a_program() {
        let plan = |product, program: Option<&str>| {
            Ok(Plan {
                product,
                program: program.map(PathBuf::from),
            })
        };
        assert_eq!(Plan::parse(&["deb"]), plan(Product::Deb, None));
        assert_eq!(
            Plan::parse(&["test", "--program", "a/b"]),
            plan(Product::Test, Some("a/b"))
        );
        for mistake in [
            &[][..],
            &["rpm"],
            &["deb", "--program"],
            &["deb", "x"],
            &["crates", "--program", "x"],
        ] {
            assert!(Plan::parse(mistake).is_err(), "{mistake:?}");
        }
    }
}
