//! The feed of changes behind both watches, gRPC's and SSE's.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use palisade_core::Event;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use super::app::App;

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// One change of a lock it watches.
    Change(Event),
    /// It did not get this many changes, of all locks, because it was too slow or away.
    Missed {
        /// How many.
        missed: u64,
        /// The revision of the last of them.
        upto: u64,
    },
}

/// Which changes a watcher wants.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// Only locks whose names start so.
    pub(super) prefix: Box<str>,
    /// The last change it saw before, if it says so.
    pub(super) after: Option<u64>,
}

/// Starts a feed; it ends with its receiver, or when the server goes down.
///
/// A watcher costs one task and a short queue, whatever the traffic: one that does not read lags
/// behind in the pipeline's ring, and is told how much it missed when it reads again.
pub(super) fn watch(app: &Arc<App>, wish: Wish) -> mpsc::Receiver<Notice> {
    // Subscribed before this returns: a change made after the watch was answered is seen.
    let events = app.handle.events();
    let (notices, receiver) = mpsc::channel(QUEUE);
    let app = Arc::clone(app);
    tokio::spawn(async move {
        app.meters.watchers.fetch_add(1, Relaxed);
        let closed = notices.clone();
        tokio::select! {
            () = feed(events, wish, notices) => {}
            () = closed.closed() => {}
            () = app.draining() => {}
        }
        app.meters.watchers.fetch_sub(1, Relaxed);
    });
    receiver
}

async fn feed(
    mut events: broadcast::Receiver<Arc<[Event]>>,
    wish: Wish,
    notices: mpsc::Sender<Notice>,
) {
    let mut cut = Cut {
        prefix: wish.prefix,
        last: wish.after,
    };
    loop {
        let batch = match events.recv().await {
            Ok(batch) => batch,
            // What is still there comes next; its revision says how much is not.
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        for notice in cut.notices(&batch) {
            if notices.send(notice).await.is_err() {
                return;
            }
        }
    }
}

/// Picks out what one watcher wants, and notices gaps by the revisions, which count every change.
struct Cut {
    prefix: Box<str>,
    last: Option<u64>,
}

impl Cut {
    fn notices<'a>(&'a mut self, batch: &'a [Event]) -> impl Iterator<Item = Notice> + 'a {
        batch.iter().flat_map(|event| {
            let gap = self.gap_before(event.revision);
            let wanted = event.lock.starts_with(&*self.prefix);
            [gap, wanted.then(|| Notice::Change(event.clone()))]
                .into_iter()
                .flatten()
        })
    }

    fn gap_before(&mut self, revision: u64) -> Option<Notice> {
        let last = self.last.replace(revision)?;
        let upto = revision.checked_sub(1)?;
        let missed = upto.checked_sub(last).filter(|missed| *missed > 0)?;
        Some(Notice::Missed { missed, upto })
    }
}

/// Notices that wait for one watcher beside the pipeline's ring.
const QUEUE: usize = 256;

#[cfg(test)]
mod tests {
    use palisade_core::{Change, ClientId, LockName, Timestamp, Token, Ttl};

    use super::*;

    fn event(revision: u64, lock: &str) -> Event {
        Event {
            revision,
            at: Timestamp::ZERO,
            lock: LockName::new(lock).unwrap(),
            client: ClientId::new("a").unwrap(),
            token: Token::FIRST,
            change: Change::Granted { ttl: Ttl::MIN },
        }
    }

    fn cut(prefix: &str, after: Option<u64>) -> Cut {
        Cut {
            prefix: prefix.into(),
            last: after,
        }
    }

    #[test]
    fn a_prefix_picks_out_its_locks_and_other_changes_are_not_missed() {
        let batch = [event(1, "a/1"), event(2, "b"), event(3, "a/2")];
        let told: Vec<_> = cut("a/", None).notices(&batch).collect();
        assert_eq!(
            told,
            [
                Notice::Change(event(1, "a/1")),
                Notice::Change(event(3, "a/2"))
            ]
        );
    }

    #[test]
    fn a_gap_is_told_before_what_follows_it_whether_that_is_wanted_or_not() {
        let mut cut = cut("a", None);
        assert_eq!(cut.notices(&[event(4, "a")]).count(), 1);
        let told: Vec<_> = cut.notices(&[event(9, "b")]).collect();
        assert_eq!(told, [Notice::Missed { missed: 4, upto: 8 }]);
    }

    #[test]
    fn a_watcher_that_was_away_is_told_what_it_missed() {
        let told: Vec<_> = cut("", Some(4)).notices(&[event(6, "a")]).collect();
        assert_eq!(
            told,
            [
                Notice::Missed { missed: 1, upto: 5 },
                Notice::Change(event(6, "a"))
            ]
        );
        assert_eq!(cut("", Some(4)).notices(&[event(5, "a")]).count(), 1);
    }

    #[test]
    fn a_revision_from_the_future_hides_nothing() {
        // Seen at an authority that has been restored from a backup since.
        assert_eq!(cut("", Some(1_000)).notices(&[event(5, "a")]).count(), 1);
    }
}
