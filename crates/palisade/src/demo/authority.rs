//! The lock service's side of the story, as a watcher is told of it.

use std::sync::Arc;

use palisade_client::{Change, Client, Ending, Error, WatchEvent};

use super::clock::ActClock;
use super::ledger::Ledger;
use super::timeline::{Event, Message, Request, RequestKind};
use super::worker::LOCK;

/// A client that watches the lock of the story.
#[derive(Debug)]
pub(super) struct Watcher {
    client: Client,
    clock: ActClock,
    ledger: Arc<Ledger>,
}

impl Watcher {
    pub(super) async fn open(
        url: &str,
        clock: ActClock,
        ledger: Arc<Ledger>,
    ) -> Result<Watcher, Error> {
        Ok(Watcher {
            client: Client::connect(url).await?,
            clock,
            ledger,
        })
    }

    /// What happens to the lock from now on goes into the ledger, for as long as what is returned is polled.
    pub(super) async fn watch(&self) -> Result<impl Future<Output = Error> + use<>, Error> {
        let mut changes = self.client.watch(LOCK).await?;
        let (clock, ledger) = (self.clock, Arc::clone(&self.ledger));
        Ok(async move {
            loop {
                match changes.next().await {
                    Ok(change) => told(clock.now_ms(), change)
                        .into_iter()
                        .for_each(|event| ledger.record(event)),
                    Err(error) => return error,
                }
            }
        })
    }

    /// Waits until the lock service says that somebody waits in the lock's queue, and records it as the arrival of
    /// the client's request. Only one client asks at a time, so it is this one.
    pub(super) async fn queued(&self, client: &str) -> Result<f64, Error> {
        while self.client.show(LOCK).await?.waiters == 0 {
            tokio::task::yield_now().await;
        }
        let arrived_ms = self.clock.now_ms();
        let message = Message {
            id: format!("{client}-acquire"),
            client: client.to_owned(),
            arrived_ms: Some(arrived_ms),
            ..Message::default()
        };
        self.ledger.record(Event::Request(Request {
            message,
            request: RequestKind::Acquire,
            answer: None,
        }));
        Ok(arrived_ms)
    }
}

/// What the picture shows of a change. It was durable before anybody was told, so `at_ms` is the latest it can be.
fn told(at_ms: f64, event: WatchEvent) -> Option<Event> {
    let (client, token) = (event.client.as_str().to_owned(), event.token.get());
    match event.change {
        Change::Granted { ttl } => Some(Event::Granted {
            at_ms,
            client,
            token,
            ttl_ms: ttl.span().as_millis() as f64,
        }),
        Change::Ended {
            how: Ending::Expired,
            ..
        } => Some(Event::Expired {
            at_ms,
            client,
            token,
        }),
        Change::Ended {
            how: Ending::Released,
            ..
        } => Some(Event::Released {
            at_ms,
            client,
            token,
        }),
        Change::Ended { .. } => None,
    }
}

/// Puts what the watcher and what the clients were told together. Whoever hears of a change first bounds when it
/// happened: a grant is no later than its answer, and the end of a lease no later than the next grant.
pub(super) fn reconcile(events: &mut [Event]) {
    let answers: Vec<Request> = events
        .iter()
        .filter_map(|event| match event {
            Event::Request(request) => Some(request.clone()),
            _ => None,
        })
        .collect();
    let answered = |who: &str, what: RequestKind| {
        let found = answers
            .iter()
            .find(|request| request.request == what && request.message.client == who);
        found
            .and_then(|request| request.message.answered_ms)
            .unwrap_or(f64::INFINITY)
    };
    let mut grants = Vec::new();
    for event in events.iter_mut() {
        match event {
            Event::Granted {
                at_ms,
                client,
                token,
                ..
            } => {
                *at_ms = at_ms.min(answered(client, RequestKind::Acquire));
                grants.push((*token, *at_ms));
            }
            Event::Released { at_ms, client, .. } => {
                *at_ms = at_ms.min(answered(client, RequestKind::Release))
            }
            _ => {}
        }
    }
    for event in events.iter_mut() {
        if let Event::Expired { at_ms, token, .. } | Event::Released { at_ms, token, .. } = event {
            let later = grants.iter().filter(|(next, _)| *next > *token);
            *at_ms = later.fold(*at_ms, |first, (_, granted)| first.min(*granted));
        }
    }
    decide(events);
}

/// The lock service decided a request when what it asked for happened.
fn decide(events: &mut [Event]) {
    let happened: Vec<(RequestKind, String, f64)> = events
        .iter()
        .filter_map(|event| match event {
            Event::Granted { at_ms, client, .. } => {
                Some((RequestKind::Acquire, client.clone(), *at_ms))
            }
            Event::Released { at_ms, client, .. } => {
                Some((RequestKind::Release, client.clone(), *at_ms))
            }
            _ => None,
        })
        .collect();
    for event in events.iter_mut() {
        if let Event::Request(request) = event {
            let mine = |(what, who, _): &&(RequestKind, String, f64)| {
                *what == request.request && *who == request.message.client
            };
            request.message.decided_ms = happened.iter().find(mine).map(|(_, _, at_ms)| *at_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::timeline::Answer;

    fn asked(client: &str, answered: f64) -> Event {
        let message = Message {
            client: client.into(),
            answered_ms: Some(answered),
            ..Message::default()
        };
        Event::Request(Request {
            message,
            request: RequestKind::Acquire,
            answer: Some(Answer::Done),
        })
    }

    #[test]
    fn a_client_that_hears_of_its_grant_before_the_watcher_bounds_grant_and_expiry() {
        let (a, b) = ("A".to_owned(), "B".to_owned());
        let mut events = vec![
            Event::Granted {
                at_ms: 1.0,
                client: a.clone(),
                token: 1,
                ttl_ms: 9.0,
            },
            Event::Expired {
                at_ms: 10.5,
                client: a,
                token: 1,
            },
            Event::Granted {
                at_ms: 10.6,
                client: b,
                token: 2,
                ttl_ms: 9.0,
            },
            asked("A", 1.5),
            asked("B", 10.4),
        ];
        reconcile(&mut events);
        let decided = |event: &Event| match event {
            Event::Granted { at_ms, .. } | Event::Expired { at_ms, .. } => Some(*at_ms),
            Event::Request(request) => request.message.decided_ms,
            _ => None,
        };
        let times: Vec<f64> = events.iter().filter_map(decided).collect();
        assert_eq!(times, [1.0, 10.4, 10.4, 1.0, 10.4]);
    }
}
