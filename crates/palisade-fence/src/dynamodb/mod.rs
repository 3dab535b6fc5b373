//! DynamoDB: the fence on the user's own client, in the same request as the effect.
//!
//! ```text
//!   Item     one item, its fence beside its attributes
//!            GetItem, consistent ─ decide ─ PutItem IF palisade_fence = the value read
//!
//!   Guard    a guard item, and the items of the write
//!            GetItem, consistent ─ decide ─ TransactWriteItems ┬ Put guard IF palisade_fence = the value read
//!                                                              └ your Put, Update, Delete, ConditionCheck
//! ```
//!
//! Check and effect are one request that is carried out completely or not at all (F1). The condition compares the whole
//! fence, and every write puts a new id into it. The fence thus detects any intermediate write and decides again. If
//! the answer to a write was lost and the SDK sent it again, the write recognises its own id.
//!
//! | data | use |
//! |---|---|
//! | one item for each resource | [`Item`]: half the write cost, no second item |
//! | related writes to many items or tables | [`Guards`]: at most 99 items a write |
//!
//! **Reads are consistent.** Every read here is strongly consistent or transactional. An eventually
//! consistent read (DynamoDB's default, a global secondary index, a DAX cache, another region of a global
//! table) may return a state from before a claim that it follows. A write computed from it overwrites the
//! write that was missed. Reads that feed writes go through [`Item::read`] and [`Guard::read`].
//!
//! **One region.** Conditions are checked in the region that gets the request. With a global table with
//! eventual consistency, each region would admit its own holder: write in one region only.
//!
//! **Deleting.** An emptied [`Item`] stays with its fence, and so does a guard item: neither may have a time
//! to live (F4). Only IAM stops a write by code that does not use this module.
//!
//! **Restoring.** Tables are restored one by one: keep guard items in the table of their data, or restore the two
//! together. Then re-arm with a token that the authority has just issued ([`Admin`](crate::Admin), [`Item::rearm`])
//! before any write. An item without its fence is [`Error::FenceLost`](crate::Error::FenceLost) (F7). A lost guard item
//! cannot be detected, because a resource that was never claimed has none either.
//!
//! ```no_run
//! use aws_sdk_dynamodb::types::AttributeValue;
//! use palisade_core::Token;
//! use palisade_fence::Rule;
//! use palisade_fence::dynamodb::{Attributes, Item};
//!
//! # async fn book(client: aws_sdk_dynamodb::Client, lease_token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! let key = Attributes::from([("seat".to_owned(), AttributeValue::S("12A".to_owned()))]);
//! let seat = Item::new(client, "seats", key, Rule::CLAIM)?;
//!
//! seat.claim(lease_token).await?;                        // first: raise the fence
//! let before = seat.read(lease_token).await?.value;      // then read
//! if before.is_none() {
//!     let alice = AttributeValue::S("Alice".to_owned());
//!     let book = |seat: &mut Attributes| seat.insert("passenger".to_owned(), alice.clone()).is_none();
//!     seat.write(lease_token, None, book).await?;        // a newer holder has come: nothing was written
//! }
//! # Ok(())
//! # }
//! ```

mod conditional;
mod guard;
mod guards;
mod item;
mod location;

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

pub use crate::guard_row::Numbered;
pub use guard::Guard;
pub use guards::Guards;
pub use item::Item;

/// The attributes of an item, by name.
pub type Attributes = HashMap<String, AttributeValue>;

/// The name of the attribute that holds the fence.
pub const FENCE: &str = "palisade_fence";
