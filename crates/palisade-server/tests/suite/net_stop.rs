//! A planned stop: a client that gets `unavailable` holds nothing, over every interface and for every kind
//! of wait.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::collections::BTreeSet;

use crate::net_session::{Dress, Session};
use crate::net_support::grpc::client;
use crate::net_support::{Server, exchange, soon};
use palisade_core::{LockName, LockView, Span, Token};
use palisade_pipeline::{Answer, Request};
use palisade_proto::v1::acquire_option::Option as Wanted;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, AcquireOption};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Numbers that a seed decides.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// One request that waits.
#[derive(Clone, Debug)]
struct Wait {
    client: String,
    lock: &'static str,
    also: Vec<&'static str>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Exclusive,
    Shared,
    Permits(u32),
}

impl Wait {
    fn json(&self, named: bool) -> String {
        let mut body = json!({
            "client_id": self.client, "lease_duration_ms": 3_600_000, "wait_ms": 3_600_000,
        });
        let more: &mut serde_json::Map<String, Value> = body.as_object_mut().unwrap();
        if !self.also.is_empty() {
            more.insert("also".into(), json!(self.also));
        }
        match self.kind {
            Kind::Exclusive => {}
            Kind::Shared => drop(more.insert("mode".into(), json!("shared"))),
            Kind::Permits(count) => {
                more.insert("permits".into(), json!({"count": count, "of": 3}));
            }
        }
        if named {
            more.insert(
                "request_id".into(),
                json!(format!("{:0>32}", &self.client[1..])),
            );
        }
        body.to_string()
    }

    fn message(&self) -> v1::AcquireRequest {
        let also = self.also.iter().map(|lock| (*lock).to_owned()).collect();
        let also = Wanted::Also(v1::LockNames { locks: also });
        let kind = match self.kind {
            Kind::Exclusive => None,
            Kind::Shared => Some(Wanted::Mode(v1::LockMode::Shared.into())),
            Kind::Permits(count) => Some(Wanted::Permits(v1::Permits { count, of: 3 })),
        };
        let options = kind
            .into_iter()
            .chain((!self.also.is_empty()).then_some(also));
        v1::AcquireRequest {
            lock: self.lock.into(),
            client_id: self.client.clone(),
            lease_duration_ms: 3_600_000,
            wait_ms: 3_600_000,
            options: options
                .map(|option| AcquireOption {
                    option: Some(option),
                })
                .collect(),
            ..v1::AcquireRequest::default()
        }
    }
}

/// A client waits over one of the interfaces; returns whether it learned of a grant.
async fn wait_over(server: &Server, wait: Wait, interface: usize) -> JoinHandle<bool> {
    let addr = server.addr;
    match interface {
        0 | 1 => {
            let body = wait.json(interface == 1);
            let request = format!(
                "POST /v1/locks/{}/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                wait.lock,
                body.len()
            );
            tokio::spawn(async move {
                let answer = exchange(addr, request.as_bytes()).await;
                assert!(matches!(answer.status, 200 | 503), "{answer:?}");
                answer.status == 200
            })
        }
        2 => {
            let mut locks = client(server).await;
            tokio::spawn(async move {
                let answer = soon(locks.acquire(wait.message())).await;
                answer.is_ok_and(|reply| {
                    matches!(reply.into_inner().outcome, Some(Outcome::Granted(_)))
                })
            })
        }
        _ => {
            let dress = if interface == 3 {
                Dress::Grpc
            } else {
                Dress::Plain
            };
            let mut session = Session::open(server, dress).await;
            session
                .send([(1, Operation::Acquire(wait.message()))])
                .await;
            tokio::spawn(async move {
                let mut granted = false;
                while let Ok(Some(reply)) = session.next().await {
                    granted |= matches!(reply.outcome, Some(Outcome::Granted(_)));
                }
                granted
            })
        }
    }
}

async fn view(server: &Server, lock: &str) -> LockView {
    let asked = Request::Show(LockName::new(lock).unwrap());
    match soon(server.handle.call(asked)).await {
        Answer::Lock(view) => *view,
        other => panic!("{other:?}"),
    }
}

/// The holders of any of the locks.
async fn holders(server: &Server) -> BTreeSet<String> {
    let mut holders = BTreeSet::new();
    for lock in ["A", "B", "C"] {
        let view = view(server, lock).await;
        let readers = view
            .readers
            .iter()
            .map(|reader| reader.holder.client.to_string());
        holders.extend(readers);
        holders.extend(view.holder.map(|holder| holder.client.to_string()));
    }
    holders
}

fn waits(rng: &mut Rng, kind: usize) -> Vec<Wait> {
    let wait = |client: String, lock, also: &[&'static str], kind| Wait {
        client,
        lock,
        also: also.to_vec(),
        kind,
    };
    let mut waits = Vec::new();
    for n in 0..3 + rng.below(6) {
        let client = format!("w{n}");
        waits.push(match kind {
            // Sets, of which the first waits for the holder, and single requests that wait for sets alone.
            0 => match rng.below(3) {
                _ if n == 0 => wait(client, "A", &["B", "C"], Kind::Exclusive),
                0 => wait(client, "B", &["C"], Kind::Exclusive),
                1 => wait(client, "B", &[], Kind::Exclusive),
                _ => wait(client, "C", &[], Kind::Exclusive),
            },
            1 => match rng.below(2) {
                _ if n == 0 => wait(client, "A", &[], Kind::Permits(3)),
                0 => wait(client, "A", &[], Kind::Permits(1)),
                _ => wait(client, "A", &[], Kind::Permits(2)),
            },
            _ => match rng.below(3) {
                _ if n == 0 && kind == 2 => wait(client, "A", &[], Kind::Exclusive),
                0 => wait(client, "A", &[], Kind::Exclusive),
                _ => wait(client, "A", &[], Kind::Shared),
            },
        });
    }
    waits
}

#[tokio::test]
async fn after_fifty_planned_stops_nobody_who_was_turned_away_holds_anything() {
    for round in 0..50 {
        let mut rng = Rng(round);
        let kind = rng.below(4);
        let mut server = Server::start().await;
        let how = match kind {
            0 => "",
            1 => r#", "permits": {"count": 1, "of": 3}"#,
            2 => r#", "mode": "shared""#,
            _ => r#", "mode": "update""#,
        };
        let body = format!(r#"{{"client_id": "h", "lease_duration_ms": 3600000{how}}}"#);
        let held = server.post("/v1/locks/A/acquire", &body).await;
        assert_eq!(held.status, 200, "{}", held.body);
        let key = held.json()["lock_token"].as_str().unwrap().to_owned();
        let (mut waiting, mut count) = (Vec::new(), 0);
        if kind == 3 {
            // Later requests wait only for the upgrade, which waits for a reader.
            let body = r#"{"client_id": "r", "lease_duration_ms": 3600000, "mode": "shared"}"#;
            let reads = server.post("/v1/locks/A/acquire", body).await;
            assert_eq!(reads.status, 200, "{}", reads.body);
            let body = json!({
                "client_id": "h", "lock_token": key, "mode": "upgrade", "wait_ms": 3_600_000,
            });
            let body = body.to_string();
            let request = format!(
                "POST /v1/locks/A/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let addr = server.addr;
            let upgrade = async move { exchange(addr, request.as_bytes()).await.status == 200 };
            waiting.push(("the upgrade".to_owned(), tokio::spawn(upgrade)));
            count = 1;
            server.waiters(count).await;
        }
        for wait in waits(&mut rng, kind) {
            let (client, interface) = (wait.client.clone(), rng.below(5));
            count += 1 + wait.also.len();
            waiting.push((client, wait_over(&server, wait, interface).await));
            server.waiters(count).await;
        }
        server.ask_to_stop();
        server.ended().await.unwrap();
        let mut told = BTreeSet::new();
        for (client, answer) in waiting {
            if !answer.await.unwrap() {
                told.insert(client);
            }
        }
        assert!(!told.is_empty());
        let wrong: Vec<String> = holders(&server)
            .await
            .intersection(&told)
            .cloned()
            .collect();
        assert!(wrong.is_empty(), "round {round}, kind {kind}: {wrong:?}");
        // Nor when their locks become free, and their places are forgotten.
        let revoke = Request::Revoke {
            lock: LockName::new("A").unwrap(),
            token: Token::FIRST,
            reason: "".into(),
        };
        soon(server.handle.call(revoke)).await;
        soon(
            server
                .handle
                .call(Request::Advance(Span::from_millis(2_001))),
        )
        .await;
        let wrong: Vec<String> = holders(&server)
            .await
            .intersection(&told)
            .cloned()
            .collect();
        assert!(wrong.is_empty(), "round {round}, kind {kind}: {wrong:?}");
        assert_eq!(server.status().await.waiters, 0, "round {round}");
    }
}
