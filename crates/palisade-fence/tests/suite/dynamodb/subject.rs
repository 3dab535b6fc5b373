//! Both forms with the suite's interface: keys and bytes.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, Delete, Get, Put, TransactWriteItem};
use palisade_fence::conformance::Subject;
use palisade_fence::dynamodb::{Attributes, Guard, Guards, Item, Numbered};
use palisade_fence::{Admitted, Edit, Fence, Pass, Result, Rule, Write};

const BYTES: &str = "bytes";

/// A checksum of a write's content, as a user would compute it.
fn numbered(write: &Write<'_>) -> Option<Numbered> {
    let said = format!("{:?}", (write.key, write.change));
    let digest = said.bytes().fold(0_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    let sequence = write.sequence?;
    Some(Numbered { sequence, digest })
}

fn blob(bytes: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}

fn bytes(value: &AttributeValue) -> Vec<u8> {
    value.as_b().unwrap().as_ref().to_vec()
}

fn string_key(name: &str, value: &str) -> Attributes {
    Attributes::from([(name.to_owned(), AttributeValue::S(value.to_owned()))])
}

/// The item form: an item for each resource, an attribute for each key.
pub(crate) struct Items {
    pub(crate) client: Client,
    pub(crate) table: String,
    pub(crate) rule: Rule,
}

#[derive(Clone, Debug)]
pub(crate) struct OneItem(pub(crate) Item);

impl Subject for Items {
    type Fence = OneItem;

    async fn fresh(&self, name: &str) -> Result<OneItem> {
        let key = string_key("id", name);
        Item::new(self.client.clone(), &self.table, key, self.rule).map(OneItem)
    }

    async fn lose_fence(&self, name: &str) -> Result<bool, String> {
        let removed = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(string_key("id", name)))
            .update_expression("REMOVE palisade_fence")
            .send()
            .await;
        removed.map_err(|error| error.to_string()).map(|_| true)
    }
}

fn alter(key: &str, change: Edit<'_>, attributes: &mut Attributes) -> bool {
    match change {
        Edit::Put(new) => {
            attributes.insert(key.to_owned(), blob(new));
            true
        }
        Edit::Append(more) => {
            let mut whole = attributes.get(key).map(bytes).unwrap_or_default();
            whole.extend_from_slice(more);
            attributes.insert(key.to_owned(), blob(&whole));
            true
        }
        Edit::Delete => attributes.remove(key).is_some(),
    }
}

impl Fence for OneItem {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.0.claim(pass).await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let read = self.0.read(pass).await?;
        Ok(read.map(|found| found.and_then(|found| found.get(key).map(bytes))))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let number = numbered(&write);
        self.0
            .write(pass, number, |seen| alter(write.key, write.change, seen))
            .await
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        self.0
            .write_tokenless(|seen| alter(key, change, seen))
            .await
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let found = self.0.observe().await?;
        Ok(found.and_then(|found| found.get(key).map(bytes)))
    }
}

/// The transactional form: an item for each key, and a guard item, all in one table.
pub(crate) struct Transactions {
    pub(crate) client: Client,
    pub(crate) table: String,
    pub(crate) rule: Rule,
}

#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    guard: Guard,
    client: Client,
    table: String,
    name: String,
}

impl Subject for Transactions {
    type Fence = Guarded;

    async fn fresh(&self, name: &str) -> Result<Guarded> {
        let guards = Guards::new(self.client.clone(), &self.table, "id", self.rule);
        Ok(Guarded {
            guard: guards.guard(name)?,
            client: self.client.clone(),
            table: self.table.clone(),
            name: name.to_owned(),
        })
    }
}

impl Guarded {
    fn key(&self, key: &str) -> Attributes {
        string_key("id", &format!("{}{key}", self.name))
    }

    /// DynamoDB cannot append to bytes: the item is read first, which is safe after a claim.
    async fn item(&self, key: &str, change: Edit<'_>) -> TransactWriteItem {
        let new = match change {
            Edit::Delete => {
                let delete = Delete::builder()
                    .table_name(&self.table)
                    .set_key(Some(self.key(key)));
                let delete = delete.build().unwrap();
                return TransactWriteItem::builder().delete(delete).build();
            }
            Edit::Put(new) => new.to_vec(),
            Edit::Append(more) => {
                let mut whole = self.observe(key).await.unwrap().unwrap_or_default();
                whole.extend_from_slice(more);
                whole
            }
        };
        let mut item = self.key(key);
        item.insert(BYTES.to_owned(), blob(&new));
        let put = Put::builder().table_name(&self.table).set_item(Some(item));
        TransactWriteItem::builder()
            .put(put.build().unwrap())
            .build()
    }
}

impl Fence for Guarded {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.guard.claim(pass).await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let get = Get::builder()
            .table_name(&self.table)
            .set_key(Some(self.key(key)));
        let read = self.guard.read(pass, &[get.build().unwrap()]).await?;
        Ok(read.map(|mut found| found.remove(0).map(|found| bytes(&found[BYTES]))))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let item = self.item(write.key, write.change).await;
        self.guard.write(pass, numbered(&write), &[item]).await
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        let item = self.item(key, change).await;
        self.guard.write_tokenless(&[item]).await
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let got = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(self.key(key)))
            .consistent_read(true)
            .send()
            .await
            .unwrap();
        Ok(got.item.map(|found| bytes(&found[BYTES])))
    }
}
