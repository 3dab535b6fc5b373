//! The handlers: parse, call the store, answer.

use palisade_proto::Code;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State, rejection::PathRejection, rejection::QueryRejection};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use palisade_core::{AuthorityId, Token};
use palisade_fence::http::{Problem, authority_header, sequencer_header, token_header};
use palisade_fence::sequencer::BadSequencer;
use palisade_fence::store::Resource;
use palisade_fence::{
    Admitted, Edit, Fence, Mode, ObjectPath, Pass, ResourceId, Sequence, View, Write, Written,
};
use serde::{Deserialize, Serialize};

use crate::store::app::{App, mode_name};
use crate::store::input::ObjectFields;

/// The answer to a claim or a write.
#[derive(Debug, Serialize)]
pub(super) struct Success {
    success: bool,
    error: Option<()>,
    highest: Option<Token53>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeat: bool,
}

/// A token as a JSON number, exact in every language.
type Token53 = u64;

/// The token that a caller presents at a fence, and its origin.
struct Presented {
    token: Token,
    authority: Option<AuthorityId>,
    signed: bool,
}

impl Presented {
    /// Checks the sequencer, or whether the token may be bare; `None` without either.
    fn settle(
        app: &App,
        resource: &ResourceId,
        sequencer: Option<&str>,
        token: Option<Token>,
        authority: Option<AuthorityId>,
        writes: bool,
    ) -> Result<Option<Presented>, Problem> {
        let Some(text) = sequencer else {
            let Some(token) = token else { return Ok(None) };
            app.sequencers.admits_bare()?;
            return Ok(Some(Presented {
                token,
                authority,
                signed: false,
            }));
        };
        let sequencer = app.sequencers.check(text, resource.as_str(), writes)?;
        if token.is_some_and(|token| token != sequencer.token()) {
            return Err(BadSequencer::Contradicted("fencing_token").into());
        }
        if authority.is_some_and(|authority| authority != *sequencer.authority()) {
            return Err(BadSequencer::Contradicted("authority").into());
        }
        Ok(Some(Presented {
            token: sequencer.token(),
            authority: Some(sequencer.authority().clone()),
            signed: true,
        }))
    }

    fn pass<'a>(&'a self, app: &'a App) -> Pass<'a> {
        let pass = Pass {
            authority: self.authority.as_ref(),
            signed: self.signed,
            ..Pass::new(self.token)
        };
        match &app.reporter {
            Some(reporter) => pass.reporting_to(reporter),
            None => pass,
        }
    }
}

/// The common part of a claim and a write: the resource, and the presented token.
fn named(
    fields: &mut ObjectFields,
    app: &App,
    writes: bool,
) -> Result<(Resource, Option<Presented>), Problem> {
    let resource = app.store.resource(&fields.text("resource_id")?)?;
    let token = fields.token("fencing_token")?;
    let sequencer = fields.optional_text("sequencer")?;
    let authority = fields.authority("authority")?;
    let sequencer = sequencer.as_deref();
    let presented = Presented::settle(app, resource.id(), sequencer, token, authority, writes)?;
    Ok((resource, presented))
}

/// Every write to a fenced store must carry a token, even if nothing is fenced yet: a caller that forgets the token
/// gets an error for its first write. A store without fences accepts such a write, and shows the damage.
fn tokenless(resource: &ResourceId) -> Problem {
    let message = format!(
        "fencing_token is missing: a write to {resource} must carry the token of its holder's grant"
    );
    Problem::new(StatusCode::PRECONDITION_REQUIRED, Code::Tokenless, message)
}

/// `POST /v1/storage/claim`: raises the fence, before the first read (rule F2).
pub(super) async fn claim(
    State(app): State<Arc<App>>,
    mut fields: ObjectFields,
) -> Result<Json<Success>, Problem> {
    let (resource, presented) = named(&mut fields, &app, false)?;
    let presented = presented.ok_or_else(|| tokenless(resource.id()))?;
    fields.end()?;
    Ok(done(resource.claim(presented.pass(&app)).await?))
}

/// `POST /v1/storage/write`: changes an object and claims, in one step.
pub(super) async fn write(
    State(app): State<Arc<App>>,
    mut fields: ObjectFields,
) -> Result<Json<Success>, Problem> {
    let (resource, presented) = named(&mut fields, &app, true)?;
    match (&presented, app.store.mode()) {
        (Some(_), _) => {}
        (None, Mode::DangerUnfenced) => app.sequencers.admits_bare()?,
        (None, _) => return Err(tokenless(resource.id())),
    }
    let sequence = fields.sequence("sequence")?;
    let mutation = Mutation::take(fields.object("write_payload", "write_payload.")?)?;
    fields.end()?;
    let change = mutation.write(sequence);
    let operation = format!("{} {}", mutation.kind.word(), mutation.path);
    Ok(done(match presented {
        Some(presented) => {
            let pass = presented.pass(&app).doing(&operation);
            resource.write(pass, change).await?
        }
        None => resource.write_tokenless(change.key, change.change).await?,
    }))
}

/// The `write_payload`: the effect of a write.
struct Mutation {
    path: String,
    kind: RequestClass,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum RequestClass {
    Put,
    Append,
    Delete,
}

impl RequestClass {
    const fn word(self) -> &'static str {
        match self {
            RequestClass::Put => "PUT",
            RequestClass::Append => "APPEND",
            RequestClass::Delete => "DELETE",
        }
    }
}

impl Mutation {
    fn take(mut fields: ObjectFields) -> Result<Mutation, Problem> {
        let path = fields.text("file_path")?;
        ObjectPath::new(&path)?;
        let kind = match fields.text("mutation_type")?.as_str() {
            "PUT" => RequestClass::Put,
            "APPEND" => RequestClass::Append,
            "DELETE" => RequestClass::Delete,
            _ => {
                let message = "write_payload.mutation_type must be PUT, APPEND or DELETE";
                return Err(Problem::invalid(message));
            }
        };
        let bytes = match kind {
            RequestClass::Put | RequestClass::Append => fields.bytes("bytes")?,
            RequestClass::Delete => {
                fields.without("bytes", "a DELETE has none")?;
                Vec::new()
            }
        };
        fields.end()?;
        Ok(Mutation { path, kind, bytes })
    }

    fn write(&self, sequence: Option<Sequence>) -> Write<'_> {
        let change = match self.kind {
            RequestClass::Put => Edit::Put(&self.bytes),
            RequestClass::Append => Edit::Append(&self.bytes),
            RequestClass::Delete => Edit::Delete,
        };
        Write {
            key: &self.path,
            change,
            sequence,
        }
    }
}

fn done(admitted: Admitted<()>) -> Json<Success> {
    Json(Success {
        success: true,
        error: None,
        highest: admitted.highest.map(Token::get),
        repeat: admitted.repeat,
    })
}

/// `GET /v1/storage/{resource_id}/files/{file_path}`: the bytes. With `X-Fencing-Token` this is a tokened read
/// (rule F3), otherwise an observer's; the header `X-Fencing-Read` says which.
pub(super) async fn read(
    State(app): State<Arc<App>>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path((resource, path)) = path.map_err(unreadable)?;
    let resource = app.store.resource(&resource)?;
    // In an address the slash between `files` and the path may also be the path's first character.
    let path = if path.starts_with('/') {
        path
    } else {
        format!("/{path}")
    };
    let authority = authority_header(&headers)?;
    let names_authority = authority.is_some();
    let (sequencer, token) = (sequencer_header(&headers)?, token_header(&headers)?);
    let presented = Presented::settle(&app, resource.id(), sequencer, token, authority, false)?;
    let Some(presented) = presented else {
        return if names_authority {
            Err(Problem::invalid(
                "X-Fencing-Authority without X-Fencing-Token",
            ))
        } else {
            object(&path, resource.observe(&path).await?, "observer", None)
        };
    };
    let read = resource.read(presented.pass(&app), &path).await?;
    object(&path, read.value, "tokened", read.highest)
}

fn object(
    path: &str,
    bytes: Option<Vec<u8>>,
    read: &'static str,
    highest: Option<Token>,
) -> Result<Response, Problem> {
    let Some(bytes) = bytes else {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            Code::NotFound,
            format!("there is no object {path}"),
        ));
    };
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    headers.insert("x-fencing-read", header::HeaderValue::from_static(read));
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    if let Some(highest) = highest {
        headers.insert("x-fencing-highest", highest.get().into());
    }
    Ok(response)
}

/// The store's record of a resource.
#[derive(Debug, Serialize)]
pub(super) struct ShownResource {
    resource_id: String,
    highest: Option<Token53>,
    authority: Option<String>,
    sequence: Option<u64>,
    objects: u64,
    bytes: u64,
    fence: &'static str,
}

impl ShownResource {
    fn new(id: &ResourceId, view: &View, mode: Mode) -> ShownResource {
        let fence = &view.fence;
        let sequence = match fence.mark.map(|mark| mark.written) {
            Some(Written::Through(sequence)) => Some(sequence.get()),
            _ => None,
        };
        ShownResource {
            resource_id: id.as_str().to_owned(),
            highest: fence.highest().map(Token::get),
            authority: fence
                .authority
                .as_ref()
                .map(|authority| authority.as_str().to_owned()),
            sequence,
            objects: view.objects,
            bytes: view.bytes,
            fence: mode_name(mode),
        }
    }
}

/// `GET /v1/storage/{resource_id}`: its fence. An unknown resource is not an error.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<ShownResource>, Problem> {
    let Path(name) = path.map_err(unreadable)?;
    let resource = app.store.resource(&name)?;
    let view = resource.view().await?.unwrap_or_default();
    Ok(Json(ShownResource::new(
        resource.id(),
        &view,
        app.store.mode(),
    )))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ObjectListing {
    #[serde(default)]
    prefix: String,
    cursor: Option<String>,
    limit: Option<String>,
}

/// A page of resources; `cursor` leads to the next one.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    resources: Vec<ShownResource>,
    cursor: Option<String>,
}

/// `GET /v1/storage?prefix=&limit=&cursor=`: the resources, in name order.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<ObjectListing>, QueryRejection>,
) -> Result<Json<Page>, Problem> {
    let Query(ObjectListing {
        prefix,
        cursor,
        limit,
    }) = query.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let limit = limit.map_or(Ok(100), |text| page_size(&text))?;
    let found = app
        .store
        .list(&prefix, cursor.as_deref(), limit + 1)
        .await?;
    let page: Vec<ShownResource> = found
        .iter()
        .take(limit)
        .map(|(id, view)| ShownResource::new(id, view, app.store.mode()))
        .collect();
    let more = found.len() > limit;
    let cursor = page
        .last()
        .filter(|_| more)
        .map(|last| last.resource_id.clone());
    Ok(Json(Page {
        resources: page,
        cursor,
    }))
}

fn page_size(text: &str) -> Result<usize, Problem> {
    let size = text.parse().ok().filter(|size| (1..=1_000).contains(size));
    size.ok_or_else(|| Problem::invalid("limit must be an integer in 1 ..= 1000"))
}

/// The error for a name in the address that is not UTF-8 after decoding.
fn unreadable(_: PathRejection) -> Problem {
    Problem::invalid("the address is not UTF-8 when it is percent-decoded")
}
