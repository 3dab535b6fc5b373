//! The Palisade server that was built with this program.

use std::ops::Deref;

use palisade_testbed::{Instance, Program, answers_with};

use crate::lane::Error;

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// A running server; dropping it ends it.
pub(crate) struct Server(Program);

impl Server {
    pub(crate) fn start() -> Result<Server, Error> {
        let program = std::env::current_exe()?.with_file_name("palisade");
        if !program.exists() {
            return Err("the server is not built: cargo build --release".into());
        }
        let arguments = |dir: &std::path::Path, port| {
            let (data, listen) = (dir.join("data"), format!("127.0.0.1:{port}"));
            let data = data.display().to_string();
            ["serve", "--listen", &listen, "--data", &data]
                .map(str::to_owned)
                .to_vec()
        };
        let ready = |port| answers_with(port, HEALTH, "200");
        Ok(Server(Program::start(
            "palisade", &program, arguments, ready,
        )))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

impl Deref for Server {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}
