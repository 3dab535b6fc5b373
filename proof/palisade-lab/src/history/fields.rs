//! The lines of a history as JSON. The format is described in `docs/reference/history-format.md`.

mod write;

use palisade_core::{
    ClientId, Ending, LockMode, LockName, Permits, Slots, Timestamp, Token, Ttl, limits, set_of,
};
use serde::{Deserialize, Serialize};

use super::event::{Answer, Call, Event, Expiry, Header, Tokens};

/// The only version.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderFields {
    palisade_history: u32,
    #[serde(default)]
    tokens: TokensField,
    #[serde(default)]
    expiry: ExpiryField,
    #[serde(default)]
    drift_ppm: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TokensField {
    #[default]
    Global,
    PerLock,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ExpiryField {
    #[default]
    Exact,
    Lazy,
}

/// The fields of all lines; a line's kind determines which are required.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    client: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    call: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    answer: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    authority: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    lock: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    also: Option<Vec<Text<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    under: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    request: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    holder: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    how: Option<Text<'a>>,
}

/// A string of the line, borrowed if it needs no unescaping.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

impl<'a> Text<'a> {
    fn of(text: &'a str) -> Option<Text<'a>> {
        Some(Text(text.into()))
    }
}

/// Reads the first line of a history.
pub(super) fn parse_header(line: &str) -> Result<Header, String> {
    let fields: HeaderFields = serde_json::from_str(line).map_err(|error| {
        format!(
            "expected the header {{\"palisade_history\":{VERSION}}}: {}",
            message(&error)
        )
    })?;
    if fields.palisade_history != VERSION {
        return Err(format!(
            "`palisade_history` is {}, and only version {VERSION} is supported",
            fields.palisade_history
        ));
    }
    if fields.drift_ppm >= 1_000_000 {
        return Err(format!(
            "`drift_ppm` is {}, expected 0 to 999999",
            fields.drift_ppm
        ));
    }
    Ok(Header {
        tokens: match fields.tokens {
            TokensField::Global => Tokens::Global,
            TokensField::PerLock => Tokens::PerLock,
        },
        expiry: match fields.expiry {
            ExpiryField::Exact => Expiry::Exact,
            ExpiryField::Lazy => Expiry::Lazy,
        },
        drift_ppm: fields.drift_ppm,
    })
}

/// Reads any other line.
pub(super) fn parse_event(line: &str) -> Result<Event, String> {
    let mut fields: Fields<'_> = serde_json::from_str(line).map_err(|error| message(&error))?;
    let event = take_event(&mut fields)?;
    if fields == Fields::default() {
        Ok(event)
    } else {
        Err(format!(
            "unexpected field for a line of this kind: {}",
            serde_json::to_string(&fields).unwrap_or_default()
        ))
    }
}

/// Without serde's line number, which would always be 1.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} (at column {})", &text[..end], error.column())
}

fn take_event(fields: &mut Fields<'_>) -> Result<Event, String> {
    let at = Timestamp::from_nanos(std::mem::take(&mut fields.at));
    let kinds = [
        fields.call.take(),
        fields.answer.take(),
        fields.authority.take(),
    ];
    match kinds {
        [Some(call), None, None] => Ok(Event::Call {
            at,
            id: need(fields.id.take(), "id")?,
            client: client("client", fields.client.take())?,
            call: take_call(&call.0, fields)?,
        }),
        [None, Some(answer), None] => Ok(Event::Answer {
            at,
            id: need(fields.id.take(), "id")?,
            answer: take_answer(&answer.0, fields)?,
        }),
        [None, None, Some(what)] if what.0 == "away" => {
            let until = Timestamp::from_nanos(need(fields.until.take(), "until")?);
            if until < at {
                Err("`until` is before `at`".to_owned())
            } else {
                Ok(Event::Away { at, until })
            }
        }
        [None, None, Some(what)] => Err(format!("`authority` is {:?}, expected \"away\"", what.0)),
        _ => Err("expected exactly one of `call`, `answer` and `authority`".to_owned()),
    }
}

fn take_call(kind: &str, fields: &mut Fields<'_>) -> Result<Call, String> {
    let name = need(fields.lock.take(), "lock")?;
    let lock = LockName::new(&name.0).map_err(|error| format!("`lock`: {error}"))?;
    Ok(match kind {
        "acquire" => {
            let (ttl, under) = (ttl(fields)?, token("under", fields.under.take())?);
            if ttl.is_some() == under.is_some() {
                return Err("an acquire has either `ttl_ms` or `under`".to_owned());
            }
            let mode = mode(fields)?;
            let also = also(&lock, fields)?;
            if !also.is_empty() && mode != LockMode::Exclusive {
                return Err("an acquire with `also` is exclusive".to_owned());
            }
            if mode == LockMode::Upgrade && under.is_none() {
                return Err("an acquire with `upgrade` has `under`".to_owned());
            }
            Call::Acquire {
                lock,
                also,
                ttl,
                under,
                request: fields.request.take().map(|text| text.0.into()),
                mode,
            }
        }
        "renew" => Call::Renew {
            lock,
            token: need_token(fields)?,
            ttl: ttl(fields)?,
        },
        "release" => Call::Release {
            lock,
            token: need_token(fields)?,
        },
        "abandon" => Call::Abandon {
            lock,
            request: need(fields.request.take(), "request")?.0.into(),
        },
        "revoke" => Call::Revoke {
            lock,
            token: need_token(fields)?,
        },
        "show" => Call::Show { lock },
        other => {
            return Err(format!(
                "`call` is {other:?}, expected acquire, renew, release, abandon, revoke or show"
            ));
        }
    })
}

fn take_answer(kind: &str, fields: &mut Fields<'_>) -> Result<Answer, String> {
    Ok(match kind {
        "granted" => {
            let token_ = need_token(fields)?;
            let lease = token("lease", fields.lease.take())?.unwrap_or(token_);
            let phase = token("phase", fields.phase.take())?;
            if lease > token_ || phase > Some(token_) {
                return Err("`lease` or `phase` is above `token`".to_owned());
            }
            Answer::Granted {
                token: token_,
                lease,
                phase,
                slots: slots(fields)?,
            }
        }
        "held_shared" => Answer::HeldShared {
            phase: need(token("phase", fields.phase.take())?, "phase")?,
        },
        "held" => Answer::Held {
            token: need_token(fields)?,
            holder: client("holder", fields.holder.take())?,
        },
        "denied" => Answer::Denied,
        "free" => Answer::Free,
        "renewed" => Answer::Renewed {
            token: need_token(fields)?,
        },
        "released" => Answer::Released {
            token: need_token(fields)?,
        },
        "revoked" => Answer::Revoked {
            token: need_token(fields)?,
        },
        "ended" => Answer::Ended {
            token: need_token(fields)?,
            how: how(&need(fields.how.take(), "how")?.0)?,
        },
        "not_held" => Answer::NotHeld,
        "stale" => Answer::Stale {
            token: need_token(fields)?,
        },
        "abandoned" => Answer::Abandoned,
        "refused" => Answer::Refused,
        "done" => Answer::Done,
        other => {
            return Err(format!(
                "`answer` is {other:?}, expected granted, held, held_shared, free, renewed, released, revoked, \
                 ended, not_held, stale, abandoned, refused or done"
            ));
        }
    })
}

fn mode(fields: &mut Fields<'_>) -> Result<LockMode, String> {
    let named = [
        (fields.shared.take(), LockMode::Shared),
        (fields.update.take(), LockMode::Update),
        (fields.upgrade.take(), LockMode::Upgrade),
    ];
    let mut named = named.into_iter().filter(|(named, _)| *named == Some(true));
    let first = named.next().map(|(_, mode)| mode);
    match (first, named.next(), fields.permits.take(), fields.of.take()) {
        (first, None, None, None) => Ok(first.unwrap_or(LockMode::Exclusive)),
        (None, None, Some(wanted), Some(of)) => match Permits::new(wanted, of) {
            Ok(permits) => Ok(LockMode::Permits(permits)),
            Err(error) => Err(format!("`permits`: {error}")),
        },
        _ => Err(
            "expected one of `shared`, `update`, `upgrade`, and `permits` with `of`, or none of them"
                .to_owned(),
        ),
    }
}

/// The other locks of a set.
fn also(lock: &LockName, fields: &mut Fields<'_>) -> Result<Box<[LockName]>, String> {
    let names = fields.also.take().unwrap_or_default().into_iter();
    let names = names.map(|name| LockName::new(&name.0));
    let names: Vec<LockName> = names
        .collect::<Result<_, _>>()
        .map_err(|error| format!("`also`: {error}"))?;
    let all = names.iter().chain([lock]).cloned().collect();
    match set_of(all) {
        Ok(_) => Ok(names.into()),
        Err(error) => Err(format!("`also`: {error}")),
    }
}

fn slots(fields: &mut Fields<'_>) -> Result<Slots, String> {
    let mut slots = Slots::NONE;
    for slot in fields.slots.take().unwrap_or_default() {
        let one = match slot {
            1..=limits::PERMITS => Slots::from_bits(1 << (slot - 1)),
            _ => Slots::NONE,
        };
        if one.without(slots).is_empty() {
            return Err(format!(
                "`slots` has {slot}, expected distinct numbers, 1 to {}",
                limits::PERMITS
            ));
        }
        slots = slots.with(one);
    }
    Ok(slots)
}

fn need<T>(field: Option<T>, name: &str) -> Result<T, String> {
    field.ok_or_else(|| format!("expected a field `{name}`"))
}

fn token(name: &str, number: Option<u64>) -> Result<Option<Token>, String> {
    number
        .map(|number| Token::new(number).map_err(|error| format!("`{name}`: {error}")))
        .transpose()
}

fn need_token(fields: &mut Fields<'_>) -> Result<Token, String> {
    need(token("token", fields.token.take())?, "token")
}

fn ttl(fields: &mut Fields<'_>) -> Result<Option<Ttl>, String> {
    let millis = fields.ttl_ms.take();
    millis
        .map(|millis| Ttl::from_millis(millis).map_err(|error| format!("`ttl_ms`: {error}")))
        .transpose()
}

fn client(name: &str, text: Option<Text<'_>>) -> Result<ClientId, String> {
    ClientId::new(&need(text, name)?.0).map_err(|error| format!("`{name}`: {error}"))
}

fn how(text: &str) -> Result<Ending, String> {
    ENDINGS
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, how)| *how)
        .ok_or_else(|| {
            format!("`how` is {text:?}, expected released, expired, revoked or superseded")
        })
}

const ENDINGS: [(&str, Ending); 4] = [
    ("released", Ending::Released),
    ("expired", Ending::Expired),
    ("revoked", Ending::Revoked),
    ("superseded", Ending::Superseded),
];
