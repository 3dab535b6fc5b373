//! The script's rule compared with [`Rule`]: the same answers and the same states, operation by operation.

use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::redis::Resource;
use palisade_fence::{
    Admitted, Error, FenceRecord, FenceState, Mode, Op, Pass, Reject, Rule, Sequence, Verdict,
    Written,
};
use palisade_testbed::Redis;
use redis::aio::ConnectionManager;

use super::subject::{connect, show};

/// The largest token, 2^53 - 1.
const LAST: u64 = Token::MAX.get();

/// The number of operations for each rule, unless `PALISADE_RULE_OPERATIONS` overrides it.
fn operations() -> u32 {
    let setting = std::env::var("PALISADE_RULE_OPERATIONS").ok();
    setting.map_or(4_000, |text| text.parse().unwrap())
}

/// Marsaglia 2003, "Xorshift RNGs".
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// The resource as the core would keep it.
#[derive(Default)]
struct Model {
    record: FenceRecord,
    data: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Admitted,
    Repeat,
    Rejected(Reject),
}

impl Model {
    fn decide(&mut self, rule: Rule, pass: Pass<'_>, op: Op, bytes: &[u8]) -> Answer {
        // The length tells the two texts of this test apart.
        let digest = matches!(op, Op::Write(Some(_))).then_some(bytes.len() as u64);
        match self.record.decide(rule, Some(pass), op, digest) {
            Verdict::Reject(reject) => return Answer::Rejected(reject),
            Verdict::Repeat => return Answer::Repeat,
            Verdict::Admit(next) => self.record = next.unwrap_or_else(|| self.record.clone()),
        }
        if let Op::Write(_) = op {
            self.data = Some(bytes.to_vec());
        }
        Answer::Admitted
    }
}

fn answer<T>(answered: palisade_fence::Result<Admitted<T>>) -> Answer {
    match answered {
        Ok(admitted) if admitted.repeat => Answer::Repeat,
        Ok(_) => Answer::Admitted,
        Err(Error::Rejected(reject)) => Answer::Rejected(reject),
        Err(error) => panic!("{error}"),
    }
}

async fn run(
    con: &mut ConnectionManager,
    resource: &Resource,
    key: &str,
    pass: Pass<'_>,
    op: Op,
    bytes: &[u8],
) -> (Answer, Option<Option<Vec<u8>>>) {
    match op {
        Op::Claim => (answer(resource.claim(con, pass).await), None),
        Op::Read => {
            let read = resource.get(con, pass, key).await;
            let value = read.as_ref().ok().map(|read| read.value.clone());
            (answer(read), value)
        }
        Op::Write(None) => {
            let writing = resource.write(pass);
            (answer(writing.set(con, key, bytes).await), None)
        }
        Op::Write(Some(number)) => {
            let writing = resource.write(pass).numbered(number);
            (answer(writing.set(con, key, bytes).await), None)
        }
    }
}

/// The part of a state that concerns tokens; the textbook arm forgets the rest.
fn seen(state: Option<FenceState>) -> FenceState {
    state.unwrap_or_default()
}

fn last_number(state: &FenceState) -> Option<Sequence> {
    match state.mark?.written {
        Written::Through(last) => Some(last),
        Written::Nothing | Written::Unnumbered => None,
    }
}

async fn agrees(server: &Redis, name: &str, rule: Rule, base: u64) {
    let con = &mut connect(&server.url()).await;
    let authorities = [
        AuthorityId::new("ours").unwrap(),
        AuthorityId::new("o").unwrap(),
    ];
    let locks = [LockName::new("l1").unwrap(), LockName::new("l2").unwrap()];
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let (mut kinds, mut model) = ([0_u32; 3], Model::default());
    let mut fresh = 0;
    let mut resource = Resource::new(&format!("{name}-0")).unwrap().under(rule);
    for turn in 0..operations() {
        // A new resource now and then, because bound resources soon reject everything.
        if random.below(40) == 0 {
            fresh += 1;
            model = Model::default();
            resource = Resource::new(&format!("{name}-{fresh}"))
                .unwrap()
                .under(rule);
        }
        let key = resource.key("data");
        let near = model.record.state.highest().map_or(base, Token::get);
        let token = (near + random.below(5)).saturating_sub(2).clamp(1, LAST);
        // Mostly the bound names; otherwise the test would see only foreign ones.
        let (authority, lock) = (
            model.record.state.authority.clone(),
            model.record.state.lock.clone(),
        );
        let pass = Pass {
            authority: match random.below(24) {
                at @ (0 | 1) => Some(&authorities[at as usize]),
                2 => None,
                _ => authority.as_ref(),
            },
            lock: match random.below(24) {
                at @ (0 | 1) => Some(&locks[at as usize]),
                2 => None,
                _ => lock.as_ref(),
            },
            ..Pass::new(Token::new(token).unwrap())
        };
        let numbers = [0, 1, 2, 3, LAST - 1, LAST];
        let op = match random.below(6) {
            0 => Op::Claim,
            1 => Op::Read,
            2 => Op::Write(None),
            3 => Op::Write(last_number(&model.record.state)),
            _ => Op::Write(Sequence::new(numbers[random.below(6) as usize])),
        };
        let bytes = [b"\0one"[..].as_ref(), b"two\r\n"][random.below(2) as usize];
        let expected = model.decide(rule, pass, op, bytes);
        let (answer, read) = run(con, &resource, &key, pass, op, bytes).await;
        let about = format!("turn {turn} of {name}: {pass:?} {op:?}");
        assert_eq!(answer, expected, "{about}");
        if let Some(read) = read {
            assert_eq!(read, model.data, "{about}");
        }
        let state = seen(show(con, resource.name()).await.unwrap());
        assert_eq!(state, model.record.state, "{about}");
        kinds[match answer {
            Answer::Admitted => 0,
            Answer::Repeat => 1,
            Answer::Rejected(_) => 2,
        }] += 1;
    }
    let wanted = if rule.mode == Mode::Textbook { 0 } else { 20 };
    assert!(
        kinds[0] > 100 && kinds[1] >= wanted && kinds[2] > 100,
        "the random operations covered too little for {name}: {kinds:?}"
    );
}

#[tokio::test]
async fn the_script_decides_as_the_core_does() {
    let server = Redis::start(&[]);
    let bounded = |bound| Rule {
        max_jump: Some(bound),
        ..Rule::CLAIM
    };
    let textbook = Rule {
        mode: Mode::Textbook,
        ..Rule::CLAIM
    };
    agrees(&server, "claim", Rule::CLAIM, 1_000).await;
    agrees(&server, "strict", Rule::STRICT, 5).await;
    agrees(&server, "bound", bounded(1), 1).await;
    agrees(&server, "textbook", textbook, 3).await;
    agrees(&server, "last", Rule::CLAIM.unbounded(), LAST).await;
    agrees(
        &server,
        "e15",
        Rule::CLAIM.unbounded(),
        1_000_000_000_000_000,
    )
    .await;
}

/// Doubles stop being exact at 2^53; neighbours must not be confused, nor printed as 9e+15.
#[tokio::test]
async fn the_last_tokens_stay_distinct_and_exact() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    for below in [LAST - 3, LAST - 2, LAST - 1] {
        let resource = Resource::new(&format!("near-{below}")).unwrap();
        let resource = resource.under(Rule::CLAIM.unbounded());
        let token = |number| Token::new(number).unwrap();
        resource.claim(con, token(below + 1)).await.unwrap();
        let stale = Reject::Stale {
            presented: token(below),
            highest: token(below + 1),
        };
        let late = resource.claim(con, token(below)).await.unwrap_err();
        assert_eq!(late.rejected(), Some(&stale));
        let state = show(con, resource.name()).await.unwrap().unwrap();
        assert_eq!(state.highest(), Some(token(below + 1)));
        assert_eq!(state.mark.unwrap().written, Written::Nothing);
    }
}
