//! Conversion of PostgreSQL's errors into faults.

use palisade_core::Token;
use palisade_core::fence::Reject;

use crate::sql::Fault;

pub(super) fn server_fault(
    state: &str,
    message: &str,
    detail: Option<&str>,
    hint: Option<&str>,
) -> Fault {
    let highest = detail.and_then(|text| Token::new(text.parse().ok()?).ok());
    match (state, highest) {
        ("PF001", Some(highest)) => Fault::Trigger(Reject::Stale { highest }),
        ("PF002", Some(highest)) => Fault::Trigger(Reject::Tokenless { highest }),
        ("42P01", _)
            if message.contains("palisade_fence") || message.contains("resource_records") =>
        {
            Fault::NotInstalled(format!("{message}; run `palisade fence install postgres`"))
        }
        _ => Fault::Database {
            state: state.to_owned(),
            message: match hint {
                Some(hint) => format!("{message} ({hint})"),
                None => message.to_owned(),
            },
            retryable: matches!(state, "40001" | "40P01" | "55P03"),
        },
    }
}
