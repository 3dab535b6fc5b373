//! A real server of another system as the subject of the conformance suite.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use palisade_authorities::conformance::{self, Habit, Subject};
use palisade_client::{Fault, LockService};
use palisade_testbed::{Instance, Proxy};

/// An authority on another system.
pub(crate) trait Adapter: LockService + Sized {
    fn connect_to(server: SocketAddr) -> impl Future<Output = Result<Self, Fault>> + Send;

    /// How often its waiting requests were woken.
    fn woken(&self) -> u64;
}

/// A server, a relay in front of it, and every connection so far.
pub(crate) struct Served<S, A> {
    pub(crate) server: S,
    pub(crate) relay: Proxy,
    connected: Mutex<Vec<Arc<A>>>,
}

impl<S: Deref<Target = Instance>, A: Adapter> Served<S, A> {
    pub(crate) fn by(server: S) -> Served<S, A> {
        let relay = Proxy::to(server.address());
        let connected = Mutex::default();
        Served {
            server,
            relay,
            connected,
        }
    }

    async fn open(&self, address: SocketAddr) -> Result<Arc<dyn LockService>, Fault> {
        let one = Arc::new(A::connect_to(address).await?);
        self.connected.lock().unwrap().push(Arc::clone(&one));
        Ok(one)
    }
}

impl<S: Deref<Target = Instance> + Send + Sync + 'static, A: Adapter> Subject for Served<S, A> {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        self.open(self.server.address()).await
    }

    async fn connect_through(&self) -> Option<Result<Arc<dyn LockService>, Fault>> {
        Some(self.open(self.relay.addr()).await)
    }

    async fn cut(&self) {
        self.relay.break_connections();
    }

    async fn crash(&self) -> bool {
        self.server.start_again();
        true
    }

    fn wake_ups(&self) -> Option<u64> {
        let connected = self.connected.lock().unwrap();
        Some(connected.iter().map(|one| one.woken()).sum())
    }
}

/// Runs the conformance suite; `PALISADE_CONFORMANCE_GRANTS=2000` is the full battery.
pub(crate) async fn passes(subject: impl Subject, habit: Habit) {
    let report = conformance::run(&Arc::new(subject), habit.scaled().unwrap()).await;
    println!("{report}");
    report.assert_passed();
}
