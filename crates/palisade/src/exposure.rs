//! Warnings at start about who else can reach the server or its files.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use palisade_server::shell::{self, Listen};

use crate::data_directory::absolute;

/// Creates a server's directory, accessible to its owner only, unless it exists.
///
/// # Errors
/// The operating system's error, with the path.
pub(crate) fn private_directory(dir: &Path) -> io::Result<()> {
    make_private(dir).map_err(|error| {
        let gone = if dir.is_relative() && std::env::current_dir().is_err() {
            "; the working directory was removed"
        } else {
            ""
        };
        let path = absolute(dir);
        let what = format!("cannot make {}: {error}{gone}", path.display());
        io::Error::new(error.kind(), what)
    })
}

fn make_private(dir: &Path) -> io::Result<()> {
    if dir.exists() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        // Another process may have created it just now. If the entry exists but its target does not, it is a dangling
        // link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::read_link(dir) {
            Ok(target) if !dir.exists() => {
                let target = target.display();
                let what =
                    format!("it is a link to {target}, which is not there: is its disk mounted?");
                Err(io::Error::new(io::ErrorKind::NotFound, what))
            }
            _ => Ok(()),
        },
        made => made,
    }
}

/// How the URLs of a port begin.
pub(crate) fn scheme(network: &shell::Settings) -> &'static str {
    match network.tls {
        Some(_) => "https",
        None => "http",
    }
}

/// The URLs for clients, in the order of the addresses.
pub(crate) fn urls(at: &[Listen], scheme: &str) -> Vec<String> {
    at.iter().map(|at| at.url(scheme)).collect()
}

/// Warns of addresses of --listen as [`warn_of_address`] does. The mode of a Unix socket says who reaches it.
pub(crate) fn warn_of_addresses(listen: &[Listen], scheme: &str, anybody: &str) {
    for at in listen.iter().filter_map(Listen::tcp) {
        warn_of_address("--listen", at, scheme, anybody);
    }
}

/// Warns of an address without TLS that other machines can reach, which `--insecure` has allowed. `anybody` describes
/// the rights of a client there.
pub(crate) fn warn_of_address(flag: &str, at: SocketAddr, scheme: &str, anybody: &str) {
    if scheme == "http" && !at.ip().to_canonical().is_loopback() {
        tracing::warn!(
            "{flag} {at}: other machines can reach this port and {anybody}, and nothing shows who they \
             are. Keep it on a trusted network, or use {flag} 127.0.0.1:{}",
            at.port()
        );
    }
}

/// Warns of an access file that everybody can change. One with a mistake is refused by the server that reads it next.
pub(crate) fn warn_of_access_file(path: &Path) {
    if let Ok(access) = palisade_access::file::read(path) {
        for sentence in palisade_access::file::open_to_everybody(path, &access) {
            tracing::warn!("{sentence}");
        }
    }
}

/// Warns of a directory that others can read or write: its files contain the keys of leases, and a writer
/// decides which tokens come next.
pub(crate) fn warn_of_directory(dir: &Path) {
    let Ok(metadata) = fs::metadata(dir) else {
        return;
    };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        let dir = dir.display();
        tracing::warn!(
            "{dir} has mode {mode:04o}: other users of this machine may read or change what is in it; \
             type: chmod 700 {dir}"
        );
    }
}
