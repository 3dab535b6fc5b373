//! The stored form of the manifest: JSON, so that an operator can read it.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::stamped::Stamped;

/// A resource: its fence, and the data objects of its keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) fence: Stamped,
    /// The names of the parts of each key.
    pub(super) keys: BTreeMap<String, Vec<String>>,
}

impl Document {
    pub(super) fn decode(bytes: &[u8]) -> Result<Document, String> {
        let document: Document = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        document.fence.check().map(|()| document)
    }

    pub(super) fn encode(&self, resource: &str) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| damaged(resource, error))
    }
}

pub(super) fn damaged(resource: &str, why: impl Display) -> Error {
    Error::Damaged(format!("the manifest of {resource} cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/reference/fence-formats.md describes it.
    #[test]
    fn the_golden_file_is_read_and_written_as_it_is() {
        let golden =
            include_bytes!("../../../../vectors/formats/object-store.fence.json").trim_ascii_end();
        let document = Document::decode(golden).unwrap();
        assert_eq!(document.keys["/log"].len(), 2);
        assert_eq!(document.encode("orders").unwrap(), golden);
    }
}
