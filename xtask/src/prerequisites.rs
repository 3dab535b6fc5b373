//! The programs that the tests need besides Rust. They are installed where that is allowed, and named elsewhere.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{judges, root, run};

pub(crate) struct Prerequisite {
    pub(crate) name: &'static str,
    /// A command that succeeds where it is installed.
    pub(crate) probe: &'static [&'static str],
    /// The Debian packages that bring it.
    pub(crate) packages: &'static [&'static str],
    pub(crate) needed_for: &'static str,
}

/// Tools from PyPI live in environments of their own.
const PYTHON: Prerequisite = Prerequisite {
    name: "Python 3.11 or later with venv",
    probe: &[
        "python3",
        "-c",
        "import sys, venv, ensurepip; assert sys.version_info >= (3, 11)",
    ],
    packages: &["python3-venv"],
    needed_for: "the client in Python, and tools that come from PyPI",
};

/// The gate's prerequisites besides Rust.
pub(crate) const OF_THE_GATE: &[Prerequisite] = &[PYTHON];

pub(crate) const PREREQUISITES: &[Prerequisite] = &[
    Prerequisite {
        name: "git",
        probe: &["git", "--version"],
        packages: &["git"],
        needed_for: "listing the files that the gate reads",
    },
    Prerequisite {
        name: "a C compiler and linker",
        probe: &["cc", "--version"],
        packages: &["gcc", "libc6-dev"],
        needed_for: "linking every program, and libraries that bring C code",
    },
    Prerequisite {
        name: "the header files of Python",
        probe: &[
            "python3",
            "-c",
            "import os, sysconfig; assert os.path.exists(sysconfig.get_path('include') + '/Python.h')",
        ],
        packages: &["python3-dev"],
        needed_for: "uWSGI, on which the client in Python is tested",
    },
    Prerequisite {
        name: "iproute2",
        probe: &["ip", "-V"],
        packages: &["iproute2"],
        needed_for: "network namespaces, in which a machine can vanish",
    },
    Prerequisite {
        name: "curl",
        probe: &["curl", "--version"],
        packages: &["curl"],
        needed_for: "the commands of the README",
    },
    Prerequisite {
        name: "adduser, strip and deb-systemd-helper",
        probe: &[
            "sh",
            "-c",
            "adduser --version && strip --version && command -v deb-systemd-helper",
        ],
        packages: &["adduser", "binutils", "init-system-helpers"],
        needed_for: "building and installing the Debian package",
    },
    Prerequisite {
        name: "systemd-analyze",
        probe: &["systemd-analyze", "--version"],
        packages: &["systemd"],
        needed_for: "judging the unit file",
    },
    Prerequisite {
        name: "rsync",
        probe: &["rsync", "--version"],
        packages: &["rsync"],
        needed_for: "putting an older copy of a data directory back in place, and a recipe",
    },
    Prerequisite {
        name: "restic and borg",
        probe: &["sh", "-c", "restic version && borg --version"],
        packages: &["restic", "borgbackup"],
        needed_for: "the recipes of docs/use/shells.md",
    },
    Prerequisite {
        name: "nginx and haproxy",
        probe: &[
            "test",
            "-x",
            "/usr/sbin/nginx",
            "-a",
            "-x",
            "/usr/sbin/haproxy",
        ],
        packages: &["nginx", "haproxy"],
        needed_for: "clients behind proxies with their default settings",
    },
    Prerequisite {
        name: "less, vim and ssh-keygen",
        probe: &[
            "sh",
            "-c",
            "command -v less && command -v vim && command -v ssh-keygen",
        ],
        packages: &["less", "vim", "openssh-client"],
        needed_for: "jobs that read the terminal",
    },
    Prerequisite {
        name: "Redis",
        probe: &["redis-server", "--version"],
        packages: &["redis-server"],
        needed_for: "the fence and the authority on Redis",
    },
    Prerequisite {
        name: "PostgreSQL",
        probe: &["sh", "-c", "ls /usr/lib/postgresql/*/bin/postgres"],
        packages: &["postgresql"],
        needed_for: "the fence and the authority on PostgreSQL",
    },
    Prerequisite {
        name: "PgBouncer",
        probe: &["test", "-x", "/usr/sbin/pgbouncer"],
        packages: &["pgbouncer"],
        needed_for: "the authority on PostgreSQL behind a transaction pooler",
    },
    Prerequisite {
        name: "MariaDB",
        probe: &["test", "-x", "/usr/sbin/mariadbd"],
        packages: &["mariadb-server"],
        needed_for: "the fence on MySQL and MariaDB",
    },
    Prerequisite {
        name: "etcd",
        probe: &["test", "-x", "/usr/bin/etcd"],
        packages: &["etcd-server"],
        needed_for: "the authority on etcd",
    },
    Prerequisite {
        name: "ZooKeeper",
        probe: &["test", "-f", "/usr/share/java/zookeeper.jar"],
        packages: &["zookeeper"],
        needed_for: "the authority on ZooKeeper",
    },
    Prerequisite {
        name: "Java",
        probe: &["test", "-x", "/usr/bin/java"],
        packages: &["default-jre-headless"],
        needed_for: "running ZooKeeper",
    },
    Prerequisite {
        name: "NATS",
        probe: &["test", "-x", "/usr/sbin/nats-server"],
        packages: &["nats-server"],
        needed_for: "the comparison with other systems",
    },
    PYTHON,
    Prerequisite {
        name: "Go 1.26 or later",
        probe: &[
            "sh",
            "-c",
            "PATH=$(clients/go/newest):$PATH && cd clients/go && GOTOOLCHAIN=local go list .",
        ],
        packages: &["golang-go"],
        needed_for: "the client in Go (Debian 12 and 13 have an older Go: take one of https://go.dev/dl there)",
    },
    Prerequisite {
        name: "Node 20.19 or later with npm",
        probe: &[
            "sh",
            "-c",
            "npm --version && node -e 'const [major, minor] = process.versions.node.split(\".\"); process.exit(major * 100 + +minor < 2019 ? 1 : 0)'",
        ],
        packages: &["nodejs", "npm"],
        needed_for: "the client in TypeScript, its linters and its fences (Debian 12 has an older Node: take one of https://nodejs.org there)",
    },
    Prerequisite {
        name: "a JDK 17 or later with Maven",
        probe: &["sh", "-c", "javac --release 17 -version && mvn -version"],
        packages: &["default-jdk-headless", "maven"],
        needed_for: "the client in Java and its fences",
    },
    Prerequisite {
        name: "Chromium",
        probe: &["test", "-x", "/usr/bin/chromium"],
        packages: &["chromium"],
        needed_for: "looking at the server's page",
    },
    Prerequisite {
        name: "promtool",
        probe: &["promtool", "--version"],
        packages: &["prometheus"],
        needed_for: "judging what /metrics says",
    },
];

/// The program that counts instructions.
pub(crate) const CALLGRIND: &[Prerequisite] = &[Prerequisite {
    name: "valgrind",
    probe: &["valgrind", "--version"],
    packages: &["valgrind"],
    needed_for: "counting the instructions of the hot path",
}];

/// The program that builds container images.
pub(crate) const BUILDAH: &[Prerequisite] = &[
    Prerequisite {
        name: "buildah",
        probe: &["buildah", "--version"],
        packages: &["buildah"],
        needed_for: "building the image as its Dockerfile says",
    },
    Prerequisite {
        name: "a static C library",
        probe: &["sh", "-c", "test -e \"$(cc -print-file-name=libc.a)\""],
        packages: &["libc6-dev"],
        needed_for: "linking a program that needs no other file",
    },
];

/// A prerequisite of the tests that this machine lacks.
#[derive(Debug)]
pub(crate) struct Lack {
    pub(crate) name: String,
    /// A test that fails for the lack of it names one of these.
    words: Vec<String>,
    /// The remedy, or the command to type.
    pub(crate) advice: String,
}

impl Lack {
    pub(crate) fn new(name: &str, words: &[&str], advice: &str) -> Self {
        Self {
            name: name.to_owned(),
            words: words.iter().map(|word| word.to_lowercase()).collect(),
            advice: advice.to_owned(),
        }
    }

    fn of_row(row: &Prerequisite) -> Self {
        let names = row.name.split(", ").flat_map(|names| names.split(" and "));
        let words: Vec<&str> = names.chain(row.packages.iter().copied()).collect();
        Self::new(row.name, &words, &advice(&[row]))
    }

    /// Whether a test of this name that failed with these words names it, as a word of its own.
    pub(crate) fn explains(&self, test: &str, said: &str) -> bool {
        if self.name == ROOT && test.contains("namespace") {
            return true;
        }
        // The line before the message names the test and its file, whatever went wrong.
        let message = |line: &&str| !line.contains(" panicked at ");
        let mut message: Vec<&str> = said.lines().filter(message).collect();
        // A program that could not be started is often not named, except by the test that starts it.
        if said.contains("kind: NotFound") {
            message.push(test);
        }
        let text = message.join("\n").to_lowercase();
        self.words.iter().any(|word| {
            text.match_indices(word).any(|(at, _)| {
                let part = |letter: char| letter.is_alphanumeric();
                !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part)
            })
        })
    }
}

/// The name of a lack: what only root may do.
pub(crate) const ROOT: &str = "root";

/// Provides what the tests need, and returns what could not be had.
///
/// # Errors
/// This machine judges, and something could not be had.
pub(crate) fn provide(target: &Path) -> Result<Vec<Lack>, String> {
    let complete = ensure(PREREQUISITES);
    let mut lacks = missing(PREREQUISITES);
    if judges() {
        complete?;
    }
    let mut add = |name: &str, words: &[&str], outcome: Result<(), String>| match outcome {
        Err(complaint) if judges() => Err(complaint),
        Err(complaint) => {
            lacks.push(Lack::new(name, words, &complaint));
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    for tools in ENVIRONMENTS.iter().filter(|tools| !tools.is_replaced()) {
        let words = [&[tools.name], tools.brings].concat();
        add(tools.needed_for, &words, tools.ensure(target).map(drop))?;
    }
    let postgres = ensure_postgres(&environment(target, "postgres"));
    add(
        "other versions of PostgreSQL",
        &["xtask/tools/postgres"],
        postgres,
    )?;
    add(
        "MySQL",
        &["mysql"],
        ensure_mysql(&environment(target, "mysql")),
    )?;
    if !is_root() {
        let refused = ["operation not permitted", "permission denied", "superuser"];
        lacks.push(Lack::new(
            ROOT,
            &refused,
            "type: sudo --preserve-env=PATH,HOME cargo xtask test",
        ));
    }
    Ok(lacks)
}

/// Makes sure that the environment of this name is there.
///
/// # Errors
/// It could not be installed.
pub(crate) fn ensure_environment(name: &str, target: &Path) -> Result<(), String> {
    let mut named = ENVIRONMENTS.iter().filter(|tools| tools.name == name);
    named.try_for_each(|tools| tools.ensure(target).map(drop))
}

/// The rows of the table that this machine lacks.
pub(crate) fn missing(table: &[Prerequisite]) -> Vec<Lack> {
    let missing = table.iter().filter(|row| !is_there(row));
    missing.map(Lack::of_row).collect()
}

/// Makes sure that everything in the table is there.
///
/// # Errors
/// Something is missing and was not installed; the message holds the command that would.
pub(crate) fn ensure(table: &[Prerequisite]) -> Result<(), String> {
    let missing: Vec<&Prerequisite> = table.iter().filter(|row| !is_there(row)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for row in &missing {
        println!("missing: {}, needed for {}", row.name, row.needed_for);
    }
    if !may_install() {
        return Err(advice(&missing));
    }
    run(apt().arg("update"))?;
    run(apt()
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages(&missing)))?;
    match missing.iter().find(|row| !is_there(row)) {
        Some(row) => Err(format!(
            "{} is still missing after the installation",
            row.name
        )),
        None => Ok(()),
    }
}

/// Tools from PyPI in a virtual environment of their own, beside the build. `xtask/tools/NAME.txt` locks every package
/// with its checksums.
pub(crate) struct Environment {
    /// Its folder in `palisade-tools`, and its lock's name.
    name: &'static str,
    /// A variable that names a program to use instead.
    variable: Option<&'static str>,
    /// A program that is there once it is installed.
    program: &'static str,
    /// Other names by which a test may call it.
    brings: &'static [&'static str],
    needed_for: &'static str,
}

/// The gate's tools.
pub(crate) const GATE: Environment = Environment {
    name: "gate",
    variable: None,
    program: "bin/cargo-deny",
    brings: &[],
    needed_for: "cargo-deny, cargo-hack, lychee and typos",
};

/// The builder of the book.
pub(crate) const BOOK: Environment = Environment {
    name: "docs",
    variable: None,
    program: "bin/mdbook",
    brings: &[],
    needed_for: "mdBook, which builds the pages of docs/ as a book",
};

/// The tools that build and judge packages of Python.
pub(crate) const RELEASE: Environment = Environment {
    name: "release",
    variable: None,
    program: "bin/twine",
    brings: &[],
    needed_for: "build, hatchling and twine, which make the packages of Python",
};

/// The testbed looks for these files.
pub(crate) const ENVIRONMENTS: &[Environment] = &[
    Environment {
        name: "moto",
        variable: Some("PALISADE_MOTO"),
        program: "bin/moto_server",
        brings: &["moto_server"],
        needed_for: "S3 and DynamoDB",
    },
    Environment {
        name: "judges",
        variable: None,
        program: "bin/schemathesis",
        brings: &["schemathesis", "openapi-python-client"],
        needed_for: "two judges of the OpenAPI document: one attacks the server by it, the other writes a client",
    },
    Environment {
        name: "browser",
        variable: None,
        program: "bin/playwright",
        brings: &["playwright"],
        needed_for: "driving Chromium, and judging whether everybody can use the page",
    },
    Environment {
        name: "kubernetes",
        variable: None,
        program: "bin/kubernetes-validate",
        brings: &["kubernetes-validate"],
        needed_for: "the schemas of Kubernetes",
    },
    Environment {
        name: "upstreams",
        variable: Some("PALISADE_UPSTREAMS"),
        program: "bin/uvicorn",
        brings: &["fastapi", "flask", "uvicorn"],
        needed_for: "HTTP APIs without a fence, behind the gateway",
    },
];

/// Where the environment of this name is.
pub(crate) fn environment(target: &Path, name: &str) -> PathBuf {
    target.join("palisade-tools").join(name)
}

impl Environment {
    /// Whether a variable names a program to use instead.
    fn is_replaced(&self) -> bool {
        self.variable
            .is_some_and(|name| std::env::var_os(name).is_some())
    }

    /// Makes sure that it is there, in the versions of its lock, and returns its folder.
    ///
    /// # Errors
    /// It could not be installed; the message says what for, and what to type.
    pub(crate) fn ensure(&self, target: &Path) -> Result<PathBuf, String> {
        let place = environment(target, self.name);
        let lock = root()
            .join("xtask/tools")
            .join(format!("{}.txt", self.name));
        // The lock that it was installed from lies beside it, so another one is noticed.
        let installed = place.join("lock.txt");
        let wanted =
            std::fs::read(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
        if place.join(self.program).exists()
            && std::fs::read(&installed).is_ok_and(|is| is == wanted)
        {
            return Ok(place);
        }
        println!("installing {} into {}", lock.display(), place.display());
        let mut venv = Command::new("python3");
        let mut pip = Command::new(place.join("bin/pip"));
        pip.args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "--requirement",
        ]);
        run(venv.args(["-m", "venv", "--clear"]).arg(&place))
            .and_then(|()| run(pip.arg(&lock)))
            .map_err(|error| {
                format!(
                    "{error}: it is needed for {}; with PyPI in reach, type: python3 -m venv {place} && {place}/bin/pip install --require-hashes -r {}",
                    self.needed_for,
                    lock.display(),
                    place = place.display(),
                )
            })?;
        std::fs::write(&installed, wanted)
            .map_err(|error| format!("{}: {error}", installed.display()))?;
        Ok(place)
    }
}

/// PostgreSQL in other versions than this machine's, as npm has it for this processor: `xtask/tools/postgres` locks it with
/// checksums.
fn ensure_postgres(place: &Path) -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let lock = root().join("xtask/tools/postgres");
    let read =
        |file: &Path| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let wanted = read(&lock.join("package-lock.json"))?;
    let installed = place.join("installed.json");
    if std::fs::read(&installed).is_ok_and(|is| is == wanted) {
        return Ok(());
    }
    println!("installing {} into {}", lock.display(), place.display());
    let made = std::fs::create_dir_all(place);
    made.map_err(|error| format!("{}: {error}", place.display()))?;
    for name in ["package.json", "package-lock.json"] {
        let copied = std::fs::copy(lock.join(name), place.join(name));
        copied.map_err(|error| format!("{name}: {error}"))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--no-audit", "--no-fund"]);
    run(npm.current_dir(place)).map_err(|error| {
        format!("{error}: the oldest and the newest PostgreSQL are missing, with which the fence is tested; with npm's registry in reach, try again")
    })?;
    std::fs::write(&installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))
}

/// MySQL of Oracle, which Debian's stable release does not have: mysql-server-core of its unstable release and the
/// packages that this depends on, unpacked beside what is built. Nothing is installed. The packages come from where the
/// machine takes its own.
const UNPACK_MYSQL: &str = r#"
mkdir -p debs root etc state/lists/partial cache/archives/partial && touch state/status
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | sort | uniq -c | sort -rn | awk 'NR == 1 {print $2}')
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >etc/sources.list
cat >apt.conf <<END
Dir::State "$PWD/state";
Dir::State::status "$PWD/state/status";
Dir::Cache "$PWD/cache";
Dir::Etc::sourcelist "$PWD/etc/sources.list";
Dir::Etc::sourceparts "/nonexistent";
APT::Sandbox::User "root";
END
export APT_CONFIG=$PWD/apt.conf
apt-get update -qq
needed=$(apt-get install -s --no-install-recommends mysql-server-core | awk '/^Inst/ {print $2}')
cd debs && apt-get download -q $needed
for package in *.deb; do dpkg-deb -x "$package" ../root; done
"#;

fn ensure_mysql(place: &Path) -> Result<(), String> {
    if std::env::var_os("PALISADE_MYSQL").is_some() || place.join("root/usr/sbin/mysqld").exists() {
        return Ok(());
    }
    println!("unpacking mysql-server-core into {}", place.display());
    std::fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
    let unpacked = run(Command::new("sh")
        .args(["-e", "-c", UNPACK_MYSQL])
        .current_dir(place));
    unpacked.map_err(|error| {
        format!(
            "{error}: MySQL is missing, which the tests of its fence need. Without apt-get, name the root of an unpacked \
             mysql-server-core and of what it depends on in PALISADE_MYSQL"
        )
    })
}

fn is_there(row: &Prerequisite) -> bool {
    let Some((program, arguments)) = row.probe.split_first() else {
        return true;
    };
    let quiet = || Stdio::null();
    let status = Command::new(program)
        .args(arguments)
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Root on Debian or a system like it.
fn may_install() -> bool {
    is_root() && Path::new("/etc/debian_version").exists()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    command
}

fn packages<'a>(missing: &[&'a Prerequisite]) -> Vec<&'a str> {
    missing
        .iter()
        .flat_map(|row| row.packages.iter().copied())
        .collect()
}

fn advice(missing: &[&Prerequisite]) -> String {
    format!(
        "install what is missing (on Debian: sudo apt-get install --yes {}) and try again",
        packages(missing).join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_and_what_is_not_is_named() {
        let row = |probe: &'static [&'static str]| Prerequisite {
            name: "a",
            probe,
            packages: &["b", "c"],
            needed_for: "d",
        };
        assert!(is_there(&row(&["cargo", "--version"])));
        assert!(!is_there(&row(&["palisade-no-such-program"])));
        assert!(!is_there(&row(&["cargo", "--no-such-flag"])));
        assert!(advice(&[&row(&[])]).contains("apt-get install --yes b c)"));
    }

    #[test]
    fn a_failure_names_what_the_machine_lacks_as_a_word() {
        let row = |name, packages| Prerequisite {
            name,
            probe: &["palisade-no-such-program"],
            packages,
            needed_for: "d",
        };
        let table = [
            row("less, vim and ssh-keygen", &["less", "vim"]),
            row("Redis", &["redis-server"]),
        ];
        let lacks = missing(&table);
        let named = |text: &str| lacks.iter().position(|lack| lack.explains("a", text));
        assert_eq!(named("palisade: less: No such file or directory"), Some(0));
        assert_eq!(
            named("redis is missing (/usr/bin/redis-server): install it"),
            Some(1)
        );
        let panic = "thread 'redis::a' panicked at tests/redis.rs:1:2:\n1 != 2";
        assert_eq!(named(panic), None);
        let unnamed = "called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound }";
        assert_eq!(named(unnamed), None);
        assert!(lacks[0].explains("vim_shows_it", unnamed));
        assert!(!lacks[0].explains("vim_shows_it", "1 != 2"));
        assert_eq!(named("nothing, unless it is useless: 1 != 2"), None);
        assert!(
            lacks[1]
                .advice
                .contains("apt-get install --yes redis-server")
        );
        let there = Prerequisite {
            probe: &["cargo", "--version"],
            ..row("cargo", &[])
        };
        assert!(missing(&[there]).is_empty());
    }

    #[test]
    fn every_row_can_be_checked_and_installed() {
        for row in PREREQUISITES.iter().chain(CALLGRIND).chain(BUILDAH) {
            assert!(
                !row.probe.is_empty() && !row.packages.is_empty() && !row.needed_for.is_empty(),
                "{}",
                row.name
            );
        }
    }
}
