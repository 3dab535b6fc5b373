//! GET and POST: the state itself, in versions.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use md5::{Digest as _, Md5};
use palisade_client::Attempt;
use palisade_fence::http::Problem;
use palisade_fence::store::Resource;
use palisade_fence::{Edit, Error, Fence as _, Pass};
use palisade_proto::Code;
use serde::Deserialize;
use serde_json::json;

use super::callers::StateCaller;
use super::lock::{others, pass};
use super::record::{Record, Version, change};
use super::{App, QueryParams, StatePlace, failed, refused};

/// The state as it is, or one of its versions, or the list of these.
pub(super) async fn get(
    app: &App,
    at: &StatePlace,
    caller: &StateCaller,
    asked: &QueryParams,
) -> Result<Response, Problem> {
    // The authority says whether this caller may look.
    let client = app.callers.client(caller).await?;
    client
        .show(at.lock.as_str())
        .await
        .map_err(|error| failed(&error))?;
    let _turn = at.turn(app).read().await;
    let record = Record::read(&at.resource).await?;
    if asked.versions {
        return Ok(list(at, &record));
    }
    let version = match asked.version {
        None => record.versions.last(),
        Some(number) => {
            let found = record
                .versions
                .iter()
                .find(|version| version.number == number);
            let kept: Vec<_> = record
                .versions
                .iter()
                .map(|version| version.number.to_string())
                .collect();
            let gone = || {
                Problem::invalid(format!(
                    "there is no version {number}; kept: {}",
                    kept.join(", ")
                ))
            };
            Some(found.ok_or_else(gone)?)
        }
    };
    let Some(version) = version else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let bytes = read(&at.resource, version).await?;
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-state-version", version.number.into());
    if let Ok(md5) = HeaderValue::from_str(&version.md5) {
        headers.insert("content-md5", md5);
    }
    Ok(response)
}

fn list(at: &StatePlace, record: &Record) -> Response {
    let versions: Vec<_> = record
        .versions
        .iter()
        .rev()
        .map(|version| {
            json!({
                "version": version.number, "uploaded_at_ms": version.at, "who": version.who, "lock_id": version.lock_id,
                "fencing_token": version.token, "bytes": version.bytes, "serial": version.serial, "lineage": version.lineage,
            })
        })
        .collect();
    Json(json!({ "lock": at.lock.as_str(), "versions": versions })).into_response()
}

/// Takes an upload: under the token of the lock that it names, however that lock ended. The fence refuses it if anybody
/// locked since.
pub(super) async fn post(
    app: &App,
    at: &StatePlace,
    caller: &StateCaller,
    asked: &QueryParams,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    check_md5(headers, &body)?;
    if body.is_empty() {
        return Err(Problem::invalid("an upload has a body: the state"));
    }
    let Some(id) = &asked.id else {
        return without_lock(app, at, caller, &body).await;
    };
    let _turn = at.turn(app).write().await;
    let mut record = Record::read(&at.resource).await?;
    let Some(grant) = record.grant(id).cloned() else {
        let message = format!(
            "{} was never locked with the ID {id}, or more than 30 days ago",
            at.lock
        );
        return Err(refused(Code::NotHeld, message).with_status(StatusCode::PRECONDITION_FAILED));
    };
    if grant.caller != caller.mark {
        return Err(others(id));
    }
    if grant.shared {
        return Err(refused(
            Code::Forbidden,
            format!("the lock {id} is a plan's: it reads the state, and uploads nothing"),
        ));
    }
    let named = grant
        .named(&at.lock)
        .ok_or_else(|| Problem::invalid("the record of this lock is damaged"))?;
    let version = Version::new(&record, Some((id, grant.token.get())), &grant.who, &body);
    if let Some(last) = record
        .versions
        .last()
        .filter(|last| last.lock_id == version.lock_id)
    {
        if last.md5 == version.md5 {
            app.keep(at, &grant, caller);
            return Ok(StatusCode::OK.into_response());
        }
        // The repeat of an upload that was overtaken by a later one of the same run.
        if last.lineage == version.lineage
            && version.serial.is_some()
            && version.serial < last.serial
        {
            let message = format!(
                "this upload has serial {}, and the run that sends it has uploaded serial {} since",
                version.serial.unwrap_or_default(),
                last.serial.unwrap_or_default(),
            );
            return Err(refused(Code::SequenceStale, message));
        }
    }
    // A late upload is reported to the authority, if it is known how: no upload waits for that.
    let client = app.callers.known(&caller.mark);
    let pass = pass(&named, grant.token, at).doing("upload");
    let pass = match &client {
        Some(client) => pass.reporting_to(client),
        None => pass,
    };
    let added = add(app, at, &mut record, version, Some(pass), &body).await;
    let response = added?;
    app.keep(at, &grant, caller);
    Ok(response)
}

/// Accepts an upload with `-lock=false`, as long as nobody has ever locked the state. The lock is acquired all the same, so
/// that the authority decides whether this caller may hold it.
async fn without_lock(
    app: &App,
    at: &StatePlace,
    caller: &StateCaller,
    body: &[u8],
) -> Result<Response, Problem> {
    let view = at.resource.view().await?;
    if view.is_some_and(|view| view.fence.highest().is_some()) {
        return Err(names_no_lock());
    }
    let client = app.callers.client(caller).await?;
    let request = client.lock(at.lock.as_str()).wait(Duration::ZERO);
    let lease = match request.attempt().await.map_err(|error| failed(&error))? {
        Attempt::Granted(lease) => lease,
        _ => return Err(names_no_lock()),
    };
    let _turn = at.turn(app).write().await;
    let mut record = Record::read(&at.resource).await?;
    let version = Version::new(&record, None, "", body);
    let added = add(app, at, &mut record, version, None, body).await;
    if let Err(error) = lease.release().await {
        tracing::debug!(lock = %at.lock, "the lock of an upload without one ends by itself: {error:#}");
    }
    added.map_err(|error| match error.rejected() {
        Some(_) => names_no_lock(),
        None => error.into(),
    })
}

fn names_no_lock() -> Problem {
    refused(
        Code::Tokenless,
        "the state is locked for its uploads, and this one names no lock: leave out -lock=false, and set lock_address",
    )
    .with_status(StatusCode::PRECONDITION_FAILED)
}

/// Writes the bytes, then the record that names them, then removes the oldest versions: after a crash in between, the
/// state is unchanged.
async fn add(
    app: &App,
    at: &StatePlace,
    record: &mut Record,
    mut version: Version,
    by: Option<Pass<'_>>,
    body: &[u8],
) -> Result<Response, Error> {
    let packed = pack(body)?;
    let mut parts = 0;
    for part in packed.chunks(PART_BYTES) {
        change(
            &at.resource,
            by,
            &path(version.number, parts),
            Edit::Put(part),
        )
        .await?;
        parts += 1;
    }
    version.parts = parts;
    record.versions.push(version);
    let excess = record.versions.len().saturating_sub(app.policy.versions);
    let gone: Vec<Version> = record.versions.drain(..excess).collect();
    record.write(&at.resource, by).await?;
    for version in gone {
        for part in 0..version.parts {
            // After an error here, the leftovers take space and do no other harm.
            let _ = change(&at.resource, by, &path(version.number, part), Edit::Delete).await;
        }
    }
    Ok(StatusCode::OK.into_response())
}

async fn read(resource: &Resource, version: &Version) -> Result<Vec<u8>, Problem> {
    let damaged = |what: String| {
        Error::Damaged(format!(
            "version {} of {} {what}",
            version.number,
            resource.id().as_str()
        ))
    };
    let mut packed = Vec::new();
    for part in 0..version.parts {
        let bytes = resource.observe(&path(version.number, part)).await?;
        packed.extend(bytes.ok_or_else(|| damaged("is incomplete".to_owned()))?);
    }
    let mut bytes = Vec::with_capacity(version.bytes.try_into().unwrap_or(0));
    let unpacked = GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes);
    unpacked.map_err(|error| damaged(format!("cannot be unpacked: {error}")))?;
    if md5(&bytes) != version.md5 {
        return Err(damaged("does not have its checksum".to_owned()).into());
    }
    Ok(bytes)
}

fn pack(body: &[u8]) -> Result<Vec<u8>, Error> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    let done = packed.write_all(body).and_then(|()| packed.finish());
    done.map_err(|error| {
        Error::failed(
            palisade_fence::ErrorKind::Operator,
            "the state cannot be packed",
            error,
        )
    })
}

fn path(number: u64, part: u32) -> String {
    format!("/states/{number}/{part}")
}

impl Version {
    fn new(record: &Record, lock: Option<(&str, u64)>, who: &str, body: &[u8]) -> Version {
        /// The readable head of a state, also of an encrypted one.
        #[derive(Default, Deserialize)]
        struct StateHead {
            serial: Option<u64>,
            lineage: Option<String>,
        }
        let head: StateHead = serde_json::from_slice(body).unwrap_or_default();
        Version {
            number: record.versions.last().map_or(1, |last| last.number + 1),
            at: now(),
            lock_id: lock.map(|(id, _)| id.to_owned()),
            token: lock.map(|(_, token)| token),
            who: who.to_owned(),
            bytes: body.len() as u64,
            md5: md5(body),
            serial: head.serial,
            lineage: head.lineage,
            parts: 0,
        }
    }
}

/// Refuses a body that is not the one that was sent.
pub(super) fn check_md5(headers: &HeaderMap, body: &[u8]) -> Result<(), Problem> {
    match headers.get("content-md5") {
        Some(sent) if sent.as_bytes() != md5(body).as_bytes() => Err(Problem::invalid(
            "Content-MD5 is not the checksum of the body that arrived",
        )),
        _ => Ok(()),
    }
}

fn md5(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(Md5::digest(bytes))
}

/// The wall clock in milliseconds since 1970, to be shown.
pub(super) fn now() -> u64 {
    jiff::Timestamp::now()
        .as_millisecond()
        .try_into()
        .unwrap_or(0)
}

/// The largest object of a state in the store.
const PART_BYTES: usize = 8 << 20;
