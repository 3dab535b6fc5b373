//! A lease as a text, which goes to another process (rule H6).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_core::{
    AuthorityId, ClientId, GrantId, GrantRef, LeaseKey, LockMode, LockName, Permits, Slots, Token,
    Ttl, limits,
};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::{Error, Loss, Lost};
use crate::fault::Fault;
use crate::lease::{Facts, Lease, acknowledged};
use crate::retry::{Cleanup, CleanupTask, repeat_until};
use crate::schedule::{KeptLease, NEVER};

/// The beginning of each text. The rest is base64url of a JSON object.
const FORM: &str = "palisade-lease/1.";

impl Lease {
    /// Hands the lease over: the text returned is for [`Client::adopt`], in another process or on another machine, in
    /// any language. From the call on the lease is not held here: it is not renewed, [`Lease::check`] fails with
    /// [`Loss::HandedOver`], and neither a release nor the drop sends anything. [`Lease::lost`] and
    /// [`Lease::cancellation_token`] end as they do with a release.
    ///
    /// The text contains the lease key, which allows to renew and to release: treat it as a secret. Give it to one
    /// adopter: two could not tell that both hold the lease, and the fence takes the token from either. An adopter has
    /// to be there before the lease expires.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease is not held. [`Fault::Invalid`] while an upgrade of it is under way or is being
    /// given up, and for a guard whose lease has other guards here: those of several locks are exported together, by
    /// [`Lease::export_all`]. After an error nothing has changed.
    pub fn export(&mut self) -> Result<String, Error> {
        Lease::export_all(std::slice::from_mut(self))
    }

    /// Hands over all guards of a request for several locks, as [`Lease::export`] does for one, without those that were
    /// released before.
    ///
    /// # Errors
    /// As [`Lease::export`]. [`Fault::Invalid`] if they are not all guards of one such request.
    pub fn export_all(leases: &mut [Lease]) -> Result<String, Error> {
        let text = text_of(leases)?;
        for lease in &*leases {
            lease.kept().hold.lose(Loss::HandedOver);
        }
        // If one was lost in between, the drop releases the others.
        for lease in &*leases {
            lease.ended_by(Loss::HandedOver)?;
        }
        for lease in leases {
            lease.hand_over();
        }
        Ok(text)
    }
}

impl Client {
    /// Takes over a lease that [`Lease::export`], or the export of another language, handed over. The lease is renewed
    /// at once, and held from the first renewal that is acknowledged, by this machine's clock. Its token is the same.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease is over, [`Fault::Unavailable`] if nobody answers within
    /// [`Options::patience`](crate::Options::patience): the same text may be adopted again. [`Fault::Invalid`] if the
    /// text is not one of an exported lease, if it is of several locks ([`Client::adopt_all`]), or if another authority
    /// granted it. With any error, nothing is held here.
    pub async fn adopt(&self, text: &str) -> Result<Lease, Error> {
        let exported = Exported::read(text)?;
        if exported.locks.len() > 1 {
            return Err(invalid("it has several locks: adopt it with `adopt_all`").into());
        }
        let mut leases = self.take_over(exported).await?;
        Ok(leases.swap_remove(0))
    }

    /// Takes over a lease of any number of locks, as [`Client::adopt`] does one of one lock. The guards are sorted by
    /// lock. If one of several locks is over, the others are released in the background.
    ///
    /// # Errors
    /// As [`Client::adopt`].
    pub async fn adopt_all(&self, text: &str) -> Result<Vec<Lease>, Error> {
        self.take_over(Exported::read(text)?).await
    }

    async fn take_over(&self, exported: Exported) -> Result<Vec<Lease>, Error> {
        if exported.facts.authority != *self.authority() {
            return Err(Fault::invalid(format!(
                "the lease is one of the authority {}, and this client asks {}: adopt it with a client of the \
                 authority that granted it",
                exported.facts.authority,
                self.authority()
            ))
            .into());
        }
        let keeper = self.keeper();
        keeper.start()?;
        let core = self.core();
        let until = core.clock.now().after(core.patience);
        let (facts, mut deadline) = (&exported.facts, NEVER);
        for lock in &exported.locks {
            let grant = exported.grant(lock);
            let mut sent = until;
            let renew = || {
                sent = core.clock.now();
                core.service.renew(grant.clone(), None)
            };
            let renewal = match repeat_until(core, until, renew).await {
                // A renewal that may have happened leaves nothing behind: the same text may be tried again.
                Err(Fault::UnknownOutcome(why)) => return Err(Fault::Unavailable(why).into()),
                answer => answer?,
            };
            match acknowledged(core, sent, renewal, facts.token) {
                Ok(counts_until) => deadline = deadline.min(counts_until),
                Err(why) => {
                    // The others are useless without it.
                    let ttl = facts.ttl.span();
                    let until = core.clock.now().after(ttl.plus(ttl));
                    for other in exported.locks.iter().filter(|other| *other != lock) {
                        let task = CleanupTask::Release(exported.grant(other));
                        keeper.send(Cleanup { task, until });
                    }
                    let (lock, token) = (lock.clone(), facts.token);
                    return Err(Lost { lock, token, why }.into());
                }
            }
        }
        let kept: Arc<KeptLease> = Arc::default();
        let leases = exported.locks.iter().map(|lock| {
            let (keeper, kept) = (Arc::clone(keeper), Arc::clone(&kept));
            Lease::until(keeper, exported.grant(lock), deadline, facts.clone(), kept)
        });
        let leases: Vec<_> = leases.collect();
        for lease in &leases {
            lease.check()?;
        }
        Ok(leases)
    }
}

/// Returns the text of guards that are all held, and are all that is held of their lease. It has no deadline: that of
/// this machine's clock means nothing on another one's.
fn text_of(leases: &[Lease]) -> Result<String, Error> {
    let Some(any) = leases.first() else {
        return Err(
            Fault::invalid("there is no lease to hand over: give at least one guard").into(),
        );
    };
    for lease in leases {
        lease.check()?;
        if lease.kept().is_being_upgraded() {
            return Err(Fault::invalid(format!(
                "an upgrade of {} is under way, or is being given up: hand over the lease that it returns, or try \
                 again when it has failed",
                lease.lock()
            ))
            .into());
        }
        if lease.lease_key() != any.lease_key() || lease.token() != any.token() {
            return Err(Fault::invalid(format!(
                "{} and {} are not of one request for several locks: hand each over by itself",
                any.lock(),
                lease.lock()
            ))
            .into());
        }
        if lease.has_others_than(leases) {
            return Err(Fault::invalid(format!(
                "the lease of {} has other guards, which would go on renewing it: release them first, or hand all \
                 guards of several locks over together",
                lease.lock()
            ))
            .into());
        }
    }
    let names = leases.iter().map(|lease| lease.lock().clone()).collect();
    let (first, others) = palisade_core::set_of(names)?;
    let facts = any.facts();
    let mut told = Map::new();
    let mut tell = |name: &str, value: Value| drop(told.insert(name.to_owned(), value));
    tell("lock", first.as_str().into());
    tell("authority", facts.authority.as_str().into());
    tell("fencing_token", facts.token.get().into());
    tell("lock_token", any.lease_key().to_hex().into());
    tell("ttl_ms", facts.ttl.as_millis().into());
    tell("client_id", facts.client.as_str().into());
    if !others.is_empty() {
        let all = std::iter::once(&first).chain(&*others);
        tell("parts", all.map(|lock| lock.as_str()).collect());
    }
    match facts.mode {
        LockMode::Shared => tell("mode", "shared".into()),
        LockMode::Update => tell("mode", "update".into()),
        LockMode::Permits(permits) => {
            tell("slots", facts.slots.iter().collect());
            tell("permits", permits.of().into());
        }
        LockMode::Exclusive | LockMode::Upgrade => {}
    }
    if let Some(id) = facts.shared {
        tell("grant_id", id.0.get().into());
    }
    if let Some(metadata) = facts.metadata.as_ref().filter(|text| !text.is_empty()) {
        tell("metadata", metadata.as_ref().into());
    }
    let encoded = URL_SAFE_NO_PAD.encode(Value::from(told).to_string());
    Ok(format!("{FORM}{encoded}"))
}

/// A lease that another process held.
struct Exported {
    /// At least one, sorted.
    locks: Vec<LockName>,
    key: LeaseKey,
    facts: Facts,
}

impl Exported {
    /// Reads a text. No error repeats it: it is a secret.
    fn read(text: &str) -> Result<Exported, Fault> {
        let Some(encoded) = text.trim().strip_prefix(FORM) else {
            return Err(invalid("it does not begin with \"palisade-lease/1.\""));
        };
        let decoded = URL_SAFE_NO_PAD.decode(encoded).ok();
        let told = decoded.and_then(|json| serde_json::from_slice::<Map<_, _>>(&json).ok());
        let mut told = told.ok_or_else(|| invalid("it is damaged"))?;
        told.retain(|_, value| !value.is_null());
        Exported::of(&told).map_err(invalid)
    }

    fn of(told: &Map<String, Value>) -> Result<Exported, &'static str> {
        let text = |name: &str| told.get(name).and_then(Value::as_str);
        let number = |name: &str| told.get(name).and_then(Value::as_u64);
        let token = |name: &str| Token::new(number(name)?).ok();
        let mode = match told.get("mode") {
            None => LockMode::Exclusive,
            Some(mode) if mode == "shared" => LockMode::Shared,
            Some(mode) if mode == "update" => LockMode::Update,
            Some(_) => return Err("mode is none of a lease"),
        };
        let shared = mode.is_shared().then(|| token("grant_id"));
        let shared = shared.map(|id| id.ok_or("grant_id is missing or out of range"));
        let slots = slots(told).ok_or("slots are out of range")?;
        let permits = || {
            let of = number("permits")?.try_into().ok()?;
            Permits::new(slots.count(), of).ok()
        };
        let mode = match mode {
            LockMode::Exclusive if !slots.is_empty() => {
                LockMode::Permits(permits().ok_or("permits are missing or out of range")?)
            }
            _ if !slots.is_empty() => return Err("a reader has no slots"),
            mode => mode,
        };
        let locks = locks(told).ok_or("lock or parts are missing, out of range or out of order")?;
        if locks.len() > 1 && mode != LockMode::Exclusive {
            return Err("several locks are held exclusively only");
        }
        let metadata = match told.get("metadata") {
            None => None,
            Some(metadata) => {
                let fits = |text: &&str| text.len() <= limits::METADATA_BYTES;
                let metadata = metadata.as_str().filter(fits);
                Some(metadata.ok_or("metadata is no text, or too long")?.into())
            }
        };
        let key = text("lock_token").and_then(|key| LeaseKey::from_hex(key).ok());
        let authority = text("authority").and_then(|name| AuthorityId::new(name).ok());
        let client = text("client_id").and_then(|name| ClientId::new(name).ok());
        let ttl = number("ttl_ms").and_then(|millis| Ttl::from_millis(millis).ok());
        Ok(Exported {
            locks,
            key: key.ok_or("lock_token is missing, or no lease key")?,
            facts: Facts {
                authority: authority.ok_or("authority is missing or out of range")?,
                client: client.ok_or("client_id is missing or out of range")?,
                token: token("fencing_token").ok_or("fencing_token is missing or out of range")?,
                mode,
                shared: shared.transpose()?.map(GrantId),
                slots,
                lease: None,
                ttl: ttl.ok_or("ttl_ms is missing or out of range")?,
                acquired_at: None,
                waited: std::time::Duration::ZERO,
                metadata,
            },
        })
    }

    fn grant(&self, lock: &LockName) -> GrantRef {
        GrantRef {
            lock: lock.clone(),
            key: self.key,
            token: Some(self.facts.number()),
        }
    }
}

/// The locks, of which `lock` must be the first. `parts` may have any order, because each language sorts by itself.
fn locks(told: &Map<String, Value>) -> Option<Vec<LockName>> {
    let name = |value: &Value| LockName::new(value.as_str()?).ok();
    let lock = name(told.get("lock")?)?;
    let named = match told.get("parts") {
        None => vec![lock.clone()],
        Some(parts) => parts.as_array()?.iter().map(name).collect::<Option<_>>()?,
    };
    let (first, others) = palisade_core::set_of(named).ok()?;
    let all = || std::iter::once(&first).chain(&*others).cloned().collect();
    (first == lock).then(all)
}

/// The slots, which rise.
fn slots(told: &Map<String, Value>) -> Option<Slots> {
    let Some(listed) = told.get("slots") else {
        return Some(Slots::NONE);
    };
    let (mut slots, mut last) = (Slots::NONE, 0);
    for slot in listed.as_array()? {
        let slot = slot.as_u64()?;
        if slot <= last || slot > u64::from(limits::PERMITS) {
            return None;
        }
        slots = slots.with(Slots::from_bits(1 << (slot - 1)));
        last = slot;
    }
    Some(slots)
}

fn invalid(why: &str) -> Fault {
    Fault::invalid(format!("the text is not that of an exported lease: {why}"))
}
