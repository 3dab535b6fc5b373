//! Flags of every command that listens: connection limits and host names.

use axum::http::uri::Authority;
use clap::Args;
use palisade_server::shell::{Hosts, Settings};

use super::failure::Failure;

/// The connections that a server accepts.
#[derive(Args, Clone, Debug)]
pub(super) struct NetworkArgs {
    /// How many connections may be open, 1 – 1000000; the next one is closed at once. If the limit of open files
    /// allows fewer, the server says so when it starts.
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// How many connections one address may have (IPv6: one /64) [default: half of all].
    #[arg(long, value_name = "N")]
    connections_per_address: Option<u32>,
    /// A name of this server, besides localhost, its addresses and the machine's name. May be repeated. Requests
    /// with other names are refused, because any web page can point its own name here.
    #[arg(long = "allow-host", value_name = "NAME", value_parser = host)]
    allow_hosts: Vec<String>,
}

/// A host name without a port.
fn host(text: &str) -> Result<String, String> {
    let named = text.parse::<Authority>().ok();
    match named.filter(|authority| authority.host() == text && !text.starts_with('[')) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write only a host name, for example locks.example.org".to_owned()),
    }
}

impl NetworkArgs {
    /// The names that requests may use, with some that need not be given.
    pub(super) fn hosts(&self, more: impl Iterator<Item = String>) -> Hosts {
        Hosts::Named(self.allow_hosts.iter().cloned().chain(more).collect())
    }

    /// Applies the flags to the settings.
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
