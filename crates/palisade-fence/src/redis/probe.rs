//! The check, once for each server, that it can keep fences.

use redis::aio::ConnectionLike;
use redis::cmd;

use crate::error::{Error, Result};

/// Refuses a replica, and a server that may evict keys that never expire. Call it once after connecting; the
/// setting may change later.
///
/// # Errors
/// [`Error::Unsuitable`] for a replica, for `maxmemory-policy allkeys-*`, with or without a `maxmemory` at present, and if the
/// server does not report its settings; errors of the server.
pub async fn probe<C: ConnectionLike>(connection: &mut C) -> Result<()> {
    if info_field(connection, "replication", "role").await? != "master" {
        let text = "this server is a replica; a fence needs the primary";
        return Err(Error::Unsuitable(text.to_owned()));
    }
    let policy = info_field(connection, "memory", "maxmemory_policy").await?;
    match policy.as_str() {
        "noeviction" => Ok(()),
        policy if policy.starts_with("volatile-") => Ok(()),
        _ => Err(Error::Unsuitable(format!(
            "maxmemory-policy is {policy}: it evicts keys that never expire, fences among them; \
             set noeviction or a volatile-* policy"
        ))),
    }
}

async fn info_field<C: ConnectionLike>(
    connection: &mut C,
    section: &str,
    field: &str,
) -> Result<String> {
    let mut info = cmd("INFO");
    let info: String = info.arg(section).query_async(connection).await?;
    let value = info.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name == field).then(|| value.trim().to_owned())
    });
    value.ok_or_else(|| {
        Error::Unsuitable(format!(
            "Redis gave an answer that the fence's script never gives: INFO {section} without {field}"
        ))
    })
}
