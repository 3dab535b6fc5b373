//! Batches of commands: the payload of one log frame.

use palisade_core::{
    Acquire, Away, Command, Entry, GrantOption, GrantOptions, GrantRef, LeaseKey, Limits, LockMode,
    LockName, Others, Permits, Principal, Span, Timestamp, Token, Ttl, Under, WallTime, limits,
};

use super::reader::{Malformed, Reader};
use super::version::{VERSION, newest_version, version_needed};
use super::writer::Put;

const ACQUIRE_NEW: u8 = 1;
const ACQUIRE_UNDER: u8 = 2;
const RENEW: u8 = 3;
const RELEASE: u8 = 4;
const REVOKE: u8 = 5;
const WITHDRAW: u8 = 6;
const ABANDON: u8 = 7;
const EXPIRE: u8 = 8;
const GRACE: u8 = 9;
const LEAP: u8 = 10;
const CONFIGURE: u8 = 11;
const RESIZE: u8 = 12;
const PROCLAIM: u8 = 13;
/// The other locks of a set, and an acquire of the first one behind them.
const ACQUIRE_SET: u8 = 14;
/// The acquire behind it is for mode update, or is an upgrade. The bits of its flags are used up.
const ACQUIRE_UPDATE: u8 = 15;
const ACQUIRE_UPGRADE: u8 = 16;
const ORPHAN: u8 = 17;
const OPEN: u8 = 18;
/// Not a command: the principal that asked for the commands behind it.
const BY: u8 = 64;

const RESTARTED: u8 = 1;
const PAUSED: u8 = 2;
const LED: u8 = 3;
const RESTORED: u8 = 4;
const DOWN: u8 = 5;

const HAS_TTL: u8 = 1;
const HAS_WAIT: u8 = 1 << 1;
const HAS_REQUEST: u8 = 1 << 2;
const HAS_METADATA: u8 = 1 << 3;
const HAS_TOKEN: u8 = 1 << 4;
const SHARED: u8 = 1 << 5;
const HAS_PERMITS: u8 = 1 << 6;
const HAS_OPTIONS: u8 = 1 << 7;
const ACQUIRE_FLAGS: u8 =
    HAS_TTL | HAS_WAIT | HAS_REQUEST | HAS_METADATA | SHARED | HAS_PERMITS | HAS_OPTIONS;

/// Begins a batch: everything in it happens at `at`.
#[inline]
pub fn encode_head(out: &mut Vec<u8>, at: Timestamp, wall: WallTime) {
    out.byte(VERSION);
    out.number(at.as_nanos());
    out.number(wall.0);
}

/// A batch as it was before a command was appended.
#[derive(Clone, Copy, Debug)]
pub struct BatchPoint {
    length: usize,
    version: Option<u8>,
}

/// A place to return to with [`take_back`].
#[must_use]
pub fn place(batch: &[u8]) -> BatchPoint {
    BatchPoint {
        length: batch.len(),
        version: batch.first().copied(),
    }
}

/// Takes everything back that was appended behind `to`, and the version that only it needed.
pub fn take_back(batch: &mut Vec<u8>, to: BatchPoint) {
    batch.truncate(to.length);
    if let (Some(version), Some(before)) = (batch.first_mut(), to.version) {
        *version = before;
    }
}

/// Names the principal of the commands that follow in a batch; the commands before are anonymous.
pub fn encode_by(batch: &mut Vec<u8>, by: Principal) {
    batch.byte(BY);
    batch.bytes(&by.to_bytes());
}

/// Appends one command to a batch, which began with [`encode_head`], and raises the batch's version if the command needs
/// a higher one.
pub fn encode_command(out: &mut Vec<u8>, command: &Command) {
    if let Some(version) = out.first_mut() {
        *version = version_needed(command).max(*version);
    }
    match command {
        Command::Acquire(acquire) => put_acquire(out, acquire),
        Command::Renew { grant, ttl } => put_grant(out, RENEW, grant, *ttl),
        Command::Release(grant) => put_grant(out, RELEASE, grant, None),
        Command::Proclaim { grant, value } => {
            put_grant(out, PROCLAIM, grant, None);
            out.text(value);
        }
        Command::Revoke {
            lock,
            token,
            reason,
        } => {
            out.byte(REVOKE);
            out.text(lock);
            out.number(token.get());
            out.text(reason);
        }
        Command::Open { lock, reason } => {
            out.byte(OPEN);
            out.text(lock);
            out.text(reason);
        }
        Command::Resize { lock, permits } => {
            out.byte(RESIZE);
            out.text(lock);
            out.number((*permits).into());
        }
        Command::Withdraw(request) => {
            out.byte(WITHDRAW);
            out.bytes(request.as_bytes());
        }
        Command::Orphan(request) => {
            out.byte(ORPHAN);
            out.bytes(request.as_bytes());
        }
        Command::Abandon(request) => {
            out.byte(ABANDON);
            out.bytes(request.as_bytes());
        }
        Command::Expire => out.byte(EXPIRE),
        Command::Grace(away) => {
            out.byte(GRACE);
            put_away(out, *away);
        }
        Command::Leap { by } => {
            out.byte(LEAP);
            out.number(*by);
        }
        Command::Configure(limits) => {
            out.byte(CONFIGURE);
            put_limits(out, limits);
        }
    }
}

fn put_away(out: &mut Vec<u8>, away: Away) {
    match away {
        Away::Restarted => out.byte(RESTARTED),
        Away::Restored => out.byte(RESTORED),
        Away::Led => out.byte(LED),
        Away::Down(down) => {
            out.byte(DOWN);
            out.number(down.as_nanos());
        }
        Away::Paused(pause) => {
            out.byte(PAUSED);
            out.number(pause.as_nanos());
        }
    }
}

fn get_away(reader: &mut Reader<'_>) -> Result<Away, Malformed> {
    Ok(match reader.byte()? {
        DOWN => Away::Down(reader.span()?),
        RESTARTED => Away::Restarted,
        RESTORED => Away::Restored,
        LED => Away::Led,
        PAUSED => Away::Paused(reader.span()?),
        _ => return reader.bad("a reason for grace is unknown"),
    })
}

#[inline]
fn put_acquire(out: &mut Vec<u8>, acquire: &Acquire) {
    let Acquire {
        lock,
        also,
        client,
        mode,
        under,
        wait,
        request,
        metadata,
        options,
    } = acquire;
    let (tag, key, ttl) = under_parts(under);
    let plain = acquire.is_plain();
    if !plain {
        put_prefix(out, *mode, also);
    }
    let flags = flag(HAS_TTL, ttl.is_some())
        | flag(HAS_WAIT, wait.is_some())
        | flag(HAS_REQUEST, request.is_some())
        | flag(HAS_METADATA, metadata.is_some())
        | if plain { 0 } else { kind(*mode, *options) };
    out.bytes(&[tag, flags]);
    out.text(lock);
    out.text(client);
    out.bytes(key.as_bytes());
    if let Some(ttl) = ttl {
        out.number(ttl.as_millis().into());
    }
    if let Some(wait) = wait {
        out.number(wait.as_nanos());
    }
    if let Some(request) = request {
        out.bytes(request.as_bytes());
    }
    if let Some(metadata) = metadata {
        out.text(metadata);
    }
    if !plain {
        put_kind(out, *mode, *options);
    }
}

fn put_prefix(out: &mut Vec<u8>, mode: LockMode, also: &[LockName]) {
    match mode {
        LockMode::Update => out.byte(ACQUIRE_UPDATE),
        LockMode::Upgrade => out.byte(ACQUIRE_UPGRADE),
        LockMode::Exclusive | LockMode::Shared | LockMode::Permits(_) => {}
    }
    if also.is_empty() {
        return;
    }
    out.byte(ACQUIRE_SET);
    put_others(out, also);
}

/// The other locks of a set, at least one.
pub(super) fn put_others(out: &mut Vec<u8>, also: &[LockName]) {
    out.number(also.len() as u64);
    for lock in also {
        out.text(lock);
    }
}

/// The names are those of a set, in their order: the core refuses any other, so no log has them.
pub(super) fn get_others(reader: &mut Reader<'_>) -> Result<Others, Malformed> {
    let count = reader.small()? as usize;
    if !(1..limits::SET_LOCKS).contains(&count) {
        return reader.bad("a set has too few or too many locks");
    }
    (0..count).map(|_| reader.lock()).collect()
}

fn kind(mode: LockMode, options: GrantOptions) -> u8 {
    flag(SHARED, mode == LockMode::Shared)
        | flag(HAS_PERMITS, mode.permits().is_some())
        | flag(HAS_OPTIONS, !options.is_none())
}

fn put_kind(out: &mut Vec<u8>, mode: LockMode, options: GrantOptions) {
    if let Some(permits) = mode.permits() {
        put_permits(out, permits);
    }
    if !options.is_none() {
        put_options(out, options);
    }
}

/// The code and the value of each option that is asked for, in the order of the table, and 0 behind the last.
pub(super) fn put_options(out: &mut Vec<u8>, options: GrantOptions) {
    for (option, value) in options.iter() {
        out.byte(option.code());
        out.number(value.into());
    }
    out.byte(0);
}

pub(super) fn get_options(reader: &mut Reader<'_>) -> Result<GrantOptions, Malformed> {
    let mut options = GrantOptions::NONE;
    loop {
        let option = match reader.byte()? {
            0 => return Ok(options),
            code => match GrantOption::of_code(code) {
                Some(option) => option,
                None => return reader.bad("an option of a grant is unknown"),
            },
        };
        let value = reader.number()?;
        options = match options.with(option, value) {
            Ok(with) if options.get(option) == 0 && value > 0 => with,
            _ => return reader.bad("an option of a grant is out of range, or there twice"),
        };
    }
}

pub(super) fn put_permits(out: &mut Vec<u8>, permits: Permits) {
    out.number(permits.wanted().into());
    out.number(permits.of().into());
}

pub(super) fn get_permits(reader: &mut Reader<'_>) -> Result<Permits, Malformed> {
    let (wanted, of) = (reader.small()?, reader.small()?);
    match Permits::new(wanted, of) {
        Ok(permits) => Ok(permits),
        Err(_) => reader.bad("a number of permits is out of range"),
    }
}

#[inline]
fn under_parts(under: &Under) -> (u8, LeaseKey, Option<Ttl>) {
    match *under {
        Under::New { key, ttl } => (ACQUIRE_NEW, key, Some(ttl)),
        Under::Existing { key, ttl } => (ACQUIRE_UNDER, key, ttl),
    }
}

/// The lease part of a waiter or an acquire.
pub(super) fn put_under(out: &mut Vec<u8>, under: &Under) {
    let (tag, key, ttl) = under_parts(under);
    out.bytes(&[tag, flag(HAS_TTL, ttl.is_some())]);
    out.bytes(key.as_bytes());
    if let Some(ttl) = ttl {
        out.number(ttl.as_millis().into());
    }
}

pub(super) fn get_under(reader: &mut Reader<'_>) -> Result<Under, Malformed> {
    let (tag, flags) = (reader.byte()?, reader.byte()?);
    let key = reader.key()?;
    let ttl = reader.optional(flags & HAS_TTL != 0, Reader::ttl)?;
    under(reader, tag, key, ttl)
}

fn under(
    reader: &Reader<'_>,
    tag: u8,
    key: LeaseKey,
    ttl: Option<Ttl>,
) -> Result<Under, Malformed> {
    match (tag, ttl) {
        (ACQUIRE_NEW, Some(ttl)) => Ok(Under::New { key, ttl }),
        (ACQUIRE_UNDER, ttl) => Ok(Under::Existing { key, ttl }),
        _ => reader.bad("a new lease has no time to live"),
    }
}

#[inline]
fn put_grant(out: &mut Vec<u8>, tag: u8, grant: &GrantRef, ttl: Option<Ttl>) {
    let flags = flag(HAS_TTL, ttl.is_some()) | flag(HAS_TOKEN, grant.token.is_some());
    out.bytes(&[tag, flags]);
    out.text(&grant.lock);
    out.bytes(grant.key.as_bytes());
    if let Some(token) = grant.token {
        out.number(token.get());
    }
    if let Some(ttl) = ttl {
        out.number(ttl.as_millis().into());
    }
}

pub(super) fn put_limits(out: &mut Vec<u8>, limits: &Limits) {
    let Limits {
        min_ttl,
        max_ttl,
        waiters_per_lock,
        waiters_per_client,
        locks,
    } = *limits;
    out.number(min_ttl.as_millis().into());
    out.number(max_ttl.as_millis().into());
    out.number(waiters_per_lock.into());
    out.number(waiters_per_client.into());
    out.number(locks.into());
}

pub(super) fn get_limits(reader: &mut Reader<'_>) -> Result<Limits, Malformed> {
    Ok(Limits {
        min_ttl: reader.ttl()?,
        max_ttl: reader.ttl()?,
        waiters_per_lock: reader.small()?,
        waiters_per_client: reader.small()?,
        locks: reader.small()?,
    })
}

/// Reads a batch, and hands out its entries in order.
///
/// # Errors
/// [`Malformed`] where the bytes are not those of a batch; entries before that point were handed out.
pub fn decode_batch(bytes: &[u8], mut each: impl FnMut(Entry)) -> Result<(), Malformed> {
    let mut reader = Reader(bytes);
    if !(VERSION..=newest_version()).contains(&reader.byte()?) {
        return reader.bad("a batch has an unknown version");
    }
    let (at, wall) = (reader.timestamp()?, reader.wall()?);
    let mut by = Principal::ANONYMOUS;
    while !reader.is_empty() {
        if reader.skip(BY) {
            by = reader.principal()?;
            continue;
        }
        each(Entry {
            at,
            wall,
            by,
            command: get_command(&mut reader)?,
        });
    }
    Ok(())
}

/// The instant that a batch was stamped with.
///
/// # Errors
/// [`Malformed`] if its head is not that of a batch.
pub fn stamp(batch: &[u8]) -> Result<Timestamp, Malformed> {
    let mut reader = Reader(batch);
    reader.byte()?;
    reader.timestamp()
}

fn get_command(reader: &mut Reader<'_>) -> Result<Command, Malformed> {
    Ok(match reader.byte()? {
        tag @ (ACQUIRE_NEW | ACQUIRE_UNDER) => Command::Acquire(get_acquire(reader, tag)?),
        ACQUIRE_SET => Command::Acquire(get_set(reader)?),
        tag @ (ACQUIRE_UPDATE | ACQUIRE_UPGRADE) => {
            let acquire = match reader.byte()? {
                ACQUIRE_SET => get_set(reader)?,
                tag @ (ACQUIRE_NEW | ACQUIRE_UNDER) => get_acquire(reader, tag)?,
                _ => return reader.bad("no acquire follows its mode"),
            };
            if acquire.mode != LockMode::Exclusive {
                return reader.bad("an acquire is of two kinds");
            }
            Command::Acquire(Acquire {
                mode: match tag {
                    ACQUIRE_UPDATE => LockMode::Update,
                    _ => LockMode::Upgrade,
                },
                ..acquire
            })
        }
        RENEW => {
            let (grant, ttl) = get_grant(reader)?;
            Command::Renew { grant, ttl }
        }
        RELEASE => Command::Release(get_grant(reader)?.0),
        PROCLAIM => Command::Proclaim {
            grant: get_grant(reader)?.0,
            value: reader.text()?.into(),
        },
        REVOKE => Command::Revoke {
            lock: reader.lock()?,
            token: reader.token()?,
            reason: reader.text()?.into(),
        },
        OPEN => Command::Open {
            lock: reader.lock()?,
            reason: reader.text()?.into(),
        },
        RESIZE => Command::Resize {
            lock: reader.lock()?,
            permits: reader.small()?,
        },
        WITHDRAW => Command::Withdraw(reader.request()?),
        ORPHAN => Command::Orphan(reader.request()?),
        ABANDON => Command::Abandon(reader.request()?),
        EXPIRE => Command::Expire,
        GRACE => Command::Grace(get_away(reader)?),
        LEAP => Command::Leap {
            by: reader.number()?,
        },
        CONFIGURE => Command::Configure(get_limits(reader)?),
        _ => return reader.bad("a command has an unknown tag"),
    })
}

fn get_set(reader: &mut Reader<'_>) -> Result<Acquire, Malformed> {
    let also = get_others(reader)?;
    let tag = reader.byte()?;
    if !matches!(tag, ACQUIRE_NEW | ACQUIRE_UNDER) {
        return reader.bad("no acquire follows the locks of a set");
    }
    Ok(Acquire {
        also,
        ..get_acquire(reader, tag)?
    })
}

fn get_acquire(reader: &mut Reader<'_>, tag: u8) -> Result<Acquire, Malformed> {
    let flags = reader.byte()?;
    if flags & !ACQUIRE_FLAGS != 0 {
        return reader.bad("an acquire has an unknown flag");
    }
    let (lock, client, key) = (reader.lock()?, reader.client()?, reader.key()?);
    let ttl = reader.optional(flags & HAS_TTL != 0, Reader::ttl)?;
    let wait: Option<Span> = reader.optional(flags & HAS_WAIT != 0, Reader::span)?;
    let request = reader.optional(flags & HAS_REQUEST != 0, Reader::request)?;
    let metadata = reader.optional(flags & HAS_METADATA != 0, |reader| {
        Ok(reader.text()?.into())
    })?;
    let permits = reader.optional(flags & HAS_PERMITS != 0, get_permits)?;
    let options = reader.optional(flags & HAS_OPTIONS != 0, get_options)?;
    let mode = match (permits, flags & SHARED != 0) {
        (Some(_), true) => return reader.bad("an acquire is of two kinds"),
        (Some(permits), false) => LockMode::Permits(permits),
        (None, shared) => mode(shared),
    };
    Ok(Acquire {
        lock,
        also: Others::NONE,
        client,
        mode,
        under: under(reader, tag, key, ttl)?,
        wait,
        request,
        metadata,
        options: options.unwrap_or_default(),
    })
}

fn get_grant(reader: &mut Reader<'_>) -> Result<(GrantRef, Option<Ttl>), Malformed> {
    let flags = reader.byte()?;
    let (lock, key) = (reader.lock()?, reader.key()?);
    let token: Option<Token> = reader.optional(flags & HAS_TOKEN != 0, Reader::token)?;
    let ttl = reader.optional(flags & HAS_TTL != 0, Reader::ttl)?;
    Ok((GrantRef { lock, key, token }, ttl))
}

fn mode(shared: bool) -> LockMode {
    if shared {
        LockMode::Shared
    } else {
        LockMode::Exclusive
    }
}

fn flag(bit: u8, set: bool) -> u8 {
    if set { bit } else { 0 }
}
