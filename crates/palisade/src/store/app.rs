//! The state that all handlers of the store share.

use axum::http::StatusCode;
use palisade_client::Client;
use palisade_fence::Mode;
use palisade_fence::http::Problem;
use palisade_fence::sequencer::Check;
use palisade_fence::store::Store;
use palisade_proto::Code;
use palisade_proto::codes::CodeRow;

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) store: Store,
    pub(super) sequencers: Check,
    /// Tells an authority of late writes.
    pub(super) reporter: Option<Client>,
}

/// A refusal with a code from the table.
pub(super) fn refused(code: Code, message: String) -> Problem {
    let status =
        StatusCode::from_u16(CodeRow::of(code).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Problem::new(status, code, message)
}

/// The name of a mode, as on the command line.
pub(crate) const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Claim => "claim",
        Mode::Strict => "strict",
        Mode::Textbook => "textbook",
        Mode::DangerUnfenced => "danger-unfenced",
    }
}
