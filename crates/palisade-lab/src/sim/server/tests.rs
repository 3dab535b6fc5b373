//! The lab repeats the order of the product's loop; this compares the two, request by request.

use std::sync::Arc;

use palisade_core::{
    AuthorityId, ClientId, GrantRef, LeaseKey, Limits, LockName, Machine, Outcome, RequestId, Span,
    Ttl, WallTime,
};
use palisade_server::pipeline::{
    Acquire, Answer, Answers, Forgetful, Identity, Pipeline, Request, Session, Start, start,
};

use super::{Authority, Incoming, ReplyTo};
use crate::sim::clock::{MachineClock, Virtual};
use crate::sim::rng::Rng;

/// Answers by operation, with the secrets each side drew for itself.
type Said = Vec<(u64, Answer)>;

struct Product {
    pipeline: Pipeline,
    session: Session,
    answers: Answers,
}

impl Product {
    fn new() -> Product {
        let identity = Identity {
            authority: AuthorityId::new("sim").unwrap(),
            incarnation: "1".into(),
        };
        let pipeline = start(Start {
            identity,
            machine: Machine::new(1),
            log: Box::new(Forgetful),
            manual_clock: true,
            limits: Limits::DEFAULT,
            returning: None,
        })
        .unwrap();
        let (session, answers) = pipeline.handle.session();
        Product {
            pipeline,
            session,
            answers,
        }
    }

    /// What is answered up to and by this request; a question after it is the barrier.
    fn ask(&mut self, operation: u64, request: Request) -> Said {
        let barrier = u64::MAX;
        self.session
            .submit(vec![(operation, request), (barrier, Request::Status)]);
        let mut said = Vec::new();
        loop {
            let answers = self.answers.blocking_recv().unwrap();
            let done = answers.iter().any(|(id, _)| *id == barrier);
            said.extend(answers.into_iter().filter(|(id, _)| *id != barrier));
            if done {
                return said;
            }
        }
    }
}

struct Repeated {
    authority: Authority,
    time: Arc<Virtual>,
}

impl Repeated {
    fn new() -> Repeated {
        let time = Arc::new(Virtual::default());
        let clock = MachineClock::new(Arc::clone(&time), 1, 1_000_000);
        let mut authority = Authority::new(1, clock, None);
        authority.start(false).unwrap();
        Repeated { authority, time }
    }

    fn ask(&mut self, operation: u64, request: Request) -> Said {
        match request {
            Request::Advance(by) => self.time.set(self.time.now() + by.as_nanos()),
            request => {
                let to = ReplyTo {
                    client: 0,
                    life: 0,
                    operation: operation as u32,
                };
                self.authority.take_in(Incoming::Ask(to, request));
            }
        }
        self.authority.begin();
        self.authority.finish().unwrap();
        let out = std::mem::take(&mut self.authority.out);
        out.into_iter()
            .map(|(to, answer)| (to.operation.into(), answer))
            .collect()
    }
}

/// A grant as one side knows it.
#[derive(Clone)]
struct Known {
    lock: LockName,
    keys: [LeaseKey; 2],
    token: palisade_core::Token,
}

fn granted(said: &Said) -> Vec<(LeaseKey, palisade_core::Token)> {
    let of = |answer: &Answer| match answer {
        Answer::Outcome(Outcome::Granted(granted)) => Some((granted.key, granted.token)),
        _ => None,
    };
    said.iter().filter_map(|(_, answer)| of(answer)).collect()
}

/// Without what is random or the wall's.
fn plain(said: &Said) -> Vec<(u64, String)> {
    let text = |answer: &Answer| match answer {
        Answer::Outcome(Outcome::Granted(granted)) => {
            let mut granted = granted.clone();
            granted.acquired_at = WallTime::default();
            format!("{granted:?}")
        }
        other => format!("{other:?}"),
    };
    said.iter()
        .filter(|(_, answer)| !matches!(answer, Answer::Clock(_)))
        .map(|(id, answer)| (*id, text(answer)))
        .collect()
}

fn acquire(rng: &mut Rng, lock: &LockName, request: RequestId) -> Request {
    Request::Acquire(Acquire {
        lock: lock.clone(),
        client: ClientId::new(&format!("client-{}", rng.below(3))).unwrap(),
        lease: None,
        ttl: Some(Ttl::from_millis(rng.between(100, 900)).unwrap()),
        wait: (rng.chance(700)).then(|| Span::from_millis(rng.between(1, 900))),
        request: Some(request),
        metadata: None,
    })
}

#[test]
fn the_repeated_loop_answers_as_the_products_pipeline_does() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let (mut product, mut repeated) = (Product::new(), Repeated::new());
        let locks = ["lock-0", "lock-1"].map(|name| LockName::new(name).unwrap());
        let (mut grants, mut requests): (Vec<Known>, Vec<RequestId>) = (Vec::new(), Vec::new());
        let mut asked: Vec<LockName> = Vec::new();
        for operation in 0..150 {
            let lock = &locks[rng.below(2) as usize];
            asked.push(lock.clone());
            let known = (!grants.is_empty())
                .then(|| grants[rng.below(grants.len() as u64) as usize].clone());
            let both = match (rng.below(10), known) {
                (0..4, _) | (4..8, None) => {
                    let request = RequestId::from_bytes(rng.bytes());
                    requests.push(request);
                    let wish = acquire(&mut rng, lock, request);
                    [wish.clone(), wish]
                }
                (4..6, Some(known)) => {
                    let grant = |side: usize| GrantRef {
                        lock: known.lock.clone(),
                        key: known.keys[side],
                        token: Some(known.token),
                    };
                    [0, 1].map(|side| Request::Release(grant(side)))
                }
                (6..8, Some(known)) => {
                    let grant = |side: usize| GrantRef {
                        lock: known.lock.clone(),
                        key: known.keys[side],
                        token: Some(known.token),
                    };
                    [0, 1].map(|side| Request::Renew {
                        grant: grant(side),
                        ttl: None,
                    })
                }
                (8, _) if !requests.is_empty() => {
                    let request = requests[rng.below(requests.len() as u64) as usize];
                    [Request::Abandon(request), Request::Abandon(request)]
                }
                _ => {
                    let by = Span::from_millis(rng.between(1, 400));
                    [Request::Advance(by), Request::Advance(by)]
                }
            };
            let [first, second] = both;
            let theirs = product.ask(operation, first);
            let ours = repeated.ask(operation, second);
            assert_eq!(plain(&theirs), plain(&ours), "seed {seed}, {operation}");
            let answered: Vec<u64> = theirs.iter().map(|(id, _)| *id).collect();
            for ((a, b), id) in granted(&theirs).iter().zip(granted(&ours)).zip(answered) {
                grants.push(Known {
                    lock: asked[id as usize].clone(),
                    keys: [a.0, b.0],
                    token: a.1,
                });
            }
        }
        product.pipeline.handle.stop();
        product.pipeline.thread.join().unwrap();
        assert!(grants.len() > 10, "seed {seed}");
    }
}
