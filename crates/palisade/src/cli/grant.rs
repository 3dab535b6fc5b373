//! `acquire`, `renew` and `release`: grants without a guard of ours.

use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::kind::Kind;
use palisade_client::{
    Client, Ending, Error, Lease, LockMode, LockRequest, Options, Released, Renewal,
    SequencerAnswer, Slots, without_secrets,
};
use palisade_core::{GrantRef, LockName, Token};
use palisade_proto::Code;
use serde_json::json;

use super::args::{AcquireArgs, GrantArgs, LockArgs, ReleaseArgs, RenewArgs, SignArgs};
use super::failure::{Failure, LOST};
use super::output::{Out, facts, millis, wall};
use super::secret;
use super::shell::shell_word;

impl LockArgs {
    /// All its locks, as they were typed.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &LockName> {
        std::iter::once(&self.lock).chain(&self.also)
    }

    /// Acquires the lock, or all of them, and waits for so long. The guard of the lock that was typed first comes first.
    pub(crate) async fn acquire(
        &self,
        client: &Client,
        wait: Duration,
    ) -> Result<Vec<Lease>, Error> {
        if !self.also.is_empty() {
            let set = client.locks(self.locks().map(LockName::as_str));
            let mut leases = self.request(set, wait).acquire().await?;
            leases.sort_by_key(|lease| *lease.lock() != self.lock);
            return Ok(leases);
        }
        // The arguments were refused if they name two kinds.
        let lease = if self.shared {
            let reader = client.lock_shared(&self.lock);
            self.request(reader, wait).acquire().await?
        } else if let Some(permits) = self.permits {
            let semaphore = client.semaphore(&self.lock, permits.of());
            let wanted = semaphore.permits(permits.wanted());
            self.request(wanted, wait).acquire().await?
        } else {
            let alone = self.options.add(client.lock(&self.lock));
            self.request(alone, wait).acquire().await?
        };
        Ok(vec![lease])
    }

    /// A request with the arguments that every kind of lock has.
    fn request<K: Kind>(&self, request: LockRequest<K>, wait: Duration) -> LockRequest<K> {
        let mut request = request.ttl(self.ttl.span().to_duration()).wait(wait);
        if let Some(id) = &self.client_id {
            request = request.client_id(id);
        }
        if let Some(metadata) = &self.metadata {
            request = request.metadata(metadata);
        }
        request
    }
}

pub(super) async fn acquire(args: &AcquireArgs, out: Out) -> Result<(), Failure> {
    let url = &args.lock_args.connection.authority;
    let client = args.lock_args.connection.open(Options::default()).await?;
    let leases = args.lock_args.acquire(&client, args.lock_args.wait());
    let leases = leases.await.map_err(|error| Failure::of(&error, url))?;
    let text = match &*leases {
        [] => String::new(),
        _ if out.json => reply(&leases).to_string(),
        _ if args.export => export(&leases, url),
        _ => describe(&leases, url, out),
    };
    let printed = out.delivered(&text);
    if printed.is_err() {
        // Nobody read the secret, so nobody could ever release the lock.
        for lease in leases {
            let _ = lease.release().await;
        }
        return printed;
    }
    // From here on the grant belongs to the reader of the output.
    for lease in leases {
        let _ = lease.detach();
    }
    Ok(())
}

/// The names of several locks, one on each line: a name has no line breaks. Nothing for one lock.
pub(crate) fn lock_list<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> Option<String> {
    let names = leases.into_iter().map(|lease| lease.lock().as_str());
    let names: Vec<&str> = names.collect();
    (names.len() > 1).then(|| names.join("\n"))
}

/// The local deadline in milliseconds on CLOCK_BOOTTIME, rounded down.
fn deadline_ms(lease: &Lease) -> u64 {
    // Read the clock first: a later reading would postpone the deadline.
    let now = BootClock.now();
    now.after(lease.remaining().into()).as_nanos() / 1_000_000
}

fn reply(leases: &[Lease]) -> serde_json::Value {
    let lease = &leases[0];
    let remaining_ms = u64::try_from(lease.remaining().as_millis()).unwrap_or(u64::MAX);
    let mut reply = json!({
        "resource_id": lease.lock().as_str(),
        "lock_acquired": true,
        "lock_token": lease.lease_key().to_hex(),
        "fencing_token": lease.token().get(),
        "lease_duration_ms": lease.ttl().as_millis(),
        "remaining_ms": remaining_ms,
        "acquired_at": lease.acquired_at().map(wall),
        "authority": lease.authority().as_str(),
        "client_id": lease.client_id().as_str(),
        "deadline_ms": deadline_ms(lease),
    });
    if let Some(id) = lease.grant_id() {
        reply["grant_id"] = id.0.get().into();
    }
    if !lease.slots().is_empty() {
        reply["slots"] = lease.slots().iter().collect();
    }
    if leases.len() > 1 {
        reply["resource_ids"] = leases.iter().map(|lease| lease.lock().as_str()).collect();
    }
    reply
}

fn export(leases: &[Lease], url: &str) -> String {
    let lease = &leases[0];
    let mut lines = vec![
        ("PALISADE_LOCK", lease.lock().to_string()),
        ("PALISADE_LOCK_TOKEN", lease.lease_key().to_hex()),
        ("PALISADE_FENCING_TOKEN", lease.token().to_string()),
        ("PALISADE_AUTHORITY", url.to_owned()),
        ("PALISADE_AUTHORITY_ID", lease.authority().to_string()),
        ("PALISADE_DEADLINE_MS", deadline_ms(lease).to_string()),
    ];
    lines.extend(
        lease
            .grant_id()
            .map(|id| ("PALISADE_GRANT_ID", id.0.to_string())),
    );
    lines.extend(slot_list(lease.slots()).map(|slots| ("PALISADE_SLOTS", slots)));
    lines.extend(lock_list(leases).map(|locks| ("PALISADE_LOCKS", locks)));
    let lines = lines
        .into_iter()
        // Does not export an address with a password.
        .filter(|(name, value)| *name != "PALISADE_AUTHORITY" || without_secrets(value) == *value)
        .map(|(name, value)| format!("export {name}={}", shell_word(&value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The numbers of slots, separated by commas; nothing for a lock that is not a semaphore.
pub(crate) fn slot_list(slots: Slots) -> Option<String> {
    let numbers: Vec<String> = slots.iter().map(|slot| slot.to_string()).collect();
    (!numbers.is_empty()).then(|| numbers.join(","))
}

fn describe(leases: &[Lease], url: &str, out: Out) -> String {
    let lease = &leases[0];
    let remaining = u64::try_from(lease.remaining().as_millis()).unwrap_or(u64::MAX);
    let mut rows = vec![(
        "fencing token",
        format!("{}  (for the resource)", lease.token()),
    )];
    rows.extend(
        lease
            .grant_id()
            .map(|id| ("grant id", format!("{}  (renews and releases)", id.0))),
    );
    rows.extend(
        slot_list(lease.slots())
            .map(|slots| ("slots", format!("{slots}  (each has a fence of its own)"))),
    );
    rows.extend([
        (
            "lock_token",
            format!(
                "{}  (secret: renews and releases)",
                lease.lease_key().to_hex()
            ),
        ),
        (
            "lease",
            format!(
                "{}; {} left to act",
                millis(lease.ttl().as_millis().into()),
                millis(remaining)
            ),
        ),
        (
            "acquired at",
            lease.acquired_at().map(wall).unwrap_or_default(),
        ),
        (
            "authority",
            format!("{}  at {}", lease.authority(), without_secrets(url)),
        ),
        ("client id", lease.client_id().to_string()),
    ]);
    let how = match lease.mode() {
        LockMode::Exclusive | LockMode::Upgrade => "held".to_owned(),
        LockMode::Shared => "held in shared mode".to_owned(),
        LockMode::Update => "held in mode update".to_owned(),
        LockMode::Permits(permits) => {
            format!("held, {} of {} permits", permits.wanted(), permits.of())
        }
    };
    let names: Vec<String> = leases
        .iter()
        .map(|lease| out.strong(lease.lock()).to_string())
        .collect();
    let head = match &*names {
        [name] => format!("{name} is {how}; only `palisade renew` renews it"),
        names => format!(
            "{} are {how} under one lease; only `palisade renew` of one of them renews it",
            names.join(", ")
        ),
    };
    format!("{head}\n{}", facts(out, &rows))
}

impl GrantArgs {
    pub(super) fn named(&self) -> Result<GrantRef, Failure> {
        let key = secret::lock_token(self.lock_token_file.as_deref())?;
        Ok(GrantRef {
            lock: self.lock.clone(),
            key,
            token: self.token,
        })
    }
}

pub(super) async fn sequencer(args: &SignArgs, out: Out) -> Result<(), Failure> {
    let grant = args.grant.named()?;
    let url = &args.grant.connection.authority;
    let client = args.grant.connection.open(Options::default()).await?;
    let answer = client.sequencer(&grant).await;
    let text = signed(
        &grant.lock,
        grant.token,
        answer.map_err(|error| Failure::of(&error, url))?,
    )?;
    if out.json {
        return out.value(&json!({"resource_id": grant.lock.as_str(), "sequencer": text}));
    }
    out.text(&text)
}

/// The sequencer in the authority's answer.
pub(crate) fn signed(
    lock: &LockName,
    token: Option<Token>,
    answer: SequencerAnswer,
) -> Result<Box<str>, Failure> {
    match answer {
        SequencerAnswer::Signed(text) => Ok(text),
        SequencerAnswer::Ended(how) => Err(over(lock.as_str(), how)),
        SequencerAnswer::NotHeld => Err(not_held(lock.as_str())),
        SequencerAnswer::Stale { highest } => Err(stale(lock.as_str(), token, highest)),
    }
}

pub(super) async fn renew(args: &RenewArgs, out: Out) -> Result<(), Failure> {
    let grant = args.grant.named()?;
    let url = &args.grant.connection.authority;
    let client = args.grant.connection.open(Options::default()).await?;
    let answer = client
        .renew(&grant, args.ttl)
        .await
        .map_err(|error| Failure::of(&error, url))?;
    let lock = grant.lock.as_str();
    match answer {
        Renewal::Renewed(renewed) if out.json => out.value(&json!({
            "resource_id": lock,
            "fencing_token": renewed.token.get(),
            "lease_duration_ms": renewed.ttl.as_millis(),
            "remaining_ms": renewed.valid_for.as_millis(),
        })),
        Renewal::Renewed(renewed) => {
            let lasts = millis(renewed.valid_for.as_millis());
            out.text(&format!(
                "renewed {} for {lasts}, token {}",
                out.strong(lock),
                renewed.token
            ))
        }
        Renewal::Ended(how) => Err(over(lock, how)),
        Renewal::NotHeld => Err(not_held(lock)),
        Renewal::Stale { highest } => Err(stale(lock, grant.token, highest)),
    }
}

pub(super) async fn release(args: &ReleaseArgs, out: Out) -> Result<(), Failure> {
    let grant = args.grant.named()?;
    let url = &args.grant.connection.authority;
    let client = args.grant.connection.open(Options::default()).await?;
    let answer = client
        .release(&grant)
        .await
        .map_err(|error| Failure::of(&error, url))?;
    let lock = grant.lock.as_str();
    let (already, delayed) = match answer {
        Released::Released => (false, None),
        Released::Delayed { remaining } => (false, Some(remaining)),
        Released::Ended(Ending::Released) => (true, None),
        Released::Ended(how) => return Err(over(lock, how)),
        Released::NotHeld => return Err(not_held(lock)),
        Released::Stale { highest } => return Err(stale(lock, grant.token, highest)),
        // The lease is over, whatever a later version calls its end.
        _ => (false, None),
    };
    if out.json {
        let mut reply = json!({"resource_id": lock, "released": true, "already_released": already});
        if let Some(delayed) = delayed {
            reply["delayed_ms"] = delayed.as_millis().into();
        }
        return out.value(&reply);
    }
    let how = if already {
        "was already released"
    } else {
        "is released"
    };
    let closed = delayed.map_or_else(String::new, |delayed| {
        format!("; nobody is granted it for {}", millis(delayed.as_millis()))
    });
    out.text(&format!("{} {how}{closed}", out.strong(lock)))
}

/// The failure for a grant that has ended in this way.
pub(super) fn over(lock: &str, how: Ending) -> Failure {
    let (code, what) = match how {
        Ending::Released => (Code::NotHeld, "was already released"),
        Ending::Expired => (Code::Expired, "was lost: its lease expired"),
        Ending::Revoked => (Code::Revoked, "was lost: an operator took it"),
        Ending::Superseded => (
            Code::Superseded,
            "was lost: the same client id acquired it again",
        ),
    };
    let hint = "stop the work that relied on it; a new acquire gets a new, higher token";
    Failure::new(LOST, code, format!("{lock} {what}")).hint(hint)
}

pub(super) fn not_held(lock: &str) -> Failure {
    let hint = format!("see who holds it: palisade show {}", shell_word(lock));
    Failure::new(
        LOST,
        Code::NotHeld,
        format!("this grant does not hold {lock}"),
    )
    .hint(hint)
}

/// `named` is the token of the command, if it has one.
pub(super) fn stale(lock: &str, named: Option<Token>, highest: Token) -> Failure {
    let message = match named {
        Some(named) if named < highest => {
            format!("token {named} is stale: {named} < {highest}; {lock} is held with {highest}")
        }
        _ => format!("{lock} is held with another fencing token, {highest}"),
    };
    let hint = format!("look again: palisade show {}", shell_word(lock));
    Failure::new(LOST, Code::Stale, message).hint(hint)
}
