//! The two schedules. Every step waits for a recorded event, none for a time.
//!
//! ```text
//!  unfenced          A: lock, read, check ─┤stopped├──────────────────────────────┤write
//!                    B:                       waits ─ lock, read, thinks, check, write, release
//!  textbook, claim   A: lock, (claim), read, check, write ─┤in the network ─────┤arrives
//!                                                         ─┤stopped ───────────────┤gets the answer
//!                    B:                       waits ─ lock, (claim), read, thinks ─┤check, write, release
//! ```

use super::authority::reconcile;
use super::environment::{Environment, PATIENCE};
use super::network::Barrier;
use super::progress::ProgressLines;
use super::recorder::{Note, Snapshot};
use super::timeline::{ActName, LeaseChange, OperationKind, duration};
use super::worker::Breakpoint;

/// Why an act stopped early: a sentence. The act is then inconclusive.
type Inconclusive = String;

/// Runs an act while its lock is watched.
pub(super) async fn run(
    environment: &mut Environment,
    progress: ProgressLines,
) -> Result<(), Inconclusive> {
    let watching = environment
        .watcher
        .watch()
        .await
        .map_err(|error| error.to_string())?;
    let mut driver = ActDriver {
        environment,
        progress,
    };
    tokio::select! {
        result = driver.run() => result,
        error = watching => Err(error.to_string()),
    }
}

struct ActDriver<'a> {
    environment: &'a mut Environment,
    progress: ProgressLines,
}

impl ActDriver<'_> {
    async fn run(&mut self) -> Result<(), Inconclusive> {
        match self.environment.act {
            ActName::Unfenced => self.paused_before_it_sent().await,
            ActName::Textbook | ActName::Claim => self.delayed_in_the_network().await,
        }
    }

    /// A is stopped between the check of its lease and its write, and writes after it continues.
    async fn paused_before_it_sent(&mut self) -> Result<(), Inconclusive> {
        let progress = self.progress;
        self.environment
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
        // A reads the line after it continues; it has made its check before.
        self.environment.pass_breakpoint("A").map_err(words)?;
        self.resume_a(paused)?;
        let snapshot = self.noted("A", Note::Done).await?;
        progress.operation(&snapshot, "A", OperationKind::Write);
        progress.answer(&snapshot, "A");
        Ok(())
    }

    /// A's write is sent in time, delayed in the network, and arrives after B has read.
    async fn delayed_in_the_network(&mut self) -> Result<(), Inconclusive> {
        let progress = self.progress;
        let barrier = Barrier::closed();
        self.environment
            .start_worker("A", Breakpoint::Nowhere, Some(barrier.clone()))
            .await
            .map_err(words)?;
        self.granted("A").await?;
        self.noted("A", Note::Held).await?;
        // Recorded before the write was sent, but on another channel.
        let checked = |snapshot: &Snapshot| snapshot.checked("A").map(|_| snapshot.clone());
        let snapshot = self
            .environment
            .recorder
            .until("A’s check of its lease", PATIENCE, checked)
            .await?;
        progress.operation(&snapshot, "A", OperationKind::Claim);
        progress.operation(&snapshot, "A", OperationKind::Read);
        progress.check(&snapshot, "A");
        progress.meanwhile("A’s write is delayed in the network");
        let paused = self.pause_a("while its write is on the way").await?;
        self.lock_passes_to_b().await?;
        self.short_pause().await;
        barrier.open();
        let decided = |snapshot: &Snapshot| {
            let write = snapshot.operation("A", OperationKind::Write)?;
            write.message.decided_ms.map(|_| snapshot.clone())
        };
        let snapshot = self
            .environment
            .recorder
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
    async fn pause_a(&mut self, when: &str) -> Result<f64, Inconclusive> {
        let paused = self.environment.pause("A").await.map_err(words)?;
        self.progress
            .at(paused, &format!("A is stopped (SIGSTOP) {when}"));
        Ok(paused)
    }

    fn resume_a(&mut self, paused: f64) -> Result<(), Inconclusive> {
        let resumed = self.environment.resume("A", paused).map_err(words)?;
        self.progress.at(
            resumed,
            &format!("A continues (SIGCONT) after {}", duration(resumed - paused)),
        );
        Ok(())
    }

    /// B waits in the lock's queue until A's lease has expired, is granted the lock, reads, and thinks.
    async fn lock_passes_to_b(&mut self) -> Result<(), Inconclusive> {
        self.short_pause().await;
        self.environment
            .start_worker("B", Breakpoint::Read, None)
            .await
            .map_err(words)?;
        let queued = self.environment.queued("B").await?;
        self.progress.at(queued, "B requests the lock and waits");
        self.progress.meanwhile(&format!(
            "A’s lease expires {} after its grant",
            duration(self.ttl_ms())
        ));
        let expired = |snapshot: &Snapshot| snapshot.expired("A");
        self.environment
            .recorder
            .until(
                "the expiry of A’s lease",
                self.environment.ttl + PATIENCE,
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
    async fn granted(&mut self, client: &str) -> Result<(), Inconclusive> {
        let what = format!("the grant to {client}");
        let granted = |snapshot: &Snapshot| {
            snapshot
                .granted(client)
                .filter(|_| snapshot.asked(client))
                .map(|_| snapshot.clone())
        };
        let mut snapshot = self
            .environment
            .recorder
            .until(&what, PATIENCE, granted)
            .await?;
        reconcile(&mut snapshot.events);
        if let Some(expired) = snapshot.expired("A") {
            self.progress
                .at(expired, "the lease of A has expired at the lock service");
        }
        if let Some(LeaseChange { at_ms, token, .. }) = snapshot.granted(client) {
            let ttl = duration(self.ttl_ms());
            self.progress.at(
                *at_ms,
                &format!("{client} is granted the lock: token {token}, for {ttl} unless renewed"),
            );
        }
        Ok(())
    }

    /// Waits for this note of the client, or of the network about it.
    async fn noted(&self, client: &str, note: Note) -> Result<Snapshot, Inconclusive> {
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
        self.environment.recorder.until(&what, PATIENCE, said).await
    }

    /// B writes and releases. The watcher of the lock service sees the release last.
    async fn b_writes(&mut self) -> Result<(), Inconclusive> {
        self.short_pause().await;
        self.environment.pass_breakpoint("B").map_err(words)?;
        let snapshot = self.noted("B", Note::Done).await?;
        self.progress.check(&snapshot, "B");
        self.progress
            .operation(&snapshot, "B", OperationKind::Write);
        self.progress.answer(&snapshot, "B");
        let released = |snapshot: &Snapshot| snapshot.released("B");
        let released = self
            .environment
            .recorder
            .until("B’s release", PATIENCE, released)
            .await?;
        self.progress.at(released, "B has released the lock");
        Ok(())
    }

    /// A short pause, so that the picture shows one event after the other. Nothing depends on its length.
    async fn short_pause(&self) {
        tokio::time::sleep(self.environment.ttl / 10).await;
    }

    fn ttl_ms(&self) -> f64 {
        self.environment.ttl.as_secs_f64() * 1_000.0
    }
}

fn words(error: std::io::Error) -> Inconclusive {
    error.to_string()
}
