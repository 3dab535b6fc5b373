//! Checks whether an act followed its schedule, from the recorded times only.

use super::recorder::Snapshot;
use super::timeline::{ActName, OperationKind, ResourceMessage};

/// How the act deviated from its schedule, if it did. An act with a deviation proves nothing.
pub(super) fn deviation(act: ActName, snapshot: &Snapshot) -> Option<String> {
    check(act, snapshot).err()
}

fn check(act: ActName, snapshot: &Snapshot) -> Result<(), String> {
    let (granted_a, granted_b) = (
        need(snapshot.granted("A"), "A’s grant")?,
        need(snapshot.granted("B"), "B’s grant")?,
    );
    if (granted_a.token, granted_b.token) != (1, 2) {
        return Err(format!(
            "the tokens were {} and {}, not 1 and 2",
            granted_a.token, granted_b.token
        ));
    }
    let expired = need(snapshot.expired("A"), "the expiry of A’s lease")?;
    let pause = need(snapshot.paused("A"), "A’s pause")?;
    let (from, to) = (pause.from_ms, need(pause.to_ms, "the end of A’s pause")?);
    let (checked, remaining) = need(snapshot.checked("A"), "A’s check of its lease")?;
    in_order(&[
        ("A’s grant", granted_a.at_ms),
        ("A’s check", checked),
        ("A’s pause", from),
        ("the expiry of A’s lease", expired),
        ("B’s grant", granted_b.at_ms),
    ])?;
    in_order(&[("B’s grant", granted_b.at_ms), ("the end of A’s pause", to)])?;
    if remaining <= 0.0 {
        return Err("A’s lease had expired when A checked it".to_owned());
    }
    let (late, write) = (
        OperationTimes::of(snapshot, "A", OperationKind::Write)?,
        OperationTimes::of(snapshot, "B", OperationKind::Write)?,
    );
    let read = OperationTimes::of(snapshot, "B", OperationKind::Read)?;
    if act == ActName::Unfenced {
        return in_order(&[
            ("B’s write", write.decided),
            ("the end of A’s pause", to),
            ("A’s late write being sent", late.sent),
            ("A’s late write", late.arrived),
        ]);
    }
    in_order(&[("A’s write being sent", late.sent), ("A’s pause", from)])?;
    in_order(&[
        ("B’s read", read.decided),
        ("A’s delayed write", late.arrived),
        ("the answer to it", late.decided),
        ("A reading the answer", late.answered),
        ("B’s write being sent", write.sent),
    ])
}

/// The times of an operation, all of them known.
struct OperationTimes {
    sent: f64,
    arrived: f64,
    decided: f64,
    answered: f64,
}

impl OperationTimes {
    fn of(
        snapshot: &Snapshot,
        client: &str,
        kind: OperationKind,
    ) -> Result<OperationTimes, String> {
        let all = |operation: &ResourceMessage| {
            let message = &operation.message;
            let (sent, arrived) = (message.sent_ms?, message.arrived_ms?);
            Some(OperationTimes {
                sent,
                arrived,
                decided: message.decided_ms?,
                answered: message.answered_ms?,
            })
        };
        let what = format!("{client}’s {kind:?}").to_lowercase();
        need(snapshot.operation(client, kind).and_then(all), &what)
    }
}

fn need<T>(found: Option<T>, what: &str) -> Result<T, String> {
    found.ok_or_else(|| format!("{what} was not recorded"))
}

/// Checks that these happened one after the other.
fn in_order(times: &[(&str, f64)]) -> Result<(), String> {
    for pair in times.windows(2) {
        if let [(first, a), (second, b)] = pair
            && a > b
        {
            return Err(format!(
                "{second} ({b:.2} ms) came before {first} ({a:.2} ms)"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::recorder::{Note, Recorder};
    use crate::demo::timeline::{Act, Message, TimelineEvent};

    /// The events of a recorded act, and A's check right before its write.
    fn recorded(text: &str) -> Snapshot {
        let act: Act = serde_json::from_str(text).unwrap();
        let recorder = Recorder::new();
        act.events
            .into_iter()
            .for_each(|event| recorder.record(event));
        let at_ms = late_write(&mut recorder.snapshot()).sent_ms.unwrap();
        let remaining_ms = 1_950.0;
        recorder.note(
            "A",
            Note::Checked {
                at_ms,
                remaining_ms,
            },
        );
        recorder.snapshot()
    }

    fn late_write(snapshot: &mut Snapshot) -> &mut Message {
        let found = snapshot.events.iter_mut().find_map(|event| match event {
            TimelineEvent::Operation(operation) => {
                let write =
                    operation.operation == OperationKind::Write && operation.message.client == "A";
                write.then_some(&mut operation.message)
            }
            _ => None,
        });
        found.unwrap()
    }

    #[test]
    fn a_recorded_claim_act_followed_the_schedule() {
        let snapshot = recorded(include_str!("timeline/fixture/claim.json"));
        assert_eq!(deviation(ActName::Claim, &snapshot), None);
        assert!(
            deviation(ActName::Unfenced, &snapshot).is_some(),
            "the write was sent before the pause"
        );
    }

    #[test]
    fn a_write_that_arrived_before_b_read_is_noticed() {
        let mut snapshot = recorded(include_str!("timeline/fixture/textbook.json"));
        late_write(&mut snapshot).arrived_ms = Some(100.0);
        let why = deviation(ActName::Textbook, &snapshot).unwrap();
        assert!(
            why.contains("A’s delayed write (100.00 ms) came before B’s read"),
            "{why}"
        );
    }

    #[test]
    fn an_act_without_records_did_not_follow_the_schedule() {
        let why = deviation(ActName::Unfenced, &Snapshot::default());
        assert_eq!(why.as_deref(), Some("A’s grant was not recorded"));
    }
}
