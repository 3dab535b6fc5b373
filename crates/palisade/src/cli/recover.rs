//! `palisade cluster recover`: out of a node's directory, when the majority of its cluster is lost for good.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use palisade_replica::LogId;
use palisade_replica::recovery::{self, Look};
use serde_json::json;

use super::failure::Failure;
use super::operator::{failed, held, identified, restored_json};
use super::output::{Out, facts};

/// `palisade cluster recover`.
#[derive(Args, Clone, Debug)]
pub(super) struct RecoverArgs {
    /// The directory of the node that is left; of several, that of the node whose log is furthest.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
    /// Only show how far its log is, whether or not the node is running.
    #[arg(long, conflicts_with = "yes")]
    look: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

pub(super) fn carry_out(args: &RecoverArgs, out: Out) -> Result<(), Failure> {
    let look = recovery::look(&args.data).map_err(failed)?;
    if args.look {
        return show(&args.data, &look, out);
    }
    if !args.yes {
        confirm(&args.data, &look, out)?;
    }
    let recovered = recovery::recover(&args.data).map_err(failed)?;
    if out.json {
        return out.value(&restored_json(&args.data, &recovered));
    }
    let data = args.data.display();
    out.text(&format!(
        "recovered {data}: it is a single server's directory now\n\
         {}\x20 {}\n\n\
         Make sure that no other node of the old cluster runs again with its old directory, then start this one with \
         palisade serve --data {data}; or with --cluster beside nodes with empty directories, which get everything \
         from it",
        identified(&recovered),
        held(recovered.locks, "when this node last knew"),
    ))
}

/// Asks on the terminal. What is lost is said first.
fn confirm(data: &Path, look: &Look, out: Out) -> Result<(), Failure> {
    let shown = data.display();
    if !io::stdin().is_terminal() {
        let why = format!(
            "a recovery gives up what only the lost nodes had and cannot be undone, so {shown} is as it was"
        );
        return Err(Failure::usage(why).hint(format!(
            "compare the nodes that are left with --look, then type: palisade cluster recover --data {shown} --yes"
        )));
    }
    let mut screen = io::stderr();
    write!(
        screen,
        "{}\n\n\
         This directory becomes a single server's. What only the other nodes had is lost: locks that were granted,\n\
         renewed or released behind its last entry. No other node may run again with its old directory.\n\
         If a majority can be brought back, do that instead. Type `recover` to go on: ",
        text(look, out)
    )?;
    screen.flush()?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed)?;
    match typed.trim() {
        "recover" => Ok(()),
        _ => Err(Failure::local(format!(
            "not confirmed; {shown} is as it was"
        ))),
    }
}

fn show(data: &Path, look: &Look, out: Out) -> Result<(), Failure> {
    if !out.json {
        return out.text(&format!(
            "{}\n\n\
             Of the nodes that are left, the one with the highest term is the furthest; of those with the same term,\n\
             the one with the highest entry. On that one: palisade cluster recover --data {}",
            text(look, out),
            data.display()
        ));
    }
    let place = |id: LogId| json!({"term": id.leader.term, "leader": id.leader.node.to_string(), "index": id.index});
    let members = look.members.nodes.iter().map(|(node, peer)| {
        let voter = look
            .members
            .voters
            .iter()
            .any(|voters| voters.contains(node));
        json!({"node": node.to_string(), "peer": peer, "voter": voter})
    });
    out.value(&json!({
        "data": data,
        "authority": look.identity.owner.to_string(),
        "incarnation": look.identity.incarnation.to_string(),
        "node": look.node.to_string(),
        "last": look.last.map(place),
        "committed": look.committed.map(place),
        "uncommitted": look.uncommitted(),
        "members": members.collect::<Vec<_>>(),
    }))
}

fn text(look: &Look, out: Out) -> String {
    let nothing = || "none: its log is empty".to_owned();
    let last = look.last.map_or_else(nothing, |LogId { leader, index }| {
        format!("term {}, entry {index}", leader.term)
    });
    let members = look.members.nodes.iter().map(|(node, peer)| {
        let votes = look
            .members
            .voters
            .iter()
            .any(|voters| voters.contains(node));
        format!(
            "{node} at {peer}{}",
            if votes { "" } else { " (without a vote)" }
        )
    });
    let rows = [
        ("node", look.node.to_string()),
        ("cluster", look.identity.owner.to_string()),
        ("last", last),
        (
            "unknown",
            format!(
                "{} entries of these are not known to be committed",
                look.uncommitted()
            ),
        ),
        ("members", members.collect::<Vec<_>>().join(", ")),
    ];
    facts(out, &rows)
}
