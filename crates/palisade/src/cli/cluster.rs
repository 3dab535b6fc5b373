//! `palisade cluster`: the nodes of a cluster, and which one leads.

use clap::{Args, Subcommand};
use palisade_proto::json::{
    AddMemberBody, ClusterMember, ClusterReply, ClusterRole, MemberBody, TransferBody,
};

use super::args::AuthorityArgs;
use super::cluster_check;
use super::failure::{FAILED, Failure};
use super::help;
use super::output::{Out, table};
use super::recover::{self, RecoverArgs};
use crate::cluster::{Error, Nodes};

/// `palisade cluster …`.
#[derive(Subcommand, Debug)]
pub(super) enum ClusterCommand {
    /// Show the nodes, who leads, and how far each one is
    Status(StatusArgs),
    /// Say whether a node may be stopped or removed now
    #[command(after_long_help = help::CLUSTER_CHECK_AFTER)]
    Check(NodeArgs),
    /// Add a node that was started with --join
    Add(AddArgs),
    /// Give a node a vote
    Promote(NodeArgs),
    /// Remove a node
    Remove(NodeArgs),
    /// Put a new node in the place of one whose disk is lost
    #[command(after_long_help = help::CLUSTER_REPLACE_AFTER)]
    Replace(ReplaceArgs),
    /// Let another node lead
    TransferLeader(TransferArgs),
    /// Make a single server of a node whose cluster has lost its majority for good
    #[command(long_about = help::CLUSTER_RECOVER)]
    Recover(RecoverArgs),
}

/// A cluster to look at.
#[derive(Args, Clone, Debug)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    connection: AuthorityArgs,
}

/// A new node.
#[derive(Args, Clone, Debug)]
pub(super) struct AddArgs {
    /// Its id, as `palisade serve --join` prints it.
    #[arg(value_name = "NODE")]
    node: String,
    /// The address at which the other nodes reach it, such as 10.0.0.4:7421.
    #[arg(value_name = "PEER")]
    peer: String,
    #[command(flatten)]
    connection: AuthorityArgs,
}

/// A member.
#[derive(Args, Clone, Debug)]
pub(super) struct NodeArgs {
    /// Its id, as `palisade cluster status` prints it.
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    connection: AuthorityArgs,
}

/// A lost node and its successor.
#[derive(Args, Clone, Debug)]
pub(super) struct ReplaceArgs {
    /// The node that is lost.
    #[arg(value_name = "OLD")]
    old: String,
    /// The node that takes its place, started with --join and a --data of its own.
    #[arg(value_name = "NEW")]
    new: String,
    /// The address at which the other nodes reach it [default: that of the lost node].
    #[arg(long, value_name = "PEER")]
    peer: Option<String>,
    #[command(flatten)]
    connection: AuthorityArgs,
}

/// A node that is to lead.
#[derive(Args, Clone, Debug)]
pub(super) struct TransferArgs {
    /// Its id [default: the follower that is furthest].
    #[arg(value_name = "NODE")]
    node: Option<String>,
    #[command(flatten)]
    connection: AuthorityArgs,
}

pub(super) async fn carry_out(command: ClusterCommand, out: Out) -> Result<(), Failure> {
    match command {
        ClusterCommand::Status(args) => {
            let view = nodes(&args.connection)?.view().await;
            show(&view.map_err(|error| failed(&error))?, out)
        }
        ClusterCommand::Check(args) => {
            let view = nodes(&args.connection)?.view().await;
            cluster_check::carry_out(&view.map_err(|error| failed(&error))?, &args.node, out)
        }
        ClusterCommand::Add(args) => {
            let body = AddMemberBody {
                node: args.node,
                peer: args.peer,
                promote: true,
                replaces: None,
            };
            change(&args.connection, "/v1/cluster/add", &body, out).await
        }
        ClusterCommand::Promote(args) => {
            let body = MemberBody { node: args.node };
            change(&args.connection, "/v1/cluster/promote", &body, out).await
        }
        ClusterCommand::Remove(args) => {
            let body = MemberBody { node: args.node };
            change(&args.connection, "/v1/cluster/remove", &body, out).await
        }
        ClusterCommand::Replace(args) => replace(args, out).await,
        ClusterCommand::TransferLeader(args) => {
            let body = TransferBody { to: args.node };
            change(&args.connection, "/v1/cluster/transfer", &body, out).await
        }
        ClusterCommand::Recover(args) => recover::carry_out(&args, out),
    }
}

async fn replace(args: ReplaceArgs, out: Out) -> Result<(), Failure> {
    let peer = match args.peer {
        Some(peer) => peer,
        None => {
            let view = nodes(&args.connection)?.view().await;
            let members = view.map_err(|error| failed(&error))?.members;
            let of = |node: &str| members.iter().find(|member| member.node == node);
            match of(&args.new).or_else(|| of(&args.old)) {
                Some(member) => member.peer.clone(),
                None => {
                    let why = format!("neither {} nor {} is a member", args.old, args.new);
                    return Err(Failure::local(why).hint("see `palisade cluster status`"));
                }
            }
        }
    };
    let body = AddMemberBody {
        node: args.new,
        peer,
        promote: true,
        replaces: Some(args.old),
    };
    change(&args.connection, "/v1/cluster/add", &body, out).await
}

/// The addresses, which may be several, separated by commas.
pub(super) fn nodes(connection: &AuthorityArgs) -> Result<Nodes, Failure> {
    // As the client takes them: one scheme may stand for all.
    let secure = connection.authority.starts_with("https://");
    let scheme = if secure { "https" } else { "http" };
    let usual = connection.authority.starts_with("palisade://");
    let urls = connection.authority.split(',');
    let urls: Vec<String> = urls
        .map(|url| match url.strip_prefix("palisade://") {
            Some(place) => format!("http://{}", with_port(place)),
            None if url.contains("://") || url.starts_with("unix:") => url.to_owned(),
            None if usual => format!("http://{}", with_port(url.trim())),
            None => format!("{scheme}://{}", url.trim()),
        })
        .collect();
    let known = |url: &String| {
        ["http://", "https://", "unix:"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
    };
    match urls.iter().find(|url| !known(url)) {
        Some(other) => Err(Failure::usage(format!(
            "{other} is not a node of a cluster; write --authority http://host:7420"
        ))),
        None => {
            let token = connection.token();
            let token = token.map_err(|fault| Failure::usage(fault.reason().to_string()))?;
            let nodes = Nodes::new(urls, &connection.tls());
            let nodes = nodes.map_err(|error| Failure::usage(error.to_string()))?;
            Ok(nodes.with_token(token))
        }
    }
}

/// A place of palisade://, which has a usual port.
fn with_port(place: &str) -> String {
    let port = place.rsplit_once(':').map(|(_, port)| port);
    if port.is_some_and(|port| !port.contains(']')) {
        place.to_owned()
    } else {
        format!("{}:7420", place.trim_end_matches('/'))
    }
}

async fn change(
    connection: &AuthorityArgs,
    path: &str,
    body: &(impl serde::Serialize + Sync),
    out: Out,
) -> Result<(), Failure> {
    let nodes = nodes(connection)?;
    let changed = nodes.change(path, body).await;
    let changed = changed.map_err(|error| failed(&error))?;
    // The view of a node that was the leader until now is out of date.
    let shown = match changed.role {
        ClusterRole::Leader => Ok(changed.clone()),
        _ => nodes.view_of_leader().await,
    };
    show(&shown.unwrap_or(changed), out)
}

pub(super) fn failed(error: &Error) -> Failure {
    match error {
        Error::Unreachable(why) => Failure::local(why.clone()).hint(
            "name a node that runs: --authority http://host:7420, or several, separated by commas",
        ),
        Error::Refused { code, message } => {
            let code =
                palisade_proto::Code::from_name(code).unwrap_or(palisade_proto::Code::Refused);
            Failure::new(FAILED, code, message.clone())
        }
    }
}

fn show(view: &ClusterReply, out: Out) -> Result<(), Failure> {
    if out.json {
        let value = serde_json::to_value(view).unwrap_or_default();
        return out.value(&value);
    }
    out.text(&text(view, out))
}

/// The cluster as a table.
fn text(view: &ClusterReply, out: Out) -> String {
    let leads = view.role == ClusterRole::Leader;
    let timers = view.timers.as_ref();
    let timers = timers.map_or_else(String::new, |timers| format!("timers      {timers}\n"));
    let took_over = view.takeover.filter(|takeover| takeover.term == view.term);
    let took_over = took_over.map_or_else(String::new, |takeover| {
        let phases: Vec<_> = takeover
            .phases()
            .map(|(name, ms)| format!("{name} {ms} ms"))
            .collect();
        format!("took over   {}\n", phases.join(", "))
    });
    let mut text = format!(
        "cluster     {}\n{}{}term        {}, {} committed entries{}\n\n",
        view.authority,
        timers,
        took_over,
        view.term,
        view.committed.map_or(0, |index| index + 1),
        match (&view.leader, leads) {
            (None, _) => "; NO LEADER: nothing is granted until a majority is connected",
            (_, true) => "",
            (_, false) => "; the leader could not be asked, so lags are not known",
        },
    );
    let rows: Vec<_> = view
        .members
        .iter()
        .map(|member| row(view, member))
        .collect();
    let titles = ["NODE", "ROLE", "CLIENTS", "PEERS", "LAG", "STATE"];
    text.push_str(&table(
        out,
        titles,
        [false, false, false, false, true, false],
        &rows,
    ));
    for member in &view.members {
        if let Some(why) = &member.too_far {
            text.push_str(&format!("\nnode {} is too far away: {why}\n", member.node));
        }
    }
    if view.changing {
        text.push_str(&format!("\n{}\n", cluster_check::CHANGING));
    }
    if let Some(full) = &view.disk_full {
        text.push_str(&format!(
            "\nthe disk of node {} is full: {full}\n",
            view.node
        ));
    }
    text.trim_end().to_owned()
}

fn row(view: &ClusterReply, member: &ClusterMember) -> [String; 6] {
    let is_leader = view.leader.as_deref() == Some(&member.node);
    let role = match (is_leader, member.voter) {
        (true, _) => "leader",
        (false, true) => "follower",
        (false, false) => "learner",
    };
    let lag = match (view.role, view.last) {
        (ClusterRole::Leader, Some(last)) => match member.matched {
            Some(matched) => last.saturating_sub(matched).to_string(),
            None => "all".to_owned(),
        },
        _ => "-".to_owned(),
    };
    let state = match (member.connected, &member.problem) {
        (None, _) => "this node".to_owned(),
        (Some(true), _) if !member.is_alive() => match member.silent_ms {
            Some(ms) => format!("SILENT for {} s", ms / 1_000),
            None => "SILENT: it has never answered".to_owned(),
        },
        (Some(true), _) => match member.round_trip_us {
            Some(us) => format!("connected, {:.1} ms", us as f64 / 1_000.0),
            None => "connected".to_owned(),
        },
        (Some(false), Some(problem)) => format!("NOT CONNECTED: {problem}"),
        (Some(false), None) => "NOT CONNECTED".to_owned(),
    };
    let url = member.url.clone().unwrap_or_else(|| "-".to_owned());
    [
        member.node.clone(),
        role.to_owned(),
        url,
        member.peer.clone(),
        lag,
        state,
    ]
}
