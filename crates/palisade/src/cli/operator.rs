//! What can be typed: the commands of who runs a server, and the way from there to the server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use palisade_core::{Limits, Token, Ttl};
use palisade_server::durable;
use serde_json::json;

use super::failure::{FAILED, Failure};
use super::output::Out;
use super::{help, value};
use crate::serve;

/// `palisade serve`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::SERVE_AFTER)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// The directory of the authority; made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
    /// The shortest lease granted.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = value::ttl, allow_hyphen_values = true)]
    min_ttl: Ttl,
    /// The longest lease granted.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = value::ttl, allow_hyphen_values = true)]
    max_ttl: Ttl,
    /// Whether time passes by itself. A manual clock moves only when told (POST /v1/clock/advance):
    /// for tests, never for locks that matter.
    #[arg(long, value_name = "KIND", default_value = "system")]
    clock: ClockKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClockKind {
    System,
    Manual,
}

/// `palisade backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// The new directory to copy to.
    #[arg(value_name = "TO", value_hint = ValueHint::DirPath)]
    to: PathBuf,
    /// The directory of the authority, whether its server runs or not.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
}

/// `palisade restore`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup.
    #[arg(value_name = "BACKUP", value_hint = ValueHint::DirPath)]
    backup: PathBuf,
    /// The new directory to make.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
}

pub(super) fn serve(args: &ServeArgs, out: Out) -> Result<(), Failure> {
    if args.min_ttl > args.max_ttl {
        let (min, max) = (args.min_ttl, args.max_ttl);
        return Err(Failure::usage(format!(
            "--min-ttl {min} is above --max-ttl {max}"
        )));
    }
    let settings = serve::Settings {
        listen: args.listen,
        data: args.data.clone(),
        limits: Limits {
            min_ttl: args.min_ttl,
            max_ttl: args.max_ttl,
            ..Limits::DEFAULT
        },
        manual_clock: args.clock == ClockKind::Manual,
        json: out.json,
    };
    serve::run(&settings).map_err(failed)
}

pub(super) fn backup(args: &BackupArgs, out: Out) -> Result<(), Failure> {
    let report = palisade_wal::backup(&args.data, &args.to).map_err(failed)?;
    let entries = report.last.map_or(0, |last| last.get());
    if out.json {
        let authority = report.identity.owner.to_string();
        return out.value(&json!({"backup": args.to, "authority": authority, "entries": entries}));
    }
    let (data, to) = (args.data.display(), args.to.display());
    out.text(&format!(
        "backed up {data} to {to} ({entries} log entries)\n\
         open it with: palisade restore {to} --data NEW-DIRECTORY"
    ))
}

pub(super) fn restore(args: &RestoreArgs, out: Out) -> Result<(), Failure> {
    let restored = durable::restore(&args.backup, &args.data).map_err(failed)?;
    let next_token = restored.next_token.map(Token::get);
    let identity = &restored.identity;
    if out.json {
        return out.value(&json!({
            "data": args.data,
            "authority": &*identity.authority,
            "incarnation": identity.incarnation,
            "next_token": next_token,
            "locks": restored.locks,
        }));
    }
    let data = args.data.display();
    out.text(&format!(
        "restored {} into {data}\n\
         \x20 authority    {} (as before)\n\
         \x20 incarnation  {} (new)\n\
         \x20 next token   {}\n\
         \x20 {} locks are held as they were at the backup; their leases get their full time again\n\n\
         Make sure the old server never runs again, then: palisade serve --data {data}",
        args.backup.display(),
        identity.authority,
        identity.incarnation,
        next_token.map_or("none: the range is exhausted".into(), |token| token
            .to_string()),
        restored.locks,
    ))
}

fn failed(error: impl ToString) -> Failure {
    Failure::new(
        FAILED,
        palisade_proto::Code::Internal.name(),
        error.to_string(),
    )
}
