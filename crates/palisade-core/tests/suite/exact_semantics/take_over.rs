//! A set that waits takes its own client's locks over when the others come free, as it would on arrival (M2).

use palisade_core::{Away, Command, Ending, Invalid, Outcome};

use crate::world::{World, ask, ask_all, grant, lock_name, ms, request, token};

/// `c1` holds `T1`, `c3` holds `T2` for a second, and a set of `c1` waits for both.
fn waiting() -> (World, palisade_core::Granted) {
    let mut world = World::new();
    world.granted(ask("T1", "c1").ttl(3_600_000));
    let other = world.granted(ask("T2", "c3").ttl(1_000));
    world.queued(ask_all(&["T2", "T1"], "c1").wait(60_000).request(1));
    (world, other)
}

/// The case: however the other lock comes free.
#[test]
fn a_waiting_set_takes_over_its_own_locks_when_the_others_come_free() {
    for how in [Ending::Expired, Ending::Released, Ending::Revoked] {
        let (mut world, other) = waiting();
        match how {
            Ending::Expired => {
                world.pass(ms(1_000));
                world.expire();
            }
            Ending::Released => drop(world.release(&grant("T2", &other))),
            _ => drop(world.apply(Command::Revoke {
                lock: lock_name("T2"),
                token: other.token,
                reason: "".into(),
            })),
        }
        let (id, granted) = world.handed_over();
        assert_eq!((id, granted.token), (request(1), token(3)), "{how:?}");
        for lock in ["T1", "T2"] {
            assert_eq!(world.held_by(lock), Some((3, "c1".into())));
        }
    }
}

/// Taking over the client's own lock passes the requests that wait for it, as it does when a set takes it
/// over on arrival.
#[test]
fn who_waits_for_the_clients_own_lock_waits_on() {
    let mut world = World::new();
    world.granted(ask("T1", "c1").ttl(3_600_000));
    let other = world.granted(ask("T2", "c3"));
    world.queued(ask("T1", "y").wait(60_000).request(9));
    world.queued(ask_all(&["T1", "T2"], "c1").wait(60_000).request(1));
    world.release(&grant("T2", &other));
    let (id, granted) = world.handed_over();
    assert_eq!(id, request(1));
    world.release(&grant("T1", &granted));
    assert_eq!(world.handed_over().0, request(9));
}

/// A lock that the client gets while its set waits counts, too, and so does one that lives again.
#[test]
fn a_grant_to_the_client_lets_its_set_have_what_is_left() {
    let mut world = World::new();
    let first = world.granted(ask("T1", "x"));
    let second = world.granted(ask("T2", "x"));
    world.queued(ask("T1", "c1").wait(60_000).request(1));
    world.queued(ask_all(&["T1", "T2"], "c1").wait(60_000).request(2));
    world.release(&grant("T2", &second));
    assert_eq!(world.settled(), []);
    world.release(&grant("T1", &first));
    let settled = world.settled().into_iter().map(|(id, _)| id);
    assert_eq!(settled.collect::<Vec<_>>(), [request(1), request(2)]);
    assert_eq!(world.held_by("T1"), world.held_by("T2"));
}

#[test]
fn an_orphaned_set_takes_over_when_its_caller_is_back() {
    let (mut world, other) = waiting();
    world.apply(Command::Grace(Away::Led));
    world.release(&grant("T2", &other));
    assert_eq!(world.settled(), []);
    let set = ask_all(&["T2", "T1"], "c1").wait(60_000).request(1);
    assert_eq!(world.granted(set).token, token(3));
}

/// A waiting set that would be refused on arrival is refused once nobody else blocks it.
#[test]
fn a_waiting_set_is_refused_for_what_would_be_refused_on_arrival() {
    let mut world = World::new();
    let own = world.granted(ask("T0", "c1").ttl(3_600_000));
    let [one, two] = ["T1", "T2"].map(|lock| world.granted(ask(lock, "x")));
    let set = ask_all(&["T1", "T2"], "c1").under(own.key);
    world.queued(ask("T1", "c1").under(own.key).wait(60_000).request(1));
    world.queued(set.wait(60_000).request(2));
    world.release(&grant("T1", &one));
    world.release(&grant("T2", &two));
    let partly = Invalid::SetPartlyHeld {
        lock: lock_name("T1"),
    };
    assert_eq!(world.settled(), [(request(2), Outcome::Invalid(partly))]);
    // A grant of the client's, with a delay after it.
    let other = world.granted(ask("T3", "x"));
    world.granted(ask("T4", "y").ttl(500));
    world.queued(ask("T4", "c1").delays(1_000, 0).wait(60_000).request(3));
    world.queued(ask_all(&["T3", "T4"], "c1").wait(60_000).request(4));
    world.pass(ms(500));
    world.expire();
    world.release(&grant("T3", &other));
    let delayed = Invalid::SetDelayed {
        lock: lock_name("T4"),
    };
    assert_eq!(world.settled(), [(request(4), Outcome::Invalid(delayed))]);
}

/// Another client's lock is not taken over. A lock with a lease that is over is not either: it is handed on
/// first.
#[test]
fn only_a_live_grant_of_the_same_client_is_taken_over() {
    let mut world = World::new();
    let other = world.granted(ask("T2", "c3").ttl(60_000));
    world.pass(crate::world::ns(7));
    world.granted(ask("T1", "c1").ttl(1_000));
    world.queued(ask("T1", "y").wait(60_000).request(9));
    world.queued(ask_all(&["T1", "T2"], "c1").wait(60_000).request(1));
    // Over at this very instant, which no timer has seen.
    world.pass(ms(1_000));
    world.release(&grant("T2", &other));
    assert_eq!(world.settled(), []);
    world.pass(ms(1));
    world.expire();
    assert_eq!(world.handed_over().0, request(9));
}
