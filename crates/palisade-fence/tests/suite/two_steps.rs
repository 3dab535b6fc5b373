//! A fence whose check and effect are two steps: the suite must detect it (rule F1).

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use palisade_fence::conformance::{self, Habit, Subject};
use palisade_fence::{Admitted, Edit, Fence, FenceState, Op, Pass, Result, Rule, Verdict, Write};

/// Reads the mark, decides by the correct rule, and then writes whatever happened in between.
#[derive(Default)]
struct Naive {
    inside: Mutex<(FenceState, HashMap<String, Vec<u8>>)>,
}

/// A round trip to the resource.
async fn round_trip() {
    let mut sent = false;
    poll_fn(|cx| {
        if sent {
            return Poll::Ready(());
        }
        sent = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The program's waits between its check and its effect. How often a future waits for its server is not the same in
/// every run, so a freeze after a number of waits falls between the two for certain only if there are more of them.
pub(crate) async fn between_check_and_effect() {
    for _ in 0..8 {
        round_trip().await;
    }
}

impl Naive {
    async fn enter(&self, pass: Pass<'_>, op: Op) -> Result<bool> {
        round_trip().await;
        let mark = self.inside.lock().unwrap().0.clone();
        let verdict = Rule::CLAIM.decide(&mark, pass, op);
        round_trip().await;
        match verdict {
            Verdict::Admit(next) => {
                if let Some(next) = next {
                    self.inside.lock().unwrap().0 = next;
                }
                Ok(true)
            }
            Verdict::Repeat => Ok(false),
            Verdict::Reject(reject) => Err(reject.into()),
        }
    }

    fn change(&self, key: &str, change: Edit<'_>) {
        let mut inside = self.inside.lock().unwrap();
        match change {
            Edit::Put(bytes) => drop(inside.1.insert(key.to_owned(), bytes.to_vec())),
            Edit::Append(bytes) => inside.1.entry(key.to_owned()).or_default().extend(bytes),
            Edit::Delete => drop(inside.1.remove(key)),
        }
    }
}

struct Resource(Arc<Naive>);

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.0.enter(pass, Op::Claim).await?;
        Ok(Admitted::new((), Some(pass.token)))
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        self.0.enter(pass, Op::Read).await?;
        Ok(Admitted::new(self.observe(key).await?, Some(pass.token)))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        if self.0.enter(pass, Op::Write(write.sequence)).await? {
            between_check_and_effect().await;
            self.0.change(write.key, write.change);
        }
        Ok(Admitted::new((), Some(pass.token)))
    }

    async fn write_tokenless(&self, key: &str, change: Edit<'_>) -> Result<Admitted<()>> {
        let mark = self.0.inside.lock().unwrap().0.clone();
        if let Verdict::Reject(reject) = mark.decide_tokenless_write() {
            return Err(reject.into());
        }
        self.0.change(key, change);
        Ok(Admitted::new((), None))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.0.inside.lock().unwrap().1.get(key).cloned())
    }
}

struct TwoSteps;

impl Subject for TwoSteps {
    type Fence = Resource;

    async fn fresh(&self, _: &str) -> Result<Resource> {
        Ok(Resource(Arc::default()))
    }
}

#[tokio::test]
async fn a_gap_between_check_and_effect_is_found() {
    let report = conformance::run(&TwoSteps, Habit::CLAIM).await;
    let failed = report.failed();
    for found in [
        "a_frozen_writer_loses_nothing",
        "a_write_given_up_and_repeated_is_there_once",
    ] {
        assert!(failed.contains(&found), "{report}");
    }
}
