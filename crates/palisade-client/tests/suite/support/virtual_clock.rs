//! A clock that moves only when the test moves it.

use std::sync::Mutex;
use std::time::Duration;

use palisade_client::clock::{Clock, Sleep};
use palisade_core::{Span, Timestamp};
use tokio::sync::oneshot;

pub(crate) struct VirtualClock {
    state: Mutex<State>,
}

struct State {
    now: Timestamp,
    sleepers: Vec<(Timestamp, oneshot::Sender<()>)>,
}

impl VirtualClock {
    pub(crate) fn at(since_boot: Duration) -> VirtualClock {
        let now = Timestamp::ZERO.after(Span::from(since_boot));
        VirtualClock {
            state: Mutex::new(State {
                now,
                sleepers: Vec::new(),
            }),
        }
    }

    /// Moves the clock from alarm to alarm, as time does, and lets all tasks run at each one.
    pub(crate) async fn advance(&self, by: Duration) {
        let end = self.now().after(Span::from(by));
        super::settle().await;
        while let Some(next) = self.next_alarm().filter(|next| *next <= end) {
            self.jump_to(next);
            super::settle().await;
        }
        self.jump_to(end);
        super::settle().await;
    }

    /// Moves the clock in one step and runs nothing: the process was stopped, or the machine was suspended.
    pub(crate) fn leap(&self, by: Duration) {
        let end = self.now().after(Span::from(by));
        self.state.lock().unwrap().now = end;
    }

    fn next_alarm(&self) -> Option<Timestamp> {
        let state = self.state.lock().unwrap();
        state
            .sleepers
            .iter()
            .filter(|(_, wake)| !wake.is_closed())
            .map(|(at, _)| *at)
            .min()
    }

    fn jump_to(&self, to: Timestamp) {
        let mut state = self.state.lock().unwrap();
        state.now = state.now.max(to);
        let now = state.now;
        state.sleepers.retain_mut(|(at, wake)| {
            if *at > now {
                return true;
            }
            let (closed, _) = oneshot::channel();
            let _ = std::mem::replace(wake, closed).send(());
            false
        });
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.state.lock().unwrap().now
    }

    fn alarm(&self, at: Timestamp) -> Sleep {
        let mut state = self.state.lock().unwrap();
        if at <= state.now {
            return Box::pin(async {});
        }
        let (wake, woken) = oneshot::channel();
        state.sleepers.push((at, wake));
        Box::pin(async move {
            let _ = woken.await;
        })
    }
}
