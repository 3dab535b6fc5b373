//! The two schedules of the story. Every step waits for an event that was recorded; none for a time.
//!
//! ```text
//!  unfenced          A: lock, read, check ─┤stopped├──────────────────────────────┤write
//!                    B:                       waits ─ lock, read, thinks, check, write, release
//!  textbook, claim   A: lock, (claim), read, check, write ─┤in the network ─────┤arrives
//!                                                         ─┤stopped ───────────────┤is told
//!                    B:                       waits ─ lock, (claim), read, thinks ─┤check, write, release
//! ```

use super::authority::reconcile;
use super::ledger::{Note, Snapshot};
use super::network::Barrier;
use super::progress::Progress;
use super::stage::{PATIENCE, Stage};
use super::timeline::{ActName, Lease, OperationKind, duration};
use super::worker::Breakpoint;

/// Why an act broke off: a sentence. The act is inconclusive then.
type Failure = String;

/// Runs the act of this stage while the lock is watched.
pub(super) async fn play(stage: &mut Stage, progress: Progress) -> Result<(), Failure> {
    let watching = stage
        .watcher
        .watch()
        .await
        .map_err(|error| error.to_string())?;
    let mut driver = Driver { stage, progress };
    tokio::select! {
        played = driver.play() => played,
        error = watching => Err(error.to_string()),
    }
}

struct Driver<'a> {
    stage: &'a mut Stage,
    progress: Progress,
}

impl Driver<'_> {
    async fn play(&mut self) -> Result<(), Failure> {
        match self.stage.act {
            ActName::Unfenced => self.paused_before_it_sent().await,
            ActName::Textbook | ActName::Claim => self.delayed_in_the_network().await,
        }
    }

    /// A is stopped between the check of its lease and its write, and writes when it runs again.
    async fn paused_before_it_sent(&mut self) -> Result<(), Failure> {
        let progress = self.progress;
        self.stage
            .start_worker("A", Breakpoint::Checked, None)
            .await
            .map_err(words)?;
        self.granted("A").await?;
        let snapshot = self.noted("A", Note::Breakpoint).await?;
        progress.operation(&snapshot, "A", OperationKind::Read);
        progress.check(&snapshot, "A");
        let paused = self.pause_a("before it has sent its write").await?;
        self.lock_passes_to_b().await?;
        self.b_writes().await?;
        self.short_pause().await;
        // It reads the line when it runs again; it has made its check before.
        self.stage.pass_breakpoint("A").map_err(words)?;
        self.resume_a(paused)?;
        let snapshot = self.noted("A", Note::Done).await?;
        progress.operation(&snapshot, "A", OperationKind::Write);
        progress.answer(&snapshot, "A");
        Ok(())
    }

    /// A's write is sent in time, held up in the network, and arrives when B has read.
    async fn delayed_in_the_network(&mut self) -> Result<(), Failure> {
        let progress = self.progress;
        let barrier = Barrier::closed();
        self.stage
            .start_worker("A", Breakpoint::Nowhere, Some(barrier.clone()))
            .await
            .map_err(words)?;
        self.granted("A").await?;
        self.noted("A", Note::Held).await?;
        // Noted before the write was sent, but on another channel.
        let checked = |snapshot: &Snapshot| snapshot.checked("A").map(|_| snapshot.clone());
        let snapshot = self
            .stage
            .ledger
            .until("A’s check of its lease", PATIENCE, checked)
            .await?;
        progress.operation(&snapshot, "A", OperationKind::Claim);
        progress.operation(&snapshot, "A", OperationKind::Read);
        progress.check(&snapshot, "A");
        progress.meanwhile("A’s write is held up in the network");
        let paused = self.pause_a("while its write is on the way").await?;
        self.lock_passes_to_b().await?;
        self.short_pause().await;
        barrier.open();
        let decided = |snapshot: &Snapshot| {
            let write = snapshot.operation("A", OperationKind::Write)?;
            write.message.decided_ms.map(|_| snapshot.clone())
        };
        let snapshot = self
            .stage
            .ledger
            .until("the arrival of A’s write", PATIENCE, decided)
            .await?;
        progress.operation(&snapshot, "A", OperationKind::Write);
        self.short_pause().await;
        self.resume_a(paused)?;
        let snapshot = self.noted("A", Note::Done).await?;
        progress.answer(&snapshot, "A");
        self.b_writes().await
    }

    /// Stops A.
    async fn pause_a(&mut self, when: &str) -> Result<f64, Failure> {
        let paused = self.stage.pause("A").await.map_err(words)?;
        self.progress
            .at(paused, &format!("A is stopped (SIGSTOP) {when}"));
        Ok(paused)
    }

    fn resume_a(&mut self, paused: f64) -> Result<(), Failure> {
        let resumed = self.stage.resume("A", paused).map_err(words)?;
        self.progress.at(
            resumed,
            &format!(
                "A runs again (SIGCONT) after {}",
                duration(resumed - paused)
            ),
        );
        Ok(())
    }

    /// B waits in the lock's queue until A's lease has run out, is granted the lock, reads, and thinks.
    async fn lock_passes_to_b(&mut self) -> Result<(), Failure> {
        self.short_pause().await;
        self.stage
            .start_worker("B", Breakpoint::Read, None)
            .await
            .map_err(words)?;
        let queued = self.stage.queued("B").await?;
        self.progress
            .at(queued, "B asks for the lock, and waits for it");
        self.progress.meanwhile(&format!(
            "A’s lease runs out {} after its grant",
            duration(self.ttl_ms())
        ));
        let expired = |snapshot: &Snapshot| snapshot.expired("A");
        self.stage
            .ledger
            .until(
                "the expiry of A’s lease",
                self.stage.ttl + PATIENCE,
                expired,
            )
            .await?;
        self.granted("B").await?;
        let snapshot = self.noted("B", Note::Breakpoint).await?;
        self.progress
            .operation(&snapshot, "B", OperationKind::Claim);
        self.progress.operation(&snapshot, "B", OperationKind::Read);
        Ok(())
    }

    /// Waits until both the lock service and the client have recorded the grant: together they bound its time.
    async fn granted(&mut self, client: &str) -> Result<(), Failure> {
        let what = format!("the grant to {client}");
        let granted = |snapshot: &Snapshot| {
            snapshot
                .granted(client)
                .filter(|_| snapshot.asked(client))
                .map(|_| snapshot.clone())
        };
        let mut snapshot = self.stage.ledger.until(&what, PATIENCE, granted).await?;
        reconcile(&mut snapshot.events);
        if let Some(expired) = snapshot.expired("A") {
            self.progress
                .at(expired, "the lease of A has expired at the lock service");
        }
        if let Some(Lease { at_ms, token, .. }) = snapshot.granted(client) {
            let ttl = duration(self.ttl_ms());
            self.progress.at(
                *at_ms,
                &format!("{client} is granted the lock: token {token}, for {ttl} unless renewed"),
            );
        }
        Ok(())
    }

    /// Waits for this note of the client, or of the network about it.
    async fn noted(&self, client: &str, note: Note) -> Result<Snapshot, Failure> {
        let what = match note {
            Note::Held => format!("the write of {client}"),
            Note::Breakpoint => format!("the next step of {client}"),
            _ => format!("the end of {client}’s work"),
        };
        let said = |snapshot: &Snapshot| {
            snapshot
                .notes(client)
                .any(|known| *known == note)
                .then(|| snapshot.clone())
        };
        self.stage.ledger.until(&what, PATIENCE, said).await
    }

    /// B writes and releases. The watcher of the lock service sees the release last.
    async fn b_writes(&mut self) -> Result<(), Failure> {
        self.short_pause().await;
        self.stage.pass_breakpoint("B").map_err(words)?;
        let snapshot = self.noted("B", Note::Done).await?;
        self.progress.check(&snapshot, "B");
        self.progress
            .operation(&snapshot, "B", OperationKind::Write);
        self.progress.answer(&snapshot, "B");
        let released = |snapshot: &Snapshot| snapshot.released("B");
        let released = self
            .stage
            .ledger
            .until("B’s release", PATIENCE, released)
            .await?;
        self.progress.at(released, "B has released the lock");
        Ok(())
    }

    /// A short pause, so that the picture shows one thing after the other. Nothing depends on its length.
    async fn short_pause(&self) {
        tokio::time::sleep(self.stage.ttl / 10).await;
    }

    fn ttl_ms(&self) -> f64 {
        self.stage.ttl.as_secs_f64() * 1_000.0
    }
}

fn words(error: std::io::Error) -> Failure {
    error.to_string()
}
