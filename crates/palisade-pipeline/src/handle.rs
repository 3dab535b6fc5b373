//! The way into the pipeline: a cheap, cloneable handle for the server's interfaces.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palisade_core::{
    AuthorityId, Event, GrantRef, Granted, LockName, Machine, Others, Outcome, Principal,
    RequestId, Wish,
};
use tokio::runtime;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::clock::boottime;
use super::listening::{Listener, Listening};
use super::random;
use super::recent::{RecentEvents, Since};
use super::request::{Answer, Asked, Failure, KeepsPlace, Request};
use super::stats::{Stats, count_event, count_state};

/// The answers that a session's owner reads: finished operations, in the order in which they finished.
pub type Answers = mpsc::UnboundedReceiver<Vec<(u64, Answer)>>;

/// The identity of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Keeps for the authority's whole life; fences are bound to it.
    pub authority: AuthorityId,
    /// Changes with every restore from a backup.
    pub incarnation: String,
}

/// The handle through which requests reach the pipeline. Cloning is cheap; the pipeline stops when
/// [`Handle::stop`] is called, not when the last handle is dropped.
#[derive(Clone)]
pub struct Handle {
    inbox: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
}

/// The state that the handles and the pipeline's thread share.
pub(super) struct Shared {
    pub(super) identity: Identity,
    pub(super) stats: Stats,
    pub(super) events: broadcast::Sender<Arc<[Event]>>,
    pub(super) stopped: watch::Sender<Option<Stopped>>,
    pub(super) recent: RecentEvents,
    /// The latest revision, for watchers that wait for the next one.
    pub(super) news: watch::Sender<u64>,
    /// The holders that hear of their grants.
    pub(super) listening: Arc<Listening>,
    /// Where requests are carried out.
    leading: watch::Sender<Leading>,
    /// Whether this node leads by election.
    elected: AtomicBool,
    next_session: AtomicU64,
    /// The runtime of the pipeline's thread, and the tasks on it that are not the pipeline's own.
    near: runtime::Handle,
    pub(super) neighbours: TaskTracker,
}

/// Where requests are carried out, as far as this node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leading {
    /// Here. A single server always leads.
    Here,
    /// At another node, with this URL.
    At(Arc<str>),
    /// Nowhere at this moment, or at a node with an unknown URL.
    #[default]
    Nowhere,
}

/// Why the pipeline no longer runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was asked to.
    Asked,
    /// The log failed, for this reason; nothing more was acknowledged.
    LogFailed(String),
    /// Another node leads; nothing more was acknowledged here.
    Deposed,
    /// An assertion failed, for this reason and at this entry. Nothing that rests on the batch being built was written or
    /// acknowledged.
    Broken(String),
}

/// A message to the pipeline's thread.
pub(super) enum Message {
    /// One request with one answer. If the caller of a grant is gone, the grant is released, unless the caller can
    /// ask for it again.
    Call {
        asked: Asked,
        reply: oneshot::Sender<Answer>,
        undo: bool,
        /// [`boottime`] when it was sent.
        sent: u64,
    },
    /// Questions of a session, in order.
    Batch {
        session: Arc<Outbox>,
        requests: Vec<(u64, Asked)>,
        /// [`boottime`] when they were sent.
        sent: u64,
    },
    /// The caller of a waiting request went away before its answer.
    Gone {
        by: Principal,
        request: RequestId,
        /// Its place is reserved for a while.
        may_return: bool,
    },
    /// The caller of an acquire went away with its answer unread.
    Unread(Principal, GrantRef),
    /// A session ended.
    Hangup(u64),
    /// The authority is about to stop: no waiting request is granted any more. The sender hears when that is durable.
    Drain(oneshot::Sender<()>),
    /// Stop.
    Stop,
}

/// The locks of an acquire, to give back its grant.
pub(super) struct Locks {
    lock: LockName,
    also: Others,
}

impl Locks {
    pub(super) fn of(acquire: &Wish) -> Locks {
        Locks {
            lock: acquire.lock.clone(),
            also: acquire.also.clone(),
        }
    }

    pub(super) fn grants(self, granted: &Granted) -> impl Iterator<Item = GrantRef> {
        let (key, token) = (granted.key, Some(granted.number()));
        let mut locks = self.also.to_vec();
        locks.insert(0, self.lock);
        let named = move |lock| GrantRef { lock, key, token };
        locks.into_iter().map(named)
    }
}

/// Where a session's answers go.
pub(super) struct Outbox {
    pub(super) session: u64,
    pub(super) answers: mpsc::UnboundedSender<Vec<(u64, Answer)>>,
}

impl Outbox {
    /// Answers these requests: nothing happened.
    pub(super) fn refuse(&self, requests: impl Iterator<Item = (u64, Asked)>, why: &Failure) {
        let refused = requests.map(|(id, _)| (id, Answer::Failed(why.clone())));
        let _ = self.answers.send(refused.collect());
    }
}

impl Handle {
    pub(super) fn new(inbox: mpsc::UnboundedSender<Message>, shared: Arc<Shared>) -> Handle {
        Handle { inbox, shared }
    }

    /// Asks one question. The answer comes when everything it rests on is durable.
    ///
    /// Dropping the future takes a waiting request out of its queue, and gives back a lock that was granted in that moment,
    /// unless the caller named a request id to ask again with. If the interface says so ([`KeepsPlace`]), its place is
    /// reserved for a while: [`Command::Orphan`](palisade_core::Command::Orphan).
    ///
    /// A node that does not lead answers at once: [`Failure::NotLeader`].
    pub async fn call(&self, asked: impl Into<Asked>) -> Answer {
        let mut asked = asked.into();
        if !self.shared.takes_requests() {
            return Answer::Failed(self.shared.not_leader());
        }
        let by = asked.by;
        let undo = match &asked.request {
            Request::Acquire(acquire) if acquire.request.is_none() => Some(Locks::of(acquire)),
            _ => None,
        };
        let keeps_place = asked.keeps_place.clone();
        let waiting = name_waiting(&mut asked.request);
        let (reply, answer) = oneshot::channel();
        if self
            .inbox
            .send(Message::Call {
                asked,
                reply,
                undo: undo.is_some(),
                sent: boottime(),
            })
            .is_err()
        {
            return Answer::Failed(Failure::stopping());
        }
        let mut asking = Asking {
            inbox: &self.inbox,
            by,
            answer,
            waiting,
            keeps_place,
            undo,
        };
        let answer = (&mut asking.answer)
            .await
            .unwrap_or_else(|_| Answer::Failed(Failure::lost()));
        (asking.waiting, asking.undo) = (None, None);
        answer
    }

    /// Opens a session: many operations in flight, answers in the order they finish.
    #[must_use]
    pub fn session(&self) -> (Session, Answers) {
        let (answers, receiver) = mpsc::unbounded_channel();
        let session = self.shared.next_session.fetch_add(1, Ordering::Relaxed);
        let outbox = Arc::new(Outbox { session, answers });
        (
            Session {
                inbox: self.inbox.clone(),
                shared: Arc::clone(&self.shared),
                outbox,
            },
            receiver,
        )
    }

    /// Runs a task on the pipeline's own thread, between two rounds. Its requests and their answers wake no other
    /// thread. It must never block. Aborted
    /// at once if the pipeline's thread is gone.
    pub fn near<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.shared.neighbours.spawn_on(task, &self.shared.near)
    }

    /// Every change from now on, as it becomes durable, in order. A reader that is too slow learns how many it missed.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<[Event]>> {
        self.shared.events.subscribe()
    }

    /// A new listener, which names its grants and then hears of them; see [`Listener`].
    #[must_use]
    pub fn listener(&self) -> Listener {
        Listener::new(&self.shared.listening)
    }

    /// The revision of the latest durable event. It never goes back, also over a restart or a restore.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.shared.recent.latest()
    }

    /// Changes with [`Handle::revision`].
    #[must_use]
    pub fn news(&self) -> watch::Receiver<u64> {
        self.shared.news.subscribe()
    }

    /// The events after a revision that are still known, as many as are handed out at once.
    #[must_use]
    pub fn since(&self, revision: u64) -> Since {
        self.shared.recent.since(revision)
    }

    /// The identity of an authority.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Becomes `Some` when the pipeline no longer runs.
    #[must_use]
    pub fn stopped(&self) -> watch::Receiver<Option<Stopped>> {
        self.shared.stopped.subscribe()
    }

    /// Where requests are carried out, as far as this node knows.
    #[must_use]
    pub fn leader(&self) -> Leading {
        self.shared.leading.borrow().clone()
    }

    /// Changes with [`Handle::leader`].
    #[must_use]
    pub fn leading(&self) -> watch::Receiver<Leading> {
        self.shared.leading.subscribe()
    }

    /// Names the leader, so that requests are accepted, forwarded or refused. Ignored while this node leads by election; a
    /// single server leads until this says otherwise.
    pub fn set_leader(&self, leader: Leading) {
        self.shared.leading.send_if_modified(|leading| {
            let changes = !self.shared.elected.load(Ordering::Relaxed) && *leading != leader;
            if changes {
                *leading = leader;
            }
            changes
        });
    }

    /// Shows a follower's applied entries to watchers and in the counters, as a leader shows its committed ones. Events
    /// before the machine's revision that were never shown are gone, and watchers learn of the gap.
    pub fn show(&self, events: Vec<Event>, machine: &Machine) {
        self.shared.show(events.into(), machine.revision());
        count_state(&self.shared.stats, machine);
    }

    /// The authority is about to stop. When this returns, no waiting request is granted any more: each is an orphan, and
    /// its caller hears that the authority stops, or learns it from the end of its session. Later requests are refused for
    /// the same reason at once, if they would have to wait. Nothing else changes until [`Handle::stop`].
    pub async fn drain(&self) {
        let (drained, is_drained) = oneshot::channel();
        // A pipeline that is gone grants nothing.
        if self.inbox.send(Message::Drain(drained)).is_ok() {
            let _ = is_drained.await;
        }
    }

    /// Asks the pipeline to stop. It still answers the requests that it accepted before.
    pub fn stop(&self) {
        let _ = self.inbox.send(Message::Stop);
    }
}

impl Shared {
    /// This node leads by election.
    pub(super) fn begin_leading(&self) {
        self.elected.store(true, Ordering::Relaxed);
        self.leading.send_replace(Leading::Here);
    }

    /// It does so no longer.
    pub(super) fn end_leading(&self) {
        self.elected.store(false, Ordering::Relaxed);
        self.leading.send_replace(Leading::Nowhere);
        self.listening.end();
    }

    /// The refusal of a request that another node has to carry out.
    pub(super) fn not_leader(&self) -> Failure {
        let leader = match &*self.leading.borrow() {
            Leading::At(url) => Some(Arc::clone(url)),
            Leading::Here | Leading::Nowhere => None,
        };
        Failure::NotLeader { leader }
    }

    /// Whether requests are carried out here.
    fn takes_requests(&self) -> bool {
        *self.leading.borrow() == Leading::Here
    }

    pub(super) fn new(
        identity: Identity,
        near: runtime::Handle,
        revision: u64,
        leading: Leading,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            identity,
            stats: Stats::default(),
            events: broadcast::channel(EVENT_BACKLOG).0,
            stopped: watch::channel(None).0,
            recent: RecentEvents::new(revision),
            news: watch::channel(revision).0,
            listening: Arc::default(),
            leading: watch::channel(leading).0,
            elected: AtomicBool::new(false),
            next_session: AtomicU64::new(1),
            near,
            neighbours: TaskTracker::new(),
        })
    }

    /// Shows durable events to the watchers, and up to which revision there are any: those before it that were never
    /// shown are gone.
    pub(super) fn show(&self, batch: Arc<[Event]>, revision: u64) {
        for event in &*batch {
            count_event(&self.stats, event);
        }
        if self.listening.is_on() {
            self.listening.events(&batch);
        }
        if self.events.receiver_count() > 0 && !batch.is_empty() {
            let _ = self.events.send(Arc::clone(&batch));
        }
        self.recent.push(batch);
        self.recent.reach(revision);
        // Only after the push, so that a watcher that begins to wait now finds the events there.
        if self.news.receiver_count() > 0 {
            self.news
                .send_if_modified(|news| mem::replace(news, revision) != revision);
        }
    }
}

/// A session's sending half. Dropping it takes its waiting requests out of their queues. Its grants stay until they are
/// released or expire.
pub struct Session {
    inbox: mpsc::UnboundedSender<Message>,
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
}

impl Session {
    /// Submits operations, in order; each id comes back with its answer. If the pipeline no longer runs, or another node
    /// leads, every operation gets that answer.
    pub fn submit<R: Into<Asked>>(&self, requests: Vec<(u64, R)>) {
        let requests = requests.into_iter();
        let mut requests: Vec<(u64, Asked)> =
            requests.map(|(id, asked)| (id, asked.into())).collect();
        if !self.shared.takes_requests() {
            let why = self.shared.not_leader();
            return self.outbox.refuse(requests.into_iter(), &why);
        }
        for (_, asked) in &mut requests {
            name_waiting(&mut asked.request);
        }
        let message = Message::Batch {
            session: Arc::clone(&self.outbox),
            requests,
            sent: boottime(),
        };
        if let Err(refused) = self.inbox.send(message)
            && let Message::Batch {
                session, requests, ..
            } = refused.0
        {
            session.refuse(requests.into_iter(), &Failure::stopping());
        }
    }

    /// Takes the requests that wait out of their queues, as the session's end does. More may be submitted.
    pub fn hang_up(&self) {
        let _ = self.inbox.send(Message::Hangup(self.outbox.session));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// A caller on its way to an answer. If it is dropped before that, it leaves the queue, perhaps for a while only, and gives
/// back a grant that it got in that moment.
struct Asking<'a> {
    inbox: &'a mpsc::UnboundedSender<Message>,
    by: Principal,
    answer: oneshot::Receiver<Answer>,
    waiting: Option<RequestId>,
    keeps_place: KeepsPlace,
    undo: Option<Locks>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // From here on an answer cannot be delivered any more, and the pipeline sees that.
        self.answer.close();
        if let Some(locks) = self.undo.take()
            && let Ok(Answer::Outcome(Outcome::Granted(granted))) = self.answer.try_recv()
        {
            for grant in locks.grants(&granted) {
                let _ = self.inbox.send(Message::Unread(self.by, grant));
            }
        }
        if let Some(request) = self.waiting.take() {
            let _ = self.inbox.send(Message::Gone {
                by: self.by,
                request,
                may_return: self.keeps_place.is_kept(),
            });
        }
    }
}

/// A request that may wait needs an id by which it can leave the queue; drawn here if it has none.
fn name_waiting(request: &mut Request) -> Option<RequestId> {
    match request {
        Request::Acquire(Wish {
            wait: Some(_),
            request,
            ..
        }) => Some(*request.get_or_insert_with(draw)),
        _ => None,
    }
}

fn draw() -> RequestId {
    RequestId::from_bytes(random::bytes())
}

/// Batches of events a slow watcher may lag behind.
const EVENT_BACKLOG: usize = 4_096;
