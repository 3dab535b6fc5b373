//! An operator's commands: show fences, and re-arm one (rule F7).

use std::collections::BTreeSet;

use palisade_core::fence::{FenceState, FloorTooLow, Mark, Rearm, Sequence, Written};
use palisade_core::{AuthorityId, LockName, Token};
use redis::aio::ConnectionLike;
use redis::{Value, cmd};

use super::answer;
use super::resource::{MARKS, Resource};
use super::script::REARM;
use crate::admin::{Admin, Listed};
use crate::error::Result;

/// The number of keys that one step of a scan reads.
const STEP: u32 = 1_000;

/// The fences of a server.
///
/// Redis keeps no order: a page of a listing scans all keys of the server, step by step. In a cluster it sees
/// only the node of the connection.
#[derive(Debug)]
pub struct Operator<'a, C>(&'a mut C);

impl<'a, C: ConnectionLike + Send> Operator<'a, C> {
    /// Creates the handle for this connection.
    pub const fn new(connection: &'a mut C) -> Operator<'a, C> {
        Operator(connection)
    }
}

impl<C: ConnectionLike + Send> Admin for Operator<'_, C> {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        let resource = Resource::new(resource)?;
        let mut get = cmd("GET");
        get.arg(&resource.mark);
        let held: Option<Vec<u8>> = get.query_async(self.0).await?;
        let Some(held) = held else {
            return Ok(None);
        };
        let state = state(&held)
            .ok_or_else(|| answer::not_a_state(resource.name(), &String::from_utf8_lossy(&held)))?;
        Ok(Some(state))
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let (mut names, mut cursor) = (BTreeSet::new(), 0_u64);
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{MARKS}{{*}}"));
            scan.arg("COUNT").arg(STEP);
            let (next, keys): (u64, Vec<String>) = scan.query_async(self.0).await?;
            let found = keys.iter().filter_map(|key| {
                let name = key.strip_prefix(MARKS)?;
                name.strip_prefix('{')?.strip_suffix('}')
            });
            let wanted = found
                .filter(|name| name.starts_with(prefix) && after.is_none_or(|after| *name > after));
            names.extend(wanted.map(str::to_owned));
            // It is enough to keep the first names seen.
            while names.len() > limit as usize {
                names.pop_last();
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let mut listed = Vec::new();
        for resource in names {
            if let Some(state) = self.show(&resource).await? {
                listed.push(Listed { resource, state });
            }
        }
        Ok(listed)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        let resource = Resource::new(resource)?;
        let from = with
            .lower_from
            .map_or(String::new(), |token| token.to_string());
        let to = with.floor.to_string();
        let authority = with.authority.map_or("", AuthorityId::as_str);
        let arguments = [to.as_bytes(), authority.as_bytes(), from.as_bytes()];
        let reply = REARM.run(self.0, &[&resource.mark], &arguments).await?;
        if reply == Value::Nil {
            return Ok(());
        }
        let floor = with.floor;
        match answer::word(&reply).and_then(answer::token) {
            Some(highest) => Err(FloorTooLow { floor, highest }.into()),
            None => Err(answer::odd(&[reply])),
        }
    }
}

/// Parses a mark: see fence.lua.
fn state(held: &[u8]) -> Option<FenceState> {
    let mut lines = held.split(|byte| *byte == b'\n');
    let mut line = || std::str::from_utf8(lines.next()?).ok();
    let token = Token::new(line()?.parse().ok()?).ok()?;
    let written = match line()? {
        "" => Written::Nothing,
        "yes" => Written::Unnumbered,
        number => Written::Through(Sequence::new(number.parse().ok()?)?),
    };
    let (_digest, authority, lock) = (line()?, line()?, line()?);
    Some(FenceState {
        authority: named(authority, AuthorityId::new)?,
        lock: named(lock, LockName::new)?,
        mark: Some(Mark { token, written }),
    })
}

/// Parses an optional name; `None` if it is not valid.
fn named<T, E>(text: &str, new: impl Fn(&str) -> Result<T, E>) -> Option<Option<T>> {
    match text {
        "" => Some(None),
        text => new(text).ok().map(Some),
    }
}
