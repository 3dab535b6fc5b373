//! Type names of what ships: a name that several types have must be in one of these lists.

use std::collections::BTreeMap;

use super::Finding;
use crate::tree::{File, Tree};

/// One idea in several layers, which are converted into each other, or in several backends.
const SAME_IDEA: &str = "Acquire Acquired Address BearerToken Blocker Changes Column Counters Counts Cursor Damage Database Effect Entry Events \
    Exporting FileBytes Grant GrantName Granted Guard Habit Header Identity Invalid Jwk JwkSet Keys Leader Lease \
    Listened Listener Listening Loaded LockMode Malformed Members Meters Metrics Nodes Notice Numbered OpenError \
    Operator Page Pause Pool Presented Principal Problem Put QueuePosition QueuedAcquire Records ReplayError Reply \
    ReplyTo Section Shadow Stamp Status Subject Transport Uses";

/// A part that many modules have. Outside its module such a type carries the module's name.
const PARTS: &str = "Answer Answers App Command Connection Driver Error Failure Fault InFlight Inner Job Key Log Message Operation \
    Options Part Phase Queue Reader Record Report Request Resource Row Service Session Settings Shared State Store \
    Writer";

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Vec<(&File, usize)>> = BTreeMap::new();
    let ships = |file: &&File| file.path.starts_with("crates/") && file.path.contains("/src/");
    for file in tree.files.iter().filter(ships) {
        let mut tests = file.test_lines().map(|(number, _)| number);
        let tests = tests.next().unwrap_or(usize::MAX);
        for (number, line) in file.lines().take_while(|(number, _)| *number < tests) {
            if let Some(name) = defined(line).filter(|_| file.has_ending(&["rs"])) {
                places.entry(name).or_default().push((file, number));
            }
        }
    }
    let lists = [SAME_IDEA, PARTS].iter();
    let known: Vec<&str> = lists.flat_map(|names| names.split_whitespace()).collect();
    let unknown = places.iter().filter(|(name, _)| !known.contains(name));
    let repeats = unknown.flat_map(|(name, places)| {
        let also = format!("`{name}` is also at {}", places[0].0.path);
        places[1..]
            .iter()
            .map(move |(file, line)| Finding::new(&file.path, *line, also.clone()))
    });
    repeats.collect()
}

/// The name of the type that this line begins to define.
fn defined(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let (keyword, rest) = item.split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "union"].contains(&keyword)
        || (keyword == "type" && !line.starts_with(' '));
    let end = rest.find(|mark: char| !mark.is_alphanumeric());
    let name = &rest[..end.unwrap_or(rest.len())];
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}
