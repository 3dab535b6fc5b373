//! The check, once for each server, that it can keep fences.

use redis::aio::ConnectionLike;
use redis::cmd;

use super::fault::Fault;

/// Refuses a replica, and a server that may evict keys that never expire. Call it once after connecting; the
/// setting may change later.
///
/// # Errors
/// [`Fault::Evicting`] for `maxmemory-policy allkeys-*`, with or without a `maxmemory` at present;
/// [`Fault::Replica`]; [`Fault::Answer`] if the server does not report its settings; errors of the server.
pub async fn probe<C: ConnectionLike>(connection: &mut C) -> Result<(), Fault> {
    if info_field(connection, "replication", "role").await? != "master" {
        return Err(Fault::Replica);
    }
    let policy = info_field(connection, "memory", "maxmemory_policy").await?;
    match policy.as_str() {
        "noeviction" => Ok(()),
        policy if policy.starts_with("volatile-") => Ok(()),
        _ => Err(Fault::Evicting { policy }),
    }
}

async fn info_field<C: ConnectionLike>(
    connection: &mut C,
    section: &str,
    field: &str,
) -> Result<String, Fault> {
    let mut info = cmd("INFO");
    let info: String = info.arg(section).query_async(connection).await?;
    let value = info.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name == field).then(|| value.trim().to_owned())
    });
    value.ok_or_else(|| Fault::Answer(format!("INFO {section} without {field}")))
}
