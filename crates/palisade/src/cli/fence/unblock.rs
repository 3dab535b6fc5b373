//! `palisade fence unblock`: which transactions or processes have a resource, and their end.

use clap::Args;
use palisade_fence::LockHolder;
use serde_json::json;

use super::super::failure::Failure;
use super::super::output::Out;
use super::super::shell::shell_word;
use super::postgres::Database;
use super::resources::{LocatedResources, ResourceLocation};

#[derive(Args, Clone, Debug)]
pub(crate) struct UnblockArgs {
    /// The resource.
    resource: String,
    /// End them. PostgreSQL, MySQL: their connections are closed and their transactions rolled back. SQLite and files: the processes
    /// get SIGKILL, and the next call rolls back or completes what they were doing. Without it they are listed only.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    at: ResourceLocation,
}

pub(super) async fn unblock(args: &UnblockArgs, out: Out) -> Result<(), Failure> {
    match LocatedResources::open(&args.at).await? {
        LocatedResources::Postgres(mut database) => transactions(args, &mut database, out).await,
        LocatedResources::Files(folders) => {
            let blockers = folders.blockers(&args.resource)?;
            processes(args, &blockers, out, |one| {
                folders.unblock(&args.resource, one)
            })
        }
        LocatedResources::Sqlite(mut file) => {
            let blockers = file.blockers();
            processes(args, &blockers, out, |one| file.unblock(one))
        }
        LocatedResources::Mysql(mut database) => connections(args, &mut database, out).await,
        LocatedResources::Redis(_) | LocatedResources::DataDir(_) => Err(Failure::usage(
            "unblock is for PostgreSQL, MySQL, MariaDB, SQLite and files",
        )
        .hint("elsewhere no claim waits for a holder: each operation is one step")),
    }
}

/// Processes that have a lock of a file: the whole SQLite file, or the fence of a folder.
fn processes(
    args: &UnblockArgs,
    blockers: &[LockHolder],
    out: Out,
    mut end: impl FnMut(&LockHolder) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    if blockers.is_empty() && !out.json {
        let resource = &args.resource;
        return out.text(&format!(
            "no process of this machine has the lock of {resource}; processes of other machines and containers cannot be seen from here"
        ));
    }
    for blocker in blockers {
        // Process, start and lock are compared again before it is ended.
        let ended = args.yes && end(blocker)?;
        if out.json {
            out.value(&json!({
                "process": blocker.process, "started": blocker.started, "program": blocker.program,
                "stopped": blocker.stopped, "ended": ended,
            }))?;
            continue;
        }
        let what = outcome(ended, args.yes, "has the lock");
        out.text(&format!("{blocker}: {what}"))?;
    }
    how_to_end(args, out)
}

const fn outcome(ended: bool, asked: bool, listed: &'static str) -> &'static str {
    match (ended, asked) {
        (true, _) => "ended",
        (false, true) => "let go by itself",
        (false, false) => listed,
    }
}

fn how_to_end(args: &UnblockArgs, out: Out) -> Result<(), Failure> {
    if args.yes || out.json {
        return Ok(());
    }
    let resource = shell_word(&args.resource);
    out.text(&format!(
        "to end them: palisade fence unblock {resource} --yes"
    ))
}

async fn transactions(
    args: &UnblockArgs,
    database: &mut Database,
    out: Out,
) -> Result<(), Failure> {
    let blockers = database.blockers(&args.resource).await?;
    if blockers.is_empty() {
        return none(args, out);
    }
    for blocker in &blockers {
        // Process, start and lock are compared again in the step that ends it.
        let ended = args.yes && database.unblock(&args.resource, blocker).await?;
        let (process, state, since) = (blocker.process, &blocker.state, blocker.since);
        if out.json {
            out.value(&json!({
                "process": process, "started": blocker.started, "state": state, "since_ms": u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
                "application": blocker.application, "ended": ended,
            }))?;
            continue;
        }
        let what = outcome(ended, args.yes, "has the resource");
        let application = &blocker.application;
        out.text(&format!(
            "process {process} {application:?}, {state} for {} s: {what}",
            since.as_secs()
        ))?;
    }
    how_to_end(args, out)
}

async fn connections(
    args: &UnblockArgs,
    database: &mut super::mysql::Database,
    out: Out,
) -> Result<(), Failure> {
    let blockers = database.blockers(&args.resource).await?;
    if blockers.is_empty() {
        return none(args, out);
    }
    for blocker in &blockers {
        // Connection, transaction, its start and its lock are compared again before it is ended.
        let ended = args.yes && database.unblock(&args.resource, blocker).await?;
        let (connection, command, user) = (blocker.connection, &blocker.command, &blocker.user);
        if out.json {
            out.value(&json!({
                "connection": connection, "transaction": blocker.transaction, "started": blocker.started, "user": user,
                "command": command, "since_ms": u64::try_from(blocker.since.as_millis()).unwrap_or(u64::MAX), "ended": ended,
            }))?;
            continue;
        }
        let what = outcome(ended, args.yes, "has the resource");
        out.text(&format!(
            "connection {connection} of {user}, {command} for {} s: {what}",
            blocker.since.as_secs()
        ))?;
    }
    how_to_end(args, out)
}

fn none(args: &UnblockArgs, out: Out) -> Result<(), Failure> {
    if out.json {
        Ok(())
    } else {
        out.text(&format!("no transaction has {}", args.resource))
    }
}
