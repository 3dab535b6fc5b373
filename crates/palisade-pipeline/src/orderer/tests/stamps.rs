//! The time is an entry of the log while anything is leased or closed (A14), in a cluster as on a single server (R8).

use palisade_core::Limits;

use super::*;
use crate::take_over;

/// A14: with each stamp a restart goes on from later, and the longer nothing happens, the fewer there are.
#[test]
fn a_quiet_authority_records_the_time_while_something_is_leased_or_closed() {
    let mut bench = Bench::new();
    let stamps = |bench: &mut Bench, seconds: u64| -> Vec<u64> {
        let began = bench.now_ms;
        let mut stamps = Vec::new();
        for _ in 0..10 * seconds {
            bench.work(100);
            bench.begin();
            if !bench.commands().is_empty() {
                assert_eq!(bench.commands(), [Command::Expire]);
                stamps.push((bench.now_ms - began) / 1_000);
            }
            bench.commit();
        }
        stamps
    };
    assert_eq!(stamps(&mut bench, 300), [0; 0], "nothing is held");
    bench.begin();
    let hours = Ttl::from_millis(3_600_000).unwrap();
    let held = Wish {
        under: Under::new(hours),
        ..wish(1, "a")
    };
    let closes = Wish {
        under: Under::new(hours),
        options: GrantOptions::closing(0, 3_600_000).unwrap(),
        ..wish(2, "b")
    };
    bench.acquire_wish(caller(1), held);
    bench.acquire_wish(caller(2), closes);
    let (answers, _) = bench.commit();
    let expected = [1, 2, 4, 8, 16, 32, 64, 124, 184, 244];
    assert_eq!(stamps(&mut bench, 300), expected);
    bench.begin();
    bench.ask(caller(3), Request::Release(grant_of(&answers, 1)));
    let closed = GrantRef {
        lock: LockName::new("b").unwrap(),
        ..grant_of(&answers, 2)
    };
    bench.ask(caller(4), Request::Release(closed));
    bench.commit();
    assert_eq!(stamps(&mut bench, 5), [1, 2, 4], "a lock is closed");
    assert_eq!(
        bench.recovered().now(),
        Timestamp::from_millis(bench.now_ms - 1_000)
    );

    // At the end the time is recorded, once.
    bench.begin();
    bench.orderer.record_time();
    assert_eq!(bench.commands(), [Command::Expire]);
    bench.commit();
    assert_eq!(bench.recovered().now(), bench.orderer.now());
    bench.begin();
    bench.orderer.record_time();
    assert_eq!(bench.commands(), []);
}

/// A14, R8: the next leader goes on from the last stamp, so a lock that is closed for hours opens after hours, however often
/// leaders are killed meanwhile. In the second arm, the control, no stamp reaches the log.
#[test]
fn a_leader_that_is_killed_takes_a_minute_of_a_quiet_time_with_it_at_most() {
    const CLOSED_MS: u64 = 3 * 3_600_000;
    const LEADS_MS: u64 = 17 * 60_000;
    let opens_after = |stamps: bool| {
        let mut bench = Bench::new();
        bench.begin();
        bench.acquire_for_at_least(caller(1), "a", CLOSED_MS);
        let (answers, _) = bench.commit();
        bench.begin();
        bench.ask(caller(2), Request::Release(grant_of(&answers, 1)));
        bench.commit();
        let (mut served, mut changes) = (0, 0);
        while served < 2 * CLOSED_MS {
            served += 100;
            bench.work(100);
            bench.begin();
            let machine = bench.orderer.machine();
            if machine.view("a", bench.orderer.now()).is_none() {
                return Some((served, changes));
            }
            if stamps || bench.commands() != [Command::Expire] {
                bench.commit();
            } else {
                drop(bench.orderer.committed());
            }
            if served % LEADS_MS == 0 {
                changes += 1;
                let machine = bench.recovered();
                bench.now_ms = machine.now().as_nanos() / 1_000_000;
                bench.worked = Span::ZERO;
                bench.orderer = Orderer::new(machine, false);
                let at = Timestamp::from_millis(bench.now_ms);
                let first = take_over(Limits::DEFAULT);
                bench.orderer.open(at, WallTime::default(), first);
                bench.commit();
            }
        }
        None
    };
    let (served, changes) = opens_after(true).unwrap();
    assert!(changes >= CLOSED_MS / LEADS_MS, "{changes}");
    let lost = served - CLOSED_MS;
    // A minute, and the 100 ms between two looks at the clock.
    assert!(lost <= changes * 60_100, "{lost} ms in {changes} changes");
    assert_eq!(opens_after(false), None);
}
