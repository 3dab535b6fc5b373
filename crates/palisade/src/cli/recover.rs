//! `palisade cluster recover`: out of a node's directory, when the majority of its cluster is lost for good.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use palisade_replica::recovery::{self, Look};
use palisade_replica::{LogId, mark};
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
         palisade serve --data {data}; or with --cluster beside new nodes, which get everything \
         from it",
        identified(&recovered),
        held(recovered.locks, "when this node last knew"),
    ))
}

/// Asks for confirmation on the terminal, after listing the losses.
fn confirm(data: &Path, look: &Look, out: Out) -> Result<(), Failure> {
    let shown = data.display();
    if !io::stdin().is_terminal() {
        let why = format!(
            "a recovery gives up what only the lost nodes had and cannot be undone, so {shown} was not changed"
        );
        return Err(Failure::usage(why).hint(format!(
            "compare the nodes that are left with --look, then type: palisade cluster recover --data {shown} --yes"
        )));
    }
    let mut screen = io::stderr();
    write!(
        screen,
        "{}\n\n\
         This directory becomes a single server's. Anything that only the other nodes had is lost: locks granted,\n\
         renewed or released after its last entry. No other node may run again with its old directory.\n\
         If a majority can be brought back, do that instead. Type `recover` to go on: ",
        text(data, look, out)?
    )?;
    screen.flush()?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed)?;
    match typed.trim() {
        "recover" => Ok(()),
        _ => Err(Failure::local(format!(
            "not confirmed; {shown} was not changed"
        ))),
    }
}

fn show(data: &Path, look: &Look, out: Out) -> Result<(), Failure> {
    if !out.json {
        return out.text(&format!(
            "{}\n\n\
             Compare all nodes that are left. One that was told that it lost entries is not the one to recover. Of the\n\
             others, if their histories agree up to the last committed entry of each, the one with the highest term is the\n\
             furthest, and of those with the same term the one with the highest entry. If they differ before that, entries\n\
             were lost: the furthest is the one with the most committed entries. Keep a copy of every directory.\n\
             On the furthest: palisade cluster recover --data {}",
            text(data, look, out)?,
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
        "history": look.history.iter().copied().map(place).collect::<Vec<_>>(),
        "lost": mark::read(data)?,
        "members": members.collect::<Vec<_>>(),
    }))
}

fn text(data: &Path, look: &Look, out: Out) -> Result<String, Failure> {
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
    let place = |id: &LogId| format!("term {} from entry {}", id.leader.term, id.index);
    let mut rows = vec![
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
    let history: Vec<String> = look.history.iter().map(place).collect();
    rows.insert(3, ("history", history.join(", ")));
    let committed = look.committed.map_or_else(nothing, |id| {
        format!("up to entry {}, of term {}", id.index, id.leader.term)
    });
    rows.insert(3, ("committed", committed));
    if let Some(why) = mark::read(data)? {
        rows.push(("LOST", why));
    }
    Ok(facts(out, &rows))
}
