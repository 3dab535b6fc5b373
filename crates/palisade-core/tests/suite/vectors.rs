//! The decision as data for every other implementation: `vectors/fence.json`, described in
//! `vectors/README.md`.
//!
//! `PALISADE_BLESS=1 cargo test -p palisade-core vectors` writes the file again.

use std::path::Path;

use palisade_core::fence::{
    FenceRecord, FenceState, Mark, Mode, Op, Pass, Reject, Rule, Sequence, Verdict, Written,
};
use palisade_core::{AuthorityId, Code, LockName, Token};

/// The names of an authority and of a lock; either may be missing.
type Names = [Option<&'static str>; 2];

/// A presented operation: its kind, and the digest of a numbered write.
type Asked = (Op, Option<u64>);

#[derive(Clone, Debug)]
struct Case {
    rule: Rule,
    before: FenceRecord,
    token: Option<u64>,
    names: Names,
    asked: Asked,
}

const OPEN: Rule = Rule::CLAIM.unbounded();
const LAST: u64 = Token::MAX.get();
const UNNAMED: Names = [None, None];

fn number(sequence: u64, digest: Option<u64>) -> Asked {
    (Op::Write(Sequence::new(sequence)), digest)
}

fn plain(op: Op) -> Asked {
    (op, None)
}

fn record(token: u64, written: Written, digest: Option<u64>, result: &[u8]) -> FenceRecord {
    let token = Token::new(token).unwrap();
    FenceRecord {
        state: FenceState {
            mark: Some(Mark { token, written }),
            ..FenceState::default()
        },
        digest,
        result: (!result.is_empty()).then(|| result.to_vec()),
    }
}

fn through(sequence: u64) -> Written {
    Written::Through(Sequence::new(sequence).unwrap())
}

fn authority(name: &str) -> AuthorityId {
    AuthorityId::new(name).unwrap()
}

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// Tokens, sequence numbers, digests and results: every combination, with and without strict mode.
fn orders() -> Vec<Case> {
    let records = [
        FenceRecord::EMPTY,
        record(5, Written::Nothing, None, b""),
        record(5, Written::Unnumbered, None, b""),
        record(5, through(3), None, b""),
        record(5, through(3), Some(7), b""),
        record(5, through(3), Some(7), b"done"),
    ];
    let operations = [
        plain(Op::Claim),
        plain(Op::Read),
        plain(Op::Write(None)),
        number(2, Some(7)),
        number(3, None),
        number(3, Some(7)),
        number(3, Some(8)),
        number(4, Some(7)),
    ];
    let mut cases = Vec::new();
    for rule in [OPEN, Rule::STRICT.unbounded()] {
        for before in &records {
            let mut push = |token, asked| {
                cases.push(Case {
                    rule,
                    before: before.clone(),
                    token,
                    names: UNNAMED,
                    asked,
                });
            };
            push(None, plain(Op::Write(None)));
            for token in [4, 5, 6] {
                for asked in operations {
                    push(Some(token), asked);
                }
            }
        }
    }
    cases
}

/// Authorities and locks: bound or not, against named rightly, named wrongly or not named.
fn names() -> Vec<Case> {
    let mut records = Vec::from([FenceRecord::EMPTY]);
    for [bound_authority, bound_lock] in [
        UNNAMED,
        [Some("ours"), None],
        [None, Some("orders")],
        [Some("ours"), Some("orders")],
    ] {
        let written = record(5, through(3), Some(7), b"done");
        for mut before in [record(5, Written::Nothing, None, b""), written] {
            before.state.authority = bound_authority.map(authority);
            before.state.lock = bound_lock.map(lock);
            records.push(before);
        }
    }
    let mut cases = Vec::new();
    for before in &records {
        for authority in [None, Some("ours"), Some("theirs")] {
            for lock in [None, Some("orders"), Some("invoices")] {
                for token in [4, 5, 6] {
                    for asked in [plain(Op::Claim), number(3, Some(7)), number(4, Some(8))] {
                        cases.push(Case {
                            rule: OPEN,
                            before: before.clone(),
                            token: Some(token),
                            names: [authority, lock],
                            asked,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// The bound of a jump, from nothing and from a token.
fn jumps() -> Vec<Case> {
    let rule = Rule {
        max_jump: Some(2),
        ..OPEN
    };
    let mut cases = Vec::new();
    for before in [
        FenceRecord::EMPTY,
        record(5, Written::Unnumbered, None, b""),
    ] {
        for token in [1, 2, 3, 4, 5, 6, 7, 8, LAST] {
            for asked in [plain(Op::Claim), plain(Op::Write(None)), number(0, Some(7))] {
                cases.push(Case {
                    rule,
                    before: before.clone(),
                    token: Some(token),
                    names: UNNAMED,
                    asked,
                });
            }
        }
    }
    cases
}

/// Numbers that an implementation may round, overflow or print in another form.
fn extremes() -> Vec<Case> {
    let mut cases = Vec::new();
    for token in [1_000_000_000_000_000, LAST - 1] {
        for (last, digest) in [(0, 1 << 63), (LAST, u64::MAX)] {
            for presented in [token - 1, token, token + 1] {
                for asked in [
                    plain(Op::Claim),
                    number(last, Some(digest)),
                    number(last, Some(digest - 1)),
                    number(LAST - 1, Some(digest)),
                ] {
                    cases.push(Case {
                        rule: OPEN,
                        before: record(token, through(last), Some(digest), b""),
                        token: Some(presented),
                        names: UNNAMED,
                        asked,
                    });
                }
            }
        }
    }
    cases
}

impl Case {
    fn verdict(&self) -> Verdict<FenceRecord> {
        let [authority, lock] = self.names;
        let (authority, lock) = (authority.map(self::authority), lock.map(self::lock));
        let pass = self.token.map(|token| Pass {
            authority: authority.as_ref(),
            lock: lock.as_ref(),
            ..Pass::new(Token::new(token).unwrap())
        });
        let (op, digest) = self.asked;
        self.before.decide(self.rule, pass, op, digest)
    }

    fn to_json(&self) -> String {
        let mode = match self.rule.mode {
            Mode::Strict => "strict",
            _ => "claim",
        };
        let mut fields = Vec::from([
            ("mode", Some(text(mode))),
            ("max_jump", self.rule.max_jump.map(decimal)),
            ("record", Some(record_json(&self.before))),
            ("operation", Some(self.operation_json())),
        ]);
        fields.extend(verdict_json(&self.verdict()));
        object(&fields)
    }

    fn operation_json(&self) -> String {
        let (op, digest) = self.asked;
        let (kind, sequence) = match op {
            Op::Claim => ("claim", None),
            Op::Read => ("read", None),
            Op::Write(sequence) => ("write", sequence),
        };
        let [authority, lock] = self.names;
        object(&[
            ("kind", Some(text(kind))),
            ("token", self.token.map(decimal)),
            ("authority", authority.map(text)),
            ("lock", lock.map(text)),
            ("sequence", sequence.map(|number| decimal(number.get()))),
            ("digest", digest.map(quoted)),
        ])
    }
}

fn verdict_json(verdict: &Verdict<FenceRecord>) -> Vec<(&'static str, Option<String>)> {
    let mut fields = Vec::new();
    let code = match verdict {
        Verdict::Admit(next) => {
            fields.push(("next", next.as_ref().map(record_json)));
            "admit"
        }
        Verdict::Repeat => "repeat",
        Verdict::Reject(reject) => {
            fields.push((
                "highest",
                reject.highest().map(|token| decimal(token.get())),
            ));
            fields.extend(match reject {
                Reject::SequenceStale { last } | Reject::SequenceReused { last } => {
                    Some(("last", Some(decimal(last.get()))))
                }
                Reject::WrongAuthority { bound } => Some(("authority", Some(text(bound.as_str())))),
                Reject::WrongLock { bound } => Some(("lock", Some(text(bound.as_str())))),
                Reject::Jump { bound, .. } => Some(("bound", Some(decimal(*bound)))),
                _ => None,
            });
            reject.code().name()
        }
    };
    fields.insert(0, ("verdict", Some(text(code))));
    fields
}

fn record_json(record: &FenceRecord) -> String {
    let FenceState {
        authority,
        lock,
        mark,
    } = &record.state;
    let written = mark.map_or(Written::Nothing, |mark| mark.written);
    let sequence = match written {
        Written::Through(number) => Some(decimal(number.get())),
        Written::Nothing | Written::Unnumbered => None,
    };
    let result = record.result.as_deref();
    object(&[
        ("authority", authority.as_ref().map(|id| text(id.as_str()))),
        ("lock", lock.as_ref().map(|name| text(name.as_str()))),
        ("token", mark.map(|mark| decimal(mark.token.get()))),
        (
            "written",
            (written != Written::Nothing).then(|| "true".to_string()),
        ),
        ("sequence", sequence),
        ("digest", record.digest.map(quoted)),
        (
            "result",
            result.map(|bytes| text(std::str::from_utf8(bytes).unwrap())),
        ),
    ])
}

/// An object of the fields that have a value. None of the texts here needs escaping.
fn object(fields: &[(&str, Option<String>)]) -> String {
    let present = fields.iter().filter_map(|(name, value)| {
        let value = value.as_ref()?;
        Some(format!("\"{name}\": {value}"))
    });
    format!("{{{}}}", present.collect::<Vec<_>>().join(", "))
}

fn text(text: &str) -> String {
    format!("\"{text}\"")
}

fn decimal(number: u64) -> String {
    number.to_string()
}

/// A digest uses all 64 bits, more than a number of JavaScript or Lua has.
fn quoted(digest: u64) -> String {
    format!("\"{digest}\"")
}

#[test]
fn the_vectors_are_what_the_decision_says() {
    let cases = [orders(), names(), jumps(), extremes()].concat();
    let lines: Vec<String> = cases.iter().map(Case::to_json).collect();
    let json = format!("[\n{}\n]\n", lines.join(",\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/fence.json");
    if std::env::var_os("PALISADE_BLESS").is_some() {
        std::fs::write(&path, &json).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = stored
        .lines()
        .zip(json.lines())
        .find(|(old, new)| old != new);
    assert!(
        stored == json,
        "vectors/fence.json is out of date: run with PALISADE_BLESS=1; first difference: {differs:?}"
    );
}

/// A file in which some verdict never appears would not show that an implementation lacks it.
#[test]
fn the_vectors_contain_every_verdict_of_the_decision() {
    let cases = [orders(), names(), jumps(), extremes()].concat();
    let found = |code: &str| {
        let verdict = text(code);
        let is_it = |case: &Case| {
            let fields = verdict_json(&case.verdict());
            fields.contains(&("verdict", Some(verdict.clone())))
        };
        cases.iter().any(is_it)
    };
    // Only the resource finds that there is nothing to change.
    let codes = Reject::CODES
        .into_iter()
        .filter(|code| *code != Code::Missing);
    let codes = codes.map(Code::name);
    for code in codes.chain(["admit", "repeat"]) {
        assert!(found(code), "{code}");
    }
}
