//! How long a round trip to another node takes at least, lately: whether the cluster's timers are made for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use std::{io, mem};

use futures_util::future::join_all;
use tokio::net::{TcpStream, lookup_host};

use super::handshake::Lane;
use super::{Peers, Shared, clock};
use crate::entry::NodeId;

/// For how long round trips are looked at together.
const SPAN: Duration = Duration::from_secs(5);

/// Fewer say nothing: each can be late, because a node or its disk was busy.
const LEAST: u32 = 4;

/// The round trips of this span, and of the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trips {
    begun: Duration,
    current: TripCount,
    before: TripCount,
}

#[derive(Clone, Copy, Debug, Default)]
struct TripCount {
    count: u32,
    shortest: Duration,
}

impl TripCount {
    fn add(&mut self, took: Duration) {
        self.shortest = match self.count {
            0 => took,
            _ => self.shortest.min(took),
        };
        self.count = self.count.saturating_add(1);
    }
}

impl Trips {
    fn turn(&mut self, now: Duration) {
        let age = now.saturating_sub(self.begun);
        if age < SPAN {
            return;
        }
        let current = mem::take(&mut self.current);
        self.before = if age < 2 * SPAN {
            current
        } else {
            TripCount::default()
        };
        self.begun = now;
    }

    pub(super) fn add(&mut self, now: Duration, took: Duration) {
        self.turn(now);
        self.current.add(took);
    }

    /// The shortest one; nothing if there were too few to tell. A whole span counts: a node that just started is busy.
    pub(super) fn shortest(mut self, now: Duration) -> Option<Duration> {
        self.turn(now);
        self.seen().filter(|_| self.before.count >= LEAST)
    }

    /// The shortest one, however few and however old they are.
    fn seen(&self) -> Option<Duration> {
        let spans = [self.current, self.before].into_iter();
        let spans = spans.filter(|span| span.count > 0);
        spans.map(|span| span.shortest).min()
    }
}

/// Connects, and gives how long the connection took: one round trip, which the two kernels make among themselves. The
/// name service is asked before that.
pub(super) async fn connect(address: &str) -> io::Result<(TcpStream, Duration)> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let found: Vec<SocketAddr> = lookup_host(address).await?.collect();
    for address in found {
        let begun = clock::now();
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok((stream, clock::now().saturating_sub(begun))),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Peers {
    /// Why this node's timers do not suit the round trips to these nodes, with the next step. Nodes that are not there do not
    /// count. Dials nobody to whom a round trip was short enough already.
    ///
    /// # Errors
    /// For people: the node, the round trip, the profile and the next step.
    pub async fn check_round_trips(
        &self,
        members: &BTreeMap<NodeId, String>,
    ) -> Result<(), String> {
        let own = self.shared.own();
        let others = members.iter().filter(|(node, _)| **node != own.node);
        let longest = own.timers.timers().round_trip();
        let check =
            others.map(|(node, address)| self.shared.check_round_trip(*node, address, longest));
        join_all(check).await.into_iter().collect()
    }
}

impl Shared {
    async fn check_round_trip(
        &self,
        node: NodeId,
        address: &str,
        longest: Duration,
    ) -> Result<(), String> {
        let shortest = || self.with(node, |seen| seen.trips.seen());
        let is_short = || shortest().is_some_and(|took| took <= longest);
        for _ in 0..LEAST {
            let is_there = async { self.dial(Some(node), address, Lane::Meeting).await.is_ok() };
            if is_short() || !is_there.await {
                return Ok(());
            }
        }
        match shortest().filter(|took| *took > longest) {
            None => Ok(()),
            Some(took) => {
                let why = self.own().timers.advice(took);
                Err(format!("node {node} at {address} is too far away: {why}"))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::introduction::tests::member;
    use super::super::{Settings, hold};
    use super::*;

    /// Late round trips refuse nobody as long as one is short, and a node that is not there is not measured. The control
    /// allows for no round trip at all.
    #[tokio::test]
    async fn a_node_that_is_too_far_away_is_named_with_the_next_step() {
        let far = Peers::new(None, Settings::default(), member(2));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(far.serve(listener));
        let own = Peers::new(None, Settings::default(), member(1));
        let check = |longest| own.shared.check_round_trip(NodeId(2), &address, longest);
        let why = check(Duration::ZERO).await.unwrap_err();
        assert!(
            why.starts_with(&format!("node {} at {address} is too far away", NodeId(2))),
            "{why}"
        );
        assert!(why.contains("start every node with --timers"), "{why}");
        let late = Trips {
            current: TripCount {
                count: LEAST,
                shortest: Duration::from_secs(9),
            },
            ..Trips::default()
        };
        own.shared.with(NodeId(2), |seen| seen.trips = late);
        check(Duration::from_secs(5)).await.unwrap();
        assert!(hold(&own.shared.nodes)[&NodeId(2)].trips.seen() < Some(Duration::from_secs(5)));
        let nobody = own
            .shared
            .check_round_trip(NodeId(3), "127.0.0.1:1", Duration::ZERO);
        nobody.await.unwrap();
    }

    /// One that is late says nothing, and neither does one from long ago. The control is that as many late ones count.
    #[test]
    fn the_shortest_round_trip_is_of_late_and_of_several() {
        let (ms, at) = (Duration::from_millis, Duration::from_secs);
        let mut trips = Trips::default();
        for _ in 1..LEAST {
            trips.add(at(100), ms(30));
        }
        assert_eq!(trips.shortest(at(105)), None, "too few");
        trips.add(at(101), ms(2));
        assert_eq!(trips.shortest(at(102)), None, "too soon");
        assert_eq!(trips.shortest(at(105)), Some(ms(2)));
        for second in 106..120 {
            trips.add(at(second), ms(30));
        }
        assert_eq!(trips.shortest(at(120)), Some(ms(30)), "control");
        assert_eq!(trips.shortest(at(140)), None, "nobody asks any more");
    }
}
