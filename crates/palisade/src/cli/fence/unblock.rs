//! `palisade fence unblock`: which transactions have a resource, and their end.

use clap::Args;
use serde_json::json;

use super::super::failure::Failure;
use super::super::output::Out;
use super::super::shell::shell_word;
use super::resources::{Location, Resources};

#[derive(Args, Clone, Debug)]
pub(crate) struct UnblockArgs {
    /// The resource.
    resource: String,
    /// End them: their connections are closed and their transactions rolled back. Without it they are listed only.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    at: Location,
}

pub(super) async fn unblock(args: &UnblockArgs, out: Out) -> Result<(), Failure> {
    let Resources::Postgres(mut database) = Resources::open(&args.at).await? else {
        return Err(Failure::usage("unblock is for PostgreSQL").hint(
            "in MySQL and MariaDB, SHOW ENGINE INNODB STATUS names the transaction that has the row, and KILL ends it; \
             in SQLite, `fuser FILE` names the process",
        ));
    };
    let blockers = database.blockers(&args.resource).await?;
    if blockers.is_empty() && !out.json {
        return out.text(&format!("no transaction has {}", args.resource));
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
        let what = match (ended, args.yes) {
            (true, _) => "ended",
            (false, true) => "let go by itself",
            (false, false) => "has the resource",
        };
        let application = &blocker.application;
        out.text(&format!(
            "process {process} {application:?}, {state} for {} s: {what}",
            since.as_secs()
        ))?;
    }
    if !args.yes && !out.json {
        let resource = shell_word(&args.resource);
        out.text(&format!(
            "to end them: palisade fence unblock {resource} --yes"
        ))?;
    }
    Ok(())
}
