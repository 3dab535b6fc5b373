//! Known vulnerabilities of the dependencies: Cargo.lock against `xtask/advisories.txt`, a dated list of the RustSec
//! advisory database. The database itself is a repository, which a machine that judges cannot always fetch;
//! `xtask/advisories.py` writes the list anew from a clone.

use semver::{Version, VersionReq};

use crate::shell::root;

/// Advisories that do not concern us, each with the reason.
const EXCUSED: &[(&str, &str)] = &[];

/// # Errors
/// A dependency is affected, the list cannot be read, or it excuses an advisory in vain.
pub(crate) fn check() -> Result<String, String> {
    let read = |name: &str| {
        let path = root().join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let list = List::of(&read("xtask/advisories.txt")?)?;
    let packages = packages(&read("Cargo.lock")?)?;
    let affected = list.affected(&packages);
    let excused = |id: &str| EXCUSED.iter().any(|(excused, _)| *excused == id);
    let mut wrong: Vec<String> = affected
        .iter()
        .filter(|(advisory, _)| !excused(&advisory.id))
        .map(|(advisory, version)| advisory.complaint(version))
        .collect();
    let in_vain = EXCUSED
        .iter()
        .filter(|(id, _)| affected.iter().all(|(advisory, _)| advisory.id != *id));
    wrong.extend(
        in_vain.map(|(id, _)| format!("{id} is excused, and concerns nothing in Cargo.lock")),
    );
    if wrong.is_empty() {
        let (advisories, packages) = (list.advisories.len(), packages.len());
        return Ok(format!(
            "{packages} packages, {advisories} advisories: {}",
            list.source
        ));
    }
    Err(wrong.join("\n   "))
}

struct List {
    /// Where it comes from, with its date.
    source: String,
    advisories: Vec<Advisory>,
}

struct Advisory {
    id: String,
    kind: String,
    package: String,
    /// Versions in one of these are not affected.
    fine: Vec<VersionReq>,
}

impl List {
    fn of(text: &str) -> Result<List, String> {
        let source = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let source = source.ok_or("xtask/advisories.txt does not say where it comes from")?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let advisories = lines.map(Advisory::of).collect::<Result<Vec<_>, _>>()?;
        if advisories.is_empty() {
            Err("xtask/advisories.txt is empty".to_owned())
        } else {
            Ok(List {
                source: source.to_owned(),
                advisories,
            })
        }
    }

    fn affected<'a>(
        &'a self,
        packages: &'a [(String, Version)],
    ) -> Vec<(&'a Advisory, &'a Version)> {
        let pairs = self.advisories.iter().flat_map(|advisory| {
            let of_it = packages
                .iter()
                .filter(|(name, _)| *name == advisory.package);
            of_it.map(move |(_, version)| (advisory, version))
        });
        pairs
            .filter(|(advisory, version)| !advisory.fine.iter().any(|fine| fine.matches(version)))
            .collect()
    }
}

impl Advisory {
    fn of(line: &str) -> Result<Advisory, String> {
        let [id, kind, package, fine] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("xtask/advisories.txt: `{line}` is not an advisory"));
        };
        let ranges = fine
            .split('|')
            .map(str::trim)
            .filter(|range| !range.is_empty());
        let fine = ranges
            .map(|range| {
                VersionReq::parse(range).map_err(|error| format!("{id}: `{range}`: {error}"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Advisory {
            id: id.to_owned(),
            kind: kind.to_owned(),
            package: package.to_owned(),
            fine,
        })
    }

    fn complaint(&self, version: &Version) -> String {
        let Advisory {
            id, kind, package, ..
        } = self;
        format!("{package} {version}: {id} ({kind}), see https://rustsec.org/advisories/{id}")
    }
}

/// Names and versions in a Cargo.lock.
fn packages(lock: &str) -> Result<Vec<(String, Version)>, String> {
    let value = |line: &str, key: &str| {
        let quoted = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        quoted.strip_suffix('"').map(str::to_owned)
    };
    let lines: Vec<&str> = lock.lines().collect();
    let pairs = lines
        .windows(2)
        .filter_map(|pair| Some((value(pair[0], "name")?, value(pair[1], "version")?)));
    let packages = pairs
        .map(|(name, version)| match Version::parse(&version) {
            Ok(version) => Ok((name, version)),
            Err(error) => Err(format!("Cargo.lock: {name} {version}: {error}")),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if packages.is_empty() {
        Err("Cargo.lock names no package".to_owned())
    } else {
        Ok(packages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# a list of today\n# more\nR-1\tvulnerability\ta\t>= 1.2.3 | < 1.0.0\nR-2\tunmaintained\tb\t\n";
    const LOCK: &str = "[[package]]\nname = \"a\"\nversion = \"1.1.0\"\ndependencies = [\n \"b\",\n]\n\n[[package]]\nname = \"c\"\nversion = \"0.1.0\"\n";

    fn ids(lock: &str) -> Vec<String> {
        let (list, packages) = (List::of(LIST).unwrap(), packages(lock).unwrap());
        list.affected(&packages)
            .iter()
            .map(|(advisory, _)| advisory.id.clone())
            .collect()
    }

    #[test]
    fn an_affected_version_is_found_and_others_are_not() {
        assert_eq!(ids(LOCK), ["R-1"]);
        for fine in ["1.2.3", "0.9.0"] {
            assert_eq!(ids(&LOCK.replace("1.1.0", fine)), [""; 0]);
        }
        // No version of it is fine.
        assert_eq!(ids(&LOCK.replace("\"c\"", "\"b\"")), ["R-1", "R-2"]);
    }

    #[test]
    fn a_list_or_a_lock_that_says_nothing_is_an_error() {
        assert!(List::of("# a list of today\n").is_err());
        assert!(List::of("R-1\tvulnerability\ta\t\n").is_err());
        assert!(List::of("# a list\nR-1 a\n").is_err());
        assert!(packages("version = 4\n").is_err());
    }
}
