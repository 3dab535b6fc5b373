//! Flags of every command that listens: connection limits and host names.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::http::uri::Authority;
use clap::{Args, ValueHint};
use palisade_client::TlsFiles;
use palisade_server::shell::{Hosts, Listen, Settings};
use palisade_tls::ServerFiles;

use super::failure::Failure;

/// The connections that a server accepts.
#[derive(Args, Clone, Debug)]
pub(super) struct NetworkArgs {
    /// The settings file. Flags win over environment variables (PALISADE_LISTEN for --listen, and so on), and those over the
    /// file. `palisade config show --origin` prints what is in force and where it comes from.
    #[arg(long, value_name = "FILE", env = "PALISADE_CONFIG", value_hint = ValueHint::FilePath)]
    pub(super) config: Option<PathBuf>,
    /// How many connections may be open, 1 – 1000000; the next one is closed at once. If the limit of open files
    /// allows fewer, the server says so when it starts.
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// How many connections one address may have (IPv6: one /64), or one user of a Unix socket [default: half of all].
    #[arg(long, value_name = "N")]
    connections_per_address: Option<u32>,
    /// A name of this server, besides localhost, its addresses and the machine's name. May be repeated. Requests
    /// with other names are refused, because any web page can point its own name here.
    #[arg(long = "allow-host", value_name = "NAME", value_parser = host)]
    allow_hosts: Vec<String>,
    /// The certificate of this server, in PEM, with those between it and its CA. With it, ports speak TLS only; a Unix
    /// socket has no TLS. It is read again at SIGHUP and when the file changes.
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    tls_key: Option<PathBuf>,
    /// The CA of the clients, in PEM: clients without a certificate of this CA are refused. A server with --access
    /// takes a token in place of a certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    tls_client_ca: Option<PathBuf>,
    /// The list of certificates that --tls-client-ca has revoked (CRL), in PEM: a client whose certificate is in it is
    /// refused, also on a connection that is open. It is read again as --tls-cert is.
    #[arg(long, value_name = "FILE", requires = "tls_client_ca", value_hint = ValueHint::FilePath)]
    tls_client_crl: Option<PathBuf>,
    /// Send spans of grants and of rejected writes to the OpenTelemetry collector at this URL, as OTLP over HTTP, for
    /// callers whose `traceparent` says that their trace is recorded. Also from OTEL_EXPORTER_OTLP_ENDPOINT.
    #[arg(long, value_name = "URL")]
    pub(super) otlp: Option<crate::otlp::Endpoint>,
    /// Listen where other machines can connect, without a way to know the callers.
    #[arg(long)]
    insecure: bool,
}

/// A port must meet this condition before other machines may reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerCheck {
    /// The callers authenticate themselves.
    Known,
    /// The port only needs TLS, which encrypts the callers' credentials. The service behind it authenticates them.
    Encrypted,
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
    /// Refuses addresses of --listen as [`admit`](NetworkArgs::admit) does. A Unix socket is for this machine only.
    pub(super) fn admit_all(
        &self,
        listen: &[Listen],
        callers: CallerCheck,
        anybody: &str,
    ) -> Result<(), Failure> {
        let mut ports = listen.iter().filter_map(Listen::tcp);
        ports.try_for_each(|at| self.admit("--listen", at, callers, anybody))
    }

    /// Refuses certificates that no port would show.
    pub(super) fn check_tls(&self, listen: &[Listen]) -> Result<(), Failure> {
        if self.tls_cert.is_none() || listen.iter().any(|at| at.tcp().is_some()) {
            return Ok(());
        }
        let why =
            "--tls-cert: a Unix socket has no TLS, because nobody is between its two processes";
        Err(Failure::usage(why).hint("leave --tls-cert out, or add a port: --listen ADDRESS"))
    }

    /// Refuses an address that other machines can reach, unless the callers prove who they are. `anybody` describes the
    /// rights of a client there.
    pub(super) fn admit(
        &self,
        flag: &str,
        at: SocketAddr,
        callers: CallerCheck,
        anybody: &str,
    ) -> Result<(), Failure> {
        let proved = match callers {
            CallerCheck::Known => self.tls_client_ca.is_some(),
            CallerCheck::Encrypted => self.tls_cert.is_some(),
        };
        if proved || self.insecure || at.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        let (with, why) = match callers {
            CallerCheck::Known => (
                "--tls-cert FILE --tls-key FILE --tls-client-ca FILE",
                "nothing shows who they are",
            ),
            CallerCheck::Encrypted => ("--tls-cert FILE --tls-key FILE", "nothing is encrypted"),
        };
        Err(Failure::usage(format!(
            "{flag} {at}: other machines could reach this port and {anybody}, and {why}"
        ))
        .hint(format!(
            "set up certificates: {with} (`palisade auth cert` makes them for a test or a home network); or, on a \
             network where you trust everybody, add --insecure; or listen on 127.0.0.1:{}",
            at.port()
        )))
    }

    /// The files of the port's TLS.
    fn tls(&self) -> Option<ServerFiles> {
        Some(ServerFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.tls_client_ca.clone(),
            client_crl: self.tls_client_crl.clone(),
            certificate_optional: false,
        })
    }

    /// How this server's URLs begin.
    pub(super) fn scheme(&self) -> &'static str {
        match self.tls_cert {
            Some(_) => "https",
            None => "http",
        }
    }

    /// The certificates for connections with the other nodes of a cluster, whose CA may be another one than that of the
    /// clients. `None` without TLS.
    pub(super) fn to_peers(&self, peer_ca: Option<&Path>) -> Result<Option<ServerFiles>, Failure> {
        let Some(own) = self.tls() else {
            return Ok(None);
        };
        let ca = peer_ca.map(Path::to_owned).or(own.client_ca.clone());
        let Some(ca) = ca else {
            return Err(Failure::usage(
                "with --tls-cert the nodes of a cluster show each other certificates, and no CA is named for them",
            )
            .hint("name it with --peer-ca FILE (or --tls-client-ca, if clients need certificates of it, too)"));
        };
        Ok(Some(ServerFiles {
            client_ca: Some(ca),
            // A token is nothing to a node.
            client_crl: None,
            certificate_optional: false,
            ..own
        }))
    }

    /// The certificates with which this server asks others of its cluster: its own, and their CA.
    pub(super) fn to_others(&self, peer_ca: Option<&Path>) -> TlsFiles {
        TlsFiles {
            ca: peer_ca.map(Path::to_owned).or(self.tls_client_ca.clone()),
            own: self.tls_cert.clone().zip(self.tls_key.clone()),
        }
    }

    /// The names that requests may use, with some that need not be given.
    pub(super) fn hosts(&self, more: impl Iterator<Item = String>) -> Hosts {
        Hosts::Named(self.allow_hosts.iter().cloned().chain(more).collect())
    }

    /// Applies the flags to the settings.
    pub(super) fn bounds(&self, settings: Settings) -> Result<Settings, Failure> {
        let settings = Settings {
            tls: self.tls(),
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
