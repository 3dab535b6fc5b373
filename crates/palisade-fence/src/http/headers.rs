//! The headers of a fenced request. Every error names its header.

use http::HeaderMap;
use palisade_core::fence::{Pass, Sequence};
use palisade_core::{AuthorityId, LockName, Token};

use crate::http::Problem;
use crate::sequencer::{BadSequencer, Check, SEQUENCER_HEADER};

/// The fencing token of the caller's grant.
pub const TOKEN_HEADER: &str = "x-fencing-token";
/// The lock for which the token was issued (rule F6).
pub const LOCK_HEADER: &str = "x-fencing-lock";
/// The authority that issued the token (rule F6).
pub const AUTHORITY_HEADER: &str = "x-fencing-authority";
/// The number of this write among the writes of its grant (rule F5).
pub const SEQUENCE_HEADER: &str = "x-fencing-sequence";
/// `claim`: raise the fence and do nothing else.
pub const OPERATION_HEADER: &str = "x-fencing-operation";
/// In an answer: the write is a repeat, which had already taken effect and was not performed again.
pub const REPEAT_HEADER: &str = "x-fencing-repeat";

/// The parsed headers of one request.
#[derive(Debug, Default)]
pub(super) struct Presented {
    pub(super) token: Option<Token>,
    pub(super) lock: Option<LockName>,
    pub(super) authority: Option<AuthorityId>,
    pub(super) sequence: Option<Sequence>,
    pub(super) claim: bool,
    /// The sequencer, before it is verified.
    sequencer: Option<String>,
    signed: bool,
}

impl Presented {
    pub(super) fn read(headers: &HeaderMap) -> Result<Presented, Problem> {
        let presented = Presented {
            token: token_header(headers)?,
            lock: lock_header(headers)?,
            authority: authority_header(headers)?,
            sequence: sequence_header(headers)?,
            claim: operation_header(headers)?,
            sequencer: sequencer_header(headers)?.map(str::to_owned),
            signed: false,
        };
        let need_token = [
            (presented.lock.is_some(), LOCK_HEADER),
            (presented.authority.is_some(), AUTHORITY_HEADER),
            (presented.sequence.is_some(), SEQUENCE_HEADER),
            (presented.claim, OPERATION_HEADER),
        ];
        match need_token.into_iter().find(|(present, _)| *present) {
            Some((_, name)) if !presented.has_token() => {
                Err(Problem::invalid(format!("{name} requires {TOKEN_HEADER}")))
            }
            _ => Ok(presented),
        }
    }

    /// Whether a token came with the request, bare or signed.
    pub(super) const fn has_token(&self) -> bool {
        self.token.is_some() || self.sequencer.is_some()
    }

    /// Verifies the sequencer, or checks whether the token may be bare. The sequencer's content replaces the other
    /// headers, none of which may contradict it.
    pub(super) fn settle(
        &mut self,
        check: &Check,
        resource: &str,
        writes: bool,
    ) -> Result<(), BadSequencer> {
        let Some(text) = &self.sequencer else {
            return match self.token {
                Some(_) => check.admits_bare(),
                None => Ok(()),
            };
        };
        let sequencer = check.check(text, resource, writes)?;
        // A fence at a slot is bound to the slot's own name.
        let lock = LockName::new(resource).ok();
        for (differs, header) in [
            (differs(&self.token, &sequencer.token()), TOKEN_HEADER),
            (
                differs(&self.authority, sequencer.authority()),
                AUTHORITY_HEADER,
            ),
            (self.lock.is_some() && self.lock != lock, LOCK_HEADER),
        ] {
            if differs {
                return Err(BadSequencer::Contradicted(header));
            }
        }
        self.token = Some(sequencer.token());
        self.authority = Some(sequencer.authority().clone());
        self.lock = lock;
        self.signed = true;
        Ok(())
    }

    pub(super) fn pass(&self) -> Option<Pass<'_>> {
        self.token.map(|token| Pass {
            authority: self.authority.as_ref(),
            lock: self.lock.as_ref(),
            signed: self.signed,
            ..Pass::new(token)
        })
    }
}

/// Returns the token in the header [`TOKEN_HEADER`], if there is one.
///
/// # Errors
/// [`Problem`] 400 `invalid`: not a token, or the header appears twice.
pub fn token_header(headers: &HeaderMap) -> Result<Option<Token>, Problem> {
    let parse = |number| Token::new(number).ok();
    number(headers, TOKEN_HEADER, TOKEN_RANGE, parse)
}

/// Returns the authority in the header [`AUTHORITY_HEADER`], if there is one.
///
/// # Errors
/// [`Problem`] 400 `invalid`: not the name of an authority, or the header appears twice.
pub fn authority_header(headers: &HeaderMap) -> Result<Option<AuthorityId>, Problem> {
    name(headers, AUTHORITY_HEADER, AuthorityId::new)
}

/// Returns the sequencer in the header [`SEQUENCER_HEADER`], if there is one. It is not checked yet.
///
/// # Errors
/// [`Problem`] 400 `invalid`: not printable, or the header appears twice.
pub fn sequencer_header(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    single(headers, SEQUENCER_HEADER)
}

fn differs<T: PartialEq>(given: &Option<T>, signed: &T) -> bool {
    given.as_ref().is_some_and(|given| given != signed)
}

fn lock_header(headers: &HeaderMap) -> Result<Option<LockName>, Problem> {
    name(headers, LOCK_HEADER, LockName::new)
}

fn sequence_header(headers: &HeaderMap) -> Result<Option<Sequence>, Problem> {
    number(headers, SEQUENCE_HEADER, SEQUENCE_RANGE, Sequence::new)
}

fn operation_header(headers: &HeaderMap) -> Result<bool, Problem> {
    match single(headers, OPERATION_HEADER)? {
        None => Ok(false),
        Some("claim") => Ok(true),
        Some(other) => Err(Problem::invalid(format!(
            "{OPERATION_HEADER} must be claim, not {:?}",
            shown(other)
        ))),
    }
}

fn name<T>(
    headers: &HeaderMap,
    header: &str,
    parse: impl FnOnce(&str) -> Result<T, palisade_core::Invalid>,
) -> Result<Option<T>, Problem> {
    let Some(text) = single(headers, header)? else {
        return Ok(None);
    };
    let parsed = parse(text);
    parsed
        .map(Some)
        .map_err(|invalid| Problem::invalid(format!("{header}: {invalid}")))
}

fn number<T>(
    headers: &HeaderMap,
    header: &str,
    range: &str,
    parse: impl FnOnce(u64) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let Some(text) = single(headers, header)? else {
        return Ok(None);
    };
    // `parse` alone would accept a sign.
    let digits = text
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(text);
    let number = digits.and_then(|digits| digits.parse().ok());
    number
        .and_then(parse)
        .map(Some)
        .ok_or_else(|| Problem::invalid(format!("{header} must be {range}, not {:?}", shown(text))))
}

fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let text = value.to_str();
            text.map(Some)
                .map_err(|_| Problem::invalid(format!("{name} is not printable ASCII")))
        }
        _ => Err(Problem::invalid(format!("{name} appears twice"))),
    }
}

/// Shortens a caller's text for a message.
fn shown(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

const TOKEN_RANGE: &str = "an integer in 1 ..= 9007199254740991";
const SEQUENCE_RANGE: &str = "an integer in 0 ..= 9007199254740991";
