//! Clients: they acquire, renew, read and release, and repeat a request at another node when they are not answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use palisade_core::holder::Caution;
use palisade_core::{
    ClientId, GrantRef, Granted, LockMode, LockName, Others, Outcome, RequestId, Span, Timestamp,
    Token, Ttl, Under, Wish,
};
use palisade_pipeline::{Answer, Request};
use tokio::sync::oneshot;

use super::network::{Ask, CLIENT, Place, Said};
use super::node::unavailable;
use super::runtime::{MS, hold, now, sleep, within};
use super::world::World;
use crate::sim::rng::Rng;

/// How long a client waits for one answer, and how long it repeats a request.
const ANSWER: u64 = 400 * MS;
const PATIENCE: u64 = 8_000 * MS;

pub(super) struct Client {
    pub(super) world: Arc<World>,
    pub(super) number: u8,
    pub(super) rng: Rng,
    /// The node it asks next.
    pub(super) node: Place,
}

/// A lock that it has.
struct Held {
    lock: u8,
    grant: Granted,
}

impl Client {
    pub(super) async fn run(mut self) {
        while !self.world.is_over() {
            let lock = self.rng.below(u64::from(self.world.locks)) as u8;
            let reads = self.number >= self.world.clients - self.world.readers;
            match self.rng.below(4) {
                _ if reads => self.read(lock).await,
                0 => self.read(lock).await,
                _ => {
                    if let Some(held) = self.acquire(lock).await {
                        self.hold(held).await;
                    }
                }
            }
            // A former leader's answers are soon outdated, so readers ask often.
            let longest = if reads { 10 } else { 50 };
            let rest = self.rng.between(MS, longest * MS);
            sleep(rest).await;
        }
        self.world.clients_left.fetch_add(1, Ordering::Relaxed);
    }

    async fn acquire(&mut self, lock: u8) -> Option<Held> {
        let request = RequestId::from_bytes(self.rng.bytes());
        let ttl = if self.world.long_leases {
            6_000
        } else {
            [300, 800, 2_500][self.rng.below(3) as usize]
        };
        let wait = [None, Some(200), Some(1_500)][self.rng.below(3) as usize];
        let wish = self.wish(lock, request, ttl, wait)?;
        let floor = hold(&self.world.check).highest();
        let until = now() + PATIENCE;
        while now() < until {
            let sent = now();
            match self
                .ask(Request::Acquire(wish.clone()), wait.unwrap_or(0))
                .await?
            {
                Answer::Outcome(Outcome::Granted(grant)) => {
                    self.took(lock, (request, floor), &grant, sent);
                    return Some(Held { lock, grant });
                }
                Answer::Failed(_) => self.pause().await,
                // Others may hold the lock for long.
                Answer::Outcome(_) => {
                    self.world.served(self.number);
                    return None;
                }
                _ => return None,
            }
        }
        None
    }

    pub(super) fn wish(
        &self,
        lock: u8,
        request: RequestId,
        ttl: u64,
        wait: Option<u64>,
    ) -> Option<Wish> {
        Some(Wish {
            lock: lock_name(lock)?,
            also: Others::NONE,
            client: ClientId::new(&format!("client-{}", self.number)).ok()?,
            mode: LockMode::Exclusive,
            under: Under::new(Ttl::from_millis(ttl).ok()?),
            wait: wait.map(Span::from_millis),
            request: Some(request),
            metadata: None,
            options: palisade_core::GrantOptions::NONE,
        })
    }

    /// It believes from now on that it has the lock.
    fn took(
        &self,
        lock: u8,
        (request, floor): (RequestId, Option<Token>),
        grant: &Granted,
        sent: u64,
    ) {
        let end = self.end(sent, grant.valid_for);
        let mut check = hold(&self.world.check);
        check.granted((self.number, lock), request, grant.token, floor, end);
        drop(check);
        self.world.say(|| {
            format!(
                "client {} got token {} for lock {lock} from node {}",
                self.number, grant.token, self.node
            )
        });
        self.world.served(self.number);
    }

    /// Gives one request for a lock to its node directly, without the network, and takes the grant.
    pub(super) fn ask_here(mut self, lock: u8) -> impl Future<Output = ()> {
        let request = RequestId::from_bytes(self.rng.bytes());
        let (sent, floor) = (now(), hold(&self.world.check).highest());
        let (reply, answer) = oneshot::channel();
        let wish = self.wish(lock, request, 2_500, None);
        let inbox = self.world.network.host(self.node).inbox.clone();
        if let (Some(wish), Some(inbox)) = (wish, inbox) {
            let request = Request::Acquire(wish);
            let _ = inbox.send(Ask { request, reply });
        }
        async move {
            if let Ok(Said::Answer(Answer::Outcome(Outcome::Granted(grant)))) = answer.await {
                self.took(lock, (request, floor), &grant, sent);
            }
        }
    }

    async fn hold(&mut self, Held { lock, grant }: Held) {
        let named = || GrantRef {
            lock: lock_name(lock).unwrap_or_else(|| unreachable!()),
            key: grant.key,
            token: Some(grant.token),
        };
        for _ in 0..self.rng.below(4) {
            let work = self
                .rng
                .between(MS, grant.ttl.span().as_nanos().min(2_500 * MS) / 3);
            sleep(work).await;
            let sent = now();
            let renew = Request::Renew {
                grant: named(),
                ttl: None,
            };
            match self.ask(renew, 0).await {
                Some(Answer::Outcome(Outcome::Renewed(renewed))) => {
                    let end = self.end(sent, renewed.valid_for);
                    hold(&self.world.check).renewed(lock, grant.token, end);
                }
                Some(Answer::Failed(_)) => {}
                Some(Answer::Outcome(other)) => {
                    let what = format!("{other:?}");
                    hold(&self.world.check).refused(lock, grant.token, &what);
                    break;
                }
                _ => {}
            }
        }
        hold(&self.world.check).gave_up(lock, grant.token);
        // Sometimes its process ends before it can release.
        if self.world.long_leases || self.rng.chance(800) {
            for _ in 0..3 {
                match self.ask(Request::Release(named()), 0).await {
                    Some(Answer::Failed(_)) | None => self.pause().await,
                    Some(_) => return,
                }
            }
        }
    }

    async fn read(&mut self, lock: u8) {
        let Some(name) = lock_name(lock) else { return };
        // Also at a node that only believes that it leads.
        self.node = self.rng.below(u64::from(self.world.network.nodes())) as Place;
        let sent = now();
        if let Some(Answer::Lock(view)) = self.ask(Request::Show(name), 0).await {
            let shown: Option<Token> = view.holder.map(|holder| holder.token);
            hold(&self.world.check).read(lock, sent, shown);
        }
    }

    /// Asks until a node answers that it leads, for a while. A lost answer is a failure whose outcome is not known.
    pub(super) async fn ask(&mut self, request: Request, wait_ms: u64) -> Option<Answer> {
        for _ in 0..2 * self.world.network.nodes() {
            let patience = ANSWER + wait_ms * MS;
            let said = within(patience, self.exchange(request.clone())).await;
            match said.unwrap_or_else(unavailable) {
                Said::Answer(answer) => {
                    if matches!(answer, Answer::Failed(_)) {
                        self.turn();
                    }
                    return Some(answer);
                }
                Said::NotLeader(Some(leader)) if leader != self.node => self.node = leader,
                Said::NotLeader(_) => {
                    self.turn();
                    self.pause().await;
                }
            }
        }
        match unavailable() {
            Said::Answer(answer) => Some(answer),
            Said::NotLeader(_) => None,
        }
    }

    async fn exchange(&self, request: Request) -> Said {
        let (me, node) = (CLIENT + self.number, self.node);
        let network = &self.world.network;
        if !network.travel(me, node).await {
            return std::future::pending().await;
        }
        let (reply, answer) = oneshot::channel();
        let inbox = network.host(node).inbox.clone();
        let sent = inbox.is_some_and(|inbox| inbox.send(Ask { request, reply }).is_ok());
        if !sent {
            return unavailable();
        }
        let Ok(said) = answer.await else {
            return std::future::pending().await;
        };
        if !network.travel(node, me).await {
            return std::future::pending().await;
        }
        said
    }

    fn turn(&mut self) {
        self.node = (self.node + 1) % self.world.network.nodes();
    }

    async fn pause(&mut self) {
        let pause = self.rng.between(10 * MS, 100 * MS);
        sleep(pause).await;
    }

    /// Until when it may believe, by the holder's rule. Its clock is exact; the nodes' are not.
    fn end(&self, sent: u64, valid_for: Span) -> u64 {
        let sent = Timestamp::ZERO.after(Span::from_nanos(sent));
        Caution::DEFAULT.deadline(sent, valid_for).as_nanos()
    }
}

pub(super) fn lock_name(lock: u8) -> Option<LockName> {
    LockName::new(&format!("lock-{lock}")).ok()
}
