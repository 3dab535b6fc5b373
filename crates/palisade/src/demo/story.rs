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
use super::ledger::{Note, Told};
use super::network::Barrier;
use super::stage::{PATIENCE, Stage};
use super::timeline::{ActName, OperationKind};
use super::voice::{Voice, seconds};
use super::worker::Breakpoint;

/// Why an act did not go on, in words. It is inconclusive then.
type Departed = String;

/// Plays the act of this stage while the lock is watched.
pub(super) async fn play(stage: &mut Stage, voice: Voice) -> Result<(), Departed> {
    let watching = stage
        .watcher
        .watch()
        .await
        .map_err(|error| error.to_string())?;
    let mut scene = Scene { stage, voice };
    tokio::select! {
        played = scene.play() => played,
        error = watching => Err(error.to_string()),
    }
}

struct Scene<'a> {
    stage: &'a mut Stage,
    voice: Voice,
}

impl Scene<'_> {
    async fn play(&mut self) -> Result<(), Departed> {
        match self.stage.act {
            ActName::Unfenced => self.paused_before_it_sent().await,
            ActName::Textbook | ActName::Claim => self.delayed_in_the_network().await,
        }
    }

    /// A is stopped between the check of its lease and its write, and writes when it runs again.
    async fn paused_before_it_sent(&mut self) -> Result<(), Departed> {
        let voice = self.voice;
        self.stage
            .enter("A", Breakpoint::Checked, None)
            .await
            .map_err(words)?;
        self.granted("A").await?;
        let told = self.noted("A", Note::Breakpoint).await?;
        voice.operation(&told, "A", OperationKind::Read);
        voice.check(&told, "A");
        let paused = self.pause_a("before it has sent its write").await?;
        self.lock_passes_to_b().await?;
        self.b_writes().await?;
        self.beat().await;
        // It finds the word to go on when it runs again; the check is behind it.
        self.stage.go_on("A").map_err(words)?;
        self.resume_a(paused)?;
        let told = self.noted("A", Note::Done).await?;
        voice.operation(&told, "A", OperationKind::Write);
        voice.answer(&told, "A");
        Ok(())
    }

    /// A's write is sent in time, held up in the network, and arrives when B has read.
    async fn delayed_in_the_network(&mut self) -> Result<(), Departed> {
        let voice = self.voice;
        let barrier = Barrier::closed();
        self.stage
            .enter("A", Breakpoint::Nowhere, Some(barrier.clone()))
            .await
            .map_err(words)?;
        self.granted("A").await?;
        self.noted("A", Note::Held).await?;
        // Said before the write was sent, but by another way.
        let checked = |told: &Told| told.checked("A").map(|_| told.clone());
        let told = self
            .stage
            .ledger
            .until("A’s check of its lease", PATIENCE, checked)
            .await?;
        voice.operation(&told, "A", OperationKind::Claim);
        voice.operation(&told, "A", OperationKind::Read);
        voice.check(&told, "A");
        voice.meanwhile("A’s write is held up in the network");
        let paused = self.pause_a("while its write is on the way").await?;
        self.lock_passes_to_b().await?;
        self.beat().await;
        barrier.open();
        let decided = |told: &Told| {
            let write = told.operation("A", OperationKind::Write)?;
            write.message.decided_ms.map(|_| told.clone())
        };
        let told = self
            .stage
            .ledger
            .until("the arrival of A’s write", PATIENCE, decided)
            .await?;
        voice.arrival(&told, "A");
        self.beat().await;
        self.resume_a(paused)?;
        let told = self.noted("A", Note::Done).await?;
        voice.answer(&told, "A");
        self.b_writes().await
    }

    /// Stops A.
    async fn pause_a(&mut self, when: &str) -> Result<f64, Departed> {
        let paused = self.stage.pause("A").await.map_err(words)?;
        self.voice
            .at(paused, &format!("A  is stopped (SIGSTOP) {when}"));
        Ok(paused)
    }

    fn resume_a(&mut self, paused: f64) -> Result<(), Departed> {
        let resumed = self.stage.resume("A", paused).map_err(words)?;
        self.voice.at(
            resumed,
            &format!(
                "A  runs again (SIGCONT) after {}",
                seconds(resumed - paused)
            ),
        );
        Ok(())
    }

    /// B waits in the lock's queue until A's lease has run out, is granted the lock, reads, and thinks.
    async fn lock_passes_to_b(&mut self) -> Result<(), Departed> {
        self.beat().await;
        self.stage
            .enter("B", Breakpoint::Read, None)
            .await
            .map_err(words)?;
        let queued = self.stage.queued("B").await?;
        self.voice
            .at(queued, "B  asks for the lock, and waits for it");
        self.voice.meanwhile(&format!(
            "A’s lease runs out {} after its grant",
            seconds(self.ttl_ms())
        ));
        let expired = |told: &Told| told.expired("A");
        self.stage
            .ledger
            .until(
                "the expiry of A’s lease",
                self.stage.ttl + PATIENCE,
                expired,
            )
            .await?;
        self.granted("B").await?;
        let told = self.noted("B", Note::Breakpoint).await?;
        self.voice.operation(&told, "B", OperationKind::Claim);
        self.voice.operation(&told, "B", OperationKind::Read);
        Ok(())
    }

    /// The lock service and the client have both told of the grant: together they say when it was.
    async fn granted(&mut self, client: &str) -> Result<(), Departed> {
        let what = format!("the grant to {client}");
        let granted = |told: &Told| {
            told.granted(client)
                .filter(|_| told.asked(client))
                .map(|_| told.clone())
        };
        let mut told = self.stage.ledger.until(&what, PATIENCE, granted).await?;
        reconcile(&mut told.events);
        if let Some(expired) = told.expired("A") {
            self.voice
                .at(expired, "the lease of A has expired at the lock service");
        }
        if let Some((ms, token)) = told.granted(client) {
            let ttl = seconds(self.ttl_ms());
            self.voice.at(
                ms,
                &format!("{client}  is granted the lock: token {token}, for {ttl} unless renewed"),
            );
        }
        Ok(())
    }

    /// Waits until the client, or the network for it, has said this.
    async fn noted(&self, client: &str, note: Note) -> Result<Told, Departed> {
        let what = match note {
            Note::Held => format!("the write of {client}"),
            Note::Breakpoint => format!("the next step of {client}"),
            _ => format!("the end of {client}’s work"),
        };
        let said = |told: &Told| {
            told.notes(client)
                .any(|known| *known == note)
                .then(|| told.clone())
        };
        self.stage.ledger.until(&what, PATIENCE, said).await
    }

    /// B has thought: it writes and releases. The watcher of the lock service hears of that last.
    async fn b_writes(&mut self) -> Result<(), Departed> {
        self.beat().await;
        self.stage.go_on("B").map_err(words)?;
        let told = self.noted("B", Note::Done).await?;
        self.voice.check(&told, "B");
        self.voice.operation(&told, "B", OperationKind::Write);
        self.voice.answer(&told, "B");
        let released = |told: &Told| told.released("B");
        let released = self
            .stage
            .ledger
            .until("B’s release", PATIENCE, released)
            .await?;
        self.voice.at(released, "B  has released the lock");
        Ok(())
    }

    /// A moment for the eye, so that one thing is seen after the other. Nothing depends on how long it is.
    async fn beat(&self) {
        tokio::time::sleep(self.stage.ttl / 10).await;
    }

    fn ttl_ms(&self) -> f64 {
        self.stage.ttl.as_secs_f64() * 1_000.0
    }
}

fn words(error: std::io::Error) -> Departed {
    error.to_string()
}
