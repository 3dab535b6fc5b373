//! Failures as text.

pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}
