//! Virtual time, and processes that can be stopped, continued and killed in it.
//!
//! One executor runs everything. Each task belongs to the process that spawned it, and is polled only while that
//! process runs: a paused one finds its timers due when it goes on, as after SIGSTOP, and a killed one is never polled
//! again.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use openraft_rt::{AsyncRuntime, Instant as _};
use openraft_rt_sim::{SimInstant, SimRuntime};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

pub(super) const MS: u64 = 1_000_000;

/// Nanoseconds of virtual time since the run began.
pub(super) fn now() -> u64 {
    SimInstant::now().elapsed_since_start().as_nanos() as u64
}

/// Returns later.
pub(super) async fn sleep(nanos: u64) {
    SimRuntime::sleep(Duration::from_nanos(nanos)).await;
}

/// The output of `future`, if it ends within that time.
pub(super) async fn within<T>(nanos: u64, future: impl Future<Output = T> + Send) -> Option<T> {
    SimRuntime::timeout(Duration::from_nanos(nanos), future)
        .await
        .ok()
}

pub(super) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process of a machine.
#[derive(Default)]
pub(super) struct Process(Mutex<State>);

#[derive(Default)]
struct State {
    dead: bool,
    paused: bool,
    waiting: Vec<Waker>,
}

impl Process {
    fn state(&self) -> MutexGuard<'_, State> {
        hold(&self.0)
    }

    pub(super) fn kill(&self) {
        self.state().dead = true;
        self.wake();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state().dead
    }

    pub(super) fn runs(&self) -> bool {
        let state = self.state();
        !state.dead && !state.paused
    }

    pub(super) fn pause(&self) {
        self.state().paused = true;
    }

    pub(super) fn go_on(&self) {
        self.state().paused = false;
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Spawns a task of this process.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let task = Gated {
            process: Some(Arc::clone(self)),
            future: Some(Box::pin(task)),
        };
        drop(SimRuntime::spawn(task));
    }
}

/// A task that runs only while its process does.
struct Gated<F> {
    process: Option<Arc<Process>>,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(process) = &self.process {
            let mut state = process.state();
            if state.dead {
                drop(state);
                self.future = None;
                return Poll::Pending;
            }
            if state.paused {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        let before = CURRENT.replace(self.process.clone());
        let polled = match &mut self.future {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        };
        CURRENT.set(before);
        polled
    }
}

/// The engine's runtime: [`SimRuntime`], with each task in its process.
#[derive(Debug)]
pub(super) struct LabRuntime;

impl AsyncRuntime for LabRuntime {
    type JoinError = <SimRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: Send + 'static> = <SimRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <SimRuntime as AsyncRuntime>::Sleep;
    type Instant = SimInstant;
    type TimeoutError = <SimRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + Send> = <SimRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <SimRuntime as AsyncRuntime>::ThreadLocalRng;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        SimRuntime::spawn(Gated {
            process: CURRENT.with_borrow(Clone::clone),
            future: Some(Box::pin(future)),
        })
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        SimRuntime::sleep(duration)
    }

    fn sleep_until(deadline: SimInstant) -> Self::Sleep {
        SimRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + Send>(span: Duration, future: F) -> Self::Timeout<R, F> {
        SimRuntime::timeout(span, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(
        deadline: SimInstant,
        future: F,
    ) -> Self::Timeout<R, F> {
        SimRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        SimRuntime::is_panic(error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        SimRuntime::thread_rng()
    }

    type Mpsc = <SimRuntime as AsyncRuntime>::Mpsc;
    type Watch = <SimRuntime as AsyncRuntime>::Watch;
    type Oneshot = <SimRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: Send + 'static> = <SimRuntime as AsyncRuntime>::Mutex<T>;

    fn new(_: usize) -> LabRuntime {
        LabRuntime
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        SimRuntime::with_seed(0).block_on(future)
    }

    fn spawn_blocking<F, T>(_: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let error = io::Error::new(io::ErrorKind::Unsupported, "no threads in virtual time");
        std::future::ready(Err(error))
    }
}
