//! `LOCK` and `UNLOCK`.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use palisade_client::kind::Kind;
use palisade_client::{Attempt, Client, Error, Lease, LockRequest, Renewal, Revocation};
use palisade_core::Token;
use palisade_fence::Pass;
use palisade_fence::http::Problem;
use palisade_proto::Code;
use serde_json::Value;

use super::callers::StateCaller;
use super::info::{self, Info};
use super::record::{Grant, GrantName, Record};
use super::{App, QueryParams, StatePlace, failed, keeping, refused, state};

/// Acquires the lock: alone, or together with other plans for a plan.
pub(super) async fn lock(
    app: &Arc<App>,
    at: StatePlace,
    caller: StateCaller,
    asked: &QueryParams,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Problem> {
    state::check_md5(headers, body)?;
    let info = Info::parse(body)?;
    let client = app.callers.client(&caller).await?;
    let record = Record::read(&at.resource).await?;
    if let Some(grant) = record.grant(&info.id)
        && let Some(answer) = repeated(app, &at, &client, &caller, grant).await?
    {
        return Ok(answer);
    }
    let attempt = if info.is_plan() {
        ask(app, client.lock_shared(at.lock.as_str()), &info, asked).await
    } else {
        ask(app, client.lock(at.lock.as_str()), &info, asked).await
    };
    let lease = match attempt.map_err(|error| failed(&error))? {
        Attempt::Granted(lease) => lease,
        denied => return denied_with(&at, &record_now(&at).await?, denied),
    };
    // From here on it must not end halfway because the connection does.
    let app = Arc::clone(app);
    let granted =
        tokio::spawn(async move { granted(&app, &at, &client, caller, &info, lease).await });
    granted
        .await
        .unwrap_or_else(|_| Err(Problem::unknown_outcome("the request was cut off")))
}

async fn record_now(at: &StatePlace) -> Result<Record, Problem> {
    Ok(Record::read(&at.resource).await?)
}

/// Asks the authority once, in the lock's queue for as long as the address says.
async fn ask<K>(
    app: &App,
    request: LockRequest<K>,
    info: &Info,
    asked: &QueryParams,
) -> Result<Attempt, Error>
where
    K: Kind<Guard = Lease> + Send,
{
    let request = request.client_id(info.client()).metadata(info.metadata());
    let ttl = std::time::Duration::from_millis(app.policy.ttl.as_millis().into());
    request.ttl(ttl).wait(asked.wait).attempt().await
}

/// The answer to a LOCK whose ID was granted before; `None` if nothing is left of that grant.
async fn repeated(
    app: &App,
    at: &StatePlace,
    client: &Client,
    caller: &StateCaller,
    grant: &Grant,
) -> Result<Option<Response>, Problem> {
    if grant.caller != caller.mark {
        return Err(others(&grant.id));
    }
    if grant.released {
        let message = format!(
            "the lock {} was unlocked; a new lock has a new ID",
            grant.id
        );
        return Err(refused(Code::Superseded, message).with_status(StatusCode::CONFLICT));
    }
    let Some(named) = grant.named(&at.lock) else {
        return Ok(None);
    };
    match client
        .renew(&named.grant, None)
        .await
        .map_err(|error| failed(&error))?
    {
        Renewal::Renewed(_) => {
            app.keep(at, grant, caller);
            Ok(Some(StatusCode::OK.into_response()))
        }
        _ => Ok(None),
    }
}

/// Claims the state with the token, and records the grant, in one step; then it is renewed.
async fn granted(
    app: &App,
    at: &StatePlace,
    client: &Client,
    caller: StateCaller,
    info: &Info,
    lease: Lease,
) -> Result<Response, Problem> {
    let (token, authority, now) = (lease.token(), lease.authority().clone(), state::now());
    let named = GrantName {
        authority,
        grant: lease.detach(),
    };
    let _turn = at.turn(app).write().await;
    let written = async {
        let mut record = Record::read(&at.resource).await?;
        record.add(named.grant(token, info, caller.mark.clone(), now));
        record
            .write(&at.resource, Some(pass(&named, token, at)))
            .await
    };
    if let Err(error) = written.await {
        // No caller knows of the grant. If this release does not arrive, its lease expires.
        let _ = keeping::release(client, &named.grant).await;
        return Err(error.into());
    }
    app.keeping.add(&named.grant, &info.id, token, caller);
    tracing::info!(lock = %at.lock, lock_id = info.id, %token, who = info.who(), "locked");
    Ok(StatusCode::OK.into_response())
}

pub(super) fn pass<'a>(named: &'a GrantName, token: Token, at: &'a StatePlace) -> Pass<'a> {
    Pass::new(token).by(&named.authority).of(&at.lock)
}

/// 423, with the description of the conflicting lock: Terraform prints it, and tries again within its `-lock-timeout`.
fn denied_with(at: &StatePlace, record: &Record, denied: Attempt) -> Result<Response, Problem> {
    let lock = at.lock.as_str();
    let body: Value = match denied {
        Attempt::Held(holder) => match record.holder(holder.token) {
            Some(grant) if !grant.info.is_null() => grant.info.clone(),
            _ => info::of_another(lock, &holder),
        },
        Attempt::Behind(ahead) => info::of_nobody(
            lock,
            &format!("queued behind {}, which waits for it", ahead.client),
        ),
        Attempt::Delayed(_) => {
            info::of_nobody(lock, "the lock is closed for a while after its last grant")
        }
        Attempt::QueueFull(why) | Attempt::TooManyLocks(why) => {
            return Err(refused(Code::QueueFull, String::from(why)));
        }
        Attempt::TokensExhausted => {
            return Err(refused(
                Code::TokensExhausted,
                "the authority has issued its last token",
            ));
        }
        // A grant is not a denial. Denials that a later version of the client knows also arrive here.
        _ => info::of_nobody(lock, "the authority did not grant it"),
    };
    Ok((StatusCode::LOCKED, Json(body)).into_response())
}

/// Releases the lock that the body names. Without a body it is Terraform's `force-unlock`, whose ID never leaves its command
/// line: the current holder loses the lock.
pub(super) async fn unlock(
    app: &App,
    at: &StatePlace,
    caller: &StateCaller,
    body: &[u8],
) -> Result<Response, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return force(app, at, caller).await;
    }
    let info = Info::parse(body)?;
    let _turn = at.turn(app).write().await;
    let record = Record::read(&at.resource).await?;
    let Some(grant) = record.grant(&info.id).cloned() else {
        return Err(unknown(at, &record, &info.id));
    };
    if grant.released {
        return Ok(StatusCode::OK.into_response());
    }
    let Some(named) = grant.named(&at.lock) else {
        return Err(unknown(at, &record, &info.id));
    };
    if grant.caller == caller.mark {
        let released = match app.callers.client(caller).await {
            Ok(client) => keeping::release(&client, &named.grant)
                .await
                .map(drop)
                .map_err(|error| failed(&error)),
            Err(problem) => Err(problem),
        };
        match released {
            Ok(()) => app.keeping.forget(&named.grant, &grant.id),
            // It is unlocked for Terraform, and will be at the authority when that answers, at the latest when the lease ends.
            Err(problem) => {
                tracing::warn!(lock = %at.lock, lock_id = grant.id, "released later: {}", problem.message());
                app.keeping
                    .release_later(&named.grant, &grant.id, grant.token, caller.clone());
            }
        }
    } else {
        // Somebody else's: the authority says whether this caller may take it.
        let client = app.callers.client(caller).await?;
        let number = named.grant.token.unwrap_or(grant.token);
        revoke(&client, at, number, &info.id).await?;
        app.keeping.forget(&named.grant, &grant.id);
    }
    released(at, record, &grant, &named).await
}

/// Notes a release in the record. A later holder's token forbids it, and makes it needless.
async fn released(
    at: &StatePlace,
    mut record: Record,
    grant: &Grant,
    named: &GrantName,
) -> Result<Response, Problem> {
    record.release(&grant.id);
    match record
        .write(&at.resource, Some(pass(named, grant.token, at)))
        .await
    {
        Ok(()) => {}
        Err(error) if error.rejected().is_some() => {}
        Err(error) => return Err(error.into()),
    }
    tracing::info!(lock = %at.lock, lock_id = grant.id, token = %grant.token, "unlocked");
    Ok(StatusCode::OK.into_response())
}

/// Takes the lock from its holder, whoever that is.
async fn force(app: &App, at: &StatePlace, caller: &StateCaller) -> Result<Response, Problem> {
    if caller.mark.is_nobody() && !app.policy.blind_unlock {
        return Err(refused(
            Code::Forbidden,
            format!(
                "this unlock names no lock (Terraform's force-unlock never does), and it has no password: \
                 see who has the lock with `palisade show {0}`, and take it with `palisade break {0} --token N --reason TEXT`; \
                 or start `palisade tfstate` with --allow-blind-force-unlock",
                at.lock
            ),
        ));
    }
    let client = app.callers.client(caller).await?;
    let view = client
        .show(at.lock.as_str())
        .await
        .map_err(|error| failed(&error))?;
    let readers = view.readers.iter().map(|reader| reader.id.0);
    let numbers: Vec<Token> = match view.reader_count {
        0 => view.holder.iter().map(|holder| holder.token).collect(),
        _ => readers.collect(),
    };
    for number in numbers {
        revoke(&client, at, number, "force-unlock").await?;
    }
    tracing::info!(lock = %at.lock, "forced open");
    Ok(StatusCode::OK.into_response())
}

async fn revoke(client: &Client, at: &StatePlace, number: Token, id: &str) -> Result<(), Problem> {
    let reason = format!("terraform force-unlock {id}");
    let revoked = client.revoke(at.lock.as_str(), number, &reason).await;
    match revoked.map_err(|error| failed(&error))? {
        Revocation::Revoked
        | Revocation::Ended(_)
        | Revocation::NotHeld
        | Revocation::Stale { .. } => Ok(()),
    }
}

fn unknown(at: &StatePlace, record: &Record, id: &str) -> Problem {
    let held: Vec<&str> = record.held().map(|grant| grant.id.as_str()).collect();
    let message = match held.as_slice() {
        [] => format!("{} has no lock {id}", at.lock),
        held => format!("{} has no lock {id}; held: {}", at.lock, held.join(", ")),
    };
    refused(Code::NotHeld, message).with_status(StatusCode::CONFLICT)
}

pub(super) fn others(id: &str) -> Problem {
    refused(
        Code::Forbidden,
        format!("the lock {id} was acquired with another password"),
    )
}
