//! A pipeline that serves in turns: how it answers while another node leads, and which state it
//! keeps.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use palisade_core::{
    AuthorityId, ClientId, Command, Entry, Limits, LockName, Machine, Outcome, Span, Timestamp,
    Ttl, Under, WallTime, Wish,
};
use palisade_pipeline::{
    Answer, Elected, Elections, Failure, Handle, Identity, InTurns, Leading, Log, LogError,
    Pipeline, Request, Stopped, start_in_turns,
};
use tokio::sync::mpsc;

/// Elections that a test decides, and the one machine that goes to and fro.
struct Ballot {
    won: mpsc::UnboundedReceiver<()>,
    urn: Arc<Mutex<Urn>>,
}

#[derive(Default)]
struct Urn {
    machine: Option<Machine>,
    /// Another node leads, and the log knows it, or will know it at the next commit.
    deposed: bool,
    lost: bool,
    broken: bool,
    /// An assertion fails in the next batch.
    contradicts: bool,
    /// The next commit waits for this, then succeeds.
    slow: Option<std::sync::mpsc::Receiver<()>>,
}

struct Term(Arc<Mutex<Urn>>);

impl Elections for Ballot {
    fn won(&mut self) -> Pin<Box<dyn Future<Output = Result<Elected, LogError>> + Send + '_>> {
        Box::pin(async {
            let ended = || LogError::Failed("the ballot is over".into());
            self.won.recv().await.ok_or_else(ended)?;
            let mut urn = self.urn.lock().unwrap();
            urn.deposed = false;
            Ok(Elected {
                machine: urn.machine.take().unwrap(),
                log: Box::new(Term(Arc::clone(&self.urn))),
            })
        })
    }
}

impl Log for Term {
    fn has_room(&mut self, _: usize) -> bool {
        true
    }

    fn check(&self) -> Result<(), LogError> {
        if self.0.lock().unwrap().deposed {
            Err(LogError::Deposed)
        } else {
            Ok(())
        }
    }

    fn commit(&mut self, _: &[u8]) -> Result<(), LogError> {
        let slow = self.0.lock().unwrap().slow.take();
        if let Some(until) = slow {
            until.recv().unwrap();
            return Ok(());
        }
        let Urn {
            lost, contradicts, ..
        } = *self.0.lock().unwrap();
        assert!(!contradicts, "a lock is kept for nobody");
        if lost {
            Err(LogError::Deposed)
        } else {
            self.check()
        }
    }

    fn end(self: Box<Self>, machine: Machine) -> Result<(), LogError> {
        let mut urn = self.0.lock().unwrap();
        urn.machine = Some(machine);
        if urn.broken {
            Err(LogError::Failed("cannot be rebuilt".into()))
        } else {
            Ok(())
        }
    }
}

struct Node {
    pipeline: Pipeline,
    win: mpsc::UnboundedSender<()>,
    urn: Arc<Mutex<Urn>>,
}

fn node() -> Node {
    let (win, won) = mpsc::unbounded_channel();
    let urn = Arc::new(Mutex::new(Urn {
        machine: Some(Machine::new(1)),
        ..Urn::default()
    }));
    let ballot = Ballot {
        won,
        urn: Arc::clone(&urn),
    };
    let pipeline = start_in_turns(InTurns {
        identity: Identity {
            authority: AuthorityId::new("test").unwrap(),
            incarnation: "1".into(),
        },
        revision: 0,
        elections: Box::new(ballot),
        limits: Limits::DEFAULT,
    });
    Node {
        pipeline: pipeline.unwrap(),
        win,
        urn,
    }
}

impl Node {
    fn handle(&self) -> &Handle {
        &self.pipeline.handle
    }

    async fn elect(&self) {
        self.win.send(()).unwrap();
        let mut leading = self.handle().leading();
        leading.wait_for(|now| *now == Leading::Here).await.unwrap();
    }

    async fn depose(&self) {
        self.urn.lock().unwrap().deposed = true;
        let mut leading = self.handle().leading();
        leading.wait_for(|now| *now != Leading::Here).await.unwrap();
    }

    async fn acquire(&self, lock: &str, client: &str, wait: Option<Span>) -> Answer {
        self.handle().call(acquire(lock, client, wait)).await
    }

    async fn token(&self, lock: &str) -> u64 {
        match self.acquire(lock, "c", None).await {
            Answer::Outcome(Outcome::Granted(granted)) => granted.token.get(),
            other => panic!("{other:?}"),
        }
    }
}

fn acquire(lock: &str, client: &str, wait: Option<Span>) -> Request {
    Request::Acquire(Wish {
        wait,
        ..Wish::new(
            LockName::new(lock).unwrap(),
            ClientId::new(client).unwrap(),
            Under::new(Ttl::from_millis(60_000).unwrap()),
            None,
        )
    })
}

/// The leader that a refusal names.
fn named(answer: Answer) -> Option<Arc<str>> {
    match answer {
        Answer::Failed(Failure::NotLeader { leader }) => leader,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn while_another_node_leads_requests_are_sent_there_and_the_state_outlasts_it() {
    let node = node();
    let (session, mut answers) = node.handle().session();
    assert_eq!(named(node.acquire("a", "c", None).await), None);
    node.handle()
        .set_leader(Leading::At("http://b:7420".into()));
    let refused = node.acquire("a", "c", None).await;
    assert_eq!(named(refused).as_deref(), Some("http://b:7420"));
    session.submit(vec![(7, Request::Status)]);
    let (id, refused) = answers.recv().await.unwrap().remove(0);
    assert_eq!((id, named(refused).as_deref()), (7, Some("http://b:7420")));

    node.elect().await;
    assert_eq!(node.token("a").await, 1);
    // A leader knows better than the caller of `set_leader`.
    node.handle()
        .set_leader(Leading::At("http://b:7420".into()));
    assert_eq!(node.token("b").await, 2);

    node.depose().await;
    node.handle()
        .set_leader(Leading::At("http://c:7420".into()));
    let refused = node.acquire("c", "c", None).await;
    assert_eq!(named(refused).as_deref(), Some("http://c:7420"));

    node.elect().await;
    assert_eq!(node.token("c").await, 3, "neither repeated nor left out");
    session.submit(vec![(8, Request::Status)]);
    let [(8, Answer::Status(status))] = &answers.recv().await.unwrap()[..] else {
        panic!("the session goes on");
    };
    assert_eq!(status.locks, 3);
}

#[tokio::test]
async fn a_wait_that_a_leader_change_cuts_is_answered_at_once_and_its_place_is_kept() {
    let node = node();
    node.elect().await;
    node.token("a").await;
    let wait = Some(Span::from_millis(60_000));
    let mut waiting = std::pin::pin!(node.acquire("a", "other", wait));
    tokio::select! {
        biased;
        answer = &mut waiting => panic!("{answer:?}"),
        () = async { while node.handle().stats().waiters.get() == 0 { tokio::task::yield_now().await } } => {}
    }
    node.depose().await;
    let cut = waiting.await;
    assert!(matches!(cut, Answer::Failed(Failure::UnknownOutcome(_))));
    // The machine is given back after the last answer.
    let waiters = loop {
        if let Some(machine) = &node.urn.lock().unwrap().machine {
            break machine.waiters();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(waiters, 1);
}

#[tokio::test]
async fn it_ends_when_it_is_asked_to_and_when_its_state_is_lost() {
    let asked = node();
    asked.handle().stop();
    let broken = node();
    broken.elect().await;
    broken.urn.lock().unwrap().broken = true;
    broken.depose().await;
    let over = node();
    let Node { pipeline, win, .. } = over;
    drop(win);
    for (handle, expected) in [
        (asked.handle(), Stopped::Asked),
        (
            broken.handle(),
            Stopped::LogFailed("cannot be rebuilt".into()),
        ),
        (
            &pipeline.handle,
            Stopped::LogFailed("the ballot is over".into()),
        ),
    ] {
        let mut stopped = handle.stopped();
        let stopped = stopped.wait_for(Option::is_some).await.unwrap();
        assert_eq!(stopped.as_ref(), Some(&expected));
    }
}

/// The first batch of a leadership contains what a leader records before it accepts a request. The control is a leadership
/// that begins with the same batch.
#[tokio::test]
async fn an_assertion_that_fails_as_a_leadership_begins_stops_the_pipeline_and_names_the_entry() {
    let node = node();
    node.elect().await;
    node.depose().await;
    node.urn.lock().unwrap().contradicts = true;
    node.win.send(()).unwrap();
    let mut stopped = node.handle().stopped();
    let stopped = stopped.wait_for(Option::is_some).await.unwrap().clone();
    let Some(Stopped::Broken(why)) = stopped else {
        panic!("{stopped:?}");
    };
    let entry = "a lock is kept for nobody, at entry 1 of a batch, Grace(Led)";
    assert!(why.starts_with(entry), "{why}");
}

#[tokio::test]
async fn a_stop_is_not_lost_when_its_round_is_deposed() {
    for at_commit in [false, true] {
        let node = node();
        node.elect().await;
        let (session, mut answers) = node.handle().session();
        let (go, slow) = std::sync::mpsc::channel();
        node.urn.lock().unwrap().slow = Some(slow);
        session.submit(vec![(1, acquire("a", "c", None))]);
        while node.urn.lock().unwrap().slow.is_some() {
            tokio::task::yield_now().await;
        }
        // The next round contains both.
        session.submit(vec![(2, acquire("b", "c", None))]);
        node.handle().stop();
        {
            let mut urn = node.urn.lock().unwrap();
            (urn.deposed, urn.lost) = (!at_commit, at_commit);
        }
        go.send(()).unwrap();
        let mut stopped = node.handle().stopped();
        let stopped = stopped.wait_for(Option::is_some).await.unwrap().clone();
        assert_eq!(stopped, Some(Stopped::Asked), "at commit: {at_commit}");
        assert_eq!(answers.recv().await.unwrap()[0].0, 1);
        let (2, Answer::Failed(_)) = answers.recv().await.unwrap()[0] else {
            panic!("nothing was recorded");
        };
    }
}

#[tokio::test]
async fn a_watcher_at_a_follower_is_woken_by_a_state_that_came_without_its_events() {
    let node = node();
    let mut news = node.handle().news();
    let mut machine = Machine::new(1);
    node.handle().show(Vec::new(), &machine);
    assert!(!news.has_changed().unwrap(), "there is nothing to tell");
    let entry = Entry {
        at: Timestamp::ZERO,
        wall: WallTime::default(),
        by: palisade_core::Principal::ANONYMOUS,
        command: Command::Leap { by: 1_000 },
    };
    machine.apply(entry, &mut Vec::new());
    node.handle().show(Vec::new(), &machine);
    assert!(news.has_changed().unwrap());
    assert_eq!(*news.borrow_and_update(), 1_000);
    assert_eq!(node.handle().revision(), 1_000);
}
