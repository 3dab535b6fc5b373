//! The cost of a batch depends on its requests, not on the grants and waits of others, in the orderer as in the
//! machine (A13).

use super::*;
use palisade_testbed::growth::{CROWDS, Costs, grows, least};

/// The operations done beside a crowd. Each leaves everything as it was.
type Operation = (&'static str, fn(&mut Bench, u64));

const OPERATIONS: &[Operation] = &[
    ("nothing", |bench, _| {
        bench.batch(|_| ());
    }),
    ("acquire and release", |bench, id| {
        let granted = bench.batch(|bench| bench.acquire_anew(caller(1), own(id, "free")));
        let lock = LockName::new("free").unwrap();
        let grant = GrantRef {
            lock,
            ..grant_of(&granted, 1)
        };
        let released = bench.batch(|bench| bench.ask(caller(1), Request::Release(grant)));
        assert_eq!(released.len(), 1);
    }),
    ("a try that is denied", |bench, id| {
        bench.batch(|bench| bench.acquire_anew(caller(1), own(id, "lock/0")));
    }),
    ("a wait in a session that hangs up", |bench, id| {
        let session = u64::MAX - id;
        bench.batch(|bench| bench.acquire_anew(of_session(session, 1), waiting(id, "lock/0")));
        bench.batch(|bench| bench.orderer.hang_up(session));
    }),
    ("a wait whose caller is gone", |bench, id| {
        let to = caller(1);
        let wish = waiting(id, "lock/0");
        let request = wish.request.unwrap();
        bench.batch(|bench| bench.acquire_anew(to.clone(), wish));
        to.gone.set(true);
        bench.batch(|bench| bench.orderer.gone(NOBODY, request, false));
    }),
    ("change of the permits", |bench, id| {
        let permits = 7 + (id % 2) as u32;
        let lock = || LockName::new("permits").unwrap();
        let resized = bench.batch(|bench| {
            let lock = lock();
            bench.ask(caller(1), Request::Resize { lock, permits });
        });
        assert_eq!(resized.len(), 1);
    }),
    ("show and status", |bench, _| {
        let lock = LockName::new("lock/0").unwrap();
        let shown = bench.batch(|bench| {
            bench.ask(caller(1), Request::Show(lock));
            bench.ask(caller(2), Request::Status);
        });
        assert_eq!(shown.len(), 2);
    }),
];

fn own(id: u64, lock: &str) -> Wish {
    let request = Some(RequestId::from_bytes(u128::from(id).to_le_bytes()));
    Wish {
        request,
        ..wish(1, lock)
    }
}

fn waiting(id: u64, lock: &str) -> Wish {
    Wish {
        wait: Some(Span::from_millis(1_000_000)),
        ..own(id, lock)
    }
}

impl Bench {
    /// Everything that was asked leaves in one batch.
    fn batch(&mut self, ask: impl FnOnce(&mut Bench)) -> Vec<(u32, Answer)> {
        self.begin();
        ask(self);
        let DurableOutput { answers, events } = self.orderer.committed();
        drop(events);
        numbered(answers)
    }

    /// Under a lease of its own.
    fn acquire_anew(&mut self, to: To, wish: Wish) {
        let key = LeaseKey::from_bytes(*wish.request.unwrap().as_bytes());
        let asked = Asked {
            by: self.by,
            request: Request::Acquire(wish),
            keeps_place: KeepsPlace::default(),
        };
        self.orderer.request(asked, to, || key);
    }

    /// As many sessions as `crowd` wait, each for a lock of its own that another client holds.
    fn beside(crowd: u64) -> Bench {
        let mut bench = Bench::new();
        let id = |number: u64| 1 << 40 | number;
        for n in 0..crowd {
            let by = |wish| Wish {
                client: ClientId::new(&format!("crowd-{n}")).unwrap(),
                ..wish
            };
            let lock = format!("lock/{n}");
            bench.batch(|bench| {
                bench.acquire_anew(caller(1), own(id(2 * n), &lock));
                bench.acquire_anew(of_session(n, 1), by(waiting(id(2 * n + 1), &lock)));
            });
        }
        let eight = palisade_core::Permits::new(8, 8).unwrap();
        let semaphore = Wish {
            mode: LockMode::Permits(eight),
            ..own(id(u64::MAX >> 30), "permits")
        };
        bench.batch(|bench| bench.acquire_anew(caller(1), semaphore));
        assert_eq!(bench.orderer.machine().waiters() as u64, crowd);
        bench
    }
}

/// The control looks at everything that waits.
#[test]
fn no_request_costs_more_beside_what_others_wait_for() {
    let mut next = 0;
    let mut benches = CROWDS.map(Bench::beside);
    let all = |bench: &mut Bench, _| {
        std::hint::black_box(bench.orderer.replies.waiting());
    };
    let mut measured = |operation: &dyn Fn(&mut Bench, u64)| -> Costs {
        benches.each_mut().map(|bench| {
            least(100, || {
                next += 1;
                operation(bench, next);
            })
        })
    };
    let control = measured(&all);
    assert!(grows(control), "{control:?}");
    for (what, operation) in OPERATIONS {
        let costs = measured(operation);
        println!("{what:36} {costs:>10.2?}");
        assert!(!grows(costs), "{what}: {costs:?}");
    }
}
