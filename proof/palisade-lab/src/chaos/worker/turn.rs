//! A worker's activity on one lane: turn after turn, each with a grant of its own.
//!
//! ```text
//!   add        claim all ─► read all ─► think ─► write each set with one more element
//!   read       claim ─► read ─► think ─► read again: the same set
//!   upgrade    in mode update: claim ─► read ─► upgrade ─► claim ─► think ─► write what was read with one more element
//!   downgrade  add ─► downgrade ─► claim ─► read: the set that was written
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::assignment::Assignment;
use super::locks::{Grant, Locks, Wish};
use super::record::last_of;
use super::resource::{Answer, Store};
use super::say::say;
use crate::chaos::event::{Operation, WorkerStep};
use crate::chaos::kind::{LOCKS, LockKind, PERMITS};

/// The pause after a failure.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// One lane of a worker.
pub(super) struct Lane {
    pub(super) lane: usize,
    pub(super) kind: LockKind,
    pub(super) store: Store,
    pub(super) locks: Arc<Locks>,
    pub(super) random: fastrand::Rng,
    pub(super) part: Arc<Assignment>,
    pub(super) added: u64,
}

/// The use of a grant.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Add,
    Read,
    Upgrade,
    Downgrade,
}

/// The grant cannot be used further; the reason was already reported.
struct GrantEnded;

type Used<T = ()> = Result<T, GrantEnded>;

/// The sets of a grant's resources, in their order.
type Content = Vec<Vec<String>>;

impl Lane {
    pub(super) async fn run(mut self, mut ended: watch::Receiver<bool>) {
        let locks = Arc::clone(&self.locks);
        loop {
            let (turn, wish) = self.next();
            let granted = tokio::select! {
                granted = locks.acquire(&wish, self.ttl()) => granted,
                _ = ended.wait_for(|ended| *ended) => return,
            };
            let used = match self.granted(None, granted) {
                Ok(Some(grant)) => self.turn(turn, grant).await,
                Ok(None) => Ok(()),
                Err(ended) => Err(ended),
            };
            if used.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            if *ended.borrow() {
                return;
            }
        }
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.part.ttl_ms)
    }

    /// The next turn, and its request.
    fn next(&mut self) -> (Turn, Wish) {
        let mut locks = self.kind.locks(self.lane);
        let chosen = self.random.usize(0..locks.len());
        match self.kind {
            LockKind::Exclusive => (Turn::Add, Wish::Exclusive(locks.swap_remove(chosen))),
            LockKind::Permits => {
                let wanted = self.random.u32(1..=PERMITS);
                let wish = Wish::Permits(locks.swap_remove(chosen), wanted);
                (Turn::Add, wish)
            }
            LockKind::Sets if self.random.usize(0..LOCKS) == 0 => {
                (Turn::Add, Wish::Exclusive(locks.swap_remove(chosen)))
            }
            LockKind::Sets => {
                locks.swap_remove(chosen);
                (Turn::Add, Wish::Set(locks))
            }
            LockKind::Readers => {
                let lock = locks.swap_remove(chosen);
                match self.random.u8(0..6) {
                    0..3 => (Turn::Read, Wish::Shared(lock)),
                    3 => (Turn::Add, Wish::Exclusive(lock)),
                    4 => (Turn::Upgrade, Wish::Update(lock)),
                    _ => (Turn::Downgrade, Wish::Exclusive(lock)),
                }
            }
        }
    }

    /// Uses a grant, and releases it if it is still held.
    async fn turn(&mut self, turn: Turn, grant: Grant) -> Used {
        let token = grant.token;
        let used = match turn {
            Turn::Add => self.add(&grant).await.map(drop),
            Turn::Read => self.read_twice(&grant).await,
            Turn::Upgrade => self.upgrade(&grant).await,
            Turn::Downgrade => match self.add(&grant).await {
                Ok(written) => return self.downgrade(grant, &written).await,
                Err(ended) => Err(ended),
            },
        };
        self.release(token, grant).await;
        used
    }

    async fn add(&mut self, grant: &Grant) -> Used<Content> {
        self.claim(grant).await?;
        let mut content = Content::new();
        for sequence in 1..=self.part.adds_per_grant {
            content = self.read(grant).await?;
            self.think(grant).await?;
            self.write(grant, sequence, &mut content).await?;
        }
        Ok(content)
    }

    async fn read_twice(&mut self, grant: &Grant) -> Used {
        self.claim(grant).await?;
        let content = self.read(grant).await?;
        self.think(grant).await?;
        self.read_again(grant, &content).await
    }

    /// Nobody wrote between the read and the upgrade, so the worker writes the set that it read.
    async fn upgrade(&mut self, reader: &Grant) -> Used {
        self.claim(reader).await?;
        let mut content = self.read(reader).await?;
        let upgraded = self.locks.upgrade(reader, self.ttl() * 20).await;
        let Some(writer) = self.granted(reader.token, upgraded)? else {
            return Ok(());
        };
        let written = async {
            self.claim(&writer).await?;
            self.think(&writer).await?;
            self.write(&writer, 1, &mut content).await
        }
        .await;
        writer.release().await;
        written
    }

    /// Nobody wrote between the write and the downgrade, so the worker reads its own write.
    async fn downgrade(&mut self, writer: Grant, written: &Content) -> Used {
        let token = writer.token;
        let downgraded = self.locks.downgrade(writer).await;
        let Some(reader) = self.granted(token, downgraded)? else {
            return Ok(());
        };
        let token = reader.token;
        let used = match self.claim(&reader).await {
            Ok(()) => self.read_again(&reader, written).await,
            Err(ended) => Err(ended),
        };
        self.release(token, reader).await;
        used
    }

    /// Reports an answer of the authority; `before` is the token that the caller had.
    fn granted(
        &self,
        before: Option<u64>,
        answer: Result<Option<Grant>, String>,
    ) -> Used<Option<Grant>> {
        let grant = match answer {
            Ok(grant) => grant,
            Err(why) => {
                self.say(before, WorkerStep::Fault { why });
                return Err(GrantEnded);
            }
        };
        if let Some(grant) = &grant {
            let number = grant.number;
            self.say(grant.token, WorkerStep::Granted { number });
        }
        Ok(grant)
    }

    async fn release(&self, token: Option<u64>, grant: Grant) {
        grant.release().await;
        self.say(token, WorkerStep::Released);
    }

    /// All resources of the grant are claimed before the first is read.
    async fn claim(&self, grant: &Grant) -> Used {
        if !self.part.claims {
            return Ok(());
        }
        for name in &grant.resources {
            let claimed = self.store.claim(name, grant);
            let claimed = self.recorded((Operation::Claim, name, grant), None, claimed, |()| None);
            let claimed = claimed.await;
            self.admitted(grant, Operation::Claim, claimed)?;
        }
        self.say(grant.token, WorkerStep::Claimed);
        Ok(())
    }

    async fn read(&self, grant: &Grant) -> Used<Content> {
        let tokened = self.part.claims.then_some(grant);
        let mut content = Content::new();
        for name in &grant.resources {
            let read = self.store.read(name, tokened);
            let found = |set: &Vec<String>| Some(last_of(set));
            let read = self.recorded((Operation::Read, name, grant), None, read, found);
            let read = read.await;
            content.push(self.admitted(grant, Operation::Read, read)?);
        }
        Ok(content)
    }

    async fn read_again(&self, grant: &Grant, content: &Content) -> Used {
        let same = self.read(grant).await? == *content;
        self.say(grant.token, WorkerStep::ReadAgain { same });
        Ok(())
    }

    /// Checks the lease, and thinks.
    async fn think(&mut self, grant: &Grant) -> Used {
        if !grant.believes() {
            self.say(grant.token, WorkerStep::Lost);
            return Err(GrantEnded);
        }
        self.say(grant.token, WorkerStep::Read);
        let (least, most) = self.part.think_ms;
        let think = Duration::from_millis(self.random.u64(least..=most));
        tokio::time::sleep(think).await;
        Ok(())
    }

    /// Writes each set with an element of its own.
    async fn write(&mut self, grant: &Grant, sequence: u64, content: &mut Content) -> Used {
        for (name, set) in grant.resources.iter().zip(content) {
            self.added += 1;
            let element = format!("{}.{}.{}", self.part.name, self.lane, self.added);
            set.push(element.clone() + &"_".repeat(self.part.padding));
            let sent = element.clone();
            self.say(grant.token, WorkerStep::Sent { element: sent });
            // Sequence numbers distinguish the same holder's writes (rule F5).
            let sequence = self.part.claims.then_some(sequence);
            let written = self.store.write(name, grant, sequence, set);
            let call = (Operation::Write, &**name, grant);
            let written = self.recorded(call, Some(last_of(set)), written, |()| None);
            let written = written.await;
            self.admitted(grant, Operation::Write, written)?;
            self.say(grant.token, WorkerStep::Acknowledged { element });
        }
        Ok(())
    }

    fn admitted<T>(&self, grant: &Grant, step: Operation, answer: Answer<T>) -> Used<T> {
        let what = match answer {
            Answer::Admitted(value) => return Ok(value),
            Answer::Rejected { highest } => WorkerStep::Rejected { step, highest },
            Answer::Unknown(why) => WorkerStep::Unknown { step, why },
        };
        self.say(grant.token, what);
        Err(GrantEnded)
    }

    fn say(&self, token: Option<u64>, what: WorkerStep) {
        say(self.lane, self.kind, token, what);
    }
}
