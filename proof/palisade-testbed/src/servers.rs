//! The servers, as packaged by Debian.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::instance::{Instance, Recipe, answers_with, data, nothing, owned, run};
use crate::members::{Etcd, ZooKeeper};

/// Gives each server the methods of [`Instance`], and a server shared by the whole process.
macro_rules! servers {
    ($($name:ident)*) => {$(
        impl Deref for $name {
            type Target = Instance;
            fn deref(&self) -> &Instance {
                &self.0
            }
        }

        impl $name {
            /// The server with default settings that all tests of this process share.
            pub fn shared() -> &'static $name {
                static SHARED: OnceLock<$name> = OnceLock::new();
                SHARED.get_or_init(|| $name::start(&[]))
            }
        }
    )*};
}

servers! { Redis Postgres MariaDb MySql Etcd ZooKeeper Nats Moto }

/// A program of a server: in the folder that this environment variable names, to test another version, or the installed one.
fn program(variable: &str, name: &str, installed: impl FnOnce() -> String) -> String {
    match std::env::var(variable) {
        Ok(folder) => format!("{folder}/{name}"),
        Err(_) => installed(),
    }
}

/// Redis, without persistence by default. `PALISADE_REDIS` names the folder of another `redis-server`.
pub struct Redis(Instance);

impl Redis {
    /// Starts it with these additional arguments.
    pub fn start(arguments: &[&str]) -> Redis {
        let more = owned(arguments);
        Redis(Instance::start(Recipe {
            name: "redis",
            install: "install the Debian package redis-server",
            ports: 1,
            prepare: nothing(),
            command: Box::new(move |dir, ports| {
                let (dir, port) = (dir.display().to_string(), ports[0].to_string());
                let server = program("PALISADE_REDIS", "redis-server", || {
                    "/usr/bin/redis-server".to_owned()
                });
                let mut command = owned(&[&server, "--port", &port]);
                command.extend(owned(&["--bind", "127.0.0.1", "--dir", &dir, "--save", ""]));
                command.extend(more.clone());
                command
            }),
            ready: |port| answers_with(port, b"PING\r\n", "+PONG"),
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }
}

/// PostgreSQL: superuser `postgres`, no password. `PALISADE_POSTGRES` names the folder of another version's programs.
pub struct Postgres(Instance);

impl Postgres {
    /// Starts it with these settings (`name=value`).
    pub fn start(settings: &[&str]) -> Postgres {
        let more = owned(settings);
        Postgres(Instance::start(Recipe {
            name: "postgres",
            install: "install the Debian package postgresql",
            ports: 1,
            prepare: Box::new(initdb),
            command: Box::new(move |dir, ports| {
                let mut command = as_postgres();
                command.push(postgres_program("postgres"));
                command.extend(owned(&["-D", &data(dir), "-p", &ports[0].to_string()]));
                let own = [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    "max_connections=300",
                ];
                for setting in own.iter().copied().chain(more.iter().map(String::as_str)) {
                    command.extend(owned(&["-c", setting]));
                }
                command
            }),
            ready: postgres_is_ready,
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }
}

fn initdb(dir: &Path) {
    let program = postgres_program("initdb");
    assert!(
        Path::new(&program).exists(),
        "{program} is missing: install the Debian package postgresql"
    );
    if rustix::process::getuid().is_root() {
        run(&owned(&["chown", "postgres", &dir.display().to_string()]));
    }
    let mut command = as_postgres();
    command.push(program);
    command.extend(owned(&[
        "-D",
        &data(dir),
        "-A",
        "trust",
        "-U",
        "postgres",
        "-E",
        "UTF8",
    ]));
    command.extend(owned(&["--locale=C.UTF-8", "--no-sync"]));
    run(&command);
}

/// Returns a program of the newest installed version, or of the one that the environment names.
fn postgres_program(name: &str) -> String {
    program("PALISADE_POSTGRES", name, || newest_postgres(name))
}

fn newest_postgres(name: &str) -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .map_or_else(|| "NN".to_owned(), |version| version.to_string());
    format!("/usr/lib/postgresql/{newest}/bin/{name}")
}

/// The command prefix that changes the user: the server refuses to run as root.
fn as_postgres() -> Vec<String> {
    if rustix::process::getuid().is_root() {
        let user = [
            "setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
        ];
        let mut command = owned(&user);
        // Changing the user clears the parent-death signal.
        command.extend(owned(&["--pdeathsig", "KILL"]));
        command
    } else {
        Vec::new()
    }
}

fn postgres_is_ready(port: u16) -> bool {
    let user = b"user\0postgres\0database\0postgres\0\0";
    let mut hello = (user.len() as u32 + 8).to_be_bytes().to_vec();
    hello.extend_from_slice(&196_608_u32.to_be_bytes());
    hello.extend_from_slice(user);
    answers_with(port, &hello, "server_version")
}

/// PgBouncer in front of a PostgreSQL, in transaction mode with two sessions.
pub struct PgBouncer(Instance);

impl PgBouncer {
    /// Starts it in front of this server.
    pub fn before(server: &Postgres) -> PgBouncer {
        let port = server.port();
        PgBouncer(Instance::start(Recipe {
            name: "pgbouncer",
            install: "install the Debian package pgbouncer",
            ports: 1,
            prepare: Box::new(|dir| {
                if rustix::process::getuid().is_root() {
                    run(&owned(&["chown", "postgres", &dir.display().to_string()]));
                }
            }),
            command: Box::new(move |dir, ports| {
                let config = dir.join("pgbouncer.ini");
                let text = format!(
                    "[databases]\n* = host=127.0.0.1 port={port} user=postgres\n\
                     [pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={}\nunix_socket_dir=\n\
                     auth_type=any\npool_mode=transaction\ndefault_pool_size=2\nmax_client_conn=200\n\
                     ignore_startup_parameters=extra_float_digits\n",
                    ports[0]
                );
                std::fs::write(&config, text).expect("a file in the server's folder");
                let mut command = as_postgres();
                command.push("/usr/sbin/pgbouncer".to_owned());
                command.push(config.display().to_string());
                command
            }),
            ready: postgres_is_ready,
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }
}

impl Deref for PgBouncer {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}

/// MariaDB: user and database `palisade`, no password. `PALISADE_MARIADB` names the folder of another version's programs.
pub struct MariaDb(Instance);

impl MariaDb {
    /// Starts it with these additional arguments.
    pub fn start(arguments: &[&str]) -> MariaDb {
        let more = owned(arguments);
        MariaDb(Instance::start(Recipe {
            name: "mariadb",
            install: "install the Debian package mariadb-server",
            ports: 1,
            prepare: Box::new(mariadb_install),
            command: Box::new(move |dir, ports| {
                let server = program("PALISADE_MARIADB", "mariadbd", || {
                    "/usr/sbin/mariadbd".to_owned()
                });
                let mut command = owned(&[&server, "--no-defaults", "--user=root"]);
                command.extend([
                    format!("--datadir={}", data(dir)),
                    mariadb_tmpdir(dir),
                    format!("--port={}", ports[0]),
                    format!("--socket={}/socket", dir.display()),
                    format!("--pid-file={}/pid", dir.display()),
                    format!("--init-file={}/init.sql", dir.display()),
                ]);
                command.extend(owned(&["--bind-address=127.0.0.1", "--skip-name-resolve"]));
                command.extend(more.clone());
                command
            }),
            // Its greeting contains its version, and the version contains the name.
            ready: |port| answers_with(port, b"", "MariaDB"),
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("mysql://palisade@127.0.0.1:{}/palisade", self.port())
    }
}

/// A separate folder: a starting server deletes the temporary tables of all others in its folder.
fn mariadb_tmpdir(dir: &Path) -> String {
    format!("--tmpdir={}", dir.display())
}

fn mariadb_install(dir: &Path) {
    let program = program("PALISADE_MARIADB", "mariadb-install-db", || {
        "/usr/bin/mariadb-install-db".to_owned()
    });
    assert!(
        Path::new(&program).exists(),
        "{program} is missing: install the Debian package mariadb-server"
    );
    let datadir = format!("--datadir={}", data(dir));
    let mut command = owned(&[&program, "--no-defaults", "--user=root", &datadir]);
    command.push(mariadb_tmpdir(dir));
    command.extend(owned(&[
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    ]));
    run(&command);
    write_init(dir);
}

fn write_init(dir: &Path) {
    let init = "CREATE DATABASE IF NOT EXISTS palisade;\n\
                CREATE USER IF NOT EXISTS 'palisade'@'%';\n\
                GRANT ALL ON *.* TO 'palisade'@'%' WITH GRANT OPTION;\n";
    std::fs::write(dir.join("init.sql"), init).expect("a file in the server's folder");
}

/// MySQL of Oracle: user and database `palisade`, no password. Debian's stable release has only MariaDB, so the server
/// lies in a folder with its own libraries and loader.
pub struct MySql(Instance);

impl MySql {
    /// Starts it with these additional arguments. The program is in `PALISADE_MYSQL` (the root of an unpacked Debian package
    /// mysql-server-core and of its dependencies), or where `cargo xtask test` unpacked it.
    pub fn start(arguments: &[&str]) -> MySql {
        let more = owned(arguments);
        MySql(Instance::start(Recipe {
            name: "mysql",
            install: "run `cargo xtask test`, which unpacks the Debian package mysql-server-core, or name the root of an unpacked one in PALISADE_MYSQL",
            ports: 1,
            prepare: Box::new(|dir| {
                let mut command = mysqld(dir);
                command.push("--initialize-insecure".to_owned());
                if Path::new(&command[0]).exists() {
                    run(&command);
                }
                write_init(dir);
            }),
            command: Box::new(move |dir, ports| {
                let mut command = mysqld(dir);
                command.extend([
                    format!("--port={}", ports[0]),
                    format!("--socket={}/socket", dir.display()),
                    format!("--pid-file={}/pid", dir.display()),
                    format!("--init-file={}/init.sql", dir.display()),
                ]);
                command.extend(owned(&[
                    "--bind-address=127.0.0.1",
                    "--mysqlx=OFF",
                    "--log-bin-trust-function-creators=1",
                ]));
                command.extend(more.clone());
                command
            }),
            // Its greeting names the way to log in, which MariaDB does not have.
            ready: |port| answers_with(port, b"", "caching_sha2_password"),
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("mysql://palisade@127.0.0.1:{}/palisade", self.port())
    }
}

/// The server with the loader and the libraries of its folder, and the settings that do not change.
fn mysqld(dir: &Path) -> Vec<String> {
    let named = std::env::var_os("PALISADE_MYSQL").map(PathBuf::from);
    let root = named.unwrap_or_else(|| crate::tools::installed("mysql/root"));
    let libraries = first_in(&root.join("usr/lib"), "-linux-gnu");
    let usr = root.join("usr").display().to_string();
    let loader = std::fs::read_dir(&libraries)
        .into_iter()
        .flatten()
        .flatten();
    let loader = loader.map(|entry| entry.path()).find(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
    });
    let loader = loader.unwrap_or_else(|| libraries.join("ld-linux"));
    let mut command = owned(&[
        &loader.display().to_string(),
        "--library-path",
        &libraries.display().to_string(),
        &format!("{usr}/sbin/mysqld"),
        "--no-defaults",
        &format!("--datadir={}", data(dir)),
        &format!("--tmpdir={}", dir.display()),
        &format!("--basedir={usr}"),
        &format!("--lc-messages-dir={usr}/share/mysql"),
        &format!("--character-sets-dir={usr}/share/mysql/charsets"),
        "--secure-file-priv=NULL",
    ]);
    if rustix::process::getuid().is_root() {
        command.push("--user=root".to_owned());
    }
    command
}

/// The first folder in `parent` whose name ends like this.
fn first_in(parent: &Path, end: &str) -> PathBuf {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    let found = paths.find(|path| path.to_string_lossy().ends_with(end));
    found.unwrap_or_else(|| parent.join(end))
}

/// NATS with JetStream.
pub struct Nats(Instance);

impl Nats {
    /// Starts it with these additional arguments.
    pub fn start(arguments: &[&str]) -> Nats {
        let more = owned(arguments);
        Nats(Instance::start(Recipe {
            name: "nats",
            install: "install the Debian package nats-server",
            ports: 1,
            prepare: nothing(),
            command: Box::new(move |dir, ports| {
                let port = ports[0].to_string();
                let mut command = owned(&["/usr/sbin/nats-server", "-a", "127.0.0.1", "-p", &port]);
                command.extend(owned(&["-js", "-sd", &data(dir)]));
                command.extend(more.clone());
                command
            }),
            ready: |port| answers_with(port, b"", "INFO"),
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port())
    }
}

/// `moto`: S3 and DynamoDB, in memory, one request at a time (`moto_one_at_a_time.py` explains why).
pub struct Moto(Instance);

impl Moto {
    /// Starts it with these additional arguments. The program is `PALISADE_MOTO` (the `moto_server` of a Python
    /// environment), the one that `cargo xtask test` installed, or the one on `PATH`.
    pub fn start(arguments: &[&str]) -> Moto {
        Moto::with(include_str!("moto_one_at_a_time.py"), arguments)
    }

    /// Starts moto with its own threads, which switch a thousand times as often as by default: two conditional
    /// writes can both pass their check. For control arms.
    pub fn concurrent() -> Moto {
        let program = "import sys, moto.server\n\
            sys.setswitchinterval(1e-5)\n\
            sys.exit(moto.server.main(sys.argv[1:]))";
        Moto::with(program, &[])
    }

    fn with(program: &'static str, arguments: &[&str]) -> Moto {
        let more = owned(arguments);
        Moto(Instance::start(Recipe {
            name: "moto",
            install: "run `cargo xtask test`, which installs it, or install moto[server] from PyPI and name its moto_server in PALISADE_MOTO",
            ports: 1,
            prepare: nothing(),
            command: Box::new(move |_, ports| {
                let port = ports[0].to_string();
                let mut command = owned(&[&python_of_moto(), "-c", program]);
                command.extend(owned(&["-H", "127.0.0.1", "-p", &port]));
                command.extend(more.clone());
                command
            }),
            ready: |port| {
                let request = b"GET /moto-api/ HTTP/1.1\r\nHost: moto\r\nConnection: close\r\n\r\n";
                answers_with(port, request, "200")
            },
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }
}

/// Returns the Python interpreter that has moto: the one beside its script, as in every Python environment, or
/// the one in the script's first line.
fn python_of_moto() -> String {
    let script = moto_server();
    let beside = script.canonicalize().unwrap_or_default();
    let beside = beside.with_file_name("python3");
    if beside.exists() {
        return beside.display().to_string();
    }
    let text = std::fs::read_to_string(&script).unwrap_or_default();
    let named = text.lines().next().and_then(|line| line.strip_prefix("#!"));
    named.map_or_else(|| "python3".to_owned(), |python| python.trim().to_owned())
}

fn moto_server() -> PathBuf {
    tool("PALISADE_MOTO", "moto", "moto_server")
}

/// Returns the tool that `cargo xtask test` installed, unless an environment variable names another one.
fn tool(variable: &str, environment: &str, program: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named.unwrap_or_else(|| crate::python_tool(environment, program))
}

/// An HTTP API without a fence, written in the usual way in Python: see `lenient_upstreams.py`.
pub struct LenientUpstream(Instance);

impl LenientUpstream {
    /// Starts `fastapi`, `flask` or `urlparse` with `PALISADE_UPSTREAMS` (the `python3` of an environment that
    /// has these libraries), or with the one that `cargo xtask test` installed.
    pub fn start(kind: &'static str) -> LenientUpstream {
        LenientUpstream(Instance::start(Recipe {
            name: kind,
            install: "run `cargo xtask test`, which installs it, or install fastapi, uvicorn and flask from PyPI and name their python3 in PALISADE_UPSTREAMS",
            ports: 1,
            prepare: nothing(),
            command: Box::new(move |_, ports| {
                let python = tool("PALISADE_UPSTREAMS", "upstreams", "python3");
                let program = include_str!("lenient_upstreams.py");
                let port = ports[0].to_string();
                owned(&[&python.display().to_string(), "-c", program, kind, &port])
            }),
            ready: |port| {
                let request = b"GET /log HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                answers_with(port, request, "200")
            },
        }))
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }
}

impl Deref for LenientUpstream {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}
