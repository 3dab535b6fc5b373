//! An authority inside this process: the server's own pipeline and machine, without sockets, and without a disk unless
//! it gets a log.
//!
//! Use it for tests, and for tasks of one process that must exclude each other. It runs the server's code, so tests
//! against it behave as against a server. An authority in memory forgets the tokens that it issued when its process
//! ends: do not fence data with it that outlives the process.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use futures_util::stream::{self, FuturesUnordered};
use palisade_core::{
    AuthorityId, Event, GrantRef, Limits, LockName, LockView, Machine, RequestId, Span, Token, Ttl,
};
use palisade_pipeline::{
    self as pipeline, Answer, Forgetful, Handle, Heard, Identity, Listener, News, PipelineStart,
    Request,
};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::answers;
use crate::fault::{Fault, Reason};
use crate::service::{
    AcquireRequest, Acquired, Cursor, Events, GrantNews, Listened, Listening, LockService, Notice,
    Operation, Page, Proclamation, Released, Renewal, Reopened, Resized, Revocation, Status,
    WatchEvent, fresh_request_id,
};

/// An authority in this process.
pub struct InProcess {
    handle: Handle,
    /// Whether this value started the pipeline and stops it when dropped.
    owned: bool,
}

impl InProcess {
    /// Starts an authority in memory.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if its thread could not be started.
    pub fn start() -> Result<InProcess, Fault> {
        InProcess::in_memory(false)
    }

    /// Starts an authority with a clock that only [`InProcess::advance`] moves, to test expiry without waiting. Holders
    /// still use their own clocks.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if its thread could not be started.
    pub fn with_manual_clock() -> Result<InProcess, Fault> {
        InProcess::in_memory(true)
    }

    /// Uses an authority whose pipeline runs already, with any log. Dropping this value does not stop it.
    #[must_use]
    pub fn on(handle: Handle) -> InProcess {
        InProcess {
            handle,
            owned: false,
        }
    }

    fn in_memory(manual_clock: bool) -> Result<InProcess, Fault> {
        let start = PipelineStart {
            identity: identity()?,
            machine: Machine::new(pipeline::seed()),
            log: Box::new(Forgetful),
            manual_clock,
            limits: Limits::DEFAULT,
            returning: None,
        };
        let started =
            pipeline::start(start).map_err(|error| Fault::unavailable(Reason::caused_by(error)))?;
        Ok(InProcess {
            handle: started.handle,
            owned: true,
        })
    }

    /// Advances the authority's manual clock. Everything due by then happens before this returns.
    ///
    /// # Errors
    /// [`Fault::Unsupported`] if its clock moves by itself.
    pub async fn advance(&self, by: Span) -> Result<(), Fault> {
        match self.handle.call(Request::Advance(by)).await {
            Answer::Clock(_) => Ok(()),
            other => Err(answers::refused(other)),
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        if self.owned {
            self.handle.stop();
        }
    }
}

impl LockService for InProcess {
    fn authority(&self) -> &AuthorityId {
        &self.handle.identity().authority
    }

    /// The pipeline runs on its own thread, not on a runtime.
    fn outlives_runtimes(&self) -> bool {
        true
    }

    fn listen(&self) -> Option<Box<dyn Listening>> {
        Some(Box::new(LocalListening {
            listener: self.handle.listener(),
            handle: self.handle.clone(),
            asked: FuturesUnordered::new(),
        }))
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        let asked = Request::Acquire(request.into());
        Box::pin(async move { answers::acquired(self.handle.call(asked).await) })
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        let asked = Request::Renew { grant, ttl };
        Box::pin(async move { answers::renewed(self.handle.call(asked).await) })
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        let asked = Request::Release(grant);
        Box::pin(async move { answers::released(self.handle.call(asked).await) })
    }

    fn proclaim(&self, grant: GrantRef, value: &str) -> Operation<'_, Proclamation> {
        let value = value.into();
        let asked = Request::Proclaim { grant, value };
        Box::pin(async move { answers::proclaimed(self.handle.call(asked).await) })
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        let asked = Request::Abandon(request);
        Box::pin(async move { answers::outcome(self.handle.call(asked).await).map(drop) })
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        Box::pin(async move {
            match self.handle.call(Request::Show(lock)).await {
                Answer::Lock(view) => Ok(*view),
                other => Err(answers::refused(other)),
            }
        })
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        let prefix = Box::from(prefix);
        Box::pin(async move {
            let cursor = after.map_or(Ok(0), |cursor| cursor.0.parse());
            let cursor = cursor
                .map_err(|_| Fault::invalid("the cursor is from a listing of another authority"))?;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            match self
                .handle
                .call(Request::List {
                    prefix,
                    cursor,
                    limit,
                })
                .await
            {
                Answer::Locks { locks, next } => Ok(Page {
                    locks,
                    next: next.map(|next| Cursor(next.to_string().into())),
                }),
                other => Err(answers::refused(other)),
            }
        })
    }

    fn watch(&self, prefix: &str, after: Option<u64>) -> Operation<'_, Events> {
        let events = self.handle.events();
        let stopped = self.handle.stopped().borrow().is_some();
        let changes = Changes {
            events,
            prefix: prefix.into(),
            after,
            batch: None,
        };
        Box::pin(async move {
            if stopped {
                return Err(Fault::unavailable("the authority has stopped"));
            }
            Ok(Box::pin(stream::unfold(changes, Changes::next)) as Events)
        })
    }

    fn revoke(&self, lock: LockName, token: Token, reason: &str) -> Operation<'_, Revocation> {
        let request = Request::Revoke {
            lock,
            token,
            reason: reason.into(),
        };
        Box::pin(async move { answers::revoked(self.handle.call(request).await) })
    }

    fn reopen(&self, lock: LockName, reason: &str) -> Operation<'_, Reopened> {
        let reason = reason.into();
        let request = Request::Open { lock, reason };
        Box::pin(async move { answers::reopened(self.handle.call(request).await) })
    }

    fn resize(&self, lock: LockName, permits: u32) -> Operation<'_, Resized> {
        let request = Request::Resize { lock, permits };
        Box::pin(async move { answers::resized(self.handle.call(request).await) })
    }

    fn status(&self) -> Operation<'_, Status> {
        Box::pin(async move {
            let status = match self.handle.call(Request::Status).await {
                Answer::Status(status) => status,
                other => return Err(answers::refused(other)),
            };
            let identity = self.handle.identity();
            Ok(Status {
                authority: identity.authority.clone(),
                incarnation: identity.incarnation.clone(),
                next_token: status.next_token,
                locks: status.locks as u64,
                leases: status.leases as u64,
                waiters: status.waiters as u64,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                manual_clock: status.manual_clock,
            })
        })
    }
}

/// The names of grants that the pipeline was asked about, and its answer.
type ListenAnswer = Pin<Box<dyn Future<Output = (Vec<(LockName, Token)>, Answer)> + Send>>;

struct LocalListening {
    handle: Handle,
    listener: Listener,
    asked: FuturesUnordered<ListenAnswer>,
}

impl Listening for LocalListening {
    fn name(&mut self, grants: Vec<Listened>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let grants = grants.into_iter().map(|listened| pipeline::Listened {
            grant: listened.grant,
            number: listened.number,
            waiters: listened.waiters,
        });
        let grants: Box<[pipeline::Listened]> = grants.collect();
        let mut names = Vec::new();
        for listened in &grants {
            self.listener.name(listened, &runtime);
            names.push((listened.grant.lock.clone(), listened.number));
        }
        let handle = self.handle.clone();
        self.asked.push(Box::pin(async move {
            (names, handle.call(Request::Listen(grants)).await)
        }));
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GrantNews, Fault>>> {
        while let Poll::Ready(Some((names, answer))) = self.asked.poll_next_unpin(cx) {
            let Answer::States(states) = answer else {
                return Poll::Ready(Some(Err(answers::refused(answer))));
            };
            for ((lock, number), state) in names.into_iter().zip(states) {
                self.listener.settle(&lock, number, state);
            }
        }
        self.listener.poll_next(cx).map(|heard| match heard {
            Heard::News { lock, number, news } => Some(Ok(match news {
                News::Ended { how, reason } => GrantNews::Ended {
                    lock,
                    number,
                    how,
                    reason,
                },
                News::Wanted(waiters) => GrantNews::Wanted {
                    lock,
                    number,
                    waiters,
                },
            })),
            Heard::NotHere => None,
        })
    }
}

/// The changes that a watcher has not received yet.
struct Changes {
    events: broadcast::Receiver<Arc<[Event]>>,
    prefix: Box<str>,
    /// The last revision seen, delivered or not.
    after: Option<u64>,
    batch: Option<(Arc<[Event]>, usize)>,
}

impl Changes {
    async fn next(mut self) -> Option<(Result<Notice, Fault>, Changes)> {
        loop {
            while let Some(event) = self.first() {
                let revision = event.revision;
                // Skip events up to this revision. A gap means that the watcher was too slow.
                let missed = self.after.map(|after| revision.saturating_sub(after + 1));
                if let Some(missed @ 1..) = missed {
                    let revision = revision - 1;
                    self.after = Some(revision);
                    return Some((Ok(Notice::Missed { missed, revision }), self));
                }
                let wanted = self.after.is_none_or(|after| revision > after)
                    && event.lock.starts_with(&*self.prefix);
                let told = wanted.then(|| told(event.clone()));
                self.pass(revision);
                if let Some(event) = told {
                    return Some((Ok(Notice::Change(event)), self));
                }
            }
            match self.events.recv().await {
                Ok(batch) => self.batch = Some((batch, 0)),
                // The next event's revision shows the gap.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn first(&self) -> Option<&Event> {
        let (batch, next) = self.batch.as_ref()?;
        batch.get(*next)
    }

    fn pass(&mut self, revision: u64) {
        self.after = self.after.max(Some(revision));
        if let Some((_, next)) = &mut self.batch {
            *next += 1;
        }
    }
}

fn told(event: Event) -> WatchEvent {
    let Event {
        revision,
        wall: time,
        lock,
        client,
        token,
        shared,
        detail,
        change,
        ..
    } = event;
    WatchEvent {
        revision,
        time,
        lock,
        client,
        token,
        shared,
        options: detail.options,
        change,
    }
}

fn identity() -> Result<Identity, Fault> {
    let hex = fresh_request_id()?.to_hex();
    Ok(Identity {
        authority: AuthorityId::new(&format!("in-process-{hex}"))?,
        incarnation: hex,
    })
}
