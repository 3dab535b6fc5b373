//! The cases of `vectors/fence.json`, and the guard row as SQL stores it.

#![allow(dead_code, reason = "with few features, not all of it is used")]

use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::{
    Admitted, FenceRecord, FenceState, Mark, Mode, Op, Pass, Reject, Rule, Sequence, Verdict,
    Written,
};
use serde_json::Value;

pub(crate) struct Case {
    pub(crate) rule: Rule,
    pub(crate) before: FenceRecord,
    pub(crate) token: Option<Token>,
    pub(crate) authority: Option<AuthorityId>,
    pub(crate) lock: Option<LockName>,
    pub(crate) op: Op,
    pub(crate) digest: Option<u64>,
    pub(crate) verdict: Verdict<FenceRecord>,
    /// The case as it is in the file.
    pub(crate) text: String,
}

pub(crate) fn cases() -> Vec<Case> {
    let json: Value = serde_json::from_str(include_str!("../../../../vectors/fence.json")).unwrap();
    let cases: Vec<Case> = json.as_array().unwrap().iter().map(Case::read).collect();
    assert!(cases.len() > 1_000, "{}", cases.len());
    cases
}

impl Case {
    fn read(json: &Value) -> Case {
        let operation = &json["operation"];
        let mode = match &json["mode"] {
            strict if strict == "strict" => Mode::Strict,
            _ => Mode::Claim,
        };
        Case {
            rule: Rule {
                mode,
                max_jump: json["max_jump"].as_u64(),
            },
            before: record(&json["record"]),
            token: token(&operation["token"]),
            authority: authority(&operation["authority"]),
            lock: lock(&operation["lock"]),
            op: match operation["kind"].as_str().unwrap() {
                "claim" => Op::Claim,
                "read" => Op::Read,
                _ => Op::Write(sequence(&operation["sequence"])),
            },
            digest: digest(&operation["digest"]),
            verdict: match json["verdict"].as_str().unwrap() {
                "admit" => Verdict::Admit(json.get("next").map(record)),
                "repeat" => Verdict::Repeat,
                code => Verdict::Reject(reject(code, json)),
            },
            text: json.to_string(),
        }
    }

    pub(crate) fn pass(&self) -> Option<Pass<'_>> {
        self.token.map(|token| Pass {
            authority: self.authority.as_ref(),
            lock: self.lock.as_ref(),
            ..Pass::new(token)
        })
    }

    /// The record that is stored afterwards.
    pub(crate) fn after(&self) -> &FenceRecord {
        match &self.verdict {
            Verdict::Admit(Some(next)) => next,
            _ => &self.before,
        }
    }

    /// The answer of a fence that records results.
    pub(crate) fn answer(&self) -> Result<Admitted<Option<Vec<u8>>>, Reject> {
        let repeat = matches!(self.verdict, Verdict::Repeat);
        match &self.verdict {
            Verdict::Reject(reject) => Err(reject.clone()),
            _ => Ok(Admitted {
                value: self.before.result.clone().filter(|_| repeat),
                highest: self.after().state.highest(),
                repeat,
            }),
        }
    }
}

fn record(json: &Value) -> FenceRecord {
    let written = match (json.get("written"), sequence(&json["sequence"])) {
        (None, _) => Written::Nothing,
        (Some(_), None) => Written::Unnumbered,
        (Some(_), Some(last)) => Written::Through(last),
    };
    FenceRecord {
        state: FenceState {
            authority: authority(&json["authority"]),
            lock: lock(&json["lock"]),
            mark: token(&json["token"]).map(|token| Mark { token, written }),
        },
        digest: digest(&json["digest"]),
        result: json["result"].as_str().map(|text| text.as_bytes().to_vec()),
    }
}

fn reject(code: &str, json: &Value) -> Reject {
    let highest = || token(&json["highest"]).unwrap();
    let last = || sequence(&json["last"]).unwrap();
    match code {
        "stale" => Reject::Stale {
            presented: token(&json["operation"]["token"]).unwrap(),
            highest: highest(),
        },
        "sequence_stale" => Reject::SequenceStale { last: last() },
        "already_written" => Reject::AlreadyWritten,
        "sequence_reused" => Reject::SequenceReused { last: last() },
        "wrong_authority" => Reject::WrongAuthority {
            bound: authority(&json["authority"]).unwrap(),
        },
        "wrong_lock" => Reject::WrongLock {
            bound: lock(&json["lock"]).unwrap(),
        },
        "jump" => Reject::Jump {
            highest: token(&json["highest"]),
            bound: json["bound"].as_u64().unwrap(),
        },
        "tokenless" => Reject::Tokenless { highest: highest() },
        other => panic!("{other} is not a verdict"),
    }
}

fn token(json: &Value) -> Option<Token> {
    json.as_u64().map(|number| Token::new(number).unwrap())
}

fn sequence(json: &Value) -> Option<Sequence> {
    json.as_u64().map(|number| Sequence::new(number).unwrap())
}

fn digest(json: &Value) -> Option<u64> {
    json.as_str().map(|text| text.parse().unwrap())
}

fn authority(json: &Value) -> Option<AuthorityId> {
    json.as_str().map(|name| AuthorityId::new(name).unwrap())
}

fn lock(json: &Value) -> Option<LockName> {
    json.as_str().map(|name| LockName::new(name).unwrap())
}

/// The columns of a guard row.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) authority: Option<String>,
    pub(crate) lock: Option<String>,
    pub(crate) token: Option<i64>,
    pub(crate) written: bool,
    pub(crate) sequence: Option<i64>,
    pub(crate) digest: Option<i64>,
    pub(crate) result: Option<Vec<u8>>,
}

impl Columns {
    pub(crate) fn of(record: &FenceRecord) -> Columns {
        let number = |number: u64| i64::try_from(number).unwrap();
        let state = &record.state;
        let written = state.mark.map(|mark| mark.written);
        Columns {
            authority: state.authority.as_ref().map(|id| id.as_str().to_owned()),
            lock: state.lock.as_ref().map(|name| name.as_str().to_owned()),
            token: state.highest().map(|token| number(token.get())),
            written: !matches!(written, None | Some(Written::Nothing)),
            sequence: match written {
                Some(Written::Through(last)) => Some(number(last.get())),
                _ => None,
            },
            digest: record.digest.map(u64::cast_signed),
            result: record.result.clone(),
        }
    }
}

/// The answer of a fence; anything but a rejection fails the test.
pub(crate) fn answered<T>(answer: palisade_fence::Result<T>) -> Result<T, Reject> {
    answer.map_err(|error| match error {
        palisade_fence::Error::Rejected(reject) => reject,
        other => panic!("{other}"),
    })
}
