//! The scripts of one data set.

use palisade_core::AuthorityId;
use redis::Script;

use super::ROOT;

/// `locks.lua`, once for each operation. Values that all calls of a service share are part of the script's
/// text: an argument costs the server a tenth of the work of a whole grant.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) abandon: Script,
    pub(super) revoke: Script,
    pub(super) show: Script,
}

impl Scripts {
    pub(super) fn of(authority: &AuthorityId) -> Scripts {
        let script = |operation| {
            Script::new(&format!(
                "local ROOT, AUTHORITY, TOKENS, OPERATION = {}, {}, {}, {}\n{}",
                literal(ROOT),
                literal(authority),
                literal(&format!("{ROOT}tokens:{authority}")),
                literal(operation),
                include_str!("locks.lua")
            ))
        };
        Scripts {
            acquire: script("acquire"),
            renew: script("renew"),
            release: script("release"),
            abandon: script("abandon"),
            revoke: script("revoke"),
            show: script("show"),
        }
    }
}

/// Quotes a text as a Lua literal. The authority's id comes from the server, so none of its characters may
/// end the literal.
fn literal(text: &str) -> String {
    let bytes: String = text.bytes().map(|byte| format!("\\{byte:03}")).collect();
    format!("\"{bytes}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_letter_ends_the_literal() {
        assert_eq!(literal("a\"\\1"), r#""\097\034\092\049""#);
    }
}
