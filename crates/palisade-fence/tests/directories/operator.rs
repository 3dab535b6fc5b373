//! Operations for operators: fences are listed and re-armed, rejections are logged and counted.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use palisade_core::{AuthorityId, Code, LockName, Token};
use palisade_fence::store::{Settings, Store};
use palisade_fence::{
    Admin, Edit, Fence, Pass, Rearm, Reject, Rule, StoreLimits, Write, audit, memory,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

const fn floor(floor: Token, lower_from: Option<Token>) -> Rearm<'static> {
    Rearm {
        floor,
        authority: None,
        lower_from,
    }
}

async fn an_operator_looks_and_rearms<A: Admin, F: Fence>(mut admin: A, of: impl Fn(&str) -> F) {
    for name in ["b/2", "a", "b/1", "b/3"] {
        let put = Write::new("/x", Edit::Put(b"data"));
        of(name).write(Pass::new(t(50)), put).await.unwrap();
    }
    let names = async |admin: &mut A, after| {
        let page = admin.list("b/", after, 2).await.unwrap();
        page.into_iter().map(|one| one.resource).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut admin, None).await, ["b/1", "b/2"]);
    assert_eq!(names(&mut admin, Some("b/2")).await, ["b/3"]);
    assert!(admin.show("c").await.unwrap().is_none());
    let highest = admin.show("a").await.unwrap().unwrap().highest();
    assert_eq!(highest, Some(t(50)));

    for from in [None, Some(t(49))] {
        let refused = admin.rearm("a", &floor(t(40), from)).await.unwrap_err();
        assert!(refused.to_string().contains("stands at 50"), "{refused}");
    }
    assert!(
        of("a")
            .claim(Pass::new(t(45)))
            .await
            .unwrap_err()
            .rejected()
            .is_some()
    );
    admin.rearm("a", &floor(t(40), Some(t(50)))).await.unwrap();
    assert!(
        of("a")
            .claim(Pass::new(t(39)))
            .await
            .unwrap_err()
            .rejected()
            .is_some()
    );
    of("a").claim(Pass::new(t(45))).await.unwrap();
    let kept = of("a").observe("/x").await.unwrap();
    assert_eq!(
        kept.as_deref(),
        Some(b"data".as_slice()),
        "the data is still there"
    );

    admin.rearm("lost", &floor(t(70), None)).await.unwrap();
    let late = of("lost").claim(Pass::new(t(69))).await.unwrap_err();
    assert_eq!(
        late.rejected(),
        Some(&Reject::Stale {
            presented: t(69),
            highest: t(70)
        })
    );
    assert!(admin.rearm("", &floor(t(1), None)).await.is_err());
}

#[tokio::test]
async fn in_memory() {
    let store = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT);
    an_operator_looks_and_rearms(store.clone(), |name| store.resource(name).unwrap()).await;
}

#[tokio::test]
async fn in_a_store_and_after_it_was_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), &Settings::default()).unwrap();
    an_operator_looks_and_rearms(store.clone(), |name| store.resource(name).unwrap()).await;
    drop(store);
    let mut again = Store::open(dir.path(), &Settings::default()).unwrap();
    for (name, highest) in [("a", 45), ("lost", 70)] {
        let fence = again.show(name).await.unwrap().unwrap();
        assert_eq!(fence.highest(), Some(t(highest)), "{name}");
    }
}

/// Records the fields of every event.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<String>>);

impl Visit for Recorder {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0.lock().unwrap(), "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_rejected_holder_is_named_in_the_log_and_counted() {
    let recorder = Recorder::default();
    let before = audit::counts().of(Code::Stale).unwrap();
    let (ours, lock) = (
        AuthorityId::new("ours").unwrap(),
        LockName::new("nightly").unwrap(),
    );
    tracing::subscriber::with_default(recorder.clone(), || {
        let value = memory::Guarded::new(0_u8);
        let pass = |token| Pass::new(t(token)).by(&ours).of(&lock);
        value.claim(pass(34)).unwrap();
        assert!(
            recorder.0.lock().unwrap().is_empty(),
            "an admission is not logged"
        );
        assert!(value.claim(pass(33)).unwrap_err().rejected().is_some());
    });
    let logged = recorder.0.lock().unwrap().clone();
    for field in [
        "resource=\"u8\"",
        "token=33",
        "highest=34",
        "authority=\"ours\"",
        "lock=\"nightly\"",
        "reason=\"stale\"",
    ] {
        assert!(logged.contains(field), "{field} is not in: {logged}");
    }
    // Other tests of this process also cause rejections.
    assert!(audit::counts().of(Code::Stale).unwrap() > before);
    assert_eq!(audit::counts().of(Code::Held), None, "no fence says so");
}
