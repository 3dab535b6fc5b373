//! An authority that gives the answers that a test prescribes, for schedules into which a real server cannot
//! be forced. It grants nothing by itself and knows no rules.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_client::Fault;
use palisade_client::clock::Clock as _;
use palisade_client::service::{
    AcquireRequest, Acquired, LateWrite, LockService, Operation, Released, Renewal,
};
use palisade_core::{
    AuthorityId, GrantRef, Granted, LeaseId, LeaseKey, LockName, LockView, Renewed, RequestId,
    Span, Timestamp, Token, Ttl, WallTime,
};
use tokio::sync::oneshot;

use super::{VirtualClock, settle};

/// One operation as the authority sees it: the time at which it was sent, and the channel for its answer.
pub(crate) enum Call {
    Acquire {
        at: Timestamp,
        request: AcquireRequest,
        answer: Answer<Acquired>,
    },
    Renew {
        at: Timestamp,
        grant: GrantRef,
        answer: Answer<Renewal>,
    },
    Release {
        at: Timestamp,
        grant: GrantRef,
        answer: Answer<Released>,
    },
    Abandon {
        at: Timestamp,
        request: RequestId,
        answer: Answer<()>,
    },
    Report {
        at: Timestamp,
        late: LateWrite,
        answer: Answer<()>,
    },
}

pub(crate) type Answer<T> = oneshot::Sender<Result<T, Fault>>;

pub(crate) struct ScriptedLockService {
    clock: Arc<VirtualClock>,
    authority: AuthorityId,
    calls: Mutex<Vec<Call>>,
    /// Runs at the moment when a release is passed to the authority.
    pub(crate) on_release: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

impl ScriptedLockService {
    pub(crate) fn new(clock: Arc<VirtualClock>) -> ScriptedLockService {
        let authority = AuthorityId::new("scripted").unwrap();
        ScriptedLockService {
            clock,
            authority,
            calls: Mutex::default(),
            on_release: Mutex::default(),
        }
    }

    /// Returns the calls since the previous `calls`.
    pub(crate) async fn calls(&self) -> Vec<Call> {
        settle().await;
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// Returns the only call that has arrived.
    pub(crate) async fn call(&self) -> Call {
        let mut calls = self.calls().await;
        assert_eq!(calls.len(), 1, "exactly one call");
        calls.pop().unwrap()
    }

    fn take_in<T: Send + 'static>(
        &self,
        call: impl FnOnce(Timestamp, Answer<T>) -> Call,
    ) -> Operation<'_, T> {
        let (answer, answered) = oneshot::channel();
        self.calls
            .lock()
            .unwrap()
            .push(call(self.clock.now(), answer));
        Box::pin(async move {
            answered
                .await
                .unwrap_or_else(|_| Err(Fault::unknown_outcome("the connection broke")))
        })
    }
}

impl LockService for ScriptedLockService {
    fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        self.take_in(|at, answer| Call::Acquire {
            at,
            request,
            answer,
        })
    }

    fn renew(&self, grant: GrantRef, _ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        self.take_in(|at, answer| Call::Renew { at, grant, answer })
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        if let Some(observe) = &mut *self.on_release.lock().unwrap() {
            observe();
        }
        self.take_in(|at, answer| Call::Release { at, grant, answer })
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        self.take_in(|at, answer| Call::Abandon {
            at,
            request,
            answer,
        })
    }

    fn report(&self, late: LateWrite) -> Operation<'_, ()> {
        self.take_in(|at, answer| Call::Report { at, late, answer })
    }

    fn show(&self, _lock: LockName) -> Operation<'_, LockView> {
        Box::pin(async { Err(Fault::unsupported("show")) })
    }
}

/// A grant that is valid for `valid_ms`, under a lease that lasts `ttl_ms`.
pub(crate) fn granted(token: u64, ttl_ms: u64, valid_ms: u64, waited_ms: u64) -> Acquired {
    let token = Token::new(token).unwrap();
    Acquired::Granted(Granted {
        token,
        shared: None,
        slots: palisade_core::Slots::NONE,
        lease: LeaseId(token),
        key: LeaseKey::from_bytes([7; 16]),
        ttl: Ttl::from_millis(ttl_ms).unwrap(),
        valid_for: Span::from_millis(valid_ms),
        waited: Span::from_millis(waited_ms),
        acquired_at: WallTime(1_800_000_000_000),
    })
}

pub(crate) fn renewed(token: u64, ttl_ms: u64) -> Renewal {
    let ttl = Ttl::from_millis(ttl_ms).unwrap();
    Renewal::Renewed(Renewed {
        token: Token::new(token).unwrap(),
        ttl,
        valid_for: ttl.span(),
        near_deadline: false,
        waiters: 0,
    })
}

/// How long a holder may use a lease of `ttl` with the default caution: (1 − ε) / (1 + ε) of it.
pub(crate) fn usable(ttl: Duration) -> Duration {
    Duration::from_nanos((ttl.as_nanos() * 990_000 / 1_010_000) as u64)
}
