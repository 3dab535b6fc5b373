//! Flags of every command that listens: how many connections, and under which names.

use axum::http::uri::Authority;
use clap::Args;
use palisade_server::shell::{Hosts, Settings};

use super::failure::Failure;

/// What connections a server takes.
#[derive(Args, Clone, Debug)]
pub(super) struct NetworkArgs {
    /// Connections at the same time, 1 – 1000000; one more is closed at once. What the limit of open files
    /// leaves no room for is not taken, and said at the start.
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Connections of one address at the same time (IPv6: of one /64). Half of all if not given.
    #[arg(long, value_name = "N")]
    connections_per_address: Option<u32>,
    /// A name that this server goes by, beside localhost, its addresses and the name of the machine. May be
    /// repeated. Requests by other names are refused, because any web page can make its own name point here.
    #[arg(long = "allow-host", value_name = "NAME", value_parser = host)]
    allow_hosts: Vec<String>,
}

/// The name of a host, without a port.
fn host(text: &str) -> Result<String, String> {
    let named = text.parse::<Authority>().ok();
    match named.filter(|authority| authority.host() == text && !text.starts_with('[')) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write the name of a host alone, for example locks.example.org".to_owned()),
    }
}

impl NetworkArgs {
    /// The names that requests may use.
    pub(super) fn hosts(&self) -> Hosts {
        Hosts::Named(self.allow_hosts.clone())
    }

    /// The settings with what was given on the command line.
    pub(super) fn bounds(&self, settings: Settings) -> Result<Settings, Failure> {
        let settings = Settings {
            connections: self.connections.unwrap_or(settings.connections),
            connections_per_address: self.connections_per_address,
            ..settings
        };
        let checked = settings.check();
        checked.map_err(|bad| {
            let flag = bad.name.replace('_', "-");
            Failure::usage(format!("--{flag} is outside {}", bad.range))
        })?;
        Ok(settings)
    }
}
