//! Describes a schedule in words.

use super::authority::Authority;
use super::scope::{Scope, name};
use super::state::{Phase, Resource, State, Upgrade};
use super::step::{Action, World};

/// Runs the schedule again and describes each step.
pub(super) fn schedule(world: &mut World, actions: &[Action]) -> Vec<String> {
    let mut state = State::first(world.scope, Authority::FIRST);
    let mut lines = Vec::new();
    for action in actions {
        let (next, _) = world.after(&state, *action);
        lines.push(line(world.scope, &state, &next, *action));
        state = next;
    }
    let lost = state.lost();
    if lost != 0 {
        lines.push(format!("{} was acknowledged and is gone", set(lost)));
    }
    lines
}

fn line(scope: Scope, before: &State, after: &State, action: Action) -> String {
    let mut text = what(scope, before, after, action);
    for (number, (was, is)) in before.clients.iter().zip(&after.clients).enumerate() {
        if was.phase == Phase::Waiting && is.phase == Phase::Holding {
            let name = name(number as u8);
            let token = is.token.map_or(0, |token| token.get());
            let at = resource(scope, is.slot);
            text += &format!("; {name} is granted the lock with token {token}{at}");
        }
    }
    text
}

/// Which resource, where there are several.
fn resource(scope: Scope, number: u8) -> String {
    match (scope.slots, scope.locks) {
        (0, 1) => String::new(),
        (0, _) => format!(" at lock {}", number + 1),
        _ => format!(" at slot {}", number + 1),
    }
}

fn what(scope: Scope, before: &State, after: &State, action: Action) -> String {
    let at = |number| resource(scope, number);
    let value = |state: &State, number: u8| state.resources[usize::from(number)].value;
    let was = |number: u8| before.clients[usize::from(number)];
    let client = |number: u8| (name(number), after.clients[usize::from(number)]);
    match action {
        Action::Acquire(number) => {
            let (name, client) = client(number);
            match client.token {
                Some(token) if scope.slots > 0 => {
                    let at = at(client.slot);
                    format!("{name} is granted a permit with token {token}{at}")
                }
                Some(token) => format!("{name} is granted the lock with token {token}"),
                None => format!("{name} requests the lock and waits"),
            }
        }
        Action::AskAgain(number) => {
            format!(
                "{} repeats its request, with the same request id",
                name(number)
            )
        }
        Action::Claim(number) => {
            let ((name, client), was) = (client(number), was(number));
            let at = at(client.slot + was.claimed);
            if client.phase == Phase::Idle {
                format!("{name} claims{at}, and is rejected")
            } else {
                format!("{name} claims{at}")
            }
        }
        Action::Read(number) => {
            let ((name, client), was) = (client(number), was(number));
            let at = at(client.slot + was.read);
            if client.phase == Phase::Idle {
                format!("{name} reads{at}, and is rejected")
            } else {
                let known = client.known[usize::from(was.read)];
                format!("{name} reads {}{at}", set(known))
            }
        }
        Action::Write(number) => {
            let sent = after
                .network
                .iter()
                .find(|sent| !before.network.contains(sent));
            let value = sent.map_or(0, |sent| sent.value);
            let at = sent.map_or(String::new(), |sent| at(sent.resource));
            format!("{} sends its write of {}{at}", name(number), set(value))
        }
        Action::Resend(number) => format!("{} sends the same write again", name(number)),
        Action::Deliver(message) => {
            let [was, is] = [before, after].map(|state| state.resources);
            let acknowledged = |resource: &Resource| resource.acknowledged;
            let verdict = if is.each_ref().map(acknowledged) != was.each_ref().map(acknowledged) {
                "admitted and acknowledged"
            } else if is != was {
                "admitted"
            } else {
                "rejected, or changes nothing"
            };
            format!(
                "{}'s write of {} with token {} arrives{}: {verdict}; the set is {}",
                name(message.client),
                set(message.value),
                message.token,
                at(message.resource),
                set(value(after, message.resource))
            )
        }
        Action::DeliverUnheard(message) => format!(
            "{}'s write of {} arrives{}, its answer is lost, and it is sent again; the set is {}",
            name(message.client),
            set(message.value),
            at(message.resource),
            set(value(after, message.resource))
        ),
        Action::Downgrade(number) => match client(number) {
            (name, client) if client.downgraded => format!("{name} becomes a reader"),
            (name, _) => format!("{name} wants to become a reader, and holds nothing any more"),
        },
        Action::Upgrade(number) => match client(number) {
            (name, client) if client.upgrade == Upgrade::Granted => {
                let token = client.token.map_or(0, |token| token.get());
                format!("{name} becomes the writer, with token {token}")
            }
            (name, client) if client.phase == Phase::Waiting => {
                format!("{name} wants to become the writer, and waits")
            }
            (name, _) => format!("{name} wants to become the writer, and holds nothing any more"),
        },
        Action::GiveUpUpgrade(number) => format!("{} stays a reader", name(number)),
        Action::Release(number) => format!("{} releases", name(number)),
        Action::ReleaseAgain(number) => format!("{}'s release arrives again", name(number)),
        Action::Expire => "the holder's lease expires without its knowledge".to_owned(),
        Action::ClientCrash(number) => format!("{} crashes and restarts", name(number)),
        Action::AuthorityRestart => "the authority crashes and restarts".to_owned(),
        Action::LeaderChange => "another node takes over from the authority".to_owned(),
        Action::WindowEnd => "no caller comes back in time".to_owned(),
        Action::Backup => "a backup of the authority is taken".to_owned(),
        Action::AuthorityRestore => "the authority is restored from its backup".to_owned(),
        Action::FenceLost => "the resource crashes and loses its fence state".to_owned(),
        Action::Rearm => format!(
            "an operator arms the fence again, at token {}",
            after.issued.map_or(0, |token| token.get())
        ),
    }
}

/// The adds of a set: the first write of A is `a1`, of its second grant `a3`.
fn set(bits: u32) -> String {
    let adds = (0..u32::BITS)
        .filter(|bit| bits & 1 << bit != 0)
        .map(|bit| {
            let client = char::from(b'a' + (bit / 8) as u8);
            format!("{client}{}", bit % 8 + 1)
        });
    format!("{{{}}}", adds.collect::<Vec<_>>().join(" "))
}
