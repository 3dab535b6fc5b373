//! `palisade serve` against the conformance suite for authorities: a real process, a real SIGKILL.

#[path = "../../../palisade-client/tests/suite/support/relay.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod relay;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use palisade_authorities::conformance::{self, Habit, Subject};
use palisade_client::palisade::Palisade;
use palisade_client::{Fault, LockService};
use relay::Relay;

/// `palisade serve`, and connections to it that can be cut.
struct Server {
    dir: tempfile::TempDir,
    port: u16,
    process: Mutex<Process>,
    relay: Relay,
}

impl Server {
    async fn start() -> Server {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let process = Mutex::new(serve(dir.path(), port));
        let relay = Relay::to(address(port)).await;
        Server {
            dir,
            port,
            process,
            relay,
        }
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// The server's process; it dies with the thread that started it.
struct Process(Child);

impl Process {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn serve(dir: &Path, port: u16) -> Process {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            env!("CARGO_BIN_EXE_palisade"),
            "serve",
        ])
        .arg(format!("--listen={}", address(port)))
        .arg(format!("--data={}", dir.join("data").display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut process = Process(command.spawn().expect("setpriv of util-linux"));
    while TcpStream::connect(address(port)).is_err() {
        assert!(process.0.try_wait().unwrap().is_none(), "it did not start");
        std::thread::yield_now();
    }
    process
}

impl Subject for Server {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        let url = format!("palisade://{}", address(self.port));
        Ok(Arc::new(Palisade::connect(&url, 1).await?))
    }

    async fn connect_through(&self) -> Option<Result<Arc<dyn LockService>, Fault>> {
        let palisade = Palisade::connect(&self.relay.url(), 1).await;
        Some(palisade.map(|palisade| Arc::new(palisade) as _))
    }

    async fn cut(&self) {
        self.relay.cut();
    }

    async fn crash(&self) -> bool {
        let mut process = self.process.lock().unwrap();
        process.kill();
        *process = serve(self.dir.path(), self.port);
        true
    }
}

/// `PALISADE_CONFORMANCE_GRANTS=2000` runs the full battery.
#[tokio::test(flavor = "multi_thread")]
async fn palisade_serve_passes_the_suite_for_authorities() {
    let subject = Arc::new(Server::start().await);
    let habit = Habit::FULL.scaled().unwrap();
    conformance::run(&subject, habit).await.assert_passed();
}
