//! Queries change nothing and are exact: they do not show anything that is over by the instant
//! asked for.

use palisade_core::{Command, Entry, LockMode, LockView, Machine, Queued, Span};

use crate::world::{TTL_MS, World, ask, client_id, grant, key, lock_name, ms, ns, wall};

#[test]
fn holder_answers_client_token_and_remaining_time_or_nothing() {
    let mut world = World::new();
    assert_eq!(world.holder("x"), None);
    world.granted(ask("x", "a"));
    world.pass(ms(1));
    let holder = world.holder("x").unwrap();
    assert_eq!(
        (&*holder.client, holder.token.get(), holder.remaining),
        ("a", 1, ms(TTL_MS - 1))
    );
}

#[test]
fn at_exactly_the_expiry_nobody_holds_whether_or_not_it_was_logged() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.pass(ns(ms(TTL_MS).as_nanos() - 1));
    assert_eq!(world.holder("x").unwrap().remaining, ns(1));
    assert!(world.machine.view("x", world.now).is_some());
    world.pass(ns(1));
    assert_eq!(world.machine.locks(), 1, "its end is not logged yet");
    assert_eq!(world.holder("x"), None);
    assert_eq!(world.machine.view("x", world.now), None);
    assert_eq!(world.machine.page("", 0, 10, world.now), (Vec::new(), None));
}

#[test]
fn view_shows_metadata_lease_wall_clock_and_waiters() {
    let mut world = World::new();
    world.pass(ms(42));
    let a = world.granted(ask("x", "a").metadata("pid 7 on node-3"));
    world.queued(ask("x", "b").wait(1_000).request(1).metadata("next"));
    let view = LockView {
        revision: Some(1),
        holder: world.holder("x"),
        lease: Some(a.lease),
        acquired_at: Some(wall(world.now)),
        metadata: Some("pid 7 on node-3".into()),
        waiters: 1,
        queue: vec![Queued {
            client: client_id("b"),
            mode: LockMode::Exclusive,
            waited: Span::ZERO,
            remaining: Span::from_millis(1_000),
        }],
        ..LockView::free(lock_name("x"))
    };
    assert_eq!(world.machine.view("x", world.now), Some(view));
    world.pass(ms(7));
    let (page, _) = world.machine.page("", 0, 10, world.now);
    assert_eq!((page[0].waiters, page[0].waited), (1, Some(ms(7))));
    world.release(&grant("x", &a));
    let view = world.machine.view("x", world.now).unwrap();
    assert_eq!((view.metadata.as_deref(), view.waiters), (Some("next"), 0));
}

/// All pages, and how many there were.
fn pages(machine: &Machine, world: &World, prefix: &str, limit: usize) -> (Vec<String>, usize) {
    let (mut names, mut cursor, mut count) = (Vec::new(), 0, 0);
    loop {
        let (page, next) = machine.page(prefix, cursor, limit, world.now);
        count += 1;
        assert!(page.len() <= limit);
        names.extend(page.iter().map(|view| view.lock.to_string()));
        match next {
            Some(next) => {
                assert!(next > cursor, "a listing gets on");
                cursor = next;
            }
            None => return (names, count),
        }
    }
}

#[test]
fn pages_are_complete_bounded_and_list_each_lock_once() {
    let mut world = World::new();
    let mut granted = Vec::new();
    for n in 0..300 {
        let lock = format!("{}/{n:03}", if n % 3 == 0 { "fizz" } else { "rest" });
        granted.push((lock.clone(), world.granted(ask(&lock, "a").ttl(60_000))));
    }
    for (lock, held) in granted.iter().step_by(7) {
        world.release(&grant(lock, held));
    }
    for limit in [1, 2, 50, 1_000] {
        for prefix in ["", "fizz/", "rest/1", "none"] {
            let (mut names, _) = pages(&world.machine, &world, prefix, limit);
            names.sort();
            let held = granted.iter().enumerate().filter(|(n, _)| n % 7 != 0);
            let mut expected: Vec<_> = held
                .map(|(_, (lock, _))| lock.clone())
                .filter(|lock| lock.starts_with(prefix))
                .collect();
            expected.sort();
            assert_eq!(names, expected, "{prefix:?} by {limit}");
        }
    }
}

#[test]
fn the_work_for_one_page_is_bounded_even_when_nothing_matches() {
    let mut world = World::new();
    let mut effects = Vec::new();
    for n in 0..10_000_u32 {
        let command = Command::Acquire(ask(&format!("lock/{n}"), "a").with_key(key(n)));
        let entry = Entry {
            at: world.now,
            wall: wall(world.now),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        world.machine.apply(entry, &mut effects);
    }
    let (names, count) = pages(&world.machine, &world, "none", 100);
    assert!(names.is_empty());
    assert!(count > 3, "10,000 locks were looked at in {count} pages");
    world.pass(ms(1));
    assert_eq!(pages(&world.machine, &world, "", 100).0.len(), 10_000);
}

#[test]
fn a_cursor_from_nowhere_ends_the_listing() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    for cursor in [1, 2, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(
            world.machine.page("", cursor, 10, world.now),
            (Vec::new(), None)
        );
    }
}
