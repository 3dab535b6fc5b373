//! `palisade auth`: certificates for tests and home networks; tokens; rules, checked and explained.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueHint};
use jiff::{RoundMode, TimestampRound, Unit};
use palisade_access::replace::{self, Durable};
use palisade_access::{BearerToken, Verb, file};
use palisade_core::LockName;
use palisade_proto::Code;
use palisade_tls::issue::{CertificateAuthority, Issued, Validity, check_names};
use serde_json::json;

use super::failure::Failure;
use super::output::Out;
use super::sequencer_keys::{self, KeyCommand};
use super::{help, value};
use crate::exposure;

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum AuthCommand {
    /// Make a certificate, and a small private CA if there is none: for a test or a home network
    #[command(after_long_help = help::AUTH_CERT_AFTER)]
    Cert(CertArgs),
    /// Check an access file before a server takes it
    #[command(after_long_help = help::AUTH_CHECK_AFTER)]
    Check(FileArgs),
    /// Explain whether a principal may do something
    Can(CanArgs),
    /// Make, list and revoke tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Rotate the keys with which a server signs sequencers
    #[command(subcommand)]
    Key(KeyCommand),
}

/// The commands for tokens.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum TokenCommand {
    /// Make a token for a principal; it is printed once and not stored
    New(TokenNewArgs),
    /// List the tokens of the file, also those that have expired
    Ls(FileArgs),
    /// Revoke a token; it ends when the servers get SIGHUP
    Revoke(TokenRevokeArgs),
}

/// Which access file.
#[derive(Args, Clone, Debug)]
pub(crate) struct FileArgs {
    /// The access file.
    #[arg(long, value_name = "FILE", default_value = "./access.toml", value_hint = ValueHint::FilePath)]
    access: PathBuf,
}

/// `palisade auth can`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit status: 0 yes, 1 no, 125 palisade failed, 2 wrong command line")]
pub(crate) struct CanArgs {
    /// The principal; `anonymous` for callers without credentials.
    #[arg(value_name = "PRINCIPAL")]
    principal: String,
    /// hold, share, observe, break or admin.
    #[arg(value_name = "VERB")]
    verb: Verb,
    /// The lock.
    #[arg(value_name = "LOCK", value_parser = value::lock)]
    lock: LockName,
    #[command(flatten)]
    file: FileArgs,
}

/// `palisade auth token new`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TokenNewArgs {
    /// The principal.
    #[arg(value_name = "PRINCIPAL")]
    principal: String,
    /// For how long the token is valid, for example 90d, 1s or longer; without it, until it is revoked.
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    expires: Option<Duration>,
    #[command(flatten)]
    file: FileArgs,
}

/// `palisade auth token revoke`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TokenRevokeArgs {
    /// The token's id: the part between the underscores.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    file: FileArgs,
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
        AuthCommand::Check(args) => check(&args, out),
        AuthCommand::Can(args) => can(&args, out),
        AuthCommand::Key(command) => sequencer_keys::carry_out(command, out),
        AuthCommand::Token(TokenCommand::New(args)) => token_new(&args, out),
        AuthCommand::Token(TokenCommand::Ls(args)) => token_ls(&args, out),
        AuthCommand::Token(TokenCommand::Revoke(args)) => {
            file::revoke_token(&args.file.access, &args.id).map_err(wrong)?;
            if out.json {
                return out.value(&json!({"id": args.id, "revoked": true}));
            }
            out.text(&format!(
                "revoked {}; now send SIGHUP to the servers",
                args.id
            ))
        }
    }
}

fn wrong(error: impl ToString) -> Failure {
    Failure::usage(error.to_string())
}

fn check(args: &FileArgs, out: Out) -> Result<(), Failure> {
    let access = file::read(&args.access).map_err(wrong)?;
    for sentence in file::open_to_everybody(&args.access, &access) {
        out.warning(&sentence);
    }
    let now = seconds_now();
    let (expired, valid): (Vec<_>, Vec<_>) = access
        .tokens()
        .partition(|(_, _, expires)| has_expired(*expires, now));
    let (expired, tokens) = (expired.len(), valid.len());
    let audited: Vec<&str> = access.audited().collect();
    if out.json {
        let issuer = |(issuer, audience, keys)| json!({"issuer": issuer, "audience": audience, "keys": keys});
        let issuers: Vec<_> = access.issuers().map(issuer).collect();
        return out.value(&json!({
            "access": args.access, "valid": true, "tokens": tokens, "expired_tokens": expired,
            "issuers": issuers, "audited": audited,
        }));
    }
    let path = args.access.display();
    let needs = if audited.is_empty() {
        ""
    } else {
        "; its servers need --audit FILE"
    };
    let issuers: String = access
        .issuers()
        .map(|(issuer, audience, keys)| {
            format!("; accepts JWTs of {issuer} for {audience}, by {keys} keys")
        })
        .collect();
    let ended = match expired {
        0 => String::new(),
        _ => format!(" and {expired} have expired"),
    };
    out.text(&format!(
        "{path} has no mistake; {tokens} tokens are valid{ended}{issuers}{needs}"
    ))
}

fn can(args: &CanArgs, out: Out) -> Result<(), Failure> {
    let access = file::read(&args.file.access).map_err(wrong)?;
    let name = &args.principal;
    let principal = access.principal(name).ok_or_else(|| {
        let path = args.file.access.display();
        wrong(format!(
            "{path} has no rule, token, subject or certificate for {name}"
        ))
    })?;
    let (verb, lock) = (args.verb, &args.lock);
    match access.decide(&principal, verb, lock.as_str()) {
        Ok(prefix) if out.json => out.value(&json!({"granted": true, "prefix": prefix})),
        Ok(prefix) => out.text(&format!(
            "yes: {name} may {verb} {lock}, by the rule for the prefix {prefix:?}"
        )),
        Err(denied) => Err(Failure::new(NO, Code::Forbidden, denied.to_string())),
    }
}

/// The status of the answer no. It is not a failure of the program.
const NO: u8 = 1;

fn token_new(args: &TokenNewArgs, out: Out) -> Result<(), Failure> {
    let mut random = [0; 36];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::local(format!("the system has no random bytes: {error}")))?;
    let (text, token) = BearerToken::make(random);
    let whole = TimestampRound::new()
        .smallest(Unit::Second)
        .mode(RoundMode::Ceil);
    let expires = args.expires.map(|length| {
        let now = jiff::Timestamp::try_from(wall_clock());
        // The file has whole seconds, and a token lasts no shorter than it was asked for.
        let at = now.and_then(|now| now.checked_add(length)?.round(whole));
        let at = at.map_err(|error| Failure::usage(format!("--expires: {error}")))?;
        if length < Duration::from_secs(1) {
            Err(Failure::usage(
                "--expires: a token lasts 1s or longer; to end one at once, type: palisade auth token revoke ID",
            ))
        } else {
            Ok(at)
        }
    });
    let expires = expires.transpose()?;
    file::add_token(&args.file.access, &token, &args.principal, expires).map_err(wrong)?;
    let until = expires.map(|at| format!("{at:.0}"));
    if out.json {
        return out.value(&json!({
            "id": token.id(), "principal": args.principal, "token": text, "expires": until,
        }));
    }
    // Alone on standard output, for `> file`.
    out.warning(&format!(
        "token {} of {} is printed only now, because the file stores its hash; {}send SIGHUP to the servers",
        token.id(),
        args.principal,
        until.map_or(String::new(), |until| format!("it expires at {until}; ")),
    ));
    out.text(&text)
}

/// Whether a token has ended, as a server decides it.
fn has_expired(expires: Option<u64>, now: u64) -> bool {
    expires.is_some_and(|end| end <= now)
}

fn seconds_now() -> u64 {
    let since = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn token_ls(args: &FileArgs, out: Out) -> Result<(), Failure> {
    let access = file::read(&args.access).map_err(wrong)?;
    let now = seconds_now();
    for (id, principal, expires) in access.tokens() {
        let expired = has_expired(expires, now);
        let at = expires.and_then(|at| jiff::Timestamp::from_second(i64::try_from(at).ok()?).ok());
        let at = at.map(|at| format!("{at:.0}"));
        match (out.json, at) {
            (true, at) => {
                out.value(&json!({
                    "id": id, "principal": principal.name(), "expires": at, "expired": expired,
                }))?;
            }
            (false, Some(at)) if expired => {
                out.text(&format!("{id}  {principal}  expired since {at}"))?;
            }
            (false, Some(at)) => out.text(&format!("{id}  {principal}  until {at}"))?,
            (false, None) => out.text(&format!("{id}  {principal}"))?,
        }
    }
    Ok(())
}

fn cert(args: &CertArgs, out: Out) -> Result<(), Failure> {
    let dir = &args.dir;
    let now = wall_clock();
    check_names(&args.names).map_err(|error| Failure::usage(error.to_string()))?;
    exposure::private_directory(dir).map_err(|error| Failure::local(error.to_string()))?;
    // Two commands at once make one CA, not two of which one is lost.
    let _lock = lock(dir)
        .map_err(|error| Failure::local(format!("cannot lock {}: {error}", dir.display())))?;
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
         For a test or a home network: anyone who can read {} can impersonate everybody. Elsewhere, use your organisation's CA.\n\n\
         \x20 server: palisade serve --tls-cert {certificate} --tls-key {key} --tls-client-ca {ca_file}\n\
         \x20 client: palisade ls --authority https://NAME:7420 --ca-file {ca_file} --client-cert {certificate} \
         --client-key {key}",
        if made { "made a new CA\n" } else { "" },
        args.days,
        dir.join(CA_KEY).display(),
    ))
}

/// Waits for the lock of a directory, which lasts as long as the returned value.
fn lock(dir: &Path) -> io::Result<File> {
    let dir = File::open(dir)?;
    dir.lock()?;
    Ok(dir)
}

/// The CA in a directory; whether it is new.
fn authority(dir: &Path, now: SystemTime) -> Result<(CertificateAuthority, bool), Failure> {
    let key = dir.join(CA_KEY);
    match fs::read_to_string(&key) {
        Ok(pem) => {
            let ca = CertificateAuthority::load(&pem);
            let ca = ca.map_err(|error| Failure::usage(format!("{}: {error}", key.display())))?;
            Ok((ca, false))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (ca, issued) = CertificateAuthority::make(Validity::days(now, CA_DAYS))
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
        let written = replace::write(path, text.as_bytes(), Durable::Yes);
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
