//! Authentication: the caller's password is a bearer token of the authority, and requests to the authority
//! carry it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use palisade_client::{BearerToken, Client, Options};
use palisade_fence::http::Problem;
use palisade_proto::Code;
use sha2::{Digest as _, Sha256};

use super::{failed, refused};

/// The authority, as each caller reaches it.
#[derive(Debug)]
pub(crate) struct StateCallers {
    authority: String,
    /// With the token of this server, for callers without a password.
    options: Options,
    clients: Mutex<HashMap<CallerMark, Client>>,
}

/// Tells callers apart without their secrets: a digest of the password, or nothing for a caller without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(super) struct CallerMark(String);

impl CallerMark {
    /// Of callers without a password.
    pub(super) fn nobody() -> CallerMark {
        CallerMark(String::new())
    }

    pub(super) fn is_nobody(&self) -> bool {
        self.0.is_empty()
    }
}

/// A caller.
#[derive(Clone, Debug)]
pub(super) struct StateCaller {
    token: Option<BearerToken>,
    pub(super) mark: CallerMark,
}

impl StateCaller {
    /// A caller that shows no password.
    pub(super) fn nobody() -> StateCaller {
        StateCaller {
            token: None,
            mark: CallerMark::nobody(),
        }
    }
}

impl StateCallers {
    pub(crate) fn new(authority: String, options: Options) -> StateCallers {
        StateCallers {
            authority,
            options,
            clients: Mutex::default(),
        }
    }

    /// Reads the password of HTTP's basic authentication, or a bearer token.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<StateCaller, Problem> {
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Ok(StateCaller::nobody());
        };
        let text = password(value.as_bytes()).ok_or_else(|| {
            let message = "Authorization must be Basic, with a token of the authority as the password, or Bearer";
            refused(Code::Unauthenticated, message)
        })?;
        if text.is_empty() {
            return Ok(StateCaller::nobody());
        }
        let token = BearerToken::new(&text).map_err(|fault| {
            refused(
                Code::Unauthenticated,
                format!("the password is {}", fault.reason()),
            )
        })?;
        let digest = Sha256::digest(token.expose());
        Ok(StateCaller {
            mark: CallerMark(BASE64_STANDARD.encode(digest)),
            token: Some(token),
        })
    }

    /// The authority, as this caller reaches it.
    pub(super) async fn client(&self, caller: &StateCaller) -> Result<Client, Problem> {
        if let Some(client) = self.known(&caller.mark) {
            return Ok(client);
        }
        let mut options = self.options.clone();
        if caller.token.is_some() {
            options.token.clone_from(&caller.token);
        }
        let client = palisade_authorities::client(&self.authority, options).await;
        let client = client.map_err(|error| failed(&error))?;
        let mut clients = self.lock();
        if clients.len() >= CLIENTS {
            // The stored grants have connections of their own.
            clients.clear();
        }
        clients.insert(caller.mark.clone(), client.clone());
        Ok(client)
    }

    /// The client of a caller that has acquired a lock, without asking anybody.
    pub(super) fn known(&self, mark: &CallerMark) -> Option<Client> {
        self.lock().get(mark).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<CallerMark, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn password(header: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(header).ok()?;
    let (scheme, rest) = text.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let both = String::from_utf8(BASE64_STANDARD.decode(rest).ok()?).ok()?;
    Some(both.split_once(':')?.1.to_owned())
}

/// The number of callers' connections that stay open at most.
const CLIENTS: usize = 256;
