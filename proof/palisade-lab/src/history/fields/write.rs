//! Writes events as lines.

use palisade_core::{LockMode, Slots, Token};
use serde::Serialize;

use super::{ENDINGS, ExpiryField, Fields, HeaderFields, Text, TokensField, VERSION};
use crate::history::event::{Answer, Call, Event, Expiry, Header, Tokens};

impl Header {
    /// The header as a line, without its line end.
    #[must_use]
    pub fn to_line(&self) -> String {
        line(&HeaderFields {
            palisade_history: VERSION,
            tokens: match self.tokens {
                Tokens::Global => TokensField::Global,
                Tokens::PerLock => TokensField::PerLock,
            },
            expiry: match self.expiry {
                Expiry::Exact => ExpiryField::Exact,
                Expiry::Lazy => ExpiryField::Lazy,
            },
            drift_ppm: self.drift_ppm,
        })
    }
}

impl Event {
    /// The event as a line, without its line end.
    #[must_use]
    pub fn to_line(&self) -> String {
        match self {
            Event::Call {
                at,
                id,
                client,
                call,
            } => {
                let mut fields = call_fields(call);
                fields.at = at.as_nanos();
                fields.id = Some(*id);
                fields.client = Text::of(client);
                line(&fields)
            }
            Event::Answer { at, id, answer } => {
                let mut fields = answer_fields(answer);
                fields.at = at.as_nanos();
                fields.id = Some(*id);
                line(&fields)
            }
            Event::Away { at, until } => line(&Fields {
                at: at.as_nanos(),
                until: Some(until.as_nanos()),
                authority: Text::of("away"),
                ..Fields::default()
            }),
        }
    }
}

/// Cannot fail: numbers and strings always have a JSON form.
fn line(fields: &impl Serialize) -> String {
    serde_json::to_string(fields).unwrap_or_default()
}

fn call_fields(call: &Call) -> Fields<'_> {
    let mut fields = Fields {
        lock: Text::of(call.lock()),
        ..Fields::default()
    };
    let kind = match call {
        Call::Acquire {
            ttl,
            under,
            request,
            also,
            mode,
            ..
        } => {
            fields.shared = (*mode == LockMode::Shared).then_some(true);
            fields.update = (*mode == LockMode::Update).then_some(true);
            fields.upgrade = (*mode == LockMode::Upgrade).then_some(true);
            fields.permits = mode.permits().map(|permits| permits.wanted());
            fields.of = mode.permits().map(|permits| permits.of());
            fields.also =
                (!also.is_empty()).then(|| also.iter().flat_map(|name| Text::of(name)).collect());
            fields.ttl_ms = ttl.map(|ttl| ttl.as_millis().into());
            fields.under = under.map(Token::get);
            fields.request = request.as_deref().and_then(Text::of);
            "acquire"
        }
        Call::Renew { token, ttl, .. } => {
            fields.token = Some(token.get());
            fields.ttl_ms = ttl.map(|ttl| ttl.as_millis().into());
            "renew"
        }
        Call::Release { token, .. } => {
            fields.token = Some(token.get());
            "release"
        }
        Call::Abandon { request, .. } => {
            fields.request = Text::of(request);
            "abandon"
        }
        Call::Revoke { token, .. } => {
            fields.token = Some(token.get());
            "revoke"
        }
        Call::Show { .. } => "show",
    };
    fields.call = Text::of(kind);
    fields
}

fn answer_fields(answer: &Answer) -> Fields<'_> {
    let mut fields = Fields::default();
    let (kind, token) = match answer {
        Answer::HeldShared { phase } => {
            fields.phase = Some(phase.get());
            ("held_shared", None)
        }
        Answer::Granted {
            token,
            lease,
            phase,
            slots,
        } => {
            fields.slots = (*slots != Slots::NONE).then(|| slots.iter().collect());
            fields.phase = phase.map(Token::get);
            fields.lease = (lease != token).then_some(lease.get());
            ("granted", Some(token))
        }
        Answer::Held { token, holder } => {
            fields.holder = Text::of(holder);
            ("held", Some(token))
        }
        Answer::Ended { token, how } => {
            let word = ENDINGS.iter().find(|(_, ending)| ending == how);
            fields.how = word.and_then(|(word, _)| Text::of(word));
            ("ended", Some(token))
        }
        Answer::Renewed { token } => ("renewed", Some(token)),
        Answer::Released { token } => ("released", Some(token)),
        Answer::Revoked { token } => ("revoked", Some(token)),
        Answer::Stale { token } => ("stale", Some(token)),
        Answer::Denied => ("denied", None),
        Answer::Free => ("free", None),
        Answer::NotHeld => ("not_held", None),
        Answer::Abandoned => ("abandoned", None),
        Answer::Refused => ("refused", None),
        Answer::Done => ("done", None),
    };
    fields.answer = Text::of(kind);
    fields.token = token.map(|token| token.get());
    fields
}
