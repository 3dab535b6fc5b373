//! The order of requests: no older write is in progress when a newer claim is answered.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::body::Body;
use axum_core::response::Response;
use http::Request;
use palisade_core::Token;
use palisade_fence::http::{FenceLayer, LastRun, Marks, Policy, RequestEffect};
use palisade_fence::{Pass, ResourceId, Rule, memory};
use tower_layer::Layer;
use tower_service::Service;

use super::support::{
    Fenced, Map, Slow, by_segment, call, fenced, impatient, marks, request, send, until,
};

/// The control arm, a check in front of a service without lanes: judge, then call.
#[derive(Clone)]
struct Naive {
    marks: memory::Store,
    inner: Slow,
}

impl Naive {
    async fn put(&self, token: u64) -> bool {
        let pass = Pass::new(Token::new(token).unwrap());
        let resource = resource();
        let judged = self
            .marks
            .judge(&resource, Some(pass), RequestEffect::Write(None));
        if judged.await.is_err() {
            return false;
        }
        let token = token.to_string();
        let request = request("PUT", "/r", &[("x-fencing-token", &token)]);
        let Ok(_) = self.inner.clone().call(request).await;
        true
    }

    async fn claim(&self, token: u64) {
        let pass = Pass::new(Token::new(token).unwrap());
        let resource = resource();
        let claimed = self
            .marks
            .judge(&resource, Some(pass), RequestEffect::Claim);
        claimed.await.unwrap();
    }
}

/// How often something happens beside a request that must not go on.
const BESIDE: usize = 20;

fn resource() -> ResourceId {
    ResourceId::new("r").unwrap()
}

/// A write is in progress when a newer holder claims: its effect must precede the answer to the claim.
#[tokio::test]
async fn a_newer_claim_is_answered_when_the_older_write_has_ended() {
    let slow = Slow::new();
    let service = fenced(slow.clone(), Policy::default());
    let older = tokio::spawn({
        let service = service.clone();
        async move { send(&service, "PUT", "/r", 1).await }
    });
    slow.until_inside(1).await;
    let newer = tokio::spawn({
        let (service, slow) = (service.clone(), slow.clone());
        async move {
            let headers = [("x-fencing-token", "2"), ("x-fencing-operation", "claim")];
            let claimed = call(&service, request("POST", "/r", &headers)).await;
            (claimed.status, slow.effects())
        }
    });
    // The control: meanwhile the same claim is answered many times where no write is in progress.
    for number in 0..BESIDE {
        let headers = [("x-fencing-token", "2"), ("x-fencing-operation", "claim")];
        let claim = request("POST", &format!("/beside-{number}"), &headers);
        assert_eq!(call(&service, claim).await.status, 200);
    }
    assert!(!newer.is_finished());
    slow.gate.add_permits(10);
    assert_eq!(older.await.unwrap().status, 200);
    let (status, seen) = newer.await.unwrap();
    assert_eq!((status, seen), (200, vec!["PUT /r 1".to_owned()]));
    assert_eq!(send(&service, "PUT", "/r", 1).await.status, 412);
    assert_eq!(slow.effects(), ["PUT /r 1"]);
}

/// The control: without lanes the write takes effect after the claim was answered.
#[tokio::test]
async fn without_lanes_the_older_write_lands_after_the_claim() {
    let slow = Slow::new();
    let naive = Naive {
        marks: marks(Rule::CLAIM),
        inner: slow.clone(),
    };
    let older = tokio::spawn({
        let naive = naive.clone();
        async move { naive.put(1).await }
    });
    slow.until_inside(1).await;
    naive.claim(2).await;
    let read_by_the_newer = slow.effects();
    slow.gate.add_permits(10);
    assert!(older.await.unwrap());
    assert!(read_by_the_newer.is_empty());
    assert_eq!(
        slow.effects(),
        ["PUT /r 1"],
        "an acknowledged write that the newer holder did not read"
    );
}

#[tokio::test]
async fn a_request_that_waits_in_vain_raises_nothing() {
    let slow = Slow::new();
    let service = fenced(slow.clone(), impatient());
    let older = tokio::spawn({
        let service = service.clone();
        async move { send(&service, "PUT", "/r", 1).await }
    });
    slow.until_inside(1).await;
    let newer = send(&service, "PUT", "/r", 2).await;
    assert_eq!(newer.code(), (503, "unavailable".into()));
    slow.gate.add_permits(10);
    assert_eq!(older.await.unwrap().status, 200);
    assert_eq!(
        send(&service, "PUT", "/r", 1).await.status,
        200,
        "nothing was raised"
    );
    assert_eq!(send(&service, "PUT", "/r", 2).await.status, 200);
    assert_eq!(slow.effects(), ["PUT /r 1", "PUT /r 1", "PUT /r 2"]);
}

#[tokio::test]
async fn a_write_stays_in_the_lane_when_its_client_disconnects() {
    let slow = Slow::new();
    let service = fenced(slow.clone(), impatient());
    let older = tokio::spawn({
        let service = service.clone();
        async move { send(&service, "PUT", "/r", 1).await }
    });
    slow.until_inside(1).await;
    older.abort();
    assert!(older.await.unwrap_err().is_cancelled());
    assert_eq!(send(&service, "GET", "/r", 2).await.status, 503);
    slow.gate.add_permits(10);
    until("the end of the write", || !slow.effects().is_empty()).await;
    assert_eq!(send(&service, "GET", "/r", 2).await.status, 200);
    assert_eq!(slow.effects(), ["PUT /r 1", "GET /r 2"]);
}

#[tokio::test]
async fn writes_of_one_token_run_together_unless_numbered_or_one_at_a_time() {
    for (one_at_a_time, sequence, together) in [
        (false, false, true),
        (true, false, false),
        (false, true, false),
    ] {
        let slow = Slow::new();
        let policy = Policy {
            one_at_a_time,
            ..Policy::default()
        };
        let service = fenced(slow.clone(), policy);
        let write = |number: &'static str| {
            let mut headers = vec![("x-fencing-token", "5")];
            if sequence {
                headers.push(("x-fencing-sequence", number));
            }
            let (service, request) = (service.clone(), request("PUT", "/r", &headers));
            tokio::spawn(async move { call(&service, request).await })
        };
        let first = write("1");
        slow.until_inside(1).await;
        let second = write("2");
        let mut beside = Vec::new();
        if together {
            slow.until_inside(2).await;
        } else {
            // The control: meanwhile many writes enter that came later, to other resources.
            for number in 0..BESIDE {
                let (service, path) = (service.clone(), format!("/beside-{number}"));
                beside.push(tokio::spawn(async move {
                    send(&service, "PUT", &path, 5).await.status
                }));
            }
            slow.until_inside(1 + BESIDE).await;
            assert_eq!(slow.inside.load(Ordering::SeqCst), 1 + BESIDE);
        }
        slow.gate.add_permits(2 + beside.len());
        for write in beside {
            assert_eq!(write.await.unwrap(), 200);
        }
        assert_eq!(first.await.unwrap().status, 200);
        assert_eq!(second.await.unwrap().status, 200);
    }
}

/// Many first writes of a new token at once: one raises the mark, and all run together.
#[tokio::test]
async fn the_first_writes_of_a_token_do_not_wait_for_each_other() {
    let slow = Slow::new();
    let service = fenced(slow.clone(), Policy::default());
    let writes: Vec<_> = (0..20)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { send(&service, "PUT", "/r", 5).await })
        })
        .collect();
    slow.until_inside(20).await;
    slow.gate.add_permits(20);
    for write in writes {
        assert_eq!(write.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_write_whose_end_was_not_seen_settles_before_a_higher_token_enters() {
    let slow = Slow::quick();
    let policy = Policy {
        settle: Duration::from_millis(300),
        ..impatient()
    };
    let service = fenced(slow.clone(), policy);
    let broken = send(&service, "PUT", "/r/panic", 1).await;
    assert_eq!(broken.code(), (500, "unknown_outcome".into()));
    assert_eq!(
        send(&service, "GET", "/r", 2).await.code(),
        (503, "unavailable".into())
    );
    // The same holder continues.
    assert_eq!(send(&service, "PUT", "/r", 1).await.status, 200);
    let mut last = 503;
    while last == 503 {
        last = send(&service, "GET", "/r", 2).await.status;
    }
    assert_eq!(last, 200);
}

#[tokio::test]
async fn the_repeat_of_a_write_with_an_unknown_outcome_is_answered_as_unknown() {
    let policy = Policy {
        settle: Duration::from_millis(1),
        ..Policy::default()
    };
    let service = fenced(Slow::quick(), policy);
    let headers = [("x-fencing-token", "5"), ("x-fencing-sequence", "1")];
    for status in [500, 504] {
        let reply = call(&service, request("PUT", "/r/panic", &headers)).await;
        assert_eq!(reply.code(), (status, "unknown_outcome".into()));
    }
}

#[tokio::test]
async fn after_an_unclean_start_a_higher_token_waits_and_the_same_one_does_not() {
    let (slow, marks) = (Slow::quick(), marks(Rule::CLAIM));
    let before = |policy| -> Fenced<Slow> {
        let layer = FenceLayer::new(marks.clone(), by_segment as Map, policy).unwrap();
        layer.layer(slow.clone())
    };
    let clean = before(Policy::default());
    assert_eq!(send(&clean, "PUT", "/r", 5).await.status, 200);
    drop(clean);
    let again = before(Policy {
        start: LastRun::Unclean,
        settle: Duration::from_millis(300),
        ..impatient()
    });
    assert_eq!(
        send(&again, "PUT", "/r", 6).await.code(),
        (503, "unavailable".into())
    );
    assert_eq!(send(&again, "PUT", "/r", 5).await.status, 200);
    assert_eq!(
        send(&again, "PUT", "/r", 4).await.code(),
        (412, "stale".into())
    );
    let mut last = 503;
    while last == 503 {
        last = send(&again, "PUT", "/r", 6).await.status;
    }
    assert_eq!(last, 200);
    let nowhere = std::thread::spawn(|| {
        let policy = Policy {
            start: LastRun::Unclean,
            ..Policy::default()
        };
        FenceLayer::new(
            super::support::marks(Rule::CLAIM),
            by_segment as Map,
            policy,
        )
        .err()
    });
    let refused = nowhere.join().unwrap().unwrap().to_string();
    assert!(refused.contains("Tokio runtime"), "{refused}");
}

/// Answers at once, and keeps working while its body is read.
#[derive(Clone)]
struct Streaming(Slow);

impl Service<Request<Body>> for Streaming {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut slow = self.0.clone();
        Box::pin(async move {
            let (send, body) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                let Ok(_) = slow.call(request).await;
                let _ = send.send(()).await;
            });
            Ok(Response::new(Body::new(AfterAll(body))))
        })
    }
}

struct AfterAll(tokio::sync::mpsc::Receiver<()>);

impl http_body::Body for AfterAll {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|_| None)
    }
}

#[tokio::test]
async fn a_write_ends_with_the_body_of_its_answer_even_if_the_client_does_not_read_it() {
    let slow = Slow::new();
    let mut service = fenced(Streaming(slow.clone()), impatient());
    let put = request("PUT", "/r", &[("x-fencing-token", "1")]);
    let Ok(response) = service.call(put).await;
    assert_eq!(response.status(), 200);
    assert_eq!(send(&service, "PUT", "/r", 2).await.status, 503);
    drop(response);
    assert_eq!(send(&service, "PUT", "/r", 2).await.status, 503);
    slow.gate.add_permits(2);
    until("the end of the write", || !slow.effects().is_empty()).await;
    assert_eq!(send(&service, "PUT", "/r", 2).await.status, 200);
    assert_eq!(slow.effects(), ["PUT /r 1", "PUT /r 2"]);
}
