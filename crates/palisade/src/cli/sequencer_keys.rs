//! `palisade auth key`: the keys with which a server signs sequencers.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use palisade_server::net::{KEY_FILE, KeyFileError, SequencerKeys};
use serde_json::json;

use super::failure::Failure;
use super::output::Out;

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum KeyCommand {
    /// Make a key and publish it; the one that signs goes on signing
    New(DataArgs),
    /// Let a published key sign; the former one stays published
    Use(KeyArgs),
    /// Remove a key: its sequencers are no longer accepted
    Drop(KeyArgs),
    /// List the keys, the oldest first
    Ls(DataArgs),
}

/// Which server's keys.
#[derive(Args, Clone, Debug)]
pub(crate) struct DataArgs {
    /// The directory of the server. It may run: it reads the keys again when they have changed.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
}

/// Which key.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyArgs {
    /// The key's id, as `palisade auth key ls` prints it.
    #[arg(value_name = "KID")]
    kid: String,
    #[command(flatten)]
    server: DataArgs,
}

pub(super) fn carry_out(command: KeyCommand, out: Out) -> Result<(), Failure> {
    let (DataArgs { data }, kid) = match &command {
        KeyCommand::New(server) | KeyCommand::Ls(server) => (server, None),
        KeyCommand::Use(args) | KeyCommand::Drop(args) => (&args.server, Some(&*args.kid)),
    };
    let file = data.join(KEY_FILE);
    let read = SequencerKeys::read(&file).map_err(wrong)?;
    let keys = read.ok_or_else(|| {
        let file = file.display();
        Failure::usage(format!("{file} does not exist"))
            .hint("a server makes it when it starts, a node of a cluster if it has --cluster-key-file: name its directory with --data")
    })?;
    let done = match (&command, kid) {
        (KeyCommand::Use(_), Some(kid)) => SequencerKeys::change(&file, |keys| {
            keys.sign_with(kid)?;
            Ok(json!({"kid": kid, "signs": true}))
        }),
        (KeyCommand::Drop(_), Some(kid)) => SequencerKeys::change(&file, |keys| {
            keys.remove(kid)?;
            Ok(json!({"kid": kid, "published": false}))
        }),
        (KeyCommand::New(_), _) => SequencerKeys::change(&file, |keys| {
            let kid = keys.add().map_err(|source| KeyFileError::Io {
                file: file.clone(),
                source,
            })?;
            Ok(json!({"kid": kid, "signs": false}))
        }),
        _ => return list(&keys, out),
    };
    let done = done.map_err(|error| match error {
        KeyFileError::Io { .. } => Failure::local(error.to_string()),
        _ => wrong(error),
    })?;
    if out.json {
        return out.value(&done);
    }
    let kid = done["kid"].as_str().unwrap_or_default();
    out.text(&match command {
        KeyCommand::New(_) => format!(
            "published {kid}; when every fence has the new /.well-known/jwks.json: palisade auth key use {kid}"
        ),
        KeyCommand::Use(_) => format!("{kid} signs from now on; the others stay published"),
        KeyCommand::Drop(_) | KeyCommand::Ls(_) => {
            format!("removed {kid}; fences believe it until they have the new /.well-known/jwks.json")
        }
    })
}

fn list(keys: &SequencerKeys, out: Out) -> Result<(), Failure> {
    for (kid, signs) in keys.list() {
        if out.json {
            out.value(&json!({"kid": kid, "signs": signs}))?
        } else {
            out.text(&format!(
                "{kid}  {}",
                if signs { "signs" } else { "published" }
            ))?
        }
    }
    Ok(())
}

fn wrong(error: impl ToString) -> Failure {
    Failure::usage(error.to_string())
}
