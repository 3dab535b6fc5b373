//! Asks a server, once, whether fences can live there.

use redis::aio::ConnectionLike;
use redis::cmd;

use super::fault::Fault;

/// Refuses a server that may evict what never expires. Call it once after connecting; somebody may
/// change the setting later.
///
/// # Errors
/// [`Fault::Evicting`] for `maxmemory-policy allkeys-*`, with or without a `maxmemory` at present;
/// [`Fault::Answer`] if the server does not tell; the server's.
pub async fn probe<C: ConnectionLike>(connection: &mut C) -> Result<(), Fault> {
    let memory: String = cmd("INFO").arg("memory").query_async(connection).await?;
    let told = memory
        .lines()
        .find_map(|line| line.strip_prefix("maxmemory_policy:"));
    match told.map(str::trim) {
        Some(policy) if policy == "noeviction" || policy.starts_with("volatile-") => Ok(()),
        Some(policy) => Err(Fault::Evicting {
            policy: policy.to_owned(),
        }),
        None => Err(Fault::Answer(
            "INFO memory without maxmemory_policy".to_owned(),
        )),
    }
}
