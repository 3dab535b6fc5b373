//! A user's own string keys under the fence: SET, GET, APPEND and DEL.

use palisade_fence::redis::{Resource, Writing};
use palisade_fence::{Admitted, Edit, Fence, Pass, Result, Rule, Write};
use redis::aio::ConnectionManager;
use redis::cmd;

pub(crate) struct Strings {
    connection: ConnectionManager,
    resource: Resource,
}

impl Strings {
    pub(crate) fn new(connection: ConnectionManager, name: &str, rule: Rule) -> Strings {
        let resource = Resource::new(name).unwrap().under(rule);
        let keys = ["/ledger", "/other"].map(|path| resource.key(path));
        let keys = keys.each_ref().map(String::as_str);
        Strings {
            connection,
            resource: resource.guarding(&keys).unwrap(),
        }
    }

    async fn change(
        &self,
        writing: Writing<'_>,
        key: &str,
        change: Edit<'_>,
    ) -> Result<Admitted<()>> {
        let key = &self.resource.key(key);
        let connection = &mut self.connection.clone();
        match change {
            Edit::Put(bytes) => writing.set(connection, key, bytes).await,
            Edit::Append(bytes) => writing.append(connection, key, bytes).await,
            Edit::Delete => writing.del(connection, key).await,
        }
    }
}

impl Fence for Strings {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        let connection = &mut self.connection.clone();
        self.resource.claim(connection, pass).await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let (connection, key) = (&mut self.connection.clone(), self.resource.key(key));
        self.resource.get(connection, pass, &key).await
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
        let mut get = cmd("GET");
        get.arg(self.resource.key(key));
        Ok(get.query_async(&mut self.connection.clone()).await?)
    }
}
