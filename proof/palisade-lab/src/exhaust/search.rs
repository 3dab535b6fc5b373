//! Breadth-first search through all states.

use std::rc::Rc;

use foldhash::{HashSet, HashSetExt as _};

use super::authority::Authority;
use super::describe;
use super::scope::Scope;
use super::state::State;
use super::step::{Action, World};
use super::weakness::{Weakness, Wrong};

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Found {
    /// The dropped rule, if any.
    pub weakness: Option<Weakness>,
    /// The size of the search.
    pub scope: Scope,
    /// States visited.
    pub states: usize,
    /// Distinct states of the authority among them.
    pub machines: usize,
    /// The number of steps to the state that is farthest from the start.
    pub depth: usize,
    /// The number of transitions into a wrong state.
    pub losing: usize,
    /// A shortest schedule in which it goes wrong; without a weakness, one in which anything goes wrong.
    pub shortest: Option<Vec<String>>,
    /// The fault at its end.
    pub wrong: Option<Wrong>,
}

type StateIndex = u32;

/// The transition that first reached a state.
#[derive(Clone, Copy)]
struct Arrival {
    from: StateIndex,
    action: Action,
}

/// Visits every state of the scope. With a weakness it stops at the first thing that this leads to; the search is breadth-first, so no
/// schedule is shorter.
///
/// # Errors
/// A scope out of range; the message names the range.
pub fn search(weakness: Option<Weakness>, scope: Scope) -> Result<Found, String> {
    check(scope)?;
    let authority = Authority::new(scope).ok_or("no names")?;
    let mut world = World {
        scope,
        weakness,
        authority,
    };
    let first = Rc::new(State::first(scope, Authority::FIRST));
    let mut known = HashSet::new();
    known.insert(first.clone());
    let mut arrivals: Vec<Option<Arrival>> = vec![None];
    let mut frontier = vec![(0, first)];
    let (mut depth, mut losing, mut end) = (0, 0, None);
    'search: while !frontier.is_empty() {
        let mut later = Vec::new();
        for (from, state) in frontier {
            for action in world.actions(&state) {
                let (next, wrong) = world.after(&state, action);
                let arrival = Arrival { from, action };
                if let Some(wrong) = wrong.filter(|wrong| counts(weakness, *wrong)) {
                    losing += 1;
                    end = end.or(Some((arrival, wrong)));
                    if weakness.is_some() {
                        break 'search;
                    }
                }
                let place =
                    StateIndex::try_from(arrivals.len()).map_err(|_| "more than 2^32 states")?;
                let next = Rc::new(next);
                if known.insert(next.clone()) {
                    arrivals.push(Some(arrival));
                    later.push((place, next));
                }
            }
        }
        depth += usize::from(!later.is_empty());
        frontier = later;
    }
    let schedule = end.map(|(arrival, _)| schedule(&arrivals, arrival));
    Ok(Found {
        weakness,
        scope,
        states: arrivals.len(),
        machines: world.authority.reached(),
        depth,
        losing,
        shortest: schedule.map(|schedule| describe::schedule(&mut world, &schedule)),
        wrong: end.map(|(_, wrong)| wrong),
    })
}

/// Whether this ends the search: with a weakness only its own fault, without one any fault.
fn counts(weakness: Option<Weakness>, wrong: Wrong) -> bool {
    weakness.is_none_or(|weakness| wrong == weakness.wrong())
}

fn check(scope: Scope) -> Result<(), String> {
    let plain = scope.slots == 0 && scope.locks == 1;
    let bounds = [
        ("clients", scope.clients, 1, 4),
        ("slots", scope.slots, 0, 2),
        ("locks", scope.locks, 1, if scope.slots > 0 { 1 } else { 2 }),
        (
            "readers",
            scope.readers,
            0,
            if plain { scope.clients } else { 0 },
        ),
        ("updates", scope.updates, 0, scope.readers),
        ("grants", scope.grants, 1, 4),
        ("writes", scope.writes, 1, 2),
        ("resends", scope.resends, 0, 4),
        ("crashes", scope.crashes, 0, 2),
    ];
    for (what, given, least, most) in bounds {
        if !(least..=most).contains(&given) {
            return Err(format!("{what} is {given}, expected {least} to {most}"));
        }
    }
    Ok(())
}

fn schedule(arrivals: &[Option<Arrival>], last: Arrival) -> Vec<Action> {
    let mut actions = vec![last.action];
    let mut place = last.from;
    while let Some(Arrival { from, action }) = arrivals[place as usize] {
        actions.push(action);
        place = from;
    }
    actions.reverse();
    actions
}
