//! The Rust client's driver for the holder suite of all languages (`clients/holder-suite`): commands in lines of
//! JSON on standard input, answers and events in lines of JSON on standard output.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead as _, Write as _};
use std::rc::Rc;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::kind::Kind;
use palisade_client::{
    Change, Client, Code, Error, Lease, LeaseNotice, LockRequest, Loss, Notice, Notices, Options,
    Released, Token,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet, spawn_local};

/// A grant by the name that the suite gave it.
struct Held {
    /// A guard for each of its locks, without those that a release took. The suite's grant of several locks is lost as a
    /// whole, so when one is lost the others are dropped.
    leases: Vec<Rc<Lease>>,
    is_lost: Box<dyn Fn() -> bool>,
    is_announced: bool,
}

#[derive(Default)]
struct Driver {
    client: RefCell<Option<Client>>,
    held: RefCell<HashMap<String, Held>>,
    running: RefCell<HashMap<u64, AbortHandle>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    say(
        &json!({"event": "hello", "client": "rust", "wire": "session", "can": ["cancel", "delays", "handover", "list", "notices", "permits", "sets", "shared", "update", "watch"]}),
    );
    LocalSet::new().run_until(serve(commands())).await;
}

/// Lines of standard input, read by a thread of their own.
fn commands() -> mpsc::UnboundedReceiver<Value> {
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let command = serde_json::from_str(&line).unwrap_or(Value::Null);
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    commands
}

async fn serve(mut commands: mpsc::UnboundedReceiver<Value>) {
    let driver = Rc::new(Driver::default());
    while let Some(command) = commands.recv().await {
        let id = command["id"].as_u64().unwrap_or(0);
        if command["do"] == "cancel" {
            driver.cancel(&command);
            say(&json!({"id": id, "ok": true}));
            continue;
        }
        let task = Rc::clone(&driver);
        let running = spawn_local(async move {
            let mut answer = task.carry_out(&command).await;
            answer["id"] = id.into();
            say(&answer);
        });
        driver
            .running
            .borrow_mut()
            .insert(id, running.abort_handle());
    }
}

impl Driver {
    async fn carry_out(self: &Rc<Driver>, command: &Value) -> Value {
        match text(command, "do") {
            "connect" => answer(self.connect(command).await),
            "acquire" => answer(self.acquire(command).await),
            "downgrade" => answer(self.downgrade(command).await),
            "upgrade" => answer(self.upgrade(command).await),
            "export" => answer(self.export(text(command, "grant"))),
            "adopt" => answer(self.adopt(command).await),
            "check" => self.check(text(command, "grant")),
            "checks" => self.checks(command),
            "pairs" => answer(self.pairs(command).await),
            "remaining" => self.remaining(text(command, "grant")),
            "wanted" => self.wanted(text(command, "grant")),
            "release" => answer(self.release(command).await),
            "clock" => json!({"ok": true, "now_ms": now_ms()}),
            "show" => answer(self.show(command).await),
            "list" => answer(self.list(command).await),
            "break" => answer(self.revoke(command).await),
            "watch" => answer(self.watch(command).await),
            other => json!({"ok": false, "code": "invalid", "message": format!("{other}?")}),
        }
    }

    fn client(&self) -> Result<Client, Error> {
        let client = self.client.borrow().clone();
        client.ok_or_else(|| palisade_client::Fault::invalid("connect first").into())
    }

    async fn connect(&self, command: &Value) -> Result<Value, Error> {
        let options = Options {
            patience: millis(command, "patience_ms"),
            notices: command["notices"].as_bool().unwrap_or(false),
            ..Options::default()
        };
        let url = command["urls"][0].as_str().unwrap_or_default();
        let client = Client::connect_with(url, options).await?;
        *self.client.borrow_mut() = Some(client);
        Ok(json!({}))
    }

    async fn acquire(self: &Rc<Driver>, command: &Value) -> Result<Value, Error> {
        if let Some(also) = command["also"].as_array() {
            let names = also.iter().filter_map(Value::as_str);
            let names = std::iter::once(text(command, "lock")).chain(names);
            let request = with_options(self.client()?.locks(names), command);
            return Ok(self.taken(command, request.acquire().await?));
        }
        let (client, lock) = (self.client()?, text(command, "lock"));
        let lease = match (text(command, "mode"), command["permits"].as_object()) {
            ("shared", _) => {
                with_options(client.lock_shared(lock), command)
                    .acquire()
                    .await?
            }
            ("update", _) => {
                with_options(client.lock_shared(lock).for_update(), command)
                    .acquire()
                    .await?
            }
            (_, Some(permits)) => {
                let number = |name| {
                    let number = permits[name].as_u64();
                    number
                        .and_then(|number| number.try_into().ok())
                        .unwrap_or(0)
                };
                let request = client
                    .semaphore(lock, number("of"))
                    .permits(number("count"));
                with_options(request, command).acquire().await?
            }
            (_, None) => {
                let request = with_options(client.lock(lock), command)
                    .lock_delay(millis(command, "lock_delay_ms"))
                    .at_least_for(millis(command, "at_least_for_ms"));
                request.acquire().await?
            }
        };
        Ok(self.taken(command, vec![lease]))
    }

    async fn downgrade(self: &Rc<Driver>, command: &Value) -> Result<Value, Error> {
        let writer = self.take(text(command, "grant"), |_| true).pop();
        let writer = alone(writer)?;
        writer.check()?;
        let reader = self.client()?.downgrade(writer).await?;
        Ok(self.taken(command, vec![reader]))
    }

    async fn upgrade(self: &Rc<Driver>, command: &Value) -> Result<Value, Error> {
        let reader = {
            let held = self.held.borrow();
            let held = held.get(text(command, "grant"));
            held.and_then(|held| held.leases.first().map(Rc::clone))
        };
        let reader = reader.ok_or_else(no_such_grant)?;
        let client = self.client()?;
        let writer = client.upgrade(&reader, millis(command, "wait_ms")).await?;
        Ok(self.taken(command, vec![writer]))
    }

    /// The guards stay, so that a check says that they were handed over.
    fn export(&self, grant: &str) -> Result<Value, Error> {
        let mut held = self.held.borrow_mut();
        let held = held.get_mut(grant).ok_or_else(no_such_grant)?;
        if held.leases.iter().any(|lease| Rc::strong_count(lease) > 1) {
            return Err(palisade_client::Fault::invalid("an upgrade is under way").into());
        }
        let leases = std::mem::take(&mut held.leases).into_iter();
        let mut leases: Vec<_> = leases.filter_map(Rc::into_inner).collect();
        let text = Lease::export_all(&mut leases);
        held.leases = leases.into_iter().map(Rc::new).collect();
        Ok(json!({"text": text?}))
    }

    async fn adopt(self: &Rc<Driver>, command: &Value) -> Result<Value, Error> {
        let leases = self.client()?.adopt_all(text(command, "text")).await?;
        Ok(self.taken(command, leases))
    }

    fn taken(self: &Rc<Driver>, command: &Value, leases: Vec<Lease>) -> Value {
        let before = now_ms();
        let lease = &leases[0];
        let granted = json!({
            "token": lease.token().get(), "grant_id": lease.grant_id().map(|id| id.0.get()),
            "slots": lease.slots().iter().collect::<Vec<_>>(),
            "slot_keys": lease.slot_keys().map(|key| key.to_string()).collect::<Vec<_>>(),
            "authority": lease.authority().as_str(),
            "waited_ms": lease.waited().as_secs_f64() * 1e3,
            "before_ms": before, "remaining_ms": lease.remaining().as_secs_f64() * 1e3,
        });
        let name = text(command, "as").to_owned();
        for lease in &leases {
            self.announce_loss(name.clone(), lease);
            spawn_local(tell(name.clone(), lease.notices()));
        }
        let lost: Vec<_> = leases.iter().map(Lease::cancellation_token).collect();
        let held = Held {
            leases: leases.into_iter().map(Rc::new).collect(),
            is_lost: Box::new(move || lost.iter().any(|token| token.is_cancelled())),
            is_announced: false,
        };
        self.held.borrow_mut().insert(name, held);
        granted
    }

    /// Those guards of a grant, which are then no longer checked.
    fn take(&self, grant: &str, which: impl Fn(&Lease) -> bool) -> Vec<Rc<Lease>> {
        let mut held = self.held.borrow_mut();
        let found = held.get_mut(grant).map(|held| &mut held.leases);
        found.map_or_else(Vec::new, |leases| {
            leases.extract_if(.., |lease| which(lease)).collect()
        })
    }

    /// Says once that a grant is lost.
    fn announce_loss(self: &Rc<Driver>, grant: String, lease: &Lease) {
        let (driver, lost) = (Rc::clone(self), lease.lost());
        spawn_local(async move {
            let lost = lost.await;
            let is_a_loss = !matches!(lost.why, Loss::Released | Loss::HandedOver);
            if is_a_loss && driver.lose_the_others(&grant) {
                let (token, code) = (lost.token.get(), code_of(lost.why));
                say(
                    &json!({"event": "lost", "grant": grant, "token": token, "code": code, "at_ms": now_ms()}),
                );
            }
        });
    }

    /// Drops the guards that still hold, which releases them. False if a loss was announced already.
    fn lose_the_others(&self, grant: &str) -> bool {
        drop(self.take(grant, |lease| lease.check().is_ok()));
        let mut held = self.held.borrow_mut();
        held.get_mut(grant)
            .is_some_and(|held| !std::mem::replace(&mut held.is_announced, true))
    }

    fn check(&self, grant: &str) -> Value {
        let held = self.held.borrow();
        let before = now_ms();
        let code = match held.get(grant) {
            // `release` has taken the guards, so there is nothing to check any more; their signals are left.
            Some(Held {
                leases, is_lost, ..
            }) if leases.is_empty() => is_lost().then_some(Code::NotHeld.name()),
            Some(Held { leases, .. }) => {
                let lost = leases.iter().find_map(|lease| lease.check().err());
                lost.map(|lost| code_of(lost.why))
            }
            None => Some(Code::Invalid.name()),
        };
        json!({"ok": code.is_none(), "code": code, "before_ms": before})
    }

    fn checks(&self, command: &Value) -> Value {
        let held = self.held.borrow();
        let held = held.get(text(command, "grant"));
        let Some(lease) = held.and_then(|held| held.leases.first()) else {
            return json!({"ok": false, "code": Code::Invalid.name()});
        };
        let before = now_ms();
        let held = (0..count(command)).all(|_| std::hint::black_box(lease).check().is_ok());
        json!({"ok": held, "took_ms": now_ms() - before})
    }

    async fn pairs(&self, command: &Value) -> Result<Value, Error> {
        let (client, before) = (self.client()?, now_ms());
        for _ in 0..count(command) {
            let lease = client.lock(text(command, "lock")).acquire().await?;
            lease.release().await?;
        }
        Ok(json!({"took_ms": now_ms() - before}))
    }

    fn remaining(&self, grant: &str) -> Value {
        let held = self.held.borrow();
        let before = now_ms();
        let leases = held.get(grant).map_or(&[][..], |held| &held.leases);
        let remaining = leases.iter().map(|lease| lease.remaining()).min();
        let remaining = remaining.unwrap_or_default();
        json!({"ok": true, "before_ms": before, "remaining_ms": remaining.as_secs_f64() * 1e3})
    }

    fn wanted(&self, grant: &str) -> Value {
        let held = self.held.borrow();
        let leases = held.get(grant).map_or(&[][..], |held| &held.leases);
        let waiters: u32 = leases.iter().map(|lease| lease.wanted()).sum();
        json!({"ok": true, "waiters": waiters})
    }

    async fn release(&self, command: &Value) -> Result<Value, Error> {
        let part = command["lock"].as_str();
        let is_wanted = |lease: &Lease| part.is_none_or(|part| lease.lock().as_str() == part);
        let mut worst = 0;
        for lease in self.take(text(command, "grant"), is_wanted) {
            let found = match alone(Some(lease))?.release().await? {
                Released::Ended(palisade_client::Ending::Released) => 0,
                Released::Released | Released::Delayed { .. } => 1,
                _ => 2,
            };
            worst = worst.max(found);
        }
        let result = ["already_released", "released", "over"][worst];
        Ok(json!({"result": result}))
    }

    fn cancel(&self, command: &Value) {
        let target = command["target"].as_u64().unwrap_or(0);
        if let Some(running) = self.running.borrow().get(&target) {
            running.abort();
            say(&json!({"id": target, "ok": false, "code": "cancelled"}));
        }
    }

    async fn show(&self, command: &Value) -> Result<Value, Error> {
        let view = self.client()?.show(text(command, "lock")).await?;
        let token = view.holder.map(|holder| holder.token.get());
        Ok(json!({"token": token, "waiters": view.waiters}))
    }

    async fn list(&self, command: &Value) -> Result<Value, Error> {
        let mut listing = self.client()?.list(text(command, "prefix"));
        let mut names = Vec::new();
        while let Some(view) = listing.next().await? {
            names.push(view.lock.to_string());
        }
        Ok(json!({"locks": names}))
    }

    async fn revoke(&self, command: &Value) -> Result<Value, Error> {
        let (lock, reason) = (text(command, "lock"), text(command, "reason"));
        let token = Token::new(command["token"].as_u64().unwrap_or(0))?;
        let revocation = self.client()?.revoke(lock, token, reason).await?;
        Ok(json!({"result": format!("{revocation:?}").to_lowercase()}))
    }

    async fn watch(&self, command: &Value) -> Result<Value, Error> {
        let mut watch = self.client()?.watch(text(command, "prefix")).await?;
        let name = text(command, "as").to_owned();
        spawn_local(async move {
            let mut missed = 0;
            while let Ok(notice) = watch.next().await {
                let event = match notice {
                    Notice::Change(event) => event,
                    Notice::Missed { missed: more, .. } => {
                        missed += more;
                        continue;
                    }
                    _ => continue,
                };
                let token = event.token.get();
                let kind = match event.change {
                    Change::Granted { .. } => "granted".to_owned(),
                    Change::Proclaimed => "proclaimed".to_owned(),
                    Change::Opened { .. } => "opened".to_owned(),
                    Change::Ended { how, .. } => format!("{how:?}").to_lowercase(),
                };
                say(
                    &json!({"event": "change", "watch": name, "revision": event.revision, "token": token,
                        "kind": kind, "missed": std::mem::take(&mut missed)}),
                );
            }
        });
        Ok(json!({}))
    }
}

/// Says what a guard hears.
async fn tell(grant: String, mut notices: Notices) {
    while let Some(notice) = notices.next().await {
        let mut told = match notice {
            LeaseNotice::Suspended { remaining } => {
                json!({"kind": "suspended", "remaining_ms": remaining.as_secs_f64() * 1e3})
            }
            LeaseNotice::Restored => json!({"kind": "restored"}),
            LeaseNotice::Wanted { waiters } => json!({"kind": "wanted", "waiters": waiters}),
            LeaseNotice::Unwanted => json!({"kind": "unwanted"}),
            // A guard that was released or handed over by its holder is no news to it.
            LeaseNotice::Lost { lost, .. }
                if matches!(lost.why, Loss::Released | Loss::HandedOver) =>
            {
                return;
            }
            LeaseNotice::Lost { lost, reason } => {
                json!({"kind": "lost", "why": code_of(lost.why), "reason": reason})
            }
            other => json!({"kind": format!("{other:?}")}),
        };
        told["event"] = "notice".into();
        told["grant"] = grant.as_str().into();
        told["at_ms"] = now_ms().into();
        say(&told);
    }
}

/// The guard itself: an upgrade that is under way has a part in it.
fn alone(lease: Option<Rc<Lease>>) -> Result<Lease, Error> {
    lease.and_then(Rc::into_inner).ok_or_else(no_such_grant)
}

/// A request with the options that every kind of lock has.
fn with_options<K: Kind>(request: LockRequest<K>, command: &Value) -> LockRequest<K> {
    let request = request
        .ttl(millis(command, "ttl_ms"))
        .wait(millis(command, "wait_ms"));
    match command["client_id"].as_str() {
        Some(client) => request.client_id(client),
        None => request,
    }
}

fn no_such_grant() -> Error {
    palisade_client::Fault::invalid("there is no such grant").into()
}

fn answer(result: Result<Value, Error>) -> Value {
    match result {
        Ok(mut value) => {
            value["ok"] = true.into();
            value
        }
        Err(error) => {
            let code = match &error {
                Error::Lost(lost) => code_of(lost.why),
                error => error.code().name(),
            };
            json!({"ok": false, "code": code, "message": format!("{error:#}")})
        }
    }
}

/// The suite tells a lease that was handed over from one that was released; a server has one code for both.
fn code_of(why: Loss) -> &'static str {
    match why {
        Loss::HandedOver => "handed_over",
        why => why.code().name(),
    }
}

fn text<'a>(command: &'a Value, field: &str) -> &'a str {
    command[field].as_str().unwrap_or_default()
}

fn millis(command: &Value, field: &str) -> Duration {
    Duration::from_millis(command[field].as_u64().unwrap_or(0))
}

fn count(command: &Value) -> u64 {
    command["count"].as_u64().unwrap_or(0)
}

fn now_ms() -> f64 {
    BootClock.now().as_nanos() as f64 / 1e6
}

fn say(value: &Value) {
    let mut out = io::stdout().lock();
    // The suite that no longer reads has ended.
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}
