//! The triggers on the user's tables (rule F9). MySQL cannot create a trigger in a procedure, so their text is made here.

use crate::error::Result;
use crate::name::ResourceId;
use crate::sql::valid_name;

const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Returns the SQL that makes a table sticky: every write of a row must come from a connection that claimed the resource
/// with its highest token. It is one query of several statements; running it again changes nothing.
///
/// `sql/mysql/0003_sticky.sql` lists the writes that it does not stop.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) or [`Error::Name`](crate::Error::Name) with the name that is not valid.
pub fn sticky(table: &str, resource: &str) -> Result<String> {
    ResourceId::new(resource)?;
    let removed = unstick(table)?;
    let (table_name, hex) = (quoted(table), hexadecimal(resource));
    let one = |event: &&str| {
        let trigger = trigger(table, event)?;
        Ok(format!(
            "CREATE TRIGGER {trigger} BEFORE {event} ON {table_name} FOR EACH ROW CALL palisade_check_token({hex});\n"
        ))
    };
    let made: String = EVENTS.iter().map(one).collect::<Result<_>>()?;
    Ok(removed + &made)
}

/// Returns the SQL that removes the triggers of [`sticky`].
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if the name of the table is not valid.
pub fn unstick(table: &str) -> Result<String> {
    let one = |event: &&str| {
        Ok(format!(
            "DROP TRIGGER IF EXISTS {};\n",
            trigger(table, event)?
        ))
    };
    EVENTS.iter().map(one).collect()
}

/// A name has at most 64 characters.
fn trigger(table: &str, event: &str) -> Result<String> {
    valid_name(table, 64 - "palisade_insert_".len())?;
    Ok(quoted(&format!(
        "palisade_{}_{table}",
        event.to_lowercase()
    )))
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A literal that no sql_mode and no character set reads otherwise.
fn hexadecimal(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
    format!("X'{digits}'")
}

/// The resource in a trigger of [`sticky`], as the server shows its statement.
pub(super) fn resource_of(statement: &str) -> Option<String> {
    let (_, digits) = statement.split_once("palisade_check_token(X'")?;
    let (digits, _) = digits.split_once('\'')?;
    let pairs = digits.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_the_statement() {
        let sql = sticky("a`b", "it's").unwrap();
        assert!(
            sql.contains("ON `a``b` FOR EACH ROW CALL palisade_check_token(X'69742773')"),
            "{sql}"
        );
        assert!(sticky("", "r").is_err());
        assert!(sticky("t", "").is_err());
        assert!(sticky(&"t".repeat(49), "r").is_err());
        assert_eq!(resource_of(&sql).as_deref(), Some("it's"));
    }
}
