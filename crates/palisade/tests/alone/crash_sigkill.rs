//! A real server on a real disk, killed 300 times under load: nothing acknowledged is lost, no token is issued
//! twice, and every live lease gets its full time again.
//!
//! `PALISADE_SEED` replays the kill points; `PALISADE_KILLS` sets their number.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::server_process::{ServerProcess, asking};
use palisade_client::service::{Acquired, LockService, Released};
use palisade_client::{Client, GrantRef, LockName};
use rustix::process::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const TTL: Duration = Duration::from_secs(600);

/// An acknowledged fact, or a request that is about to be sent.
#[derive(Debug)]
enum Fact {
    Granted {
        client: String,
        grant: GrantRef,
    },
    /// From now on the grant may be over, whether or not an answer arrives.
    Releasing(GrantRef),
    Released(GrantRef),
}

/// The facts that follow from all acknowledgements.
#[derive(Default)]
struct Oracle {
    tokens: BTreeSet<u64>,
    /// The highest token acknowledged before the current run of the server.
    floor: u64,
    held: BTreeMap<String, Holding>,
}

struct Holding {
    client: String,
    grant: GrantRef,
    releasing: bool,
}

/// A lock as the server lists it.
struct Listed {
    lock: String,
    client: String,
    token: u64,
    remaining: Duration,
}

impl Oracle {
    fn take(&mut self, fact: Fact) -> Result<(), String> {
        match fact {
            Fact::Granted { client, grant } => self.granted(client, grant),
            Fact::Releasing(grant) => {
                if let Some(holding) = self.held.get_mut(grant.lock.as_str()) {
                    holding.releasing |= holding.grant == grant;
                }
                Ok(())
            }
            Fact::Released(grant) => {
                if self
                    .held
                    .get(grant.lock.as_str())
                    .is_some_and(|held| held.grant == grant)
                {
                    self.held.remove(grant.lock.as_str());
                }
                Ok(())
            }
        }
    }

    fn granted(&mut self, client: String, grant: GrantRef) -> Result<(), String> {
        let token = token(&grant);
        if !self.tokens.insert(token) {
            return Err(format!("token {token} was issued twice"));
        }
        if token <= self.floor {
            return Err(format!(
                "token {token} was issued after a restart, {} before it",
                self.floor
            ));
        }
        let holding = Holding {
            client,
            grant,
            releasing: false,
        };
        let lock = holding.grant.lock.to_string();
        match self.held.insert(lock.clone(), holding) {
            Some(before) if !before.releasing => Err(format!(
                "{lock} was granted again while {} held it",
                before.client
            )),
            _ => Ok(()),
        }
    }

    /// Every acknowledged grant that was not being released is still held, with its full time.
    fn verify(&mut self, listed: &[Listed], since_start: Duration) -> Result<(), String> {
        let listed: BTreeMap<&str, &Listed> = listed
            .iter()
            .map(|listed| (listed.lock.as_str(), listed))
            .collect();
        for (lock, holding) in self.held.iter().filter(|(_, holding)| !holding.releasing) {
            let token = token(&holding.grant);
            let found = listed.get(lock.as_str());
            let found = found.ok_or_else(|| format!("{lock} with token {token} is gone"))?;
            if found.token != token || found.client != holding.client {
                return Err(format!("{lock}: token {token} became {}", found.token));
            }
            if found.remaining + since_start < TTL {
                return Err(format!(
                    "{lock} lost part of its time: {:?} left",
                    found.remaining
                ));
            }
        }
        self.floor = self.tokens.last().copied().unwrap_or(0);
        // A release that was in flight when the server died has been decided by now.
        self.held.retain(|_, holding| !holding.releasing);
        Ok(())
    }
}

fn token(grant: &GrantRef) -> u64 {
    grant.token.unwrap().get()
}

/// One loop of the load. It ends with the server.
async fn work(
    service: Arc<dyn LockService>,
    name: String,
    run: usize,
    facts: UnboundedSender<Fact>,
) {
    for step in 0.. {
        // Every fourth time all loops want the same lock; a loop keeps every fifth of its own.
        let contended = step % 4 == 0;
        let lock = if contended {
            format!("all/{run}")
        } else {
            format!("own/{run}/{name}/{step}")
        };
        let client = format!("{name}/{run}");
        let wait = contended.then_some(Duration::from_secs(60));
        let Ok(outcome) = service.acquire(asking(&lock, &client, TTL, wait)).await else {
            return;
        };
        let Acquired::Granted(granted) = outcome else {
            panic!("{lock}: {outcome:?}")
        };
        let lock = LockName::new(&lock).unwrap();
        let grant = GrantRef {
            lock,
            key: granted.key,
            token: Some(granted.token),
        };
        let _ = facts.send(Fact::Granted {
            client,
            grant: grant.clone(),
        });
        if step % 3 == 0 && service.renew(grant.clone(), None).await.is_err() {
            return;
        }
        if contended || step % 5 != 0 {
            let _ = facts.send(Fact::Releasing(grant.clone()));
            match service.release(grant.clone()).await {
                Ok(Released::Released) => drop(facts.send(Fact::Released(grant))),
                Ok(other) => panic!("a held lock could not be released: {other:?}"),
                Err(_) => return,
            }
        }
    }
}

async fn list(client: &Client) -> Vec<Listed> {
    let locks = client.list("").all().await.unwrap();
    let listed = locks.into_iter().filter_map(|view| {
        let holder = view.holder?;
        Some(Listed {
            lock: view.lock.to_string(),
            client: holder.client.to_string(),
            token: holder.token.get(),
            remaining: holder.remaining.to_duration(),
        })
    });
    listed.collect()
}

/// Releases most grants of earlier runs, so that the table does not keep growing.
async fn tidy_up(client: &Client, oracle: &mut Oracle) {
    let grants: Vec<GrantRef> = oracle
        .held
        .values()
        .map(|held| held.grant.clone())
        .skip(100)
        .collect();
    for grant in grants {
        oracle.take(Fact::Releasing(grant.clone())).unwrap();
        if client.release(&grant).await.is_ok() {
            oracle.take(Fact::Released(grant)).unwrap();
        }
    }
}

/// Runs the server under load until this many facts are known; then sends the signal.
async fn load(
    run: usize,
    server: &mut ServerProcess,
    oracle: &mut Oracle,
    facts: usize,
    end: Signal,
) {
    let clients = [
        Client::connect(&server.url).await.unwrap(),
        Client::connect(&server.url).await.unwrap(),
    ];
    let since_start = server.begun.elapsed();
    let listed = list(&clients[0]).await;
    oracle
        .verify(&listed, since_start + server.begun.elapsed())
        .unwrap();
    tidy_up(&clients[0], oracle).await;
    let (sender, mut receiver) = unbounded_channel();
    let loops = (0..8).map(|at| {
        let service = Arc::clone(clients[at % 2].service());
        tokio::spawn(work(service, format!("loop-{at}"), run, sender.clone()))
    });
    let loops: Vec<_> = loops.collect();
    drop(sender);
    learn(&mut receiver, oracle, facts).await;
    server.end(end);
    learn(&mut receiver, oracle, usize::MAX).await;
    for ended in loops {
        ended.await.unwrap();
    }
}

async fn learn(facts: &mut UnboundedReceiver<Fact>, oracle: &mut Oracle, most: usize) {
    for _ in 0..most {
        match facts.recv().await {
            Some(fact) => oracle.take(fact).unwrap(),
            None => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_sigkills_under_load_lose_nothing_acknowledged() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = setting("PALISADE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let kills = setting("PALISADE_KILLS").unwrap_or(300);
    println!("PALISADE_SEED={seed} PALISADE_KILLS={kills}");
    let mut random = crate::server_process::Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut oracle = Oracle::default();
    let mut killed = 0;
    for run in 0.. {
        if killed == kills {
            break;
        }
        if random.below(8) == 0 {
            // Killed during its start, before or after its first sync.
            ServerProcess::start_and_kill(&data, random.below(40_000));
            killed += 1;
            continue;
        }
        let end = if random.below(10) == 0 {
            Signal::TERM
        } else {
            Signal::KILL
        };
        let facts = random.below(300) as usize;
        load(
            run,
            &mut ServerProcess::begin(&data),
            &mut oracle,
            facts,
            end,
        )
        .await;
        killed += u64::from(end == Signal::KILL);
    }
    let server = ServerProcess::begin(&data);
    let client = Client::connect(&server.url).await.unwrap();
    let since_start = server.begun.elapsed();
    let listed = list(&client).await;
    oracle
        .verify(&listed, since_start + server.begun.elapsed())
        .unwrap();
    println!(
        "{killed} SIGKILLs, {} acknowledged grants",
        oracle.tokens.len()
    );
    assert!(
        oracle.tokens.len() as u64 > kills,
        "hardly anything was acknowledged"
    );
}

/// Control: finds histories that no correct server could have.
#[test]
fn the_oracle_finds_a_repeated_token_a_vanished_grant_and_a_shortened_lease() {
    let grant = |lock: &str, token: u64| GrantRef {
        lock: LockName::new(lock).unwrap(),
        key: palisade_client::LeaseKey::from_bytes([1; 16]),
        token: Some(palisade_client::Token::new(token).unwrap()),
    };
    let granted = |lock: &str, token| Fact::Granted {
        client: "a".into(),
        grant: grant(lock, token),
    };
    let listed = |token, remaining| Listed {
        lock: "x".into(),
        client: "a".into(),
        token,
        remaining,
    };
    let with = || {
        let mut oracle = Oracle::default();
        oracle.take(granted("x", 5)).unwrap();
        oracle
    };
    assert!(with().take(granted("y", 5)).is_err(), "a repeated token");
    assert!(with().take(granted("x", 6)).is_err(), "two holders");
    assert!(
        with().verify(&[], Duration::ZERO).is_err(),
        "a vanished grant"
    );
    assert!(
        with().verify(&[listed(6, TTL)], Duration::ZERO).is_err(),
        "a changed token"
    );
    let short = TTL - Duration::from_millis(2);
    assert!(
        with()
            .verify(&[listed(5, short)], Duration::from_millis(1))
            .is_err(),
        "a shortened lease"
    );
    let mut fine = with();
    fine.verify(&[listed(5, short)], Duration::from_millis(2))
        .unwrap();
    assert!(
        fine.take(granted("z", 4)).is_err(),
        "a token below an acknowledged one"
    );
    let mut asked = with();
    asked.take(Fact::Releasing(grant("x", 5))).unwrap();
    asked.verify(&[], Duration::ZERO).unwrap();
}
