//! The replies of a frame, of which most are read without an allocation.

use prost::{DecodeError, Message as _};

use super::Fields;
use crate::v1::{self, Released, Renewed, reply::Outcome};

/// The content of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A grant without slots.
    Granted(Granted),
    /// A renewal.
    Renewed(Renewed),
    /// A release.
    Released(Released),
    /// Any other reply, and any reply whose fields are not in order, each once.
    Other(Box<Outcome>),
}

/// The fields of [`v1::Granted`], but for the slots of permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the .proto carries the documentation")]
pub struct Granted {
    pub fencing_token: u64,
    pub lock_token: [u8; 16],
    pub lease_id: u64,
    pub lease_duration_ms: u32,
    pub valid_for_ms: u64,
    pub waited_ms: u64,
    pub acquired_at_ms: u64,
    pub grant_id: u64,
}

impl From<Reply> for Outcome {
    /// The reply as decoding finds it.
    fn from(reply: Reply) -> Outcome {
        match reply {
            Reply::Granted(it) => Outcome::Granted(v1::Granted {
                fencing_token: it.fencing_token,
                lock_token: it.lock_token.to_vec(),
                lease_id: it.lease_id,
                lease_duration_ms: it.lease_duration_ms,
                valid_for_ms: it.valid_for_ms,
                waited_ms: it.waited_ms,
                acquired_at_ms: it.acquired_at_ms,
                grant_id: it.grant_id,
                slots: Vec::new(),
            }),
            Reply::Renewed(it) => Outcome::Renewed(it),
            Reply::Released(it) => Outcome::Released(it),
            Reply::Other(outcome) => *outcome,
        }
    }
}

/// Adds the replies of a frame with their ids to `to`, as decoding [`v1::Replies`] finds them. A reply that says nothing is
/// left out.
///
/// # Errors [`DecodeError`] if the frame is not a message; `to` then contains some of its replies.
pub fn replies(frame: &[u8], to: &mut Vec<(u64, Reply)>) -> Result<(), DecodeError> {
    let (mut fields, mut rest) = (Fields(frame), frame);
    while let Some(entry @ [_, ..]) = fields.bytes(1) {
        match reply(entry) {
            Some(reply) => to.push(reply),
            None => put(v1::Reply::decode(entry)?, to),
        }
        rest = fields.0;
    }
    // Usually nothing.
    let rest = v1::Replies::decode(rest)?;
    rest.replies.into_iter().for_each(|reply| put(reply, to));
    Ok(())
}

fn put(reply: v1::Reply, to: &mut Vec<(u64, Reply)>) {
    if let Some(outcome) = reply.outcome {
        to.push((reply.id, Reply::Other(Box::new(outcome))));
    }
}

fn reply(entry: &[u8]) -> Option<(u64, Reply)> {
    let mut fields = Fields(entry);
    let id = fields.number(1)?;
    let reply = match fields.0.first()? >> 3 {
        2 => Reply::Granted(granted(Fields(fields.bytes(2)?))?),
        4 => {
            let mut renewed = Fields(fields.bytes(4)?);
            let it = Renewed {
                fencing_token: renewed.number(1)?,
                lease_duration_ms: renewed.small(2)?,
                valid_for_ms: renewed.number(3)?,
                waiters: renewed.small(4)?,
            };
            renewed.end()?;
            Reply::Renewed(it)
        }
        5 => {
            let mut released = Fields(fields.bytes(5)?);
            let it = Released {
                fencing_token: released.number(1)?,
                delayed_ms: released.number(2)?,
            };
            released.end()?;
            Reply::Released(it)
        }
        _ => return None,
    };
    fields.end()?;
    Some((id, reply))
}

fn granted(mut fields: Fields<'_>) -> Option<Granted> {
    let granted = Granted {
        fencing_token: fields.number(1)?,
        lock_token: fields.bytes(2)?.try_into().ok()?,
        lease_id: fields.number(3)?,
        lease_duration_ms: fields.small(4)?,
        valid_for_ms: fields.number(5)?,
        waited_ms: fields.number(6)?,
        acquired_at_ms: fields.number(7)?,
        grant_id: fields.number(8)?,
    };
    fields.end()?;
    Some(granted)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Dice;
    use super::*;

    impl Dice {
        fn reply(&mut self) -> v1::Reply {
            let outcome = match self.throw(9) {
                0..=2 => Outcome::Granted(v1::Granted {
                    fencing_token: self.number(),
                    lock_token: self.bytes(),
                    lease_id: self.number(),
                    lease_duration_ms: self.number() as u32,
                    valid_for_ms: self.number(),
                    waited_ms: self.number(),
                    acquired_at_ms: self.number(),
                    grant_id: self.number(),
                    slots: vec![3; self.throw(8) as usize / 7],
                }),
                3 | 4 => Outcome::Renewed(Renewed {
                    fencing_token: self.number(),
                    lease_duration_ms: self.number() as u32,
                    valid_for_ms: self.number(),
                    waiters: self.number() as u32,
                }),
                5 | 6 => Outcome::Released(Released {
                    fencing_token: self.number(),
                    delayed_ms: self.number(),
                }),
                7 => Outcome::Error(v1::Error {
                    code: self.text(),
                    message: self.text(),
                    ..v1::Error::default()
                }),
                _ => Outcome::Done(v1::Done {}),
            };
            v1::Reply {
                id: self.number(),
                outcome: (self.throw(20) > 0).then_some(outcome),
            }
        }

        fn frame(&mut self) -> Vec<u8> {
            let replies = (0..self.throw(4)).map(|_| self.reply()).collect();
            v1::Replies { replies }.encode_to_vec()
        }
    }

    /// Checks that the replies read here equal the decoded ones, or that both ways fail. Returns how many were read without
    /// decoding.
    fn read(bytes: &[u8]) -> Option<usize> {
        let mut read = Vec::new();
        let read = replies(bytes, &mut read).map(|()| read);
        let whole = match (read.is_ok(), v1::Replies::decode(bytes)) {
            (false, Err(_)) => return None,
            (_, whole) => whole.unwrap_or_else(|error| panic!("{error}: {bytes:02x?}")),
        };
        let read = read.unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
        let quick = |(_, reply): &&(u64, Reply)| !matches!(reply, Reply::Other(_));
        let count = read.iter().filter(quick).count();
        let found = read
            .into_iter()
            .map(|(id, reply)| (id, Outcome::from(reply)));
        let whole = whole.replies.into_iter();
        let expected: Vec<_> = whole
            .filter_map(|reply| Some((reply.id, reply.outcome?)))
            .collect();
        assert_eq!(found.collect::<Vec<_>>(), expected, "{bytes:02x?}");
        Some(count)
    }

    #[test]
    fn what_is_read_is_what_decoding_finds() {
        let mut dice = Dice(13);
        let quick: usize = (0..5_000).map(|_| read(&dice.frame()).unwrap()).sum();
        assert!(quick > 2_000, "{quick}");
    }

    #[test]
    fn damaged_bytes_mean_the_same_both_ways() {
        let (mut dice, mut quick, mut refused) = (Dice(17), 0, 0);
        for _ in 0..200_000 {
            let mut bytes = dice.frame();
            dice.damage(&mut bytes);
            match read(&bytes) {
                Some(replies) => quick += replies,
                None => refused += 1,
            }
        }
        assert!(quick > 20_000 && refused > 20_000, "{quick}, {refused}");
    }

    #[test]
    fn usual_answers_are_not_decoded() {
        let granted = v1::Granted {
            fencing_token: 1 << 40,
            lock_token: vec![7; 16],
            lease_id: 9,
            ..v1::Granted::default()
        };
        let outcomes = [
            Outcome::Granted(granted),
            Outcome::Renewed(Renewed::default()),
            Outcome::Released(Released::default()),
        ];
        let replies = (1..).zip(outcomes).map(|(id, outcome)| v1::Reply {
            id,
            outcome: Some(outcome),
        });
        let replies = replies.collect();
        assert_eq!(read(&v1::Replies { replies }.encode_to_vec()), Some(3));
    }
}
