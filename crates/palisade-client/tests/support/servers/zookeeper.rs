//! Debian's zookeeper, one member.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::{Process, free_port, until};

pub(crate) struct ZooKeeper {
    dir: tempfile::TempDir,
    port: u16,
    process: Process,
}

impl ZooKeeper {
    /// Sessions last 1 s – 60 s, and empty containers go within a tenth of a second.
    pub(crate) fn start() -> ZooKeeper {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let settings = format!(
            "tickTime=500\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nmaxSessionTimeout=60000\nadmin.enableServer=false\n",
            dir.path().display()
        );
        std::fs::write(dir.path().join("zoo.cfg"), settings).unwrap();
        let process = serve(dir.path());
        let zookeeper = ZooKeeper { dir, port, process };
        zookeeper.wait();
        zookeeper
    }

    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// SIGKILL, and again on the same data and port.
    pub(crate) fn crash(&mut self) {
        self.process.kill();
        self.process = serve(self.dir.path());
        self.wait();
    }

    fn wait(&self) {
        until("zookeeper", || {
            ask(self.address(), "srvr").is_ok_and(|answer| answer.contains("Mode:"))
        });
    }
}

/// One of its four-letter words.
fn ask(address: SocketAddr, word: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    // One that is accepted while the server starts is never answered.
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn serve(dir: &Path) -> Process {
    let jar = "/usr/share/java/zookeeper.jar";
    assert!(
        Path::new(jar).exists(),
        "{jar} is missing: install the Debian package zookeeper"
    );
    let arguments = [
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-Dznode.container.checkIntervalMs=100",
        "-cp",
        jar,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        &dir.join("zoo.cfg").display().to_string(),
    ];
    Process::start("/usr/bin/java", "zookeeper", &arguments.map(str::to_owned))
}
