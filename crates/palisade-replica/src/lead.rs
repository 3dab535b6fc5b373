//! Taking over, leading, and giving back.
//!
//! ```text
//!   elected ──► confirm: an entry of this term is committed ──► all before it is applied ──► machine lent
//!                                                                                              │
//!      machine back, or built anew ◄── deposed ◄── commit, confirm, commit, …  ◄── first batch ┘
//! ```
//!
//! A batch that was given up may still be committed, also under the next leadership of this node, and then under the same
//! term. So a leadership checks that its batches follow one another in the log. If another one stands between, the
//! machine decided without it, and none of its decisions are acknowledged.
//!
//! The first batch gives every live lease its full time (rules R9, R10): the pipeline logs it before it serves.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Machine, Timestamp};
use palisade_pipeline::codec;

use crate::applier::{Applier, Lent};
use crate::engine::{Engine, NotCommitted, Role, Runtime, Stopwatch};
use crate::entry::{Leader, LogId};
use crate::state::StateError;
use crate::takeover::Takeover;

/// A leader that could not take over tries again after this time.
const AGAIN: Duration = Duration::from_millis(50);

/// One leadership of this node, from the moment at which it has the machine.
pub struct Leadership<R: Runtime> {
    engine: Engine<R>,
    applier: Arc<Applier>,
    leader: Leader,
    /// The last entry that is in the machine and committed.
    contains: LogId,
    /// The newest version of a committed batch.
    version: u8,
    /// The stamp of the last committed batch, which is the log's time.
    at: Timestamp,
    /// Whether it is certain that everything in the machine is committed.
    certain: bool,
    taking_over: Option<TakingOver<R>>,
}

/// A take-over that is under way.
struct TakingOver<R: Runtime> {
    leader: Leader,
    /// The phases before the election.
    campaign: (Option<Duration>, Option<Duration>),
    elected: Stopwatch<R>,
    /// How long after that it had the machine.
    log: Duration,
}

impl<R: Runtime> Leadership<R> {
    /// Waits until this node leads and its machine contains everything that was committed before (rule R9).
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn wait(
        engine: &Engine<R>,
        applier: &Arc<Applier>,
    ) -> Result<(Leadership<R>, Machine), NotCommitted> {
        let (mut progress, mut leader) = (engine.watch(), engine.watch_leader());
        let mut taking_over: Option<TakingOver<R>> = None;
        loop {
            let before = engine.place();
            let is_same = |over: &TakingOver<R>| over.leader == before.1;
            if before.0 == Role::Leader && !taking_over.as_ref().is_some_and(is_same) {
                taking_over = Some(TakingOver {
                    leader: before.1,
                    campaign: engine.campaign(),
                    elected: Stopwatch::start(),
                    log: Duration::ZERO,
                });
            }
            if let Some((mut leadership, machine)) = Leadership::begin(engine, applier).await? {
                let over = taking_over.filter(|over| over.leader == leadership.leader);
                leadership.taking_over = over.map(|over| TakingOver {
                    log: over.elected.elapsed(),
                    ..over
                });
                return Ok((leadership, machine));
            }
            let moved = async {
                // A follower applies every batch, and is not woken for that.
                if before.0 != Role::Leader {
                    return leader.changed().await;
                }
                while engine.place() == before {
                    progress.changed().await?;
                }
                Ok(())
            };
            // A quorum that did not answer may do so now, although nothing moved here.
            if let Ok(moved) = R::timeout(AGAIN, moved).await {
                moved?;
            }
        }
    }

    async fn begin(
        engine: &Engine<R>,
        applier: &Arc<Applier>,
    ) -> Result<Option<(Leadership<R>, Machine)>, NotCommitted> {
        match engine.place().0 {
            Role::Leader => {}
            Role::Stopped => return Err(NotCommitted::Stopped("the engine has ended".into())),
            Role::Learner | Role::Follower | Role::Candidate => return Ok(None),
        }
        let confirmed = match engine.confirm().await {
            Ok(confirmed) => confirmed,
            Err(NotCommitted::Stopped(why)) => return Err(NotCommitted::Stopped(why)),
            Err(_) => return Ok(None),
        };
        let lent = applier.lend(confirmed.leader, confirmed);
        let lent = lent.map(|lent| {
            let Lent {
                machine,
                contains,
                version,
            } = lent;
            let leadership = Leadership {
                engine: engine.clone(),
                applier: Arc::clone(applier),
                leader: confirmed.leader,
                contains,
                version,
                at: machine.now(),
                certain: true,
                taking_over: None,
            };
            (leadership, machine)
        });
        Ok(lent)
    }

    /// Under which term, and which node.
    #[must_use]
    pub fn leader(&self) -> Leader {
        self.leader
    }

    /// The last entry that is in the machine and committed.
    #[must_use]
    pub fn contains(&self) -> LogId {
        self.contains
    }

    /// The newest version of a batch in the log: every member has to read it.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Makes a batch durable on a quorum (rule R1). The machine is one batch ahead until then; if this is given up,
    /// or fails, the machine is not given back but built anew (rule R3).
    ///
    /// # Errors
    /// [`NotCommitted`]: this leadership is over.
    pub async fn commit(&mut self, batch: Arc<[u8]>) -> Result<(), NotCommitted> {
        self.certain = false;
        let stamp = codec::stamp(&batch);
        let at = stamp.map_err(|malformed| NotCommitted::Stopped(malformed.to_string()))?;
        let [version, ..] = *batch else {
            unreachable!("a batch with a stamp has a version");
        };
        let id = self.engine.propose(self.leader, batch).await?;
        if self.applier.has_batch_between(self.contains, id.index) {
            return Err(NotCommitted::Unknown);
        }
        (self.contains, self.at, self.certain) = (id, at, true);
        self.version = self.version.max(version);
        if let Some(over) = self.taking_over.take() {
            let (silence, vote) = over.campaign;
            self.engine.took_over(Takeover {
                term: self.leader.term,
                silence,
                vote,
                log: over.log,
                grace: over.elected.elapsed().saturating_sub(over.log),
            });
        }
        Ok(())
    }

    /// Makes sure that this leadership has lasted until now (rule R4).
    ///
    /// # Errors
    /// [`NotCommitted`]: this leadership is over.
    pub async fn confirm(&mut self) -> Result<(), NotCommitted> {
        let confirmed = self.engine.confirm().await?;
        if confirmed.leader != self.leader {
            return Err(NotCommitted::NotLeader);
        }
        if self.applier.has_batch_between(self.contains, u64::MAX) {
            self.certain = false;
            return Err(NotCommitted::Unknown);
        }
        Ok(())
    }

    /// Ends it. The machine goes back to follow the log, unless it may contain entries that were never committed, or its
    /// time has moved on: questions are not logged, but they move it, and another leader's stamps begin at the log's
    /// time.
    ///
    /// # Errors
    /// [`StateError`] if the machine cannot be built anew.
    pub fn end(self, machine: Machine) -> Result<(), StateError> {
        let is_of_the_log = self.certain && machine.now() == self.at;
        let lent = is_of_the_log.then_some(Lent {
            machine,
            contains: self.contains,
            version: self.version,
        });
        self.applier.take_back(lent)
    }
}
