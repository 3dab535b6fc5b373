//! DynamoDB: the fence on the user's own client, in the same request as the effect.
//!
//! ```text
//!   Item     one item, its fence beside its attributes
//!            GetItem, consistent ─ decide ─ PutItem IF palisade_fence = what was read
//!
//!   Guard    a guard item, and whatever items the write is about
//!            GetItem, consistent ─ decide ─ TransactWriteItems ┬ Put guard IF palisade_fence = what was read
//!                                                              └ your Put, Update, Delete, ConditionCheck
//! ```
//!
//! Check and effect are one request that happens whole or not at all (F1). The condition compares the whole
//! fence, and every write puts a fresh id into it: whatever came in between, however short, is noticed, and
//! the operation is decided anew. A write whose answer was lost, and which the SDK sent again, recognises
//! its own id.
//!
//! | what you have | what to take |
//! |---|---|
//! | one item for each resource | [`Item`]: half the write cost, no second item |
//! | writes to many items or tables that belong together | [`Guards`]: at most 99 items a write |
//!
//! **Reads are consistent.** Every read here is strongly consistent or transactional. An eventually
//! consistent read (DynamoDB's default, a global secondary index, a DAX cache, another region of a global
//! table) may answer after a claim from before it, and what is computed from it overwrites the write that
//! was missed. Reads that feed writes go through [`Item::read`] and [`Guard::read`].
//!
//! **One region.** Conditions are checked in the region that is asked. Of a global table with eventual
//! consistency, each region would admit its own holder: write in one region only.
//!
//! **Deleting.** An emptied [`Item`] stays with its fence, and so does a guard item: neither may have a
//! time to live (F4). A write by code that does not come through here is stopped by nothing but IAM.
//!
//! **Restoring.** Tables are restored one by one: keep guard items in the table of their data, or restore
//! the two together, and re-arm with a token that the authority issued just now ([`Admin`](crate::Admin),
//! [`Item::rearm`]) before anybody writes. An item without its fence is [`Fault::FenceLost`] (F7); that a
//! guard item was lost cannot be seen, for a resource that was never touched has none.
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
//! seat.claim(lease_token).await?.into_result()?;                        // first: raise the fence
//! let before = seat.read(lease_token).await?.into_result()?;            // then read
//! if before.is_none() {
//!     let alice = AttributeValue::S("Alice".to_owned());
//!     let book = |seat: &mut Attributes| seat.insert("passenger".to_owned(), alice.clone()).is_none();
//!     seat.write(lease_token, None, book).await?.into_result()?;        // Stale: nothing was written
//! }
//! # Ok(())
//! # }
//! ```

mod error;
mod guard;
mod guards;
mod item;
mod spot;
mod swing;

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

pub use crate::guard_row::Numbered;
pub use error::Fault;
pub use guard::Guard;
pub use guards::Guards;
pub use item::Item;

/// What an item holds, by attribute name.
pub type Attributes = HashMap<String, AttributeValue>;

/// The attribute that holds the fence.
pub const FENCE: &str = "palisade_fence";
