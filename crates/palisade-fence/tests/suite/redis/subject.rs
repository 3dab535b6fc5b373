//! Any form, with the suite's interface.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palisade_fence::conformance;
use palisade_fence::redis::{Objects, Operator, probe};
use palisade_fence::{Admin as _, Admitted, Edit, Fence, FenceState, Pass, Result, Rule, Write};
use palisade_testbed::Redis;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cmd;

use super::naive::Naive;
use super::strings::Strings;

/// The time limit for an answer; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// The form in which the resource is stored in Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Objects(Rule),
    Strings(Rule),
    /// A fence that is not one step.
    Naive,
}

pub(crate) async fn connect(url: &str) -> ConnectionManager {
    let client = redis::Client::open(url).unwrap();
    // The default, half a second, is shorter than a busy disk takes to sync.
    let settings = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
    let connected = client.get_connection_manager_with_config(settings).await;
    connected.unwrap()
}

/// Returns the fence of a resource.
pub(crate) async fn show(
    connection: &mut ConnectionManager,
    resource: &str,
) -> Result<Option<FenceState>> {
    Operator::new(connection).show(resource).await
}

pub(crate) struct Subject<'a> {
    server: &'a Redis,
    pub(crate) connection: ConnectionManager,
    form: Form,
    run: u32,
}

impl Subject<'_> {
    pub(crate) async fn new(server: &Redis, form: Form) -> Subject<'_> {
        static RUN: AtomicU32 = AtomicU32::new(0);
        let mut connection = connect(&server.url()).await;
        probe(&mut connection).await.unwrap();
        Subject {
            server,
            connection,
            form,
            run: RUN.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.run)
    }

    /// Returns a resource over another connection than the subject's.
    pub(crate) fn resource(&self, name: &str, connection: ConnectionManager) -> Resource {
        let name = &self.name(name);
        match self.form {
            Form::Objects(rule) => Resource::Objects(Objects::new(connection, name, rule).unwrap()),
            Form::Strings(rule) => Resource::Strings(Strings::new(connection, name, rule)),
            Form::Naive => Resource::Naive(Naive::new(connection, name)),
        }
    }
}

impl conformance::Subject for Subject<'_> {
    type Fence = Resource;

    async fn fresh(&self, name: &str) -> Result<Resource> {
        Ok(self.resource(name, self.connection.clone()))
    }

    async fn crash(&self) -> Result<bool, String> {
        self.server.kill();
        self.server.start_again();
        let mut connection = self.connection.clone();
        // The client notices the broken connection with the first call.
        while cmd("PING").exec_async(&mut connection).await.is_err() {
            tokio::task::yield_now().await;
        }
        Ok(true)
    }

    async fn lose_fence(&self, name: &str) -> Result<bool, String> {
        let mut delete = cmd("DEL");
        delete.arg(format!("palisade:fence:{{{}}}", self.name(name)));
        let deleted = delete.query_async(&mut self.connection.clone()).await;
        deleted.map_err(|error| error.to_string())
    }
}

pub(crate) enum Resource {
    Objects(Objects<ConnectionManager>),
    Strings(Strings),
    Naive(Naive),
}

/// Makes the same call to each form.
macro_rules! each {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Resource::Objects(fence) => fence.$method($($argument),*).await,
            Resource::Strings(fence) => fence.$method($($argument),*).await,
            Resource::Naive(fence) => fence.$method($($argument),*).await,
        }
    };
}

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        each!(self.claim(pass))
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        each!(self.read(pass, key))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        each!(self.write(pass, write))
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        each!(self.write_tokenless(key, change))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        each!(self.observe(key))
    }
}
