//! Reads of all locks do not delay other requests: `/metrics` asks a few questions of the ordering thread, however much there
//! is, and the ranking, which reads all locks, stands between others' requests one page at a time (A13). The tests count the
//! operations of the ordering thread, so other work on the machine does not matter.

use std::pin::pin;

use palisade_core::{
    Acquire, ClientId, Command, Entry, LeaseKey, LockMode, LockName, Machine, Principal, RequestId,
    Span, Timestamp, Ttl, Under, WallTime,
};
use palisade_pipeline::{Answer, Request};

use crate::net_support::{Server, Wish, soon};
use crate::net_watch::Events;

const CROWDS: [u64; 3] = [1, 1_000, 100_000];

/// How many locks a page of the ranking has.
const PAGE: u64 = 1_000;

/// How many operations may come between a request and its answer while all locks are read: a page that was there
/// before it, and one that the server's thread asked for before this task was woken.
const BETWEEN: u64 = 4;

fn acquire(machine: &mut Machine, number: u64, lock: &str, mode: LockMode, wait: Option<Span>) {
    let id = u128::from(number).to_le_bytes();
    let lock = LockName::new(lock).unwrap();
    let client = ClientId::new(&format!("c{number}")).unwrap();
    let key = LeaseKey::from_bytes(id);
    let under = Under::New { key, ttl: Ttl::MAX };
    let acquire = Acquire::new(lock, client, under, Some(RequestId::from_bytes(id)));
    let entry = Entry {
        at: Timestamp::ZERO,
        wall: WallTime::default(),
        by: Principal::ANONYMOUS,
        command: Command::Acquire(Acquire {
            mode,
            wait,
            ..acquire
        }),
    };
    machine.apply(entry, &mut Vec::new());
}

/// A server with so many locks, so many readers of one lock and so many requests that wait for another one.
async fn beside(crowd: u64) -> Server {
    let mut machine = Machine::new(1);
    machine.apply(
        Entry {
            at: Timestamp::ZERO,
            wall: WallTime::default(),
            by: Principal::ANONYMOUS,
            command: Command::Configure(palisade_core::Limits {
                waiters_per_lock: 1_000_000,
                ..palisade_core::Limits::DEFAULT
            }),
        },
        &mut Vec::new(),
    );
    let mut number = 0;
    let mut ask = |lock: &str, mode, wait| {
        number += 1;
        acquire(&mut machine, number, lock, mode, wait);
    };
    ask("queue", LockMode::Exclusive, None);
    for n in 0..crowd {
        ask("crowd", LockMode::Shared, None);
        ask(&format!("lock/{n}"), LockMode::Exclusive, None);
        ask(
            "queue",
            LockMode::Exclusive,
            Some(Span::from_millis(86_400_000)),
        );
    }
    let server = Server::with(Wish {
        machine: Some(machine),
        ..Wish::default()
    })
    .await;
    let status = server.status().await;
    let readers = server.handle.stats().readers.get() as usize;
    let there = (status.locks, readers, status.waiters);
    let crowd = usize::try_from(crowd).unwrap();
    assert_eq!(there, (crowd + 2, crowd, crowd));
    server
}

/// The control is the first look, which reads all locks.
#[tokio::test]
async fn a_scrape_asks_no_more_of_the_ordering_thread_beside_what_others_have() {
    let mut scrapes = Vec::new();
    for crowd in CROWDS {
        let server = beside(crowd).await;
        let mut watches = Vec::new();
        for _ in 0..crowd.min(100) {
            watches.push(Events::open(&server, "/v1/watch", "").await);
        }
        let operations = || server.handle.stats().operations.get();
        let scrape = async || {
            let before = operations();
            let text = server.get("/metrics").await.body;
            (operations() - before, text)
        };
        let before = operations();
        // A slow machine reads all locks in more time than a scrape waits.
        soon(async { while !scrape().await.1.contains("\npalisade_oldest_lock_seconds ") {} })
            .await;
        let all = operations() - before;
        assert!(all > crowd / PAGE, "beside {crowd}: {all}");
        let (asked, text) = scrape().await;
        let open = format!("\npalisade_watchers {}\n", watches.len());
        assert!(text.contains(&open), "{text}");
        scrapes.push((asked, text.lines().count()));
    }
    // The oldest lock is looked at.
    let (_, lines) = scrapes[0];
    assert_eq!(scrapes, [(1, lines); 3]);
}

/// The control asks for all pages at once.
#[tokio::test]
async fn a_request_waits_for_one_page_of_the_ranking_however_many_locks_there_are() {
    for crowd in CROWDS {
        let server = beside(crowd).await;
        let operations = || server.handle.stats().operations.get();
        let show = async || {
            let before = operations();
            let lock = LockName::new("free").unwrap();
            let shown = server.handle.call(Request::Show(lock)).await;
            assert!(matches!(shown, Answer::Lock(_)), "{shown:?}");
            operations() - before - 1
        };
        let (mut most, mut served) = (0, 0);
        let mut reading = pin!(server.get("/v1/ranking"));
        let ranking = soon(async {
            loop {
                tokio::select! {
                    biased;
                    ranking = &mut reading => break ranking.json(),
                    between = show() => {
                        most = most.max(between);
                        served += 1;
                    }
                }
            }
        })
        .await;
        assert_eq!(ranking["held"], crowd + 2);
        assert!(most <= BETWEEN, "beside {crowd}: {most}");
        // Between two pages there is time for others.
        assert!(served >= crowd / PAGE, "beside {crowd}: {served}");

        let (session, mut answers) = server.handle.session();
        let pages = (0..=crowd / PAGE).map(|at| {
            let page = Request::List {
                prefix: "".into(),
                cursor: at * PAGE,
                limit: PAGE as usize,
            };
            (at, page)
        });
        let before = operations();
        session.submit(pages.collect());
        show().await;
        let between = operations() - before - 1;
        assert!(between > crowd / PAGE, "beside {crowd}: {between}");
        assert!(crowd < 100_000 || between > 10 * BETWEEN);
        soon(answers.recv()).await.unwrap();
    }
}
