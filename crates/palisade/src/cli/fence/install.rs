//! `palisade fence install` and `uninstall`: the statements of each kind of database, run or printed.

use clap::{Args, ValueEnum};
use palisade_fence::ResourceId;
use serde_json::json;

use super::super::failure::Failure;
use super::super::output::Out;
use super::kind::{InstallStep, UserTable};
use super::resources::LocatedResources;
use super::{mysql, postgres, sqlite};

#[derive(Args, Clone, Debug)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    to: InstallTarget,
    /// Let this role use the fence: it may claim, and need not own anything. May be repeated (PostgreSQL).
    #[arg(long = "grant", value_name = "ROLE")]
    roles: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    from: InstallTarget,
    /// Remove the whole fence, with every token that it has seen. Needed if no table is named.
    #[arg(long, short)]
    yes: bool,
}

/// A database, and tables of it.
#[derive(Args, Clone, Debug)]
struct InstallTarget {
    /// The kind of database.
    kind: DatabaseKind,
    /// The database, see `palisade fence show --help`, and the tables that refuse every write without the current
    /// token of a resource [default: the resource has the table's name]. Without a table, nothing but the fence
    /// itself is installed.
    #[arg(value_name = "URL] [TABLE[=RESOURCE]")]
    given: Vec<String>,
    /// The database, if it is not the first argument.
    #[arg(
        long,
        value_name = "URL",
        env = "PALISADE_FENCE_URL",
        hide_env_values = true
    )]
    url: Option<String>,
    /// Print the statements without running them: for somebody whose role may, or for a migration.
    #[arg(long)]
    print: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DatabaseKind {
    Postgres,
    /// MySQL and MariaDB.
    Mysql,
    Sqlite,
    /// The function library `palisade`, which needs Redis 7.
    Redis,
}

impl DatabaseKind {
    /// The statements that install the fence.
    fn steps(self, tables: &[UserTable], roles: &[String]) -> Result<Vec<InstallStep>, Failure> {
        if self != DatabaseKind::Postgres && !roles.is_empty() {
            return Err(Failure::usage("--grant is for PostgreSQL").hint(
                "in MySQL, grant EXECUTE on the database: its procedures run with the rights of the user who installed them",
            ));
        }
        match self {
            DatabaseKind::Postgres => Ok(postgres::steps(tables, roles)),
            DatabaseKind::Mysql => mysql::steps(tables),
            DatabaseKind::Sqlite => sqlite::steps(tables),
            DatabaseKind::Redis if tables.is_empty() => Ok(vec![InstallStep {
                name: "the function library palisade".to_owned(),
                sql: palisade_fence::redis::library(),
            }]),
            DatabaseKind::Redis => Err(no_tables()),
        }
    }

    /// The statements that take the fence away from these tables, or from the database.
    fn removal(self, tables: &[UserTable]) -> Result<Vec<InstallStep>, Failure> {
        match self {
            DatabaseKind::Postgres => Ok(postgres::removal(tables)),
            DatabaseKind::Mysql => mysql::removal(tables),
            DatabaseKind::Sqlite => sqlite::removal(tables),
            DatabaseKind::Redis if tables.is_empty() => Ok(vec![InstallStep {
                name: "the function library palisade; the marks stay".to_owned(),
                sql: "FUNCTION DELETE palisade\n".to_owned(),
            }]),
            DatabaseKind::Redis => Err(no_tables()),
        }
    }
}

fn no_tables() -> Failure {
    Failure::usage("Redis has no tables, and no triggers that could stop other writers")
}

impl InstallTarget {
    /// The URL, and the other arguments.
    fn split(&self) -> (Option<&str>, &[String]) {
        match self.given.split_first() {
            Some((url, tables)) if url.contains("://") => (Some(url), tables),
            _ => (self.url.as_deref(), &self.given),
        }
    }

    fn tables(&self) -> Result<Vec<UserTable>, Failure> {
        let one = |given: &String| {
            let (name, resource) = given.split_once('=').unwrap_or((given, given));
            if name.is_empty() || name.contains('\0') {
                let text = format!("{given:?}: write TABLE or TABLE=RESOURCE");
                return Err(Failure::usage(text));
            }
            ResourceId::new(resource)
                .map_err(|invalid| Failure::usage(format!("{given}: {invalid}")))?;
            let (name, resource) = (name.to_owned(), resource.to_owned());
            Ok(UserTable { name, resource })
        };
        self.split().1.iter().map(one).collect()
    }

    /// The database; `None` if the statements are only printed.
    async fn open(&self) -> Result<Option<LocatedResources>, Failure> {
        match (self.print, self.split().0) {
            (true, _) => Ok(None),
            (false, Some(url)) => {
                let resources = LocatedResources::of(url).await?;
                match (self.kind, &resources) {
                    (DatabaseKind::Postgres, LocatedResources::Postgres(_))
                    | (DatabaseKind::Mysql, LocatedResources::Mysql(_))
                    | (DatabaseKind::Sqlite, LocatedResources::Sqlite(_))
                    | (DatabaseKind::Redis, LocatedResources::Redis(_)) => Ok(Some(resources)),
                    _ => Err(Failure::usage("the URL is of another kind of database")),
                }
            }
            (false, None) => Err(Failure::usage(
                "the URL of the database is missing: give it as the first argument, as --url or in PALISADE_FENCE_URL",
            )
            .hint("or print the statements with --print")),
        }
    }
}

pub(super) async fn install(args: &InstallArgs, out: Out) -> Result<(), Failure> {
    let tables = args.to.tables()?;
    let steps = args.to.kind.steps(&tables, &args.roles)?;
    let mut doors = Vec::new();
    let mut masters = 1;
    match args.to.open().await? {
        Some(LocatedResources::Redis(mut server)) => {
            server.install().await?;
            masters = server.masters();
        }
        Some(mut database) => {
            database.install(&steps).await?;
            // Shows doors of the named tables, or with no table named those of the whole database.
            let all = database.doors().await?.into_iter();
            doors.extend(all.filter(|door| !tables.is_empty() || door.table.is_none()));
        }
        None => {}
    }
    report(&steps, args.to.print, "installed", out)?;
    if masters > 1 {
        if out.json {
            out.value(&json!({"masters": masters}))?
        } else {
            out.text(&format!("on all {masters} masters of the cluster"))?
        }
    }
    super::say_doors(&doors, out)
}

pub(super) async fn uninstall(args: &UninstallArgs, out: Out) -> Result<(), Failure> {
    let tables = args.from.tables()?;
    let kind = args.from.kind;
    let mut steps = kind.removal(&tables)?;
    match args.from.open().await? {
        Some(LocatedResources::Redis(mut server)) => server.uninstall().await?,
        Some(mut database) => {
            if tables.is_empty() {
                if !args.yes {
                    return Err(confirm(&mut database).await?);
                }
                // The triggers go first: without the fence, they would refuse every write.
                let fenced = database.tables().await?.into_iter();
                let fenced: Vec<_> = fenced.map(UserTable::from).collect();
                if !fenced.is_empty() {
                    steps.splice(0..0, kind.removal(&fenced)?);
                }
            }
            database.run(&steps, "removed").await?;
        }
        None => {}
    }
    report(&steps, args.from.print, "removed", out)
}

/// Describes the loss.
async fn confirm(database: &mut LocatedResources) -> Result<Failure, Failure> {
    let all = database.all("").await?;
    let highest = all.iter().filter_map(|(one, _)| one.state.highest()).max();
    let highest = highest.map_or_else(|| "none yet".to_owned(), |token| token.to_string());
    let tables: Vec<_> = all.into_iter().flat_map(|(_, tables)| tables).collect();
    let protects = if tables.is_empty() {
        "no table is fenced".to_owned()
    } else {
        format!("{} would take writes without a token", tables.join(", "))
    };
    let text = format!(
        "this removes the fence and every token that it has seen (the highest: {highest}); {protects}. Nothing has changed"
    );
    let hint = "add --yes to go on, or name the tables to free from the fence";
    Ok(Failure::usage(text).hint(hint))
}

fn report(steps: &[InstallStep], print: bool, done: &str, out: Out) -> Result<(), Failure> {
    for InstallStep { name, sql } in steps {
        match (out.json, print) {
            (true, true) => out.value(&json!({"file": name, "sql": sql}))?,
            (true, false) => out.value(&json!({done: name}))?,
            (false, true) => out.text(&format!("-- {name}\n{sql}"))?,
            (false, false) => out.text(&format!("{done} {name}"))?,
        }
    }
    Ok(())
}

impl LocatedResources {
    /// Runs everything, and tries a claim before it says that the fence is installed.
    async fn install(&mut self, steps: &[InstallStep]) -> Result<(), Failure> {
        match self {
            LocatedResources::Mysql(database) => database.install(steps).await,
            LocatedResources::Postgres(database) => database.install(steps).await,
            other => {
                other.run(steps, "installed").await?;
                match other {
                    LocatedResources::Sqlite(file) => file.tries(),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Runs everything or nothing.
    async fn run(&mut self, steps: &[InstallStep], done: &str) -> Result<(), Failure> {
        match self {
            LocatedResources::Mysql(database) => database.run(steps, done).await,
            LocatedResources::Postgres(database) => database.run(steps, done).await,
            LocatedResources::Sqlite(file) => file.run(steps, done),
            LocatedResources::Files(_)
            | LocatedResources::DataDir(_)
            | LocatedResources::Redis(_) => Err(Failure::usage("there is nothing to install")),
        }
    }
}
