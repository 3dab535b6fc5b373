//! Why the demo fails.

use std::path::PathBuf;
use std::time::Duration;

use super::settings::{MAX_TTL, MIN_TTL};

/// Why the demo did not run, or did not show the expected result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the demo needs a ttl of {MIN_TTL:?} – {MAX_TTL:?}, not {0:?}")]
    Ttl(Duration),
    #[error("cannot start `palisade {what}`: {why}")]
    Start { what: String, why: String },
    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "inconclusive: the act “{act}” did not follow its schedule, twice: {why}; is the machine very busy? Try a longer --ttl"
    )]
    Inconclusive { act: &'static str, why: String },
    #[error("the act “{act}” did not end as expected: {headline}; this is a bug in Palisade")]
    Unexpected { act: &'static str, headline: String },
    #[error("interrupted; all processes are stopped")]
    Interrupted,
    #[error("only `palisade demo` starts `demo-worker`: {0}")]
    Assignment(#[from] serde_json::Error),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl Error {
    pub(super) fn start(what: &str, why: &str) -> Error {
        Error::Start {
            what: what.to_owned(),
            why: why.to_owned(),
        }
    }
}
