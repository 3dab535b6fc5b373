//! A [`Fence`] whose objects are the fields of one hash.

use std::sync::LazyLock;

use palisade_core::fence::{Pass, Rule};
use redis::aio::ConnectionLike;
use redis::cmd;

use super::resource::{Resource, Writing};
use super::script::Script;
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::fence::{Edit, Fence, Write};
use crate::name::ObjectPath;

/// The script for appending: a hash has no command that appends.
static APPEND: LazyLock<Result<Script>> = LazyLock::new(|| {
    Script::new(
        "local before = redis.call('HGET', KEYS[1], ARGV[1]) or ''
redis.call('HSET', KEYS[1], ARGV[1], before .. ARGV[2])
return false",
    )
});

/// Objects in the hash `{resource}:objects`, guarded together. Since all of them are in one key, every
/// operation notices a lost mark, including the claim (rule F7).
///
/// Cloning the connection must be cheap, as it is with redis' `MultiplexedConnection`,
/// `ConnectionManager` and `ClusterConnection`.
#[derive(Clone, Debug)]
pub struct Objects<C> {
    connection: C,
    resource: Resource,
    key: String,
}

impl<C: ConnectionLike + Clone + Send + Sync> Objects<C> {
    /// Creates the handle for the objects of one resource. First call [`probe`](super::probe) once for each server.
    ///
    /// # Errors
    /// As [`Resource::new`].
    pub fn new(connection: C, resource: &str, rule: Rule) -> Result<Objects<C>> {
        let resource = Resource::new(resource)?.under(rule);
        let key = resource.key("objects");
        Ok(Objects {
            connection,
            resource: resource.guarding(&[&key])?,
            key,
        })
    }

    async fn change(
        &self,
        writing: Writing<'_>,
        key: &str,
        change: Edit<'_>,
    ) -> Result<Admitted<()>> {
        let path = ObjectPath::new(key)?;
        let (mut connection, path) = (self.connection.clone(), path.as_str());
        let connection = &mut connection;
        match change {
            Edit::Put(bytes) => writing.hset(connection, &self.key, &[(path, bytes)]).await,
            Edit::Delete => writing.hdel(connection, &self.key, path).await,
            Edit::Append(bytes) => {
                let script = APPEND
                    .as_ref()
                    .map_err(|error| Error::Argument(error.to_string()))?;
                let arguments = [path.as_bytes(), bytes];
                writing
                    .run(connection, script, &[&self.key], &arguments)
                    .await
            }
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync> Fence for Objects<C> {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.resource
            .claim(&mut self.connection.clone(), pass)
            .await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let path = ObjectPath::new(key)?;
        let mut connection = self.connection.clone();
        self.resource
            .hget(&mut connection, pass, &self.key, path.as_str())
            .await
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let writing = self.resource.write(pass);
        let writing = match write.sequence {
            Some(sequence) => writing.numbered(sequence),
            None => writing,
        };
        self.change(writing, write.key, write.change).await
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        self.change(self.resource.write_tokenless(), key, change)
            .await
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = ObjectPath::new(key)?;
        let mut read = cmd("HGET");
        read.arg(&self.key).arg(path.as_str());
        Ok(read.query_async(&mut self.connection.clone()).await?)
    }
}
