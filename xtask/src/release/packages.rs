//! The packages that other people install, and the step `packages` of the gate: they agree about version, licence, authors and
//! addresses, and each has the licence's text. The crates are those of `crates/`; any other package is one row here.

use std::path::Path;

use crate::shell::root;
use crate::tree::{File, Tree};

/// How deploy/release/packages.py builds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Python,
    Npm,
    Go,
    Maven,
}

#[derive(Debug)]
pub(super) struct Package {
    pub(super) kind: Kind,
    pub(super) folder: &'static str,
    /// Its name in the registry.
    pub(super) name: &'static str,
}

/// In the order in which they need each other.
pub(super) const PACKAGES: &[Package] = &[
    of(Kind::Python, "clients/python", "palisade-client"),
    of(Kind::Npm, "clients/typescript", "palisade-client"),
    of(Kind::Go, "clients/go", "palisade.example/palisade"),
    of(
        Kind::Go,
        "clients/go/palisadepgx",
        "palisade.example/palisade/palisadepgx",
    ),
    of(
        Kind::Go,
        "clients/go/palisadegocron",
        "palisade.example/palisade/palisadegocron",
    ),
    of(
        Kind::Go,
        "clients/go/palisadek8s",
        "palisade.example/palisade/palisadek8s",
    ),
    of(
        Kind::Go,
        "clients/go/kubefence",
        "palisade.example/palisade/kubefence",
    ),
    of(Kind::Maven, "clients/java", "palisade-client"),
    of(Kind::Maven, "clients/java-shedlock", "palisade-shedlock"),
    of(Kind::Maven, "clients/java-spring", "palisade-spring"),
];

const fn of(kind: Kind, folder: &'static str, name: &'static str) -> Package {
    Package { kind, folder, name }
}

impl Package {
    /// As deploy/release/packages.py reads it.
    pub(super) fn to_argument(&self) -> String {
        let kind = match self.kind {
            Kind::Python => "python",
            Kind::Npm => "npm",
            Kind::Go => "go",
            Kind::Maven => "maven",
        };
        format!("{kind}:{}:{}", self.folder, self.name)
    }
}

/// Other places that name the version: the file, and what stands there with the version for `{}`.
const PLACES: &[(&str, &str)] = &[
    (
        "clients/python/src/palisade/__init__.py",
        "__version__ = \"{}\"",
    ),
    (
        "clients/typescript/package-lock.json",
        "\"version\": \"{}\"",
    ),
    ("deploy/Dockerfile", "--tag palisade:{} "),
    ("deploy/compose/one.yaml", "image: palisade:{}"),
    ("deploy/compose/three.yaml", "image: palisade:{}"),
    ("deploy/kubernetes/one.yaml", "image: palisade:{}"),
    ("deploy/kubernetes/three.yaml", "image: palisade:{}"),
    (
        "docs/start/first-hour/shell.md",
        "palisade-{}-x86_64-linux.tar.gz",
    ),
    (
        "docs/start/first-hour/typescript.md",
        "palisade-{}-x86_64-linux.tar.gz",
    ),
    ("docs/start/first-hour/go.md", "palisadepgx@v{} "),
    (
        "docs/start/first-hour/java.md",
        "<version>{}</version></dependency>",
    ),
    (
        "docs/start/first-hour/rust.md",
        "palisade-{}-x86_64-linux.tar.gz",
    ),
    ("docs/operate/server.md", "palisade_{}-1_amd64.deb"),
    ("docs/operate/server.md", "palisade-{}-x86_64-linux.tar.gz"),
];

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// What the workspace says of itself, and every package after it.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) version: String,
    pub(super) repository: String,
    license: String,
    /// `NAME <MAIL>`.
    author: String,
}

impl Facts {
    /// # Errors
    /// The root's manifest is not as it was.
    pub(super) fn of(tree: &Tree) -> Result<Self, String> {
        let manifest = text(tree, "Cargo.toml");
        let value = |key: &str| {
            let line = manifest
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{key} = ")));
            let value = line.map(|line| line.trim_matches(['"', '[', ']']).to_owned());
            value.ok_or_else(|| format!("Cargo.toml has no line `{key} = …`"))
        };
        Ok(Self {
            version: value("version")?,
            repository: value("repository")?,
            license: value("license")?,
            author: value("authors")?,
        })
    }

    /// What the manifest of a package must contain.
    fn needed(&self, package: &Package) -> Vec<String> {
        let Self {
            version,
            repository,
            license,
            author,
        } = self;
        let Package { folder, name, .. } = package;
        let (person, mail) = author.split_once(" <").unwrap_or((author, ""));
        let mail = mail.trim_end_matches('>');
        match package.kind {
            Kind::Python => vec![
                format!("name = \"{name}\"\nversion = \"{version}\"\n"),
                format!("license = \"{license}\"\n"),
                "license-files = [\"LICENSE-APACHE\", \"LICENSE-MIT\"]\n".to_owned(),
                format!("authors = [{{ name = \"{person}\", email = \"{mail}\" }}]\n"),
                "requires-python = \">=3.".to_owned(),
                "\"Typing :: Typed\"".to_owned(),
                format!("Repository = \"{repository}\"\n"),
                format!("Changelog = \"{repository}/blob/main/CHANGELOG.md\"\n"),
                format!("Issues = \"{repository}/issues\"\n"),
                "\"CHANGELOG.md\"]\n".to_owned(),
            ],
            Kind::Npm => vec![
                format!("\"name\": \"{name}\",\n  \"version\": \"{version}\","),
                format!("\"license\": \"{license}\""),
                format!("\"author\": \"{author}\""),
                format!("\"url\": \"git+{repository}.git\",\n    \"directory\": \"{folder}\""),
                format!("\"bugs\": \"{repository}/issues\""),
                "\"engines\": {".to_owned(),
                "\"types\": ".to_owned(),
                "\"CHANGELOG.md\",\n    \"LICENSE-*\"\n".to_owned(),
            ],
            Kind::Go => vec![format!("module {name}\n"), "\ngo 1.".to_owned()],
            Kind::Maven => vec![
                format!("<artifactId>{name}</artifactId>\n  <version>{version}</version>\n"),
                format!("<url>{repository}</url>\n  <licenses>"),
                "<name>MIT</name>".to_owned(),
                "<name>Apache-2.0</name>".to_owned(),
                format!("<name>{person}</name>\n      <email>{mail}</email>"),
                format!("<connection>scm:git:{repository}.git</connection>"),
                "<maven.compiler.release>".to_owned(),
                "<project.build.outputTimestamp>".to_owned(),
                "<include>LICENSE-*</include>".to_owned(),
                "<addDefaultImplementationEntries>true</addDefaultImplementationEntries>"
                    .to_owned(),
                "<id>release</id>".to_owned(),
            ],
        }
    }
}

impl Kind {
    fn manifest(self) -> &'static str {
        match self {
            Kind::Python => "pyproject.toml",
            Kind::Npm => "package.json",
            Kind::Go => "go.mod",
            Kind::Maven => "pom.xml",
        }
    }
}

/// # Errors
/// Packages differ, or one lacks what its registry or its reader needs; the message has a line for each.
pub(crate) fn check() -> Result<String, String> {
    let tree = Tree::read(&root())?;
    let mut wrong = complaints(&tree)?;
    let crates = crates(&tree);
    let (others, ours) = (PACKAGES.iter().map(|package| package.folder), crates.iter());
    for folder in others.chain(ours.map(|(folder, _)| *folder)) {
        let same = |name: &&str| read(&format!("{folder}/{name}")) == read(name);
        let absent = LICENCES.iter().filter(|name| !same(name));
        wrong.extend(absent.map(|name| {
            format!("{folder}/{name} is not the root's {name}: copy it there (in a crate, link it)")
        }));
    }
    if wrong.is_empty() {
        Ok(format!(
            "{} crates, {} others",
            crates.len(),
            PACKAGES.len()
        ))
    } else {
        Err(format!("\n   {}", wrong.join("\n   ")))
    }
}

/// What the tree's manifests lack.
fn complaints(tree: &Tree) -> Result<Vec<String>, String> {
    let facts = Facts::of(tree)?;
    let mut wrong = Vec::new();
    let mut need = |path: &str, needed: &str| {
        if !text(tree, path).contains(needed) {
            wrong.push(format!("{path} lacks `{}`", needed.trim_end()));
        }
    };
    for package in PACKAGES {
        let manifest = format!("{}/{}", package.folder, package.kind.manifest());
        for needed in facts.needed(package) {
            need(&manifest, &needed);
        }
        let readme = format!("{}/README.md", package.folder);
        need(&readme, "/SUPPORT.md)");
        need(&readme, "/CHANGELOG.md)");
        if package.kind == Kind::Maven {
            let module = format!("{}/src/main/java/module-info.java", package.folder);
            if text(tree, &module).is_empty() {
                need(&manifest, "<Automatic-Module-Name>");
            }
        }
    }
    // What a module of ours names is what a stranger's Go asks for: its `replace` counts for work in it alone. Modules of tests
    // follow, because Go takes the highest version that any module asks for.
    let modules = PACKAGES.iter().filter(|package| package.kind == Kind::Go);
    for module in modules {
        let asking = tree
            .files
            .iter()
            .filter(|file| file.path.ends_with("/go.mod") && requires(&file.text, module.name));
        for file in asking {
            need(&file.path, &format!("{} v{}\n", module.name, facts.version));
        }
    }
    for (folder, file) in crates(tree) {
        const INHERITED: [&str; 7] = [
            "version",
            "license",
            "authors",
            "repository",
            "readme",
            "rust-version",
            "keywords",
        ];
        for key in INHERITED {
            need(&file.path, &format!("{key}.workspace = true\n"));
        }
        need(&file.path, "description = \"");
        let name = folder.rsplit('/').next().unwrap_or_default();
        if text(tree, "Cargo.toml").contains(&format!("path = \"{folder}\"")) {
            let dependency = format!(
                "{name} = {{ path = \"{folder}\", version = \"{}\"",
                facts.version
            );
            need("Cargo.toml", &dependency);
        }
    }
    for (path, place) in PLACES {
        need(path, &place.replace("{}", &facts.version));
    }
    wrong.extend(tree.files.iter().filter_map(unlisted));
    Ok(wrong)
}

/// Whether a `go.mod` asks for this module, at any version.
fn requires(manifest: &str, module: &str) -> bool {
    let of_line = |line: &str| {
        let line = line.trim().trim_start_matches("require ");
        line.strip_prefix(module)
            .is_some_and(|rest| rest.starts_with(" v"))
    };
    manifest.lines().any(of_line)
}

/// The crates that are published: the folder of each, and its manifest.
pub(super) fn crates(tree: &Tree) -> Vec<(&str, &File)> {
    let crates = tree.files.iter().filter_map(|file| {
        let folder = file.path.strip_suffix("/Cargo.toml")?;
        folder.starts_with("crates/").then_some((folder, file))
    });
    crates
        .filter(|(_, file)| !file.text.contains("\npublish = false\n"))
        .collect()
}

/// A manifest of a client that is neither a row nor marked as unpublished in its own way.
fn unlisted(file: &File) -> Option<String> {
    let (folder, name) = file.path.rsplit_once('/')?;
    let excuse = match name {
        "pyproject.toml" => "Private :: Do Not Upload",
        "package.json" => "\"private\": true",
        "go.mod" => "// Not published: ",
        "pom.xml" => "<maven.deploy.skip>true</maven.deploy.skip>",
        _ => return None,
    };
    let excused = file.text.contains(excuse)
        || (name == "pom.xml" && file.text.contains("<packaging>pom</packaging>"))
        || (name == "go.mod" && folder.contains("/internal/"));
    let listed = PACKAGES.iter().any(|package| package.folder == folder);
    (folder.starts_with("clients/") && !listed && !excused).then(|| {
        format!(
            "{} is no row of xtask/src/release/packages.rs, and does not say `{excuse}`",
            file.path
        )
    })
}

fn text<'a>(tree: &'a Tree, path: &str) -> &'a str {
    let file = tree.files.iter().find(|file| file.path == path);
    file.map_or("", |file| &file.text)
}

/// `None` where there is no such file. Links are followed.
fn read(path: &str) -> Option<Vec<u8>> {
    std::fs::read(root().join(Path::new(path))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "version = \"1.2.3\"\nlicense = \"MIT\"\nauthors = [\"We <we@here>\"]\nrepository = \"https://here\"\n";

    fn said(path: &str, text: &str) -> String {
        complaints(&Tree::of(&[("Cargo.toml", ROOT), (path, text)]))
            .unwrap()
            .join("\n")
    }

    #[test]
    fn another_version_in_a_manifest_is_found() {
        let pyproject = |version: &str| {
            said(
                "clients/python/pyproject.toml",
                &format!("name = \"palisade-client\"\nversion = \"{version}\"\n"),
            )
        };
        let lacks = "pyproject.toml lacks `name = \"palisade-client\"\nversion = \"1.2.3\"`";
        assert!(pyproject("1.2.4").contains(lacks));
        assert!(!pyproject("1.2.3").contains(lacks));
    }

    #[test]
    fn a_package_that_no_row_names_is_found_unless_it_is_not_published() {
        let row = "is no row of xtask/src/release/packages.rs";
        assert!(said("clients/new/package.json", "{}").contains(row));
        assert!(!said("clients/new/package.json", "{ \"private\": true }").contains(row));
        assert!(said("clients/new/go.mod", "module new\n").contains(row));
        assert!(!said("clients/go/internal/new/go.mod", "module new\n").contains(row));
        assert!(!said("proof/new/go.mod", "module new\n").contains(row));
    }

    #[test]
    fn a_module_that_asks_for_another_of_ours_asks_for_this_version() {
        let module = PACKAGES.iter().find(|package| package.kind == Kind::Go);
        let module = module.unwrap().name;
        let asks = |version: &str| {
            let text = format!("module x\n\nrequire (\n\t{module} {version}\n)\n");
            said("clients/go/go.mod", &text)
        };
        let lacks = format!("lacks `{module} v1.2.3`");
        assert!(asks("v0.0.0").contains(&lacks));
        assert!(!asks("v1.2.3").contains(&lacks));
    }
}
