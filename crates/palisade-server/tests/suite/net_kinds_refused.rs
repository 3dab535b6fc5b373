//! A request that is wrong about a kind of lock is refused by name through every interface, and changes nothing.

use palisade_proto::v1::acquire_option::Option as Wanted;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, reply::Outcome};
use serde_json::{Value, json};

use crate::net_session::{Dress, Session};
use crate::net_support::Server;
use crate::net_support::grpc::client;

/// How a request reaches the server.
#[derive(Clone, Copy, Debug)]
enum Face {
    Http,
    Grpc,
    Session(Dress),
}

impl Face {
    /// The code and the message of a refusal; nothing if the request was granted.
    async fn ask(self, server: &Server, wish: &Wish) -> Option<(String, String)> {
        let outcome = match self {
            Face::Http => {
                let path = format!("/v1/locks/{}/acquire", wish.0.lock);
                let answer = server.post(&path, &wish.json().to_string()).await;
                return (answer.status != 200).then(|| (answer.code(), answer.message()));
            }
            Face::Grpc => match client(server).await.acquire(wish.0.clone()).await {
                Ok(reply) => reply.into_inner().outcome,
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::InvalidArgument);
                    return Some(("invalid".into(), status.message().into()));
                }
            },
            Face::Session(dress) => {
                let mut session = Session::open(server, dress).await;
                session
                    .send([(1, Operation::Acquire(wish.0.clone()))])
                    .await;
                session.expect(1).await
            }
        };
        match outcome {
            Some(Outcome::Granted(_)) => None,
            Some(Outcome::Error(error)) => Some((error.code, error.message)),
            other => panic!("{other:?}"),
        }
    }
}

/// A request as gRPC has it.
struct Wish(v1::AcquireRequest);

impl Wish {
    fn of(lock: &str, options: Vec<Wanted>) -> Wish {
        let options = options.into_iter().map(|option| v1::AcquireOption {
            option: Some(option),
        });
        Wish(v1::AcquireRequest {
            options: options.collect(),
            ..crate::net_support::grpc::acquire(lock, "b", 0)
        })
    }

    /// The same over HTTP.
    fn json(&self) -> Value {
        let hex = |bytes: &[u8]| -> String {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            digits.collect()
        };
        let wish = &self.0;
        let mut body = json!({ "client_id": wish.client_id });
        if wish.lease_duration_ms > 0 {
            body["lease_duration_ms"] = wish.lease_duration_ms.into();
        }
        for (name, bytes) in [
            ("lock_token", &wish.lock_token),
            ("request_id", &wish.request_id),
        ] {
            if !bytes.is_empty() {
                body[name] = hex(bytes).into();
            }
        }
        for option in wish
            .options
            .iter()
            .filter_map(|option| option.option.as_ref())
        {
            match option {
                Wanted::Mode(mode) => {
                    let mode = v1::LockMode::try_from(*mode).unwrap().as_str_name();
                    let mode = mode.trim_start_matches("LOCK_MODE_").to_lowercase();
                    body["mode"] = mode.into();
                }
                Wanted::Permits(v1::Permits { count, of }) => {
                    body["permits"] = json!({ "count": count, "of": of });
                }
                Wanted::Also(names) => body["also"] = json!(names.locks),
                of_grant => {
                    if let Wanted::Delays(delays) = of_grant {
                        body["lock_delay_ms"] = delays.lock_delay_ms.into();
                        body["at_least_for_ms"] = delays.at_least_for_ms.into();
                    }
                }
            }
        }
        body
    }
}

fn mode(mode: v1::LockMode) -> Wanted {
    Wanted::Mode(mode.into())
}

fn delays(lock_delay_ms: u32, at_least_for_ms: u32) -> Wanted {
    Wanted::Delays(v1::Delays {
        lock_delay_ms,
        at_least_for_ms,
    })
}

fn permits(of: u32) -> Wanted {
    Wanted::Permits(v1::Permits { count: 1, of })
}

fn also(names: &[&str]) -> Wanted {
    let locks = names.iter().map(ToString::to_string).collect();
    Wanted::Also(v1::LockNames { locks })
}

async fn refused_through(face: Face) {
    let server = Server::start().await;
    let id = vec![7; 16];
    let reader = Wish(v1::AcquireRequest {
        request_id: id.clone(),
        ..Wish::of("report", vec![mode(v1::LockMode::Shared)]).0
    });
    let path = "/v1/locks/report/acquire";
    let granted = server.post(path, &reader.json().to_string()).await.json();
    let key = granted["lock_token"].as_str().unwrap();
    let key = (0..16).map(|at| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).unwrap());
    let under = |options| {
        Wish(v1::AcquireRequest {
            lock_token: key.clone().collect(),
            lease_duration_ms: 0,
            ..Wish::of("report", options).0
        })
    };
    let again = |options| {
        Wish(v1::AcquireRequest {
            request_id: id.clone(),
            ..Wish::of("report", options).0
        })
    };
    let holder = Wish::of("gpu", vec![permits(3)]);
    assert_eq!(face.ask(&server, &holder).await, None);
    let before = (server.sight().await, server.changes().await);
    let reused = "this request_id was already used for another request";
    for (wish, says) in [
        (again(vec![mode(v1::LockMode::Exclusive)]), reused),
        (again(vec![mode(v1::LockMode::Update)]), reused),
        (again(vec![permits(3)]), reused),
        (
            Wish::of("gpu", vec![permits(4)]),
            "the request says 4 permits, and the lock has 3",
        ),
        (
            Wish::of("gpu", vec![mode(v1::LockMode::Shared)]),
            "the lock is a semaphore of 3 permits",
        ),
        (
            Wish::of("a", vec![also(&["b", "b"])]),
            "names the lock b twice",
        ),
        (
            Wish::of("a", vec![also(&["gpu"])]),
            "semaphore of 3 permits",
        ),
        (
            under(vec![mode(v1::LockMode::Upgrade)]),
            "a reader cannot become a writer",
        ),
        (
            under(vec![mode(v1::LockMode::Exclusive)]),
            "a reader cannot become a writer",
        ),
        (Wish::of("a", vec![delays(60_001, 0)]), "0 ..= 60000 ms"),
        (
            Wish::of("a", vec![delays(0, 86_400_001)]),
            "0 ..= 86400000 ms",
        ),
        (
            Wish::of("a", vec![delays(1, 0), mode(v1::LockMode::Shared)]),
            "lock-delay and at-least-for belong to exclusive grants",
        ),
    ] {
        let wished = wish.json();
        let answer = face.ask(&server, &wish).await;
        let (code, message) = answer.unwrap_or_else(|| panic!("{face:?} granted {wished}"));
        assert_eq!(code, "invalid", "{face:?} {wished}: {message}");
        assert!(message.contains(says), "{face:?} {wished}: {message}");
    }
    let after = (server.sight().await, server.changes().await);
    assert_eq!(
        after, before,
        "{face:?}: a refused request changed something"
    );
    // Control: a correct request changes the compared values.
    let right = Wish::of("a", vec![also(&["b"])]);
    assert_eq!(face.ask(&server, &right).await, None, "{face:?}");
    assert_ne!(server.sight().await, before.0);
    assert_ne!(server.changes().await, before.1);
}

#[tokio::test]
async fn over_http() {
    refused_through(Face::Http).await;
}

#[tokio::test]
async fn over_grpc() {
    refused_through(Face::Grpc).await;
}

#[tokio::test]
async fn in_a_session_over_grpc() {
    refused_through(Face::Session(Dress::Grpc)).await;
}

#[tokio::test]
async fn in_a_plain_session() {
    refused_through(Face::Session(Dress::Plain)).await;
}
