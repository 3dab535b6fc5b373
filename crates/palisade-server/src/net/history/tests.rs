//! Changes that come too fast.

use palisade_core::{
    Acquire, ClientId, Command, Effect, Entry, LeaseKey, LockName, Principal, RequestId, Timestamp,
    Ttl, Under, WallTime,
};

use super::*;

fn granted(revision: u64) -> Arc<[Event]> {
    let mut machine = Machine::new(1);
    let mut effects = Vec::new();
    for n in 1..=revision {
        let id = u128::from(n).to_be_bytes();
        let under = Under::New {
            key: LeaseKey::from_bytes(id),
            ttl: Ttl::from_millis(1_000).unwrap(),
        };
        let entry = Entry {
            at: Timestamp::ZERO,
            wall: WallTime(n),
            by: Principal::ANONYMOUS,
            command: Command::Acquire(Acquire::new(
                LockName::new(&format!("lock/{n}")).unwrap(),
                ClientId::new("x").unwrap(),
                under,
                Some(RequestId::from_bytes(id)),
            )),
        };
        effects.clear();
        machine.apply(entry, &mut effects);
    }
    let events = effects.drain(..).filter_map(|effect| match effect {
        Effect::Event(event) => Some(event),
        Effect::Settled { .. } => None,
    });
    let events: Arc<[Event]> = events.collect();
    assert_eq!(events[0].revision, revision);
    events
}

/// Events came too fast just after the log was read. The history leaves them out, says so, and has them when it has read
/// the log again. The control is a log that no longer has them, which is a gap.
#[test]
fn what_came_too_fast_is_read_from_the_log_when_its_turn_comes() {
    for in_log in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let past = PastEvents(Arc::new(move |after, each: &mut dyn FnMut(Told<'_>)| {
            if in_log {
                (after + 1..=4).for_each(|revision| each(Told::Events(&granted(revision))));
            } else {
                each(Told::Begins(4));
            }
            Ok(())
        }));
        let owner = LedgerOwner {
            authority: "one".into(),
            incarnation: "a".into(),
        };
        let mut ledger = Ledger::open(&dir.path().join("file"), &owner, Bounds::DEFAULT).unwrap();
        let mut writer = Writer {
            settings: HistorySettings {
                file: dir.path().join("file"),
                age: Bounds::DEFAULT.age,
                bytes: Bounds::DEFAULT.bytes,
                leaves_free: Some(0),
                past: Some(past),
            },
            owner,
            shared: Arc::default(),
            gap: GapReason::LogDropped,
            refill: Pause::default(),
        };
        let mut take = |writer: &mut Writer, from, revision| {
            assert!(writer.take(&mut ledger, from, &[granted(revision)]).is_ok());
            let gaps = writer.shared.gaps.load(Relaxed);
            (ledger.last(), *writer.shared.left(), gaps)
        };
        assert_eq!(take(&mut writer, 0, 1), (1, None, 0));
        writer.refill.begin();
        assert_eq!(take(&mut writer, 2, 3), (1, Some((2, 3)), 0));
        // Another caller may hand over earlier ones; the rest is still missing.
        assert_eq!(take(&mut writer, 1, 2), (2, Some((3, 3)), 0));
        assert_eq!(take(&mut writer, 3, 4), (2, Some((3, 4)), 0));
        writer.refill = Pause::default();
        let gaps = u64::from(!in_log);
        assert_eq!(take(&mut writer, 4, 5), (5, None, gaps));
    }
}
