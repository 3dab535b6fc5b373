//! The state of a folder's fence, as text in one small file.
//!
//! ```text
//!   palisade-fence 1
//!   revision 7
//!   token 34
//!   written 3                   or nothing, or yes for writes without a number
//!   digest 81604378627          of the write with that number
//!   authority a:0f3c
//!   lock nightly
//!   pending append 120 report   or put NAME, delete NAME: to be carried out if the staged file is there
//!   length 140 report           of the file written last, after that
//!   sum 5c1d9a02                CRC-32 of the lines above
//! ```

use palisade_core::fence::{FenceRecord, FenceState, Mark, Sequence, Written};
use palisade_core::{AuthorityId, LockName, Token};

/// The state of a fenced folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sidecar {
    /// The number of writes of this file, which is part of the name of its staged file.
    pub(super) revision: u64,
    pub(super) fence: FenceRecord,
    pub(super) pending: Option<PendingWrite>,
    pub(super) last: Option<LastFile>,
}

/// A write that is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingWrite {
    pub(super) name: String,
    pub(super) effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Put,
    /// An append of the staged bytes at this offset.
    Append(u64),
    Delete,
}

/// A file and the length with which the fence left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastFile {
    pub(super) length: u64,
    pub(super) name: String,
}

const HEAD: &str = "palisade-fence 1";

impl Sidecar {
    pub(super) fn encode(&self) -> Vec<u8> {
        let number =
            |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
        let FenceRecord { state, digest, .. } = &self.fence;
        let written = match state.mark.map(|mark| mark.written) {
            None | Some(Written::Nothing) => String::new(),
            Some(Written::Unnumbered) => "yes".to_owned(),
            Some(Written::Through(last)) => last.to_string(),
        };
        let pending = self
            .pending
            .as_ref()
            .map(|PendingWrite { name, effect }| match effect {
                Effect::Put => format!("put {name}"),
                Effect::Append(offset) => format!("append {offset} {name}"),
                Effect::Delete => format!("delete {name}"),
            });
        let last = self.last.as_ref();
        let mut text = format!(
            "{HEAD}\nrevision {}\ntoken {}\nwritten {written}\ndigest {}\nauthority {}\nlock {}\n\
            pending {}\nlength {}\n",
            self.revision,
            number(state.highest().map(Token::get)),
            number(*digest),
            state.authority.as_ref().map_or("", |id| id.as_str()),
            state.lock.as_ref().map_or("", |name| name.as_str()),
            pending.unwrap_or_default(),
            last.map_or(String::new(), |left| format!(
                "{} {}",
                left.length, left.name
            )),
        );
        let sum = crc32fast::hash(text.as_bytes());
        text.push_str(&format!("sum {sum:08x}\n"));
        text.into_bytes()
    }

    /// Parses the text, or reports the line that is wrong.
    pub(super) fn decode(bytes: &[u8]) -> Result<Sidecar, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let (body, sum) = text.split_at(text.rfind("sum ").ok_or("no sum")?);
        let mut lines = body.lines();
        if lines.next() != Some(HEAD) {
            return Err(format!("it does not begin with {HEAD:?}"));
        }
        if sum != format!("sum {:08x}\n", crc32fast::hash(body.as_bytes())) {
            return Err("the sum is wrong".to_owned());
        }
        let mut line = |name: &'static str| LineRest::next(&mut lines, name);
        let revision = line("revision")?.number()?;
        let token = line("token")?.read(|text| Token::new(text.parse().ok()?).ok())?;
        let written = line("written")?.read(|text| match text {
            "yes" => Some(Written::Unnumbered),
            number => Some(Written::Through(Sequence::new(number.parse().ok()?)?)),
        })?;
        let digest = line("digest")?.read(|text| text.parse().ok())?;
        let authority = line("authority")?.read(|text| AuthorityId::new(text).ok())?;
        let lock = line("lock")?.read(|text| LockName::new(text).ok())?;
        let pending = line("pending")?.read(pending)?;
        let last = line("length")?.read(left)?;
        let written = written.unwrap_or(Written::Nothing);
        let state = FenceState {
            authority,
            lock,
            mark: token.map(|token| Mark { token, written }),
        };
        Ok(Sidecar {
            revision,
            fence: FenceRecord {
                digest,
                ..state.into()
            },
            pending,
            last,
        })
    }
}

/// The rest of a line after its name.
struct LineRest<'a> {
    name: &'static str,
    text: &'a str,
}

impl<'a> LineRest<'a> {
    fn next(lines: &mut std::str::Lines<'a>, name: &'static str) -> Result<LineRest<'a>, String> {
        let text = lines
            .next()
            .and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let text = text.ok_or_else(|| format!("no line {name:?} where it belongs"))?;
        Ok(LineRest { name, text })
    }

    /// Parses the rest; an empty rest means that there is no value.
    fn read<T>(self, read: impl FnOnce(&'a str) -> Option<T>) -> Result<Option<T>, String> {
        match self.text {
            "" => Ok(None),
            text => read(text)
                .map(Some)
                .ok_or_else(|| format!("{} {text:?}", self.name)),
        }
    }

    fn number(self) -> Result<u64, String> {
        let (name, text) = (self.name, self.text);
        text.parse().map_err(|_| format!("{name} {text:?}"))
    }
}

fn pending(text: &str) -> Option<PendingWrite> {
    let (how, rest) = text.split_once(' ')?;
    let (effect, name) = match how {
        "put" => (Effect::Put, rest),
        "append" => {
            let left = left(rest)?;
            return Some(PendingWrite {
                name: left.name,
                effect: Effect::Append(left.length),
            });
        }
        "delete" => (Effect::Delete, rest),
        _ => return None,
    };
    Some(PendingWrite {
        name: name.to_owned(),
        effect,
    })
}

fn left(text: &str) -> Option<LastFile> {
    let (length, name) = text.split_once(' ')?;
    Some(LastFile {
        length: length.parse().ok()?,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/reference/fence-formats.md describes it.
    #[test]
    fn the_golden_file_is_read_and_written_as_it_is() {
        let golden = include_bytes!("../../../../vectors/formats/files.palisade-fence");
        let sidecar = Sidecar::decode(golden).unwrap();
        assert_eq!(sidecar.fence.state.highest(), Token::new(34).ok());
        assert_eq!(sidecar.fence.digest, Some(u64::MAX));
        assert_eq!(sidecar.encode(), golden);
    }

    fn full() -> Sidecar {
        let state = FenceState {
            authority: Some(AuthorityId::new("a:0f3c").unwrap()),
            lock: Some(LockName::new("nightly").unwrap()),
            mark: Some(Mark {
                token: Token::MAX,
                written: Written::Through(Sequence::MAX),
            }),
        };
        Sidecar {
            revision: 7,
            fence: FenceRecord {
                digest: Some(u64::MAX),
                ..state.into()
            },
            pending: Some(PendingWrite {
                name: "a file 5".to_owned(),
                effect: Effect::Append(120),
            }),
            last: Some(LastFile {
                length: 140,
                name: "sum 1".to_owned(),
            }),
        }
    }

    #[test]
    fn the_text_format_is_unchanged() {
        let text = "palisade-fence 1\nrevision 7\ntoken 9007199254740991\nwritten 9007199254740991\n\
            digest 18446744073709551615\nauthority a:0f3c\nlock nightly\npending append 120 a file 5\n\
            length 140 sum 1\nsum 97923cbe\n";
        assert_eq!(String::from_utf8(full().encode()).unwrap(), text);
    }

    #[test]
    fn it_survives_a_round_trip() {
        let mut seen = vec![Sidecar::default(), full()];
        for effect in [Effect::Put, Effect::Delete] {
            let name = "x".to_owned();
            seen.push(Sidecar {
                pending: Some(PendingWrite { name, effect }),
                ..full()
            });
        }
        for sidecar in seen {
            assert_eq!(Sidecar::decode(&sidecar.encode()), Ok(sidecar));
        }
    }

    #[test]
    fn any_missing_or_changed_byte_is_detected() {
        let good = full().encode();
        for at in 0..good.len() {
            assert!(Sidecar::decode(&good[..at]).is_err(), "cut at {at}");
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Sidecar::decode(&bad).is_err(), "changed at {at}");
        }
    }
}
