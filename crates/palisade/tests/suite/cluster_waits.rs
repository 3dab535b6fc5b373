//! A client that waits through a node that is killed, or paused, and goes on at another one (R16).
//!
//! ```text
//!   first ──► a (killed, stopped) ──┐
//!        └──► b, the same request ──┴─► leader: x, held; first, second
//!   second ──────────────────────────►
//! ```
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::thread::{Scope, ScopedJoinHandle, scope};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{now, pause, until_in};

/// How long the requests wait: longer than any test.
const WAIT: u64 = 600_000;

/// A cluster, with its nodes by their roles.
pub(crate) struct Queue {
    pub(crate) cluster: Cluster,
    leader: usize,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) held: String,
}

impl Queue {
    fn new() -> Queue {
        Queue::of(Cluster::of(3))
    }

    /// Somebody holds `x`.
    pub(crate) fn of(cluster: Cluster) -> Queue {
        let leader = cluster.until_ready();
        let body = acquire("holder", 0, 600_000, 0);
        let (status, held) = cluster.nodes[leader].post_settled("/v1/locks/x/acquire", &body);
        assert_eq!((status, &held["fencing_token"]), (200, &1.into()));
        Queue {
            leader,
            a: (leader + 1) % 3,
            b: (leader + 2) % 3,
            held: held["lock_token"].as_str().unwrap().to_owned(),
            cluster,
        }
    }

    /// Asks until there is an answer, always with the same request id.
    pub(crate) fn token(&self, at: usize, body: &str) -> Value {
        let node = &self.cluster.nodes[at];
        let (status, granted) = node.post_settled("/v1/locks/x/acquire", body);
        assert_eq!(status, 200, "{granted}");
        granted
    }

    pub(crate) fn waiting(&self, count: usize) {
        let give_up = now().after(ELECTION.into());
        loop {
            let shown = self.cluster.nodes[self.leader].get("/v1/locks/x");
            match &shown {
                Some((_, lock)) if lock["waiters"].as_u64() == Some(count as u64) => return,
                _ => assert!(now() < give_up, "not {count} waiters: {shown:?}"),
            }
            pause();
        }
    }

    pub(crate) fn release(&self, key: &str) {
        let body = format!(r#"{{"lock_token": "{key}"}}"#);
        let node = &self.cluster.nodes[self.leader];
        let (status, released) = node.post_settled("/v1/locks/x/release", &body);
        assert_eq!(status, 200, "{released}");
    }

    /// A third client waits behind the two of [`line_up`](Queue::line_up), at the leader, and hangs up. Returns when its place
    /// is given up, which shows how long an orphan's window is here and now.
    fn outlast_an_orphan(&self) {
        let third = acquire("third", 3, 600_000, WAIT);
        let post = format!(
            "POST /v1/locks/x/acquire HTTP/1.1\r\nContent-Length: {}\r\n",
            third.len()
        );
        let connection = self.cluster.nodes[self.leader].send_request(&post, &third);
        self.waiting(3);
        drop(connection);
        self.waiting(2);
    }

    /// The first client waits through `a`, and behind it the second one at the leader. Gives the answer to the first one's
    /// attempt, and the second one's grant.
    pub(crate) fn line_up<'scope>(
        &'scope self,
        on: &'scope Scope<'scope, '_>,
        first: &'scope str,
    ) -> (
        ScopedJoinHandle<'scope, Attempt>,
        ScopedJoinHandle<'scope, Value>,
    ) {
        let attempt =
            on.spawn(move || self.cluster.nodes[self.a].post("/v1/locks/x/acquire", first));
        self.waiting(1);
        let second = on.spawn(|| self.token(self.leader, &acquire("second", 2, 600_000, WAIT)));
        self.waiting(2);
        (attempt, second)
    }
}

/// Status and body; `None` without an answer.
pub(crate) type Attempt = Option<(u16, Value)>;

pub(crate) fn acquire(client: &str, request: u64, lease: u64, wait: u64) -> String {
    format!(
        r#"{{"client_id": "{client}", "request_id": "{request:032x}", "lease_duration_ms": {lease}, "wait_ms": {wait}}}"#
    )
}

/// The control is the second arm: a client that does not come back in time.
#[test]
fn a_wait_through_a_node_that_is_killed_goes_on_at_another_one_in_its_place() {
    for comes_back in [true, false] {
        let queue = Queue::new();
        let first = acquire("first", 1, 600_000, WAIT);
        scope(|on| {
            let (_, second) = queue.line_up(on, &first);
            queue.cluster.nodes[queue.a].send(Signal::KILL);
            if !comes_back {
                queue.waiting(1);
            }
            let again = on.spawn(|| queue.token(queue.b, &first));
            if !comes_back {
                queue.waiting(2);
            }
            queue.release(&queue.held);
            let (next, last) = if comes_back {
                (again, second)
            } else {
                (second, again)
            };
            let next = next.join().unwrap();
            assert_eq!(next["fencing_token"], 2, "{next}");
            queue.release(next["lock_token"].as_str().unwrap());
            assert_eq!(last.join().unwrap()["fencing_token"], 3);
        });
    }
}

/// The leader does not know that a node is paused, so the place stays reserved for longer. In the second arm, the control, the
/// client does not come back: the lock is granted without anybody learning of it, and is free when that lease is over.
#[test]
fn a_wait_through_a_node_that_is_paused_goes_on_at_another_one_in_its_place() {
    for comes_back in [true, false] {
        let queue = Queue::new();
        let lease = if comes_back { 600_000 } else { 1_000 };
        let first = acquire("first", 1, lease, WAIT);
        scope(|on| {
            let (_, second) = queue.line_up(on, &first);
            queue.cluster.nodes[queue.a].send(Signal::STOP);
            queue.outlast_an_orphan();
            let again = || queue.token(queue.b, &first);
            let again = comes_back.then(|| on.spawn(again));
            queue.release(&queue.held);
            match again {
                Some(again) => {
                    let next = again.join().unwrap();
                    assert_eq!(next["fencing_token"], 2, "{next}");
                    queue.release(next["lock_token"].as_str().unwrap());
                }
                None => {
                    until_in(ELECTION, "the end of the grant", || second.is_finished());
                    let node = &queue.cluster.nodes[queue.b];
                    let (status, over) = node.post_settled("/v1/locks/x/acquire", &first);
                    let over = (status, over["error"]["code"].as_str().unwrap().to_owned());
                    assert_eq!(over, (410, "expired".to_owned()));
                }
            }
            assert_eq!(second.join().unwrap()["fencing_token"], 3);
            // Its answers reach nobody.
            queue.cluster.nodes[queue.a].send(Signal::CONT);
        });
    }
}
