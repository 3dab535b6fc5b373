//! The upstream of the gateway attacks: Python's own HTTP server, an independent implementation.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::harness::{Harness, Program, Start};
use super::http;
use crate::chaos::process::Process;

/// A running upstream; dropping it ends it.
pub(super) struct Upstream {
    _process: Process,
    pub(super) address: SocketAddr,
}

impl Upstream {
    /// Starts it; `None` without Python.
    pub(super) fn start(harness: &Harness) -> Result<Option<Upstream>, String> {
        let words = ["python3", "-c", include_str!("upstream.py")].map(str::to_owned);
        let (sender, lines) = channel();
        let process = harness.other(&words, &[], move |line| drop(sender.send(line)))?;
        let port = lines.recv_timeout(Duration::from_secs(20)).ok().flatten();
        let port: Option<u16> = port.and_then(|line| line.parse().ok());
        Ok(port.map(|port| Upstream {
            _process: process,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }))
    }

    /// A gateway in front of it. The accounts are the resources, with typed placeholders if the program supports them.
    pub(super) fn gateway(
        &self,
        harness: &Harness,
        name: &str,
        settings: &[&str],
    ) -> Result<Program, String> {
        let url = format!("http://{}", self.address);
        let start = |placeholder: &str| {
            let routes = ["accounts", "answers", "late"];
            let routes = routes.map(|kind| format!("/{kind}/{placeholder}=account:{{id}}"));
            let mut start = Start::new("gateway", &harness.path(name));
            start = start.with(&["--upstream", &url, "--admin", "127.0.0.1:0"]);
            for route in &routes {
                start = start.with(&["--route", route]);
            }
            harness.start(&start.with(settings))
        };
        start("{id:uint}").or_else(|_| start("{id}"))
    }

    /// An account's value, requested past the gateway.
    pub(super) fn value(&self, account: u32) -> Result<String, String> {
        let reply = http::get(self.address, &format!("/accounts/{account}"))?;
        Ok(reply.body)
    }
}
