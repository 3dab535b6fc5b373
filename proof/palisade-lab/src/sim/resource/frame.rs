//! One frame of the resource's log: fence and data together.

use palisade_core::fence::{FenceState, Mark, Sequence, Written};
use palisade_core::{AuthorityId, LockName, Token};

/// A set behind a fence. If the fence is lost, nothing is served (rule F7).
#[derive(Clone, Debug, Default)]
pub(super) struct Object {
    pub(super) fence: Option<FenceState>,
    pub(super) value: u128,
}

impl Object {
    pub(super) fn highest(&self) -> Option<u64> {
        self.fence.as_ref()?.highest().map(Token::get)
    }
}

/// The state of one resource in a frame: its number, flags (fence exists, authority bound, lock bound, mark exists, written,
/// numbered), token, sequence, value.
pub(super) fn write(resource: u8, object: &Object) -> Vec<u8> {
    let fence = object.fence.clone().unwrap_or_default();
    let (token, written) = fence.mark.map_or((0, Written::Nothing), |mark| {
        (mark.token.get(), mark.written)
    });
    let sequence = match written {
        Written::Through(sequence) => sequence.get(),
        _ => 0,
    };
    let flags = [
        object.fence.is_some(),
        fence.authority.is_some(),
        fence.lock.is_some(),
        fence.mark.is_some(),
        written != Written::Nothing,
        matches!(written, Written::Through(_)),
    ];
    let flags = (0..)
        .zip(flags)
        .map(|(bit, set)| u8::from(set) << bit)
        .sum();
    let mut frame = vec![resource, flags];
    frame.extend_from_slice(&token.to_le_bytes());
    frame.extend_from_slice(&sequence.to_le_bytes());
    frame.extend_from_slice(&object.value.to_le_bytes());
    frame
}

pub(super) fn read(
    frame: &[u8],
    names: (&AuthorityId, &[LockName]),
    objects: &mut [Object],
) -> Option<()> {
    let (authority, keys) = names;
    let ([resource, flags], rest) = frame.split_first_chunk()?;
    let (token, rest) = rest.split_first_chunk()?;
    let (sequence, rest) = rest.split_first_chunk()?;
    let value = u128::from_le_bytes(*rest.first_chunk()?);
    let has = |bit: u8| flags & 1 << bit != 0;
    let written = match (has(4), has(5)) {
        (_, true) => Written::Through(Sequence::new(u64::from_le_bytes(*sequence))?),
        (true, false) => Written::Unnumbered,
        (false, false) => Written::Nothing,
    };
    let mark = match Token::new(u64::from_le_bytes(*token)) {
        Ok(token) if has(3) => Some(Mark { token, written }),
        _ => None,
    };
    let name = keys.get(usize::from(*resource))?;
    let fence = FenceState {
        authority: has(1).then(|| authority.clone()),
        lock: has(2).then(|| name.clone()),
        mark,
    };
    *objects.get_mut(usize::from(*resource))? = Object {
        fence: has(0).then_some(fence),
        value,
    };
    Some(())
}
