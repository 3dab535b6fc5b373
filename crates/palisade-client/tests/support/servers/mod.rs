//! Real servers of other systems, each in a folder and on a port of its own. They die with the thread
//! that started them, also when it is killed.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod etcd;
pub(crate) mod postgres;
pub(crate) mod zookeeper;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to serve.
const START: Duration = Duration::from_secs(30);

/// A server process.
pub(crate) struct Process(Child);

impl Process {
    /// Starts `program`, which `package` of Debian has.
    pub(crate) fn start(program: &str, package: &str, arguments: &[String]) -> Process {
        assert!(
            std::path::Path::new(program).exists(),
            "{program} is missing: install the Debian package {package}"
        );
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", program])
            .args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Process(command.spawn().expect("setpriv of util-linux"))
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port nobody listens on.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Looks again and again until it is so.
#[expect(
    clippy::disallowed_methods,
    reason = "a server that never serves must not hang the test"
)]
pub(crate) fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + START;
    while !ready() {
        assert!(Instant::now() < end, "{what} did not start in {START:?}");
        std::thread::sleep(Duration::from_millis(10)); // real time: another process has to start
    }
}

pub(crate) fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
