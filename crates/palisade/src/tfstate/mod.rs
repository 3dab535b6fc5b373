//! `palisade tfstate`: an HTTP backend for Terraform and OpenTofu that refuses late uploads.
//!
//! ```text
//!   LOCK   ──► callers: whose password is it? ──► authority: acquire ──► store: claim and record ──► 200
//!   GET    ──► authority: may they look? ──► store: read
//!   POST   ──► the grant with this lock ID ──► store: write under its token ──► 200, or 412 if somebody locked since
//!   UNLOCK ──► the grant with this lock ID ──► authority: release
//!   keeping: renews each grant until it is unlocked, because Terraform never does
//! ```
//!
//! A state is one resource of a [`palisade_fence::store`], under its own fence; its lock has the same name. The object
//! `/record` lists its versions and the grants of the last thirty days, by lock ID ([`record`]). So a lock ID still leads to
//! its token after the lease has ended, and the fence decides about the upload: it is refused if anybody locked since, and
//! admitted otherwise. The authority is not asked for that, and need not be there.
//!
//! | status | when |
//! |---|---|
//! | 200 | done; of a GET: the state |
//! | 204 | there is no state yet |
//! | 400, 413 | the request is wrong, or too large |
//! | 401, 403 | the authority knows no such password, or grants its owner no such right |
//! | 409 | an `UNLOCK` that names no lock of this state |
//! | 412 | a late upload: somebody locked since. Nothing was written |
//! | 423 | somebody else has the lock; the body says who, as Terraform expects it |
//! | 503, 504, 507 | the authority or the disk; 504: it may have happened |

mod callers;
mod info;
mod keeping;
mod lock;
mod record;
mod state;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{
    DefaultBodyLimit, Path, Query, State,
    rejection::{PathRejection, QueryRejection},
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use palisade_client::Error;
use palisade_core::{LockName, Ttl};
use palisade_fence::http::Problem;
use palisade_fence::store::{Resource, Store};
use palisade_proto::Code;
use palisade_proto::codes::CodeRow;
use palisade_server::shell::{self, ExchangeKind, Listeners, Shell};
use tokio::sync::RwLock;

pub(crate) use callers::StateCallers;

/// The operator's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatePolicy {
    /// The lease's time to live: how long a state stays locked when this server dies.
    pub(crate) ttl: Ttl,
    /// How many versions of a state are kept.
    pub(crate) versions: usize,
    /// The largest state in bytes.
    pub(crate) state_bytes: usize,
    /// Whether a `force-unlock` that names no lock is carried out for callers without a password, too.
    pub(crate) blind_unlock: bool,
}

/// The state that all handlers share.
pub(super) struct App {
    store: Store,
    callers: StateCallers,
    policy: StatePolicy,
    keeping: keeping::Keeping,
    /// Admit one change of a state at a time, and none while it is read. A hash of its name gives each state one.
    turns: [RwLock<()>; TURNS],
}

/// The bounds for a server of states of this size.
pub(crate) fn settings(state_bytes: usize) -> shell::Settings {
    shell::Settings {
        body_bytes: state_bytes,
        held_bytes_per_connection: 2 * state_bytes,
        held_bytes: (8 * state_bytes).max(256 << 20),
        ..crate::store::settings(0)
    }
}

/// Serves until `shutdown`, then finishes the requests in flight. The grants stay: the next start takes them up again.
///
/// # Errors The reason why it could not serve, or why the store stopped on its own.
pub(crate) async fn serve(
    listeners: Listeners,
    store: Store,
    callers: StateCallers,
    policy: StatePolicy,
    settings: shell::Settings,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String> {
    let app = Arc::new(App {
        store: store.clone(),
        callers,
        policy,
        keeping: keeping::Keeping::default(),
        turns: [const { RwLock::const_new(()) }; TURNS],
    });
    app.resume().await.map_err(|error| error.report())?;
    let keeping = tokio::spawn(keeping::keep(Arc::clone(&app)));
    let mut why = Ok(());
    let ended = async {
        tokio::select! {
            () = shutdown => {}
            reason = store.stopped() => why = Err(reason),
        }
    };
    let shell = Shell::new(settings).map_err(|error| error.to_string())?;
    shell
        .serve(listeners, Arc::new(Service), router(app), ended)
        .await;
    keeping.abort();
    why
}

/// The shell's service for Terraform.
struct Service;

impl shell::Service for Service {
    fn exchange(&self, _: &Parts) -> ExchangeKind {
        ExchangeKind::Unary
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        refused(code, message).into_response()
    }
}

/// A refusal with a code from the table.
fn refused(code: Code, message: impl Into<String>) -> Problem {
    let status = StatusCode::from_u16(CodeRow::of(code).http);
    Problem::new(
        status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        code,
        message,
    )
}

/// An action that the authority did not carry out for a caller.
fn failed(error: &Error) -> Problem {
    refused(error.code(), format!("the lock's authority: {error:#}"))
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/tf/{*name}", any(exchange))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .fallback(elsewhere)
        // The shell bounds bodies.
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}

/// Anywhere else. Not 404: Terraform takes that for an empty state, and would begin everything anew.
async fn elsewhere(uri: Uri) -> Problem {
    Problem::invalid(format!(
        "there is nothing at {}; the address of a state is /v1/tf/NAME",
        uri.path()
    ))
}

async fn health(State(app): State<Arc<App>>) -> Result<&'static str, Problem> {
    app.store.list("", None, 1).await?;
    Ok("ok\n")
}

async fn metrics(State(app): State<Arc<App>>) -> String {
    let counts = app.store.counts();
    crate::store::exposition("palisade_tfstate", &counts, Default::default(), None)
}

/// Every request about a state. Terraform hides the text of a refusal from its user, so the log has it.
async fn exchange(
    state: State<Arc<App>>,
    method: Method,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let what = format!("{method} {}", uri.path());
    let answer = answer(state, method, name, query, headers, body).await;
    if let Err(problem) = &answer {
        match problem.code() {
            Code::Stale
            | Code::SequenceStale
            | Code::Tokenless
            | Code::Forbidden
            | Code::NotHeld => {
                tracing::warn!(
                    code = problem.code().name(),
                    "{what} was refused: {}",
                    problem.message()
                );
            }
            code => tracing::debug!(
                code = code.name(),
                "{what} was refused: {}",
                problem.message()
            ),
        }
    }
    answer
}

async fn answer(
    State(app): State<Arc<App>>,
    method: Method,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::invalid("the name of the state is not UTF-8"))?;
    let Query(query) = query.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let at = StatePlace::new(&app, &name)?;
    let asked = QueryParams::new(query)?;
    let caller = app.callers.caller(&headers)?;
    match method.as_str() {
        "GET" => state::get(&app, &at, &caller, &asked).await,
        "POST" | "PUT" => state::post(&app, &at, &caller, &asked, &headers, body).await,
        "LOCK" => lock::lock(&app, at, caller, &asked, &headers, &body).await,
        "UNLOCK" => lock::unlock(&app, &at, &caller, &body).await,
        "DELETE" => Err(refused(
            Code::MethodNotAllowed,
            "a state is not deleted here: `terraform destroy` empties it, and its versions stay",
        )),
        _ => Err(refused(
            Code::MethodNotAllowed,
            format!("a state takes GET, POST, LOCK and UNLOCK, not {method}"),
        )),
    }
}

/// A state: its lock and its resource.
#[derive(Clone, Debug)]
struct StatePlace {
    lock: LockName,
    resource: Resource,
}

impl StatePlace {
    fn new(app: &App, name: &str) -> Result<StatePlace, Problem> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let fits = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(plain);
        if name.len() > NAME_BYTES || !name.split('/').all(fits) {
            return Err(Problem::invalid(format!(
                "the name of a state is 1 to {NAME_BYTES} letters, digits, '.', '_' and '-', in parts with '/' between them"
            )));
        }
        let full = format!("{PREFIX}{name}");
        let invalid = |error: String| Problem::invalid(error);
        Ok(StatePlace {
            lock: LockName::new(&full).map_err(|error| invalid(error.to_string()))?,
            resource: app.store.resource(&full)?,
        })
    }

    /// The lock under which changes of this state take turns.
    fn turn<'a>(&self, app: &'a App) -> &'a RwLock<()> {
        let sum = self.lock.as_str().bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        &app.turns[sum % TURNS]
    }
}

/// The parameters in an address's query. Terraform preserves the parameters of its configured address.
#[derive(Debug, Default)]
struct QueryParams {
    id: Option<String>,
    wait: Duration,
    version: Option<u64>,
    versions: bool,
}

impl QueryParams {
    fn new(query: BTreeMap<String, String>) -> Result<QueryParams, Problem> {
        let mut asked = QueryParams::default();
        for (name, value) in query {
            match name.as_str() {
                "ID" => asked.id = Some(value),
                "wait" => {
                    let wait = crate::cli::wait(&value);
                    asked.wait = wait.map_err(|why| Problem::invalid(format!("wait: {why}")))?;
                }
                "version" => {
                    let version = value.parse();
                    let wrong =
                        |_| Problem::invalid("version must be a number; ?versions lists them");
                    asked.version = Some(version.map_err(wrong)?);
                }
                "versions" => asked.versions = true,
                _ => {
                    return Err(Problem::invalid(format!(
                        "unknown parameter {name:?}: an address takes wait, and a GET version or versions"
                    )));
                }
            }
        }
        Ok(asked)
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// Names of locks and resources begin with this.
const PREFIX: &str = "tf/";
/// The longest name of a state; the rest of a lock's 255 bytes is the prefix, and room.
const NAME_BYTES: usize = 200;
const TURNS: usize = 64;
