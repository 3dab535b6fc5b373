//! A wait ends with the lease that it is under (A10). A wait may end at the same instant as the grant that it waits
//! for.

use palisade_core::{Away, Command, Ending, Outcome};

use crate::world::{World, ask, ask_all, grant, lock_name, ms, request};

fn ended(token: u64, how: Ending) -> Outcome {
    let token = crate::world::token(token);
    Outcome::Ended { token, how }
}

/// `r1` reads; `w` holds `own` for a second and waits to write under that lease; `r2` waits to read behind `w`.
fn dead_writer_before_a_reader() -> (World, palisade_core::Granted) {
    let mut world = World::new();
    world.granted(ask("R", "r1").ttl(3_600_000).shared());
    let own = world.granted(ask("own", "w").ttl(1_000));
    world.queued(ask("R", "w").under(own.key).wait(3_600_000).request(1));
    world.queued(ask("R", "r2").shared().wait(3_600_000).request(2));
    (world, own)
}

/// The case: however the lease ends, the reader behind is granted in the same entry.
#[test]
fn a_wait_ends_with_its_lease_and_what_is_behind_it_goes_on() {
    for how in [Ending::Expired, Ending::Released, Ending::Revoked] {
        let (mut world, own) = dead_writer_before_a_reader();
        match how {
            Ending::Expired => {
                world.pass(ms(1_000));
                world.expire();
            }
            Ending::Released => drop(world.release(&grant("own", &own))),
            _ => {
                let revoked = world.apply(Command::Revoke {
                    lock: lock_name("own"),
                    token: own.token,
                    reason: "".into(),
                });
                assert!(matches!(revoked, Outcome::Revoked { .. }));
            }
        }
        let settled = world.settled();
        assert_eq!(settled[0], (request(1), ended(own.token.get(), how)));
        let (id, outcome) = &settled[1];
        assert_eq!(*id, request(2));
        assert!(matches!(outcome, Outcome::Granted(_)), "{how:?}");
        // A new request does not meet the writer that is gone.
        world.granted(ask("R", "r3").shared());
        assert_eq!(world.machine.waiters(), 0);
    }
}

/// Superseding the last grant of a lease ends it, too; a lease that has another grant goes on, and so do its waits.
#[test]
fn a_wait_goes_on_as_long_as_its_lease() {
    let (mut world, own) = dead_writer_before_a_reader();
    world.granted(ask("more", "w").under(own.key));
    world.release(&grant("own", &own));
    assert_eq!((world.settled(), world.machine.waiters()), (Vec::new(), 2));
    world.granted(ask("more", "w"));
    let settled = world.settled();
    assert!(
        matches!(&settled[0], (id, Outcome::Ended { how: Ending::Superseded, .. }) if *id == request(1))
    );
    assert_eq!(settled.len(), 2);
}

/// Expiry is exact to the nanosecond: the next request finds the lease over, though no timer has fired.
#[test]
fn a_waiter_whose_lease_is_over_at_this_instant_is_passed() {
    let mut world = World::new();
    world.pass(crate::world::ns(5));
    world.granted(ask("R", "r1").ttl(3_600_000).shared());
    let own = world.granted(ask("own", "w").ttl(1_000));
    world.queued(ask("R", "w").under(own.key).wait(3_600_000).request(1));
    world.pass(ms(1_000));
    world.granted(ask("R", "r2").shared());
    assert_eq!(world.settled(), [(request(1), ended(2, Ending::Expired))]);
}

/// A set whose lease is over does not hold up the requests behind it. If the set is an orphan, it gets no answer.
#[test]
fn a_set_and_an_orphan_end_with_their_lease() {
    for orphan in [false, true] {
        let mut world = World::new();
        world.granted(ask("a", "x").ttl(3_600_000));
        let own = world.granted(ask("own", "w").ttl(60_000));
        world.queued(
            ask_all(&["a", "b"], "w")
                .under(own.key)
                .wait(3_600_000)
                .request(1),
        );
        if orphan {
            world.apply(Command::Grace(Away::Led));
        }
        assert!(matches!(world.acquire(ask("b", "y")), Outcome::Behind(_)));
        world.release(&grant("own", &own));
        let told = world.settled().len();
        assert_eq!(told, usize::from(!orphan));
        world.granted(ask("b", "y"));
    }
}

/// The lock came free at the last instant of the wait: it is granted, and not denied "for another 0 ms".
#[test]
fn what_comes_free_as_a_wait_ends_is_granted_to_it() {
    let mut world = World::new();
    world.granted(ask("H", "x").ttl(1_000));
    world.queued(ask("H", "y").wait(1_000).request(1));
    world.pass(ms(1_000));
    world.expire();
    assert_eq!(world.handed_over().0, request(1));
    // A closed lock that opens then, too.
    let closes = world.granted(ask("C", "x").delays(0, 1_000));
    world.release(&grant("C", &closes));
    world.queued(ask("C", "y").wait(1_000).request(2));
    world.pass(ms(1_000));
    world.expire();
    assert_eq!(world.handed_over().0, request(2));
}

/// All endings in one entry follow the order of their instants, whatever ends.
#[test]
fn a_wait_that_ended_before_its_lock_came_free_is_denied() {
    let mut world = World::new();
    world.granted(ask("H", "x").ttl(1_000));
    world.queued(ask("H", "y").wait(999).request(1));
    world.queued(ask("H", "z").wait(2_000).request(2));
    world.pass(ms(1_000));
    world.expire();
    let settled = world.settled();
    assert!(
        matches!(&settled[..], [(one, Outcome::Held(_)), (other, Outcome::Granted(_))]
        if (*one, *other) == (request(1), request(2)))
    );
}
