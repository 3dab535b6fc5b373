//! The upstream of the gateway attacks: Python's own HTTP server, which nobody here wrote.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::http;
use super::scene::{Program, Scene, Start};
use crate::chaos::process::Process;

/// A running upstream. It ends with its value.
pub(super) struct Upstream {
    _process: Process,
    pub(super) address: SocketAddr,
}

impl Upstream {
    /// Starts it; `None` where there is no Python.
    pub(super) fn start(scene: &Scene) -> Result<Option<Upstream>, String> {
        let words = ["python3", "-c", include_str!("upstream.py")].map(str::to_owned);
        let (tell, lines) = channel();
        let process = scene.other(&words, &[], move |line| drop(tell.send(line)))?;
        let port = lines.recv_timeout(Duration::from_secs(20)).ok().flatten();
        let port: Option<u16> = port.and_then(|line| line.parse().ok());
        Ok(port.map(|port| Upstream {
            _process: process,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }))
    }

    /// A gateway in front of it. Accounts are the resources, by typed placeholders where the program has them.
    pub(super) fn gateway(
        &self,
        scene: &Scene,
        name: &str,
        settings: &[&str],
    ) -> Result<Program, String> {
        let url = format!("http://{}", self.address);
        let start = |placeholder: &str| {
            let routes = ["accounts", "answers", "late"];
            let routes = routes.map(|kind| format!("/{kind}/{placeholder}=account:{{id}}"));
            let mut start = Start::new("gateway", &scene.path(name));
            start = start.with(&["--upstream", &url, "--admin", "127.0.0.1:0"]);
            for route in &routes {
                start = start.with(&["--route", route]);
            }
            scene.start(&start.with(settings))
        };
        start("{id:uint}").or_else(|_| start("{id}"))
    }

    /// What an account is, asked past the gateway.
    pub(super) fn value(&self, account: u32) -> Result<String, String> {
        let reply = http::get(self.address, &format!("/accounts/{account}"))?;
        Ok(reply.body)
    }
}
