//! `palisade fence`: the fences of resources, for operators.
//!
//! ```text
//!   --url scheme://…         ┐
//!   --data DIR               ┴► Resources (the only match by scheme) → show · ls · rearm
//!   install, uninstall KIND  → the statements of that kind, run or printed
//!   k8s KIND…                → the policy and roles of Kubernetes, printed
//! ```

mod data_dir;
mod doctor;
mod files;
mod install;
mod k8s;
mod kind;
mod mysql;
mod postgres;
mod rearm;
mod redis;
mod resources;
mod sqlite;
mod tls;
mod unblock;

use clap::{Args, Subcommand};
use palisade_core::{AuthorityId, Token};
use palisade_fence::{Door, FenceState, Listed, Written};
use serde_json::{Value, json};

pub(super) use doctor::look;

use super::failure::Failure;
use super::output::{Out, facts, table};
use resources::{LocatedResources, ResourceLocation};

/// `palisade fence`.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum FenceCommand {
    /// Make a database ready for fences: its tables, functions and triggers
    Install(install::InstallArgs),
    /// Take the fence away from tables, or from a whole database
    Uninstall(install::UninstallArgs),
    /// Show a resource's fence
    Show(FenceShowArgs),
    /// List the fences
    Ls(FenceLsArgs),
    /// Make a resource refuse everything below a floor, after its fence was lost, restored or poisoned
    Rearm(rearm::RearmArgs),
    /// List what keeps a resource's next holder waiting, and end it: transactions (SQL servers), processes (SQLite, files)
    Unblock(unblock::UnblockArgs),
    /// Print a fence for Kubernetes objects: an admission policy with its binding, and roles for the holders
    #[command(name = "k8s")]
    K8s(k8s::K8sArgs),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct FenceShowArgs {
    /// The resource.
    resource: String,
    #[command(flatten)]
    at: ResourceLocation,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct FenceLsArgs {
    /// Only resources whose names start with this.
    #[arg(default_value = "")]
    prefix: String,
    #[command(flatten)]
    at: ResourceLocation,
}

pub(super) async fn carry_out(command: FenceCommand, out: Out) -> Result<(), Failure> {
    match command {
        FenceCommand::Install(args) => install::install(&args, out).await,
        FenceCommand::Uninstall(args) => install::uninstall(&args, out).await,
        FenceCommand::Show(args) => show(&args, out).await,
        FenceCommand::Ls(args) => ls(&args, out).await,
        FenceCommand::Rearm(args) => rearm::rearm(&args, out).await,
        FenceCommand::Unblock(args) => unblock::unblock(&args, out).await,
        FenceCommand::K8s(args) => k8s::k8s(&args, out),
    }
}

async fn show(args: &FenceShowArgs, out: Out) -> Result<(), Failure> {
    let mut resources = LocatedResources::open(&args.at).await?;
    let state = resources.show(&args.resource).await?;
    let tables = resources.tables().await?.into_iter();
    let tables: Vec<_> = tables
        .filter(|fenced| fenced.resource == args.resource)
        .map(|fenced| fenced.table)
        .collect();
    if out.json {
        return out.value(&body(&args.resource, state.as_ref(), &tables));
    }
    if state.is_none() && tables.is_empty() {
        return out.text(&format!("{} is not fenced", args.resource));
    }
    let state = state.unwrap_or_default();
    let [_, token, authority, lock, written, tables] = row(&args.resource, &state, &tables);
    let rows = [
        ("highest token", token),
        ("authority", authority),
        ("lock", lock),
        ("written", written),
        ("fenced tables", tables),
    ];
    let head = out.strong(&args.resource);
    out.text(&format!("{head}\n{}", facts(out, &rows)))
}

async fn ls(args: &FenceLsArgs, out: Out) -> Result<(), Failure> {
    let mut resources = LocatedResources::open(&args.at).await?;
    let mut rows = Vec::new();
    let all = resources.all(&args.prefix).await?;
    let mut doors = resources.doors().await?;
    if !args.prefix.is_empty() {
        let listed = |door: &Door| {
            let mut tables = all.iter().flat_map(|(_, tables)| tables);
            tables.any(|table| door.table.as_ref() == Some(table))
        };
        doors.retain(listed);
    }
    for (Listed { resource, state }, tables) in all {
        if out.json {
            // Doors of a table are listed with its resource.
            let its = |door: &mut Door| {
                door.table
                    .as_ref()
                    .is_some_and(|table| tables.contains(table))
            };
            let open: Vec<_> = doors.extract_if(.., its).map(|door| door.door).collect();
            let mut body = body(&resource, Some(&state), &tables);
            body["open"] = json!(open);
            out.value(&body)?;
        } else {
            rows.push(row(&resource, &state, &tables))
        }
    }
    let head = [
        "RESOURCE",
        "TOKEN",
        "AUTHORITY",
        "LOCK",
        "WRITTEN",
        "TABLES",
    ];
    let right = [false, true, false, false, false, false];
    match (out.json, rows.is_empty()) {
        (true, _) => {}
        (false, true) => out.text("nothing is fenced")?,
        (false, false) => out.text(&table(out, head, right, &rows))?,
    }
    say_doors(&doors, out)
}

/// Lists the ways past the fences that are open.
fn say_doors(doors: &[Door], out: Out) -> Result<(), Failure> {
    for Door { table, door } in doors {
        match (out.json, table) {
            (true, _) => out.value(&json!({"door": door, "table": table}))?,
            (false, Some(table)) => out.text(&format!("open: {table}: {door}"))?,
            (false, None) => out.text(&format!("open: {door}"))?,
        }
    }
    Ok(())
}

fn body(resource: &str, state: Option<&FenceState>, tables: &[String]) -> Value {
    let none = FenceState::default();
    let state = state.unwrap_or(&none);
    let (written, sequence) = match state.mark.map(|mark| mark.written) {
        None | Some(Written::Nothing) => (false, None),
        Some(Written::Unnumbered) => (true, None),
        Some(Written::Through(number)) => (true, Some(number.get())),
    };
    json!({
        "resource": resource,
        "highest": state.highest().map(Token::get),
        "authority": state.authority.as_ref().map(AuthorityId::as_str),
        "lock": state.lock.as_ref().map(palisade_core::LockName::as_str),
        "written": written,
        "sequence": sequence,
        "tables": tables,
    })
}

fn row(resource: &str, state: &FenceState, tables: &[String]) -> [String; 6] {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let written = match state.mark.map(|mark| mark.written) {
        None | Some(Written::Nothing) => "nothing".to_owned(),
        Some(Written::Unnumbered) => "yes".to_owned(),
        Some(Written::Through(number)) => format!("through {number}"),
    };
    [
        resource.to_owned(),
        or_none(state.highest().map(|token| token.to_string())),
        or_none(state.authority.as_ref().map(ToString::to_string)),
        or_none(state.lock.as_ref().map(ToString::to_string)),
        written,
        or_none((!tables.is_empty()).then(|| tables.join(", "))),
    ]
}
