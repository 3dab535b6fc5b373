//! Debian's postgresql.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{Process, free_port, until};

const BIN: &str = "/usr/lib/postgresql/15/bin";

pub(crate) struct Postgres {
    dir: tempfile::TempDir,
    port: u16,
    process: Process,
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        let dir = tempfile::tempdir().unwrap();
        // The server refuses to run as root.
        run("chown", &["postgres", dir.path().to_str().unwrap()]);
        let data = dir.path().join("data");
        let initdb = format!("{BIN}/initdb");
        assert!(
            Path::new(&initdb).exists(),
            "{initdb} is missing: install the Debian package postgresql"
        );
        let data = data.to_str().unwrap();
        run(
            "setpriv",
            &[
                "--reuid",
                "postgres",
                "--regid",
                "postgres",
                "--clear-groups",
                &initdb,
                "-D",
                data,
                "-A",
                "trust",
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--no-sync",
            ],
        );
        let port = free_port();
        let process = serve(dir.path(), port);
        let mut postgres = Postgres { dir, port, process };
        postgres.wait();
        postgres
    }

    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// SIGKILL, and again on the same data and port.
    pub(crate) fn crash(&mut self) {
        self.process.kill();
        self.process = serve(self.dir.path(), self.port);
        self.wait();
    }

    /// A second server on a copy of what this one has on disk by now; as a standby that took over.
    pub(crate) fn copied(&mut self) -> Postgres {
        self.process.kill();
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (self.dir.path().join("data"), dir.path().join("data"));
        let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
        run("chown", &["postgres", dir.path().to_str().unwrap()]);
        run("cp", &["-a", from, to]);
        let _ = std::fs::remove_file(dir.path().join("data/postmaster.pid"));
        let port = free_port();
        let process = serve(dir.path(), port);
        let mut copy = Postgres { dir, port, process };
        copy.wait();
        self.process = serve(self.dir.path(), self.port);
        self.wait();
        copy
    }

    fn wait(&mut self) {
        let ready = format!("{BIN}/pg_isready");
        let (dir, port) = (self.dir.path().to_owned(), self.port);
        let process = &mut self.process;
        until("postgres", || {
            // The processes of the one before may not have gone yet.
            if !process.runs() {
                *process = serve(&dir, port);
            }
            let port = port.to_string();
            let asked = ["-q", "-h", "127.0.0.1", "-p", &port];
            Command::new(&ready).args(asked).status().unwrap().success()
        });
    }
}

fn serve(dir: &Path, port: u16) -> Process {
    let data = dir.join("data").display().to_string();
    let arguments = [
        "--reuid=postgres",
        "--regid=postgres",
        "--clear-groups",
        "--pdeathsig",
        "KILL",
    ];
    let server = [
        format!("{BIN}/postgres"),
        "-D".to_owned(),
        data,
        "-p".to_owned(),
        port.to_string(),
        "-c".to_owned(),
        "listen_addresses=127.0.0.1".to_owned(),
        "-c".to_owned(),
        "unix_socket_directories=".to_owned(),
        "-c".to_owned(),
        "max_connections=300".to_owned(),
    ];
    let arguments: Vec<String> = arguments
        .map(str::to_owned)
        .into_iter()
        .chain(server)
        .collect();
    Process::start("/usr/bin/setpriv", "util-linux", &arguments)
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
