//! The fences of one location, for `palisade doctor`: how many there are, and which ways past them are open.

use super::super::failure::Failure;
use super::resources::LocatedResources;

/// The fences of one location.
pub(in crate::cli) struct Fences {
    /// Resources with a fence.
    pub(in crate::cli) resources: usize,
    /// The ways past them that are open, one line each.
    pub(in crate::cli) doors: Vec<String>,
}

/// Looks at the fences of one location. Nothing is changed.
pub(in crate::cli) async fn look(url: &str) -> Result<Fences, Failure> {
    let mut resources = LocatedResources::of(url).await?;
    let all = resources.all("").await?;
    let doors = resources.doors().await?;
    Ok(Fences {
        resources: all.len(),
        doors: doors
            .into_iter()
            .map(|door| match door.table {
                Some(table) => format!("{table}: {}", door.door),
                None => door.door,
            })
            .collect(),
    })
}
