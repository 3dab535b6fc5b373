//! The glossary's words have one meaning each; this table lists what we decided not to say instead. Misspelt words are found by
//! typos. Looked at are pages and documentation comments, without code and "quotations". Words separated by a space, a
//! hyphen or a line end count as neighbours.

use super::Finding;
use crate::tree::{File, Tree};

/// Pairs: rejected words in lower case with a comma between them, and the right word.
pub(super) const ROWS: &[(&str, &str)] = &[
    (
        "fence token,fence tokens,fencing number,fencing numbers,fence number,lock epoch,lease epoch,fencing epoch",
        "fencing token: the number that only grows",
    ),
    (
        "lock token,lock tokens,lease token,lease tokens",
        "lease key, `lock_token` on the wire, or fencing token if the number is meant",
    ),
    (
        "unlock,unlocks,unlocked,unlocking",
        "release: a grant is released, a lease expires, an operator revokes",
    ),
    (
        "expired lock,expired locks,lock expires,lock expired,locks expire",
        "expired lease, the lease expires: a lock is a name and has no time",
    ),
    ("lock owner,lock owners,owner of the lock", "holder"),
];

/// Every place that uses a word the project decided against.
pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    // Words in lower case with one space around each; a mark other than a hyphen stands between those that are not neighbours.
    let mut words = String::from(" ");
    let mut ends = Vec::new();
    for line in file.prose().to_lowercase().lines() {
        for letter in line.chars().chain([' ']) {
            match letter {
                ' ' | '-' if words.ends_with(' ') => {}
                '-' => words.push(' '),
                _ if letter.is_alphanumeric() || "_ ".contains(letter) => words.push(letter),
                _ => words.push_str(" | "),
            }
        }
        ends.push(words.len());
    }
    let mut found = Vec::new();
    for (not, say) in ROWS
        .iter()
        .flat_map(|(nots, say)| nots.split(',').map(move |not| (not, say)))
    {
        for (at, _) in words.match_indices(&format!(" {not} ")) {
            let line = 1 + ends.partition_point(|end| *end <= at + 1);
            found.push(Finding::new(
                &file.path,
                line,
                format!("\"{not}\": say {say}"),
            ));
        }
    }
    found
}
