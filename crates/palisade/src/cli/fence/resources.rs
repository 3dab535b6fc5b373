//! The resources of one location.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use palisade_fence::{Door, FenceState, FencedTable, Listed, Rearm};

use super::super::failure::Failure;
use super::{data_dir, files, mysql, postgres, redis, sqlite};

/// Where the resources are.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(super) struct ResourceLocation {
    /// Where the fences are: postgres://USER@HOST:PORT/DATABASE, mysql://…, sqlite:///FILE,
    /// redis://HOST:PORT or file:///FOLDER, the
    /// parent of the fenced folders. Put a URL with a password into PALISADE_FENCE_URL (PostgreSQL also reads
    /// PGPASSWORD, MySQL MYSQL_PWD), because other users can see command lines. With TLS: postgres://…?sslmode=verify-full,
    /// mysql://…?require_ssl=true, rediss://…. The certificate is always checked, against the CA in PALISADE_CA_FILE or those
    /// that this machine trusts. Of a Redis Cluster any node is enough.
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

/// The resources of one location, of any kind.
pub(super) enum LocatedResources {
    Files(files::Folders),
    DataDir(data_dir::DataDir),
    Mysql(mysql::Database),
    Postgres(postgres::Database),
    Redis(redis::RedisMasters),
    Sqlite(sqlite::SqliteFile),
}

impl LocatedResources {
    pub(super) async fn open(at: &ResourceLocation) -> Result<LocatedResources, Failure> {
        match (&at.url, &at.data) {
            (_, Some(dir)) => data_dir::DataDir::open(dir).map(LocatedResources::DataDir),
            (Some(url), None) => LocatedResources::of(url).await,
            (None, None) => Err(Failure::usage("give --url or --data".to_owned())),
        }
    }

    /// The only place that looks at a URL's scheme.
    pub(super) async fn of(url: &str) -> Result<LocatedResources, Failure> {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => {
                Ok(LocatedResources::Postgres(postgres::Database::open(url).await?))
            }
            Some("mysql" | "mariadb") => Ok(LocatedResources::Mysql(mysql::Database::open(url).await?)),
            Some("sqlite") => {
                let path = url.trim_start_matches("sqlite://");
                Ok(LocatedResources::Sqlite(sqlite::SqliteFile::open(path)?))
            }
            Some("redis" | "rediss" | "redis+unix" | "unix") => {
                Ok(LocatedResources::Redis(redis::RedisMasters::open(url).await?))
            }
            Some("file") => {
                let path = url.trim_start_matches("file://");
                Ok(LocatedResources::Files(files::Folders::open(path)?))
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

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        match self {
            LocatedResources::Files(folders) => folders.show(resource).await,
            LocatedResources::DataDir(dir) => dir.show(resource),
            LocatedResources::Postgres(database) => database.show(resource).await,
            LocatedResources::Mysql(database) => database.show(resource).await,
            LocatedResources::Redis(server) => server.show(resource).await,
            LocatedResources::Sqlite(file) => file.show(resource).await,
        }
    }

    /// One page in name order, starting after `after`.
    async fn list(&mut self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Failure> {
        match self {
            LocatedResources::Files(folders) => folders.list(prefix, after).await,
            LocatedResources::DataDir(dir) => dir.list(prefix, after),
            LocatedResources::Postgres(database) => database.list(prefix, after).await,
            LocatedResources::Mysql(database) => database.list(prefix, after).await,
            LocatedResources::Redis(server) => server.list(prefix, after).await,
            LocatedResources::Sqlite(file) => file.list(prefix, after).await,
        }
    }

    /// All fences whose names start with this, in name order, and the tables that are fenced by each; also a fence
    /// that has tables and no token yet.
    pub(super) async fn all(
        &mut self,
        prefix: &str,
    ) -> Result<Vec<(Listed, Vec<String>)>, Failure> {
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
    pub(super) async fn tables(&mut self) -> Result<Vec<FencedTable>, Failure> {
        match self {
            LocatedResources::Mysql(database) => database.tables().await,
            LocatedResources::Postgres(database) => database.tables().await,
            LocatedResources::Sqlite(file) => file.tables(),
            LocatedResources::Files(_)
            | LocatedResources::DataDir(_)
            | LocatedResources::Redis(_) => Ok(Vec::new()),
        }
    }

    /// Lists the ways past the fences that are open.
    pub(super) async fn doors(&mut self) -> Result<Vec<Door>, Failure> {
        match self {
            LocatedResources::Mysql(database) => database.doors().await,
            LocatedResources::Postgres(database) => database.doors().await,
            LocatedResources::Sqlite(_)
            | LocatedResources::Files(_)
            | LocatedResources::DataDir(_)
            | LocatedResources::Redis(_) => Ok(Vec::new()),
        }
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        match self {
            LocatedResources::Files(folders) => folders.rearm(resource, with).await,
            LocatedResources::DataDir(dir) => dir.rearm(resource, with).await,
            LocatedResources::Postgres(database) => database.rearm(resource, with).await,
            LocatedResources::Mysql(database) => database.rearm(resource, with).await,
            LocatedResources::Redis(server) => server.rearm(resource, with).await,
            LocatedResources::Sqlite(file) => file.rearm(resource, with).await,
        }
    }
}
