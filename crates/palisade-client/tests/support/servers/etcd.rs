//! Debian's etcd-server.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::{Process, free_port, until};

pub(crate) struct Etcd {
    dir: tempfile::TempDir,
    ports: [u16; 2],
    process: Process,
}

impl Etcd {
    pub(crate) fn start() -> Etcd {
        let dir = tempfile::tempdir().unwrap();
        let ports = [free_port(), free_port()];
        let process = serve(dir.path(), ports);
        let etcd = Etcd {
            dir,
            ports,
            process,
        };
        etcd.wait();
        etcd
    }

    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.ports[0]).into()
    }

    /// SIGKILL, and again on the same data and port.
    pub(crate) fn crash(&mut self) {
        self.process.kill();
        self.process = serve(self.dir.path(), self.ports);
        self.wait();
    }

    fn wait(&self) {
        until("etcd", || {
            post(self.address(), "/v3/maintenance/status", "{}")
                .is_ok_and(|answer| answer.contains("leader"))
        });
    }

    /// One call of the JSON gateway, which is not ours: how others use this server.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        post(self.address(), path, body).unwrap()
    }
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn serve(dir: &std::path::Path, [client, peer]: [u16; 2]) -> Process {
    let (client, peer) = (
        format!("http://127.0.0.1:{client}"),
        format!("http://127.0.0.1:{peer}"),
    );
    let arguments = [
        format!("--data-dir={}", dir.join("data").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--logger=zap".to_owned(),
        "--log-level=error".to_owned(),
    ];
    Process::start("/usr/bin/etcd", "etcd-server", &arguments)
}
