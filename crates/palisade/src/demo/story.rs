//! The two schedules of the story. Every step waits for an event that was recorded; none for a time.
//!
//! ```text
//!  unfenced          A: lock, read, check ─┤stopped├──────────────────────────────┤write
//!                    B:                       waits ─ lock, read, check, write, release
//!  textbook, claim   A: lock, (claim), read, check, write ─┤in the network ─────┤arrives
//!                                                         ─┤stopped ───────────────┤is told
//!                    B:                       waits ─ lock, (claim), read, thinks ─┤check, write, release
//! ```

use std::time::Duration;

use super::ledger::{Note, Told};
use super::network::Barrier;
use super::stage::{PATIENCE, Stage};
use super::timeline::{ActName, OperationKind};
use super::voice::{Voice, seconds};
use super::worker::Breakpoint;

/// Why an act did not go on, in words. It is inconclusive then.
type Departed = String;

/// Plays the act of this stage.
pub(super) async fn play(stage: &mut Stage, voice: Voice) -> Result<(), Departed> {
    let mut scene = Scene { stage, voice };
    match scene.stage.act {
        ActName::Unfenced => scene.paused_before_it_sent().await,
        ActName::Textbook | ActName::Claim => scene.delayed_in_the_network().await,
    }
}

struct Scene<'a> {
    stage: &'a mut Stage,
    voice: Voice,
}

impl Scene<'_> {
    /// A is stopped between the check of its lease and its write, and writes when it runs again.
    async fn paused_before_it_sent(&mut self) -> Result<(), Departed> {
        let voice = self.voice;
        self.stage.enter("A", Breakpoint::Checked, None).await.map_err(words)?;
        self.granted("A", PATIENCE).await?;
        let told = self.noted("A", Note::Breakpoint).await?;
        voice.operation(&told, "A", OperationKind::Read);
        voice.check(&told, "A");
        let paused = self.pause_a("before it has sent its write").await?;
        self.lock_passes_to_b(Breakpoint::Nowhere).await?;
        let told = self.noted("B", Note::Done).await?;
        self.tell_update(&told, "B");
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
        self.stage.enter("A", Breakpoint::Nowhere, Some(barrier.clone())).await.map_err(words)?;
        self.granted("A", PATIENCE).await?;
        let told = self.noted("A", Note::Held).await?;
        voice.operation(&told, "A", OperationKind::Claim);
        voice.operation(&told, "A", OperationKind::Read);
        voice.check(&told, "A");
        voice.meanwhile("A’s write is held up in the network");
        let paused = self.pause_a("and does not see the time pass").await?;
        self.lock_passes_to_b(Breakpoint::Read).await?;
        let told = self.noted("B", Note::Breakpoint).await?;
        voice.operation(&told, "B", OperationKind::Claim);
        voice.operation(&told, "B", OperationKind::Read);
        barrier.open();
        let decided = |told: &Told| {
            let write = told.operation("A", OperationKind::Write)?;
            write.message.decided_ms.map(|_| told.clone())
        };
        let told = self.stage.ledger.until("the arrival of A’s write", PATIENCE, decided).await?;
        voice.operation(&told, "A", OperationKind::Write);
        self.resume_a(paused)?;
        let told = self.noted("A", Note::Done).await?;
        voice.answer(&told, "A");
        self.stage.go_on("B").map_err(words)?;
        let told = self.noted("B", Note::Done).await?;
        voice.check(&told, "B");
        voice.operation(&told, "B", OperationKind::Write);
        voice.answer(&told, "B");
        Ok(())
    }

    /// Stops A.
    async fn pause_a(&mut self, when: &str) -> Result<f64, Departed> {
        let paused = self.stage.pause("A").await.map_err(words)?;
        self.voice.at(paused, &format!("A  is stopped (SIGSTOP) {when}"));
        Ok(paused)
    }

    fn resume_a(&mut self, paused: f64) -> Result<(), Departed> {
        let resumed = self.stage.resume("A", paused).map_err(words)?;
        self.voice.at(resumed, &format!("A  runs again (SIGCONT) after {}", seconds(resumed - paused)));
        Ok(())
    }

    /// B waits in the lock's queue until A's lease has run out, and is granted the lock.
    async fn lock_passes_to_b(&mut self, breakpoint: Breakpoint) -> Result<(), Departed> {
        self.stage.enter("B", breakpoint, None).await.map_err(words)?;
        let queued = self.stage.queued("B").await?;
        self.voice.at(queued, "B  asks for the lock, and waits for it");
        self.voice.meanwhile(&format!("A’s lease runs out {} after its grant", seconds(self.ttl_ms())));
        let limit = self.stage.ttl + PATIENCE;
        let expired = |told: &Told| told.expired("A");
        let expired = self.stage.ledger.until("the expiry of A’s lease", limit, expired).await?;
        self.voice.at(expired, "lock service: the lease of A has expired");
        self.granted("B", PATIENCE).await
    }

    async fn granted(&mut self, client: &str, limit: Duration) -> Result<(), Departed> {
        let what = format!("the grant to {client}");
        let granted = |told: &Told| told.granted(client);
        let (ms, token) = self.stage.ledger.until(&what, limit, granted).await?;
        let ttl = seconds(self.ttl_ms());
        self.voice.at(ms, &format!("{client}  is granted the lock: token {token}, for {ttl} unless renewed"));
        Ok(())
    }

    /// Waits until the client, or the network for it, has said this.
    async fn noted(&self, client: &str, note: Note) -> Result<Told, Departed> {
        let what = match note {
            Note::Held => format!("the write of {client}"),
            Note::Breakpoint => format!("the next step of {client}"),
            _ => format!("the end of {client}’s work"),
        };
        let said = |told: &Told| told.notes(client).any(|known| *known == note).then(|| told.clone());
        self.stage.ledger.until(&what, PATIENCE, said).await
    }

    fn tell_update(&self, told: &Told, client: &str) {
        self.voice.operation(told, client, OperationKind::Read);
        self.voice.check(told, client);
        self.voice.operation(told, client, OperationKind::Write);
        self.voice.answer(told, client);
    }

    fn ttl_ms(&self) -> f64 {
        self.stage.ttl.as_secs_f64() * 1_000.0
    }
}

fn words(error: std::io::Error) -> Departed {
    error.to_string()
}
