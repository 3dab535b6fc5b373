//! Whether the server is shutting down.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::task::unconstrained;

use crate::shell::Phase;

/// The shell's phase, for work that must end before the shell cuts it.
#[derive(Clone)]
pub(super) struct Phases(watch::Receiver<Phase>);

impl Phases {
    pub(super) fn new(phase: watch::Receiver<Phase>) -> Phases {
        Phases(phase)
    }

    /// Waits until the server shuts down.
    pub(super) fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        self.until(|phase| *phase != Phase::Serving)
    }

    /// Waits until the shell cuts the connections that are still open.
    pub(super) fn cutting(&self) -> impl Future<Output = ()> + Send + 'static {
        self.until(|phase| *phase == Phase::Cutting)
    }

    /// As [`draining`](Phases::draining), for a task that is polled for each operation.
    pub(super) fn until_draining(&self) -> PhaseEnd {
        PhaseEnd::new(self, self.draining())
    }

    /// As [`cutting`](Phases::cutting), for a task that is polled for each operation.
    pub(super) fn until_cutting(&self) -> PhaseEnd {
        PhaseEnd::new(self, self.cutting())
    }

    fn until(&self, is_there: fn(&Phase) -> bool) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.0.clone();
        async move {
            // An error means that the server is gone.
            let _ = phase.wait_for(is_there).await;
        }
    }
}

/// The end of a phase. A poll without news reads one number, where the future alone would take a lock.
pub(super) struct PhaseEnd {
    phase: watch::Receiver<Phase>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The waker that a change of the phase wakes.
    waker: Option<Waker>,
}

impl PhaseEnd {
    fn new(phases: &Phases, end: impl Future<Output = ()> + Send + 'static) -> PhaseEnd {
        PhaseEnd {
            phase: phases.0.clone(),
            // Pending because the task's budget is spent, it would not have registered the waker.
            end: Box::pin(unconstrained(end)),
            waker: None,
        }
    }

    /// `Ready` when the phase is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_registered = |waker: &Waker| waker.will_wake(cx.waker());
        if self.waker.as_ref().is_some_and(is_registered)
            && matches!(self.phase.has_changed(), Ok(false))
        {
            return Poll::Pending;
        }
        let end = self.end.as_mut().poll(cx);
        self.waker = end.is_pending().then(|| cx.waker().clone());
        end
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::{coop, yield_now};

    use super::*;

    fn phases() -> (watch::Sender<Phase>, Phases) {
        let (phase, seen) = watch::channel(Phase::Serving);
        (phase, Phases::new(seen))
    }

    #[tokio::test]
    async fn a_task_that_sleeps_hears_of_the_end_of_its_phase_only() {
        let (phase, phases) = phases();
        let (mut draining, mut cutting) = (phases.until_draining(), phases.until_cutting());
        let draining = tokio::spawn(poll_fn(move |cx| draining.poll(cx)));
        let cutting = tokio::spawn(poll_fn(move |cx| cutting.poll(cx)));
        yield_now().await;
        assert!(!draining.is_finished());
        phase.send_replace(Phase::Draining);
        draining.await.unwrap();
        yield_now().await;
        assert!(!cutting.is_finished());
        phase.send_replace(Phase::Cutting);
        cutting.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_is_gone_ends_every_phase() {
        let (phase, phases) = phases();
        let mut cutting = phases.until_cutting();
        let cutting = tokio::spawn(poll_fn(move |cx| cutting.poll(cx)));
        yield_now().await;
        drop(phase);
        cutting.await.unwrap();
    }

    /// The waker of the first poll is another one than that of the task which then sleeps.
    #[tokio::test]
    async fn the_task_that_polled_last_is_the_one_that_wakes() {
        let (phase, phases) = phases();
        let mut draining = phases.until_draining();
        assert!(
            draining
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let draining = tokio::spawn(poll_fn(move |cx| draining.poll(cx)));
        yield_now().await;
        phase.send_replace(Phase::Draining);
        draining.await.unwrap();
    }

    #[tokio::test]
    async fn a_task_without_budget_at_its_first_poll_hears_of_the_end_too() {
        let (phase, phases) = phases();
        let mut draining = phases.until_draining();
        let draining = tokio::spawn(poll_fn(move |cx| {
            while let Poll::Ready(progress) = coop::poll_proceed(cx) {
                progress.made_progress();
            }
            draining.poll(cx)
        }));
        yield_now().await;
        phase.send_replace(Phase::Draining);
        draining.await.unwrap();
    }
}
