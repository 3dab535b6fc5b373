//! `palisade fence`: the fences of resources, for operators.
//!
//! ```text
//!   --url scheme://…         ┐
//!   --data DIR               ┴► Resources (the only match by scheme) → show · ls · rearm
//!   install, uninstall KIND  → the statements of that kind, run or printed
//! ```

mod data_dir;
mod files;
mod install;
mod mysql;
mod postgres;
mod rearm;
mod redis;
mod sqlite;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use palisade_core::{AuthorityId, Token};
use palisade_fence::{FaultKind, FenceState, FencedTable, FloorTooLow, Listed, Rearm, Written};
use palisade_proto::Code;
use serde_json::{Value, json};

use super::failure::{FAILED, Failure};
use super::output::{Out, facts, table};

/// `palisade fence`.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum FenceCommand {
    /// Make a database ready for fences: its tables, functions and triggers
    Install(install::InstallArgs),
    /// Take the fence away from tables, or from a whole database
    Uninstall(install::UninstallArgs),
    /// Show a resource's fence
    Show(ShowArgs),
    /// List the fences
    Ls(LsArgs),
    /// Make a resource refuse everything below a floor, after its fence was lost, restored or poisoned
    Rearm(rearm::RearmArgs),
}

/// How many fences one request asks for.
const PAGE: u32 = 500;

/// Where the resources are.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct Location {
    /// Where the fences are: postgres://USER@HOST:PORT/DATABASE, mysql://…, sqlite:///FILE,
    /// redis://HOST:PORT or file:///FOLDER, the
    /// parent of the fenced folders. Put a URL with a password into PALISADE_FENCE_URL (PostgreSQL also reads
    /// PGPASSWORD, MySQL MYSQL_PWD), because other users can see command lines. The connection is not encrypted: use a
    /// socket, this machine or a tunnel.
    #[arg(
        long,
        value_name = "URL",
        env = "PALISADE_FENCE_URL",
        hide_env_values = true
    )]
    url: Option<String>,
    /// The data directory of a `palisade store` or `palisade gateway`. To re-arm a fence in it, stop that first.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ShowArgs {
    /// The resource.
    resource: String,
    #[command(flatten)]
    at: Location,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct LsArgs {
    /// Only resources whose names start with this.
    #[arg(default_value = "")]
    prefix: String,
    #[command(flatten)]
    at: Location,
}

/// The resources of one location, and what each kind must support.
enum Resources {
    Files(files::Folders),
    DataDir(data_dir::DataDir),
    Mysql(mysql::Database),
    Postgres(postgres::Database),
    Redis(redis::Server),
    Sqlite(sqlite::File),
}

impl Resources {
    async fn open(at: &Location) -> Result<Resources, Failure> {
        match (&at.url, &at.data) {
            (_, Some(dir)) => data_dir::DataDir::open(dir).map(Resources::DataDir),
            (Some(url), None) => Resources::of(url).await,
            (None, None) => Err(Failure::usage("give --url or --data".to_owned())),
        }
    }

    /// The only place that looks at a URL's scheme.
    async fn of(url: &str) -> Result<Resources, Failure> {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => {
                Ok(Resources::Postgres(postgres::Database::open(url).await?))
            }
            Some("mysql" | "mariadb") => Ok(Resources::Mysql(mysql::Database::open(url).await?)),
            Some("sqlite") => {
                let path = url.trim_start_matches("sqlite://");
                Ok(Resources::Sqlite(sqlite::File::open(path)?))
            }
            Some("redis" | "redis+unix" | "unix") => {
                Ok(Resources::Redis(redis::Server::open(url).await?))
            }
            Some("file") => {
                let path = url.trim_start_matches("file://");
                Ok(Resources::Files(files::Folders::open(path)?))
            }
            // Does not repeat the URL, which may contain a password.
            scheme => Err(Failure::usage(match scheme {
                Some(scheme) => format!("--url: {scheme}:// is not supported"),
                None => "--url: the scheme is missing".to_owned(),
            })
            .hint(
                "use postgres://, mysql://, sqlite:///, redis:// or file:///, or --data for the directory of a store or a gateway; \
                 for other fences, use palisade_fence::Admin in a program",
            )),
        }
    }

    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        match self {
            Resources::Files(folders) => folders.show(resource).await,
            Resources::DataDir(dir) => dir.show(resource),
            Resources::Postgres(database) => database.show(resource).await,
            Resources::Mysql(database) => database.show(resource).await,
            Resources::Redis(server) => server.show(resource).await,
            Resources::Sqlite(file) => file.show(resource).await,
        }
    }

    /// One page in name order, starting after `after`.
    async fn list(&mut self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Failure> {
        match self {
            Resources::Files(folders) => folders.list(prefix, after).await,
            Resources::DataDir(dir) => dir.list(prefix, after),
            Resources::Postgres(database) => database.list(prefix, after).await,
            Resources::Mysql(database) => database.list(prefix, after).await,
            Resources::Redis(server) => server.list(prefix, after).await,
            Resources::Sqlite(file) => file.list(prefix, after).await,
        }
    }

    /// All fences whose names start with this, in name order, and the tables that are fenced by each; also a fence
    /// that has tables and no token yet.
    async fn all(&mut self, prefix: &str) -> Result<Vec<(Listed, Vec<String>)>, Failure> {
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.list(prefix, after.as_deref()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.resource.clone());
            all.extend(
                page.into_iter()
                    .map(|one| (one.resource, (one.state, Vec::new()))),
            );
        }
        for FencedTable { table, resource } in self.tables().await? {
            if resource.starts_with(prefix) {
                all.entry(resource).or_default().1.push(table);
            }
        }
        let all = all.into_iter();
        Ok(all
            .map(|(resource, (state, tables))| (Listed { resource, state }, tables))
            .collect())
    }

    /// The tables that refuse writes without a current token.
    async fn tables(&mut self) -> Result<Vec<FencedTable>, Failure> {
        match self {
            Resources::Mysql(database) => database.tables().await,
            Resources::Postgres(database) => database.tables().await,
            Resources::Sqlite(file) => file.tables(),
            Resources::Files(_) | Resources::DataDir(_) | Resources::Redis(_) => Ok(Vec::new()),
        }
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        match self {
            Resources::Files(folders) => folders.rearm(resource, with).await,
            Resources::DataDir(dir) => dir.rearm(resource, with).await,
            Resources::Postgres(database) => database.rearm(resource, with).await,
            Resources::Mysql(database) => database.rearm(resource, with).await,
            Resources::Redis(server) => server.rearm(resource, with).await,
            Resources::Sqlite(file) => file.rearm(resource, with).await,
        }
    }
}

/// Turns a fence's fault into a failure of the command.
fn failed(kind: FaultKind, message: String) -> Failure {
    match kind {
        FaultKind::Invalid => Failure::usage(message),
        FaultKind::Retry | FaultKind::Unknown | FaultKind::Operator => Failure::local(message),
    }
}

fn too_low(floor: FloorTooLow) -> Failure {
    let highest = floor.highest;
    Failure::new(FAILED, Code::Stale, floor.to_string()).hint(format!(
        "choose a floor above {highest}; if the authority never issued {highest} (a poisoned \
         fence), add --lower-from {highest}"
    ))
}

pub(super) async fn carry_out(command: FenceCommand, out: Out) -> Result<(), Failure> {
    match command {
        FenceCommand::Install(args) => install::install(&args, out).await,
        FenceCommand::Uninstall(args) => install::uninstall(&args, out).await,
        FenceCommand::Show(args) => show(&args, out).await,
        FenceCommand::Ls(args) => ls(&args, out).await,
        FenceCommand::Rearm(args) => rearm::rearm(&args, out).await,
    }
}

async fn show(args: &ShowArgs, out: Out) -> Result<(), Failure> {
    let mut resources = Resources::open(&args.at).await?;
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

async fn ls(args: &LsArgs, out: Out) -> Result<(), Failure> {
    let mut resources = Resources::open(&args.at).await?;
    let mut rows = Vec::new();
    for (Listed { resource, state }, tables) in resources.all(&args.prefix).await? {
        match out.json {
            true => out.value(&body(&resource, Some(&state), &tables))?,
            false => rows.push(row(&resource, &state, &tables)),
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
        (true, _) => Ok(()),
        (false, true) => out.text("nothing is fenced"),
        (false, false) => out.text(&table(out, head, right, &rows)),
    }
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
