//! A directory or a backup: whether it is whole, and what is in it. Nothing is changed, and a server may run on it.

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use palisade_core::Token;
use palisade_fence::store;
use palisade_pipeline::durable::{self, Contents};
use palisade_replica::{DirectoryError, mark, recovery};
use palisade_server::net;
use palisade_wal::{Damage, DirStorage, DirectoryKind, Identity, OpenError, ReadError};
use serde_json::json;

use super::super::output::{millis, wall};
use super::super::shell::shell_word;
use super::finding::Finding;
use super::{figures, here};
use crate::serve::HISTORY_FILE;

/// The findings about a directory.
pub(super) fn examine(dir: &Path, now_ms: u64) -> Vec<Finding> {
    let at = dir.display().to_string();
    let found = DirStorage::observe(dir).and_then(|storage| {
        let identity = palisade_wal::identity(&storage)?;
        Ok((storage, identity))
    });
    let (storage, identity) = match found {
        Ok((storage, Some(identity))) => (storage, identity),
        Ok((_, None)) => return vec![no_log(dir, &at)],
        Err(error) => return vec![not_open(&at, dir, None, error)],
    };
    let opened_by = palisade_wal::opened_by(dir);
    let mut findings = vec![purpose(&at, &identity, opened_by)];
    findings.extend(mode(dir, &at));
    findings.extend(secrets(dir, &at, &identity));
    if let Err(error) = palisade_wal::check_in_place(&storage) {
        findings.push(not_open(&at, dir, Some(identity.kind), error));
    }
    let contents = contents(dir, &identity);
    match &contents {
        Ok(contents) => {
            findings.push(whole(&at, contents));
            findings.push(holds(&at, contents, now_ms));
            findings.extend(cut_off(&at, contents, identity.kind, opened_by.is_some()));
            if identity.kind != DirectoryKind::Backup {
                findings.push(history(dir, &at, contents, opened_by.is_some()));
            }
        }
        Err(why) => findings.push(unreadable(dir, &at, identity.kind, why)),
    }
    if let DirectoryKind::Member(_) = identity.kind {
        findings.push(member(dir, &at));
    }
    if identity.kind != DirectoryKind::Backup
        && let Ok(disk) = rustix::fs::statvfs(dir)
    {
        findings.push(figures::disk(
            &at,
            disk.f_bavail.saturating_mul(disk.f_frsize),
            false,
        ));
    }
    findings
}

fn no_log(dir: &Path, at: &str) -> Finding {
    let marks = crate::gateway::marks(dir);
    let next = if marks.is_dir() {
        format!(
            "a gateway's is in it: palisade doctor {}",
            shell_word(&marks.display().to_string())
        )
    } else {
        "name the directory of --data, or that of a backup".to_owned()
    };
    Finding::unknown("directory", at, "there is no log in it").next(next)
}

/// The identity cannot be read, or says that a server would refuse the directory.
fn not_open(at: &str, dir: &Path, kind: Option<DirectoryKind>, error: OpenError) -> Finding {
    match error {
        OpenError::Missing { .. } => {
            Finding::unknown("directory", at, "there is no such directory")
                .next("name the directory of --data, or that of a backup")
        }
        OpenError::Damaged(damage) => damaged(dir, at, kind, &damage),
        OpenError::Copied { why, node, .. } => Finding::problem(
            "directory",
            at,
            format!("it is not as its last run left it, so a server refuses it: {why}"),
        )
        .next(match node {
            None => format!("palisade restore --in-place {}", shell_word(at)),
            Some(node) => {
                format!("start an empty node, then: palisade cluster replace {node:016x} NEW")
            }
        }),
        other => Finding::unknown("directory", at, other.to_string())
            .next("type this as the user that the server runs as, or as root"),
    }
}

fn purpose(at: &str, identity: &Identity, opened_by: Option<u32>) -> Finding {
    let (what, kind) = match identity.kind {
        DirectoryKind::Live => ("a single server's directory".to_owned(), "single"),
        DirectoryKind::Member(node) => (
            format!("the directory of node {node:016x} of a cluster"),
            "member",
        ),
        DirectoryKind::Backup => ("a backup".to_owned(), "backup"),
    };
    let user = match (identity.kind, opened_by) {
        (DirectoryKind::Backup, _) => String::new(),
        (_, Some(pid)) => format!("; a server runs on it (process {pid})"),
        (_, None) => "; no process of this machine has it open".to_owned(),
    };
    let what = format!("{what}, of authority {}{user}", identity.owner);
    Finding::ok("directory", at, what).data(json!({
        "kind": kind,
        "authority": identity.owner.to_string(),
        "incarnation": identity.incarnation.to_string(),
        "process": opened_by,
    }))
}

/// Others who may read it can read client ids and metadata; others who may write decide which tokens come next.
fn mode(dir: &Path, at: &str) -> Option<Finding> {
    let mode = fs::metadata(dir).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then(|| {
        let what = format!(
            "other users of this machine may read or change what is in it (mode {mode:04o})"
        );
        Finding::warning("directory", at, what).next(format!("chmod 700 {}", shell_word(at)))
    })
}

fn secrets(dir: &Path, at: &str, identity: &Identity) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in [net::LOCK_TOKEN_FILE, net::KEY_FILE] {
        findings.extend(here::secret(&dir.join(file)));
    }
    let path = dir.join(net::LOCK_TOKEN_FILE).display().to_string();
    findings.extend(match (net::lock_token_fingerprint(dir), identity.kind) {
        (Ok(Some(key)), _) => Some(
            Finding::ok("keys", &path, format!("it is whole; its fingerprint is {key}, the same on every node that has a copy"))
                .data(json!({"fingerprints": [key]})),
        ),
        (Ok(None), DirectoryKind::Backup) => Some(
            Finding::note("keys", at, "a backup does not contain lock_token.key")
                .next("keep a copy of the server's file where you keep passwords: without it, holders lose their leases after a restore"),
        ),
        // Nodes share a key that they make of the cluster's, and a store has none.
        (Ok(None), _) => None,
        (Err(error), _) => Some(
            Finding::problem("keys", &path, error.to_string()).next("put the copy of it back, and restart the server"),
        ),
    });
    findings
}

/// Why the contents cannot be read.
enum Unreadable {
    Damaged(Damage),
    /// It is a store's, with so many resources.
    Store(usize),
    Other(String),
}

fn contents(dir: &Path, identity: &Identity) -> Result<Contents, Unreadable> {
    match identity.kind {
        DirectoryKind::Member(_) => recovery::contents(dir).map_err(|error| match error {
            DirectoryError::Open(OpenError::Damaged(damage))
            | DirectoryError::Read(ReadError::Damaged(damage)) => Unreadable::Damaged(damage),
            error => other(error),
        }),
        DirectoryKind::Live | DirectoryKind::Backup => {
            durable::contents(dir).map_err(|error| match error {
                durable::Error::Open(OpenError::Damaged(damage))
                | durable::Error::Read(ReadError::Damaged(damage)) => Unreadable::Damaged(damage),
                durable::Error::Replay(error) => match store::FencesOnDisk::at(dir) {
                    Ok(look) => Unreadable::Store(look.list("", None, u32::MAX).len()),
                    Err(_) => other(error),
                },
                error => other(error),
            })
        }
    }
}

fn other(error: impl Display) -> Unreadable {
    Unreadable::Other(error.to_string())
}

fn unreadable(dir: &Path, at: &str, kind: DirectoryKind, why: &Unreadable) -> Finding {
    match why {
        Unreadable::Damaged(damage) => damaged(dir, at, Some(kind), damage),
        Unreadable::Store(resources) => {
            let what = format!(
                "it is whole, and that of a store or a gateway: {resources} resources have a fence"
            );
            Finding::ok("log", at, what).data(json!({"resources": resources}))
        }
        Unreadable::Other(why) => {
            Finding::problem("log", at, why.clone()).next(way_out(dir, Some(kind)))
        }
    }
}

fn damaged(dir: &Path, at: &str, kind: Option<DirectoryKind>, damage: &Damage) -> Finding {
    let Damage { file, offset, why } = damage;
    let what = format!("{} is damaged at byte {offset}: {why}", file.display());
    Finding::problem("log", at, what)
        .next(way_out(dir, kind))
        .data(json!({"file": file, "offset": offset}))
}

fn way_out(dir: &Path, kind: Option<DirectoryKind>) -> String {
    let at = shell_word(&dir.display().to_string());
    match kind {
        Some(DirectoryKind::Backup) => {
            "take an older backup, or make a new one: palisade backup TO --data DIR".to_owned()
        }
        Some(DirectoryKind::Member(node)) => format!(
            "keep it, check the disk, start an empty node with --join, then: palisade cluster replace {node:016x} NEW"
        ),
        Some(DirectoryKind::Live) | None => format!(
            "keep it, check the disk, then: mv {at} {at}.damaged && palisade restore BACKUP --data {at}"
        ),
    }
}

/// Every checksum of the log was read and is right.
fn whole(at: &str, contents: &Contents) -> Finding {
    let report = &contents.report;
    let counted = |count: u64, one: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    };
    let frames = counted(report.frames, "frame");
    let segments = counted(contents.segments as u64, "segment");
    let snapshot = match report.snapshot {
        Some(seq) => format!("a snapshot up to frame {seq}, and {frames} in {segments} behind it"),
        None => format!("{frames} in {segments}, and no snapshot"),
    };
    let data = json!({
        "snapshot": report.snapshot.map(palisade_wal::Seq::get),
        "frames": report.frames,
        "segments": contents.segments,
        "bytes": report.bytes,
    });
    Finding::ok("log", at, format!("it is whole: {snapshot}")).data(data)
}

fn holds(at: &str, contents: &Contents, now_ms: u64) -> Finding {
    let last = match contents.last {
        Some(last) => {
            let ago = millis(now_ms.saturating_sub(last.0));
            format!("the last entry is of {}, {ago} ago", wall(last))
        }
        None if contents.revision == 0 => "it is new".to_owned(),
        None => "the last entry is in the snapshot".to_owned(),
    };
    let token = contents.next_token;
    let next_token = token.map_or("none: the range is used up".to_owned(), |token| {
        token.to_string()
    });
    let what = format!(
        "locks: {}, leases: {}, waiting: {}, next token: {next_token}; {last}",
        contents.locks, contents.leases, contents.waiters
    );
    Finding::ok("contents", at, what).data(json!({
        "locks": contents.locks,
        "leases": contents.leases,
        "waiters": contents.waiters,
        "next_token": token.map(Token::get),
        "revision": contents.revision,
        "last": contents.last.map(wall),
    }))
}

/// An end that is no whole frame, and snapshots that are damaged and not needed.
fn cut_off(at: &str, contents: &Contents, kind: DirectoryKind, in_use: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(torn) = &contents.report.torn
        && !in_use
    {
        let what = format!(
            "{} ends in {} bytes that are no whole frame, from byte {} on",
            torn.file.display(),
            torn.bytes,
            torn.offset
        );
        findings.push(match kind {
            DirectoryKind::Backup => Finding::warning("log", at, what + "; a backup is made without such an end")
                .next("make a new backup, and check the disk of this one"),
            _ => Finding::note("log", at, what + ", as after a crash or a power cut")
                .next("the next start cuts it off; if the machine did not stop then, check the disk first"),
        });
    }
    for file in &contents.report.damaged_snapshots {
        let what = format!(
            "{} is damaged; the log has all that it held",
            file.display()
        );
        findings.push(
            Finding::warning("log", at, what)
                .next("check the disk, and make a backup: palisade backup TO --data DIR"),
        );
    }
    findings
}

fn history(dir: &Path, at: &str, contents: &Contents, in_use: bool) -> Finding {
    let file = dir.join(HISTORY_FILE);
    match fs::metadata(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::ok("history", at, "there is none");
        }
        _ if in_use => {
            return Finding::ok(
                "history",
                at,
                "the server has it open; palisade history tells it, with its gaps",
            );
        }
        _ => {}
    }
    let look = match palisade_history::look(&file) {
        Ok(look) => look,
        Err(error) => {
            let why = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            return Finding::note("history", at, format!("it cannot be read as it is: {why}"))
                .next("the next start repairs it, or begins a new one with what the log has; locks do not need it");
        }
    };
    let data = json!({
        "lasting": look.lasting,
        "ended": look.ended,
        "gaps": look.gaps,
        "last": look.last,
    });
    let has = format!(
        "{} grants that ended and {} that last",
        look.ended, look.lasting
    );
    let missing = contents.revision.saturating_sub(look.last);
    let finding = match (&look.latest_gap, missing) {
        (Some(gap), _) => {
            let gaps = format!("{has}; {} gaps, the latest from change {} to {}", look.gaps, gap.from, gap.to);
            Finding::note("history", at, gaps).next("palisade history says why; docs: operate/history.md")
        }
        (None, 0) => Finding::ok("history", at, has),
        (None, missing) => Finding::note("history", at, format!("{has}; it lacks the last {missing} changes"))
            .next("the next start reads from the log those that the log still has; the others become a gap"),
    };
    finding.data(data)
}

/// How far the log of a node is, and whether it may vote.
fn member(dir: &Path, at: &str) -> Finding {
    if let Ok(Some(why)) = mark::read(dir) {
        return Finding::problem(
            "cluster",
            at,
            format!("this node lost entries, and must not vote: {why}"),
        )
        .next("start an empty node with --join, then: palisade cluster replace OLD NEW");
    }
    match recovery::look(dir) {
        Ok(look) => {
            let members: Vec<String> = look.members.nodes.keys().map(ToString::to_string).collect();
            let last = look.last.map_or("nothing".to_owned(), |last| {
                format!("up to entry {} of term {}", last.index, last.leader.term)
            });
            let what = format!(
                "{last}, {} of it not known to be committed; members: {}",
                look.uncommitted(),
                members.join(", ")
            );
            Finding::ok("cluster", at, what).data(json!({
                "last": look.last.map(|last| json!({"term": last.leader.term, "index": last.index})),
                "uncommitted": look.uncommitted(),
                "members": members,
            }))
        }
        Err(error) => Finding::unknown("cluster", at, error.to_string()),
    }
}
