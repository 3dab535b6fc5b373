//! The function library, for programs in other languages.

use redis::aio::ConnectionLike;
use redis::{RedisError, cmd};

use crate::error::{Error, Result};

/// The version of [`library`].
pub const LIBRARY_VERSION: u32 = 2;

/// The text of the library `palisade` for `FUNCTION LOAD`, Redis 7 and later. It contains the script of this module, so
/// a function and a program with [`Resource`](super::Resource) share marks and decide alike.
#[must_use]
pub fn library() -> String {
    include_str!("library.lua").replace("--[[fence.lua]]", include_str!("fence.lua"))
}

/// Loads the library; it replaces the same or an older version.
///
/// # Errors
/// [`Error::Argument`] if the server has a newer one; errors of the server, such as one older than Redis 7.
pub async fn install<C: ConnectionLike>(connection: &mut C) -> Result<()> {
    if let Some(there) = installed(connection).await?
        && there > LIBRARY_VERSION
    {
        return Err(Error::Argument(format!(
            "the server has version {there} of the library; this one is version {LIBRARY_VERSION}"
        )));
    }
    let mut load = cmd("FUNCTION");
    load.arg("LOAD").arg("REPLACE").arg(library());
    Ok(load.exec_async(connection).await?)
}

/// Removes the library, if it is installed. The marks stay, and programs with this module still use them.
///
/// # Errors
/// Errors of the server.
pub async fn uninstall<C: ConnectionLike>(connection: &mut C) -> Result<()> {
    let mut delete = cmd("FUNCTION");
    delete.arg("DELETE").arg("palisade");
    match delete.exec_async(connection).await {
        Err(error) if !is_missing(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns the version of the library on the server; `None` if there is none.
///
/// # Errors
/// Errors of the server.
pub async fn installed<C: ConnectionLike>(connection: &mut C) -> Result<Option<u32>> {
    let mut version = cmd("FCALL");
    version.arg("palisade_version").arg(0);
    match version.query_async(connection).await {
        Ok(version) => Ok(Some(version)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_missing(error: &RedisError) -> bool {
    let text = error.to_string();
    text.contains("Function not found") || text.contains("Library not found")
}
