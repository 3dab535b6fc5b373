//! `palisade auth`: certificates for tests and home networks.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand, ValueHint};
use palisade_tls::issue::{Authority, Issued, Validity};
use serde_json::json;

use super::failure::Failure;
use super::help;
use super::output::Out;
use crate::exposure;

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum AuthCommand {
    /// Make a certificate, and a small private CA if there is none: for a test or a home network
    #[command(after_long_help = help::AUTH_CERT_AFTER)]
    Cert(CertArgs),
}

/// `palisade auth cert`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CertArgs {
    /// The names in the certificate: host names and IP addresses of a server, or spiffe://DOMAIN/PATH. The first one
    /// also names the files.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// The directory of the CA and its certificates; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "./palisade-ca", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// For how many days the certificate is valid, 1 – 3650. A new CA is valid for ten years.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=CA_DAYS as i64))]
    days: u32,
}

const CA_DAYS: u32 = 3_650;

pub(super) fn carry_out(command: AuthCommand, out: Out) -> Result<(), Failure> {
    match command {
        AuthCommand::Cert(args) => cert(&args, out),
    }
}

fn cert(args: &CertArgs, out: Out) -> Result<(), Failure> {
    let dir = &args.dir;
    let now = wall_clock();
    exposure::private_directory(dir)
        .map_err(|error| Failure::local(format!("cannot create {}: {error}", dir.display())))?;
    let (ca, made) = authority(dir, now)?;
    let issued = ca.issue(&args.names, Validity::days(now, args.days));
    let issued = issued.map_err(|error| Failure::usage(error.to_string()))?;
    let stem = stem(&args.names[0]);
    let paths = write(dir, &stem, &issued)?;
    let [ca_file, certificate, key] = [&dir.join("ca.pem"), &paths[0], &paths[1]];
    if out.json {
        return out.value(&json!({
            "ca": ca_file, "certificate": certificate, "key": key, "names": args.names, "days": args.days,
            "new_ca": made,
        }));
    }
    let (ca_file, certificate, key) = (ca_file.display(), certificate.display(), key.display());
    out.text(&format!(
        "{}certificate  {certificate}, valid for {} days\n\
         key          {key}\n\
         CA           {ca_file}\n\n\
         For a test or a home network: whoever reads {} can be anybody. Elsewhere, use the CA of your organisation.\n\n\
         \x20 server: palisade serve --tls-cert {certificate} --tls-key {key} --tls-client-ca {ca_file}\n\
         \x20 client: palisade ls --authority https://NAME:7420 --ca-file {ca_file} --client-cert {certificate} \
         --client-key {key}",
        if made { "made a new CA\n" } else { "" },
        args.days,
        dir.join(CA_KEY).display(),
    ))
}

/// The CA in a directory; whether it is new.
fn authority(dir: &Path, now: SystemTime) -> Result<(Authority, bool), Failure> {
    let key = dir.join(CA_KEY);
    match fs::read_to_string(&key) {
        Ok(pem) => {
            let ca = Authority::load(&pem);
            let ca = ca.map_err(|error| Failure::usage(format!("{}: {error}", key.display())))?;
            Ok((ca, false))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (ca, issued) = Authority::make(Validity::days(now, CA_DAYS))
                .map_err(|error| Failure::local(error.to_string()))?;
            write(dir, "ca", &issued)?;
            Ok((ca, true))
        }
        Err(error) => Err(Failure::local(format!(
            "cannot read {}: {error}",
            key.display()
        ))),
    }
}

/// A file name made of a certificate's name.
fn stem(name: &str) -> String {
    let plain = name.strip_prefix("spiffe://").unwrap_or(name);
    let known = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let stem: String = plain
        .chars()
        .map(|letter| if known(letter) { letter } else { '-' })
        .collect();
    match &*stem.trim_matches(['.', '-']).to_owned() {
        // Never the CA's own files.
        "" | "ca" => format!("cert-{}", stem.trim_matches('.')),
        stem => stem.to_owned(),
    }
}

/// Writes both files, readable by their owner only. Neither appears before it is complete.
fn write(dir: &Path, stem: &str, issued: &Issued) -> Result<[PathBuf; 2], Failure> {
    let paths = [
        dir.join(format!("{stem}.pem")),
        dir.join(format!("{stem}.key")),
    ];
    // The key first: a server that notices the certificate finds its key.
    for (path, text) in [(&paths[1], &issued.key), (&paths[0], &issued.certificate)] {
        let new = path.with_extension("new");
        let written = fs::remove_file(&new)
            .or_else(|error| match error.kind() {
                ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
            .and_then(|()| {
                let mut options = OpenOptions::new();
                let mut file = options
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&new)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                fs::rename(&new, path)
            });
        written
            .map_err(|error| Failure::local(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(paths)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a certificate states its validity in wall time"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

const CA_KEY: &str = "ca.key";
