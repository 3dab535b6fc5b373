//! The lines for grants and their ends.

use std::borrow::Cow;

use palisade_access::{ANONYMOUS, Access};
use palisade_core::{Change, Ending, Event, Principal};
use palisade_proto::options::OptionsBody;
use serde::Serialize;

use super::line;
use crate::net::convert::json::ending;

/// A grant as an audit line describes it.
#[derive(Serialize)]
pub(in crate::net) struct AuditedGrant<'a> {
    /// The number of the authority's event: lines with one number are about one event.
    revision: u64,
    principal: Cow<'a, str>,
    lock: &'a str,
    mode: &'static str,
    fencing_token: u64,
    /// Distinguishes a reader from the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    grant_id: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<u32>,
    lease_id: Option<u64>,
    client_id: Option<&'a str>,
    /// Only when granted.
    #[serde(flatten)]
    options: OptionsBody,
}

impl<'a> AuditedGrant<'a> {
    fn of(event: &'a Event, access: Option<&'a Access>) -> AuditedGrant<'a> {
        let slots: Vec<u32> = event.slots.iter().collect();
        AuditedGrant {
            revision: event.revision,
            principal: name(event.by, access),
            lock: event.lock.as_str(),
            mode: match (event.shared, slots.is_empty()) {
                (Some(_), _) => "shared",
                (None, true) => "exclusive",
                (None, false) => "permits",
            },
            fencing_token: event.token.get(),
            grant_id: event.shared.map(|id| id.0.get()),
            slots,
            lease_id: event.lease.map(|lease| lease.0.get()),
            client_id: event.client.as_deref(),
            options: OptionsBody::default().with_options(event.detail.options),
        }
    }
}

/// The name of a principal. A principal that is no longer in the access file is shown in the form that
/// the log stores.
pub(in crate::net) fn name<'a>(by: Principal, access: Option<&'a Access>) -> Cow<'a, str> {
    if by.is_anonymous() {
        return ANONYMOUS.into();
    }
    match access.and_then(|access| access.stored(by.to_bytes())) {
        Some(principal) => principal.name().into(),
        None => {
            let digits = by.to_bytes().map(|byte| format!("{byte:02x}"));
            format!("sha256:{}", digits.concat()).into()
        }
    }
}

/// The line of one event; `later` are the events of its batch after it.
pub(in crate::net) fn line_of(
    event: &Event,
    later: &[Event],
    access: Option<&Access>,
) -> Option<Vec<u8>> {
    let superseded = matches!(
        event.change,
        Change::Ended {
            how: Ending::Superseded,
            ..
        }
    );
    if !superseded && !access.is_some_and(|access| access.audits(event.lock.as_str())) {
        return None;
    }
    let grant = || AuditedGrant::of(event, access);
    Some(line(&match &event.change {
        // An opening has had its line before it was done.
        Change::Proclaimed | Change::Opened { .. } => return None,
        Change::Granted { .. } => super::AuditEvent::Granted(grant()),
        Change::Ended { how, reason, .. } => {
            // The grant that supersedes is made in the same entry of the log.
            let succeeds = |next: &&Event| {
                superseded
                    && matches!(next.change, Change::Granted { .. })
                    && (&next.lock, &next.client, next.by) == (&event.lock, &event.client, event.by)
            };
            let successor = later.iter().find(succeeds);
            super::AuditEvent::Ended {
                grant: grant(),
                how: ending(*how),
                reason: reason.as_deref(),
                new_fencing_token: successor.map(|next| next.token.get()),
            }
        }
    }))
}
