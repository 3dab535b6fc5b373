//! Names from outside: resources, and the paths of the objects in them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use palisade_core::invalid::NameFault;
use palisade_core::{Invalid as CoreInvalid, LockName};

/// An invalid name; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The name of a resource is not valid.
    #[error("resource_id {0}")]
    Resource(NameFault),
    /// The path of an object is not valid.
    #[error("file_path {0}")]
    Path(PathFault),
}

/// The reason why an object's path is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathFault {
    /// It has no leading slash.
    #[error("must start with '/'")]
    NotAbsolute,
    /// It is longer than [`ObjectPath::MAX_BYTES`].
    #[error("has {bytes} bytes; 2 ..= {max} are allowed", max = ObjectPath::MAX_BYTES)]
    TooLong {
        /// The number of bytes.
        bytes: usize,
    },
    /// It contains a control character.
    #[error("has a control character at offset {at}")]
    Control {
        /// The offset of the first control character.
        at: usize,
    },
    /// It has an empty segment, `.` or `..`, which could make it another path or lead out of the resource.
    #[error("must not have an empty segment, '.' or '..'")]
    Segment,
}

/// The name of a resource: 1 – 255 bytes of printable ASCII, compared byte by byte.
///
/// The rule is that of lock names, because a resource usually has the name of the lock that guards it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(LockName);

impl ResourceId {
    /// Checks a name from outside.
    ///
    /// # Errors
    /// [`Invalid::Resource`] with the problem and its position.
    pub fn new(name: &str) -> Result<ResourceId, Invalid> {
        LockName::new(name)
            .map(ResourceId)
            .map_err(|invalid| match invalid {
                CoreInvalid::Name { fault, .. } => Invalid::Resource(fault),
                _ => Invalid::Resource(NameFault::Empty),
            })
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Borrow<str> for ResourceId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The path of an object in its resource: a key in the form of an absolute path.
///
/// It starts with `/`, has at most 1,024 bytes of UTF-8 without control characters, and no segment is empty,
/// `.` or `..`. It is compared byte by byte; it never leaves its resource and never refers to a file system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectPath(Arc<str>);

impl ObjectPath {
    /// The longest path in bytes.
    pub const MAX_BYTES: usize = 1_024;

    /// Checks a path from outside.
    ///
    /// # Errors
    /// [`Invalid::Path`] with the problem.
    pub fn new(path: &str) -> Result<ObjectPath, Invalid> {
        match path_fault(path) {
            None => Ok(ObjectPath(Arc::from(path))),
            Some(fault) => Err(Invalid::Path(fault)),
        }
    }

    /// Returns the path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ObjectPath {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn path_fault(path: &str) -> Option<PathFault> {
    if path.len() > ObjectPath::MAX_BYTES {
        return Some(PathFault::TooLong { bytes: path.len() });
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Some(PathFault::NotAbsolute);
    };
    if let Some((at, _)) = path.char_indices().find(|(_, char)| char.is_control()) {
        return Some(PathFault::Control { at });
    }
    rest.split('/')
        .any(|segment| matches!(segment, "" | "." | ".."))
        .then_some(PathFault::Segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_in_its_resource() {
        let fault = |path: &str| match ObjectPath::new(path) {
            Ok(_) => None,
            Err(Invalid::Path(fault)) => Some(fault),
            Err(other) => panic!("{other}"),
        };
        for good in [
            "/a",
            "/uploads/orders-2026-05.csv",
            "/ä/ü",
            "/...",
            "/a b",
            "/.hidden",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in ["/", "//", "/a/", "/a//b", "/.", "/..", "/a/../b", "/a/./b"] {
            assert_eq!(fault(bad), Some(PathFault::Segment), "{bad}");
        }
        assert_eq!(fault(""), Some(PathFault::NotAbsolute));
        assert_eq!(fault("a/b"), Some(PathFault::NotAbsolute));
        assert_eq!(fault("/a\nb"), Some(PathFault::Control { at: 2 }));
        assert_eq!(fault("/a\u{85}"), Some(PathFault::Control { at: 2 }));
        assert_eq!(fault(&format!("/{}", "x".repeat(1_023))), None);
        assert_eq!(
            fault(&format!("/{}", "x".repeat(1_024))),
            Some(PathFault::TooLong { bytes: 1_025 })
        );
    }

    #[test]
    fn an_invalid_resource_name_is_reported_with_the_reason() {
        assert!(ResourceId::new("storage:customer-orders-bucket").is_ok());
        assert_eq!(
            ResourceId::new("é").unwrap_err().to_string(),
            "resource_id has a byte at offset 0 that is not printable ASCII"
        );
        assert_eq!(
            ResourceId::new("").unwrap_err().to_string(),
            "resource_id is empty; 1 ..= 255 bytes are allowed"
        );
    }
}
