//! Rows 1 – 5: tokens after somebody tampers with the data directory.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::failure::text;
use super::harness::{Harness, Program, Start, until};
use super::http;
use super::outcome::{Attack, Outcome};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "lock-file-renamed",
        row: 1,
        does: "LOCK is renamed, then removed, and a second server is started on the directory of a running one",
        bounds: "2 rounds, 10 grants each",
        run: lock_file_renamed,
    },
    Attack {
        name: "old-copy-put-back",
        row: 2,
        does: "an older copy replaces the directory, in six ways, copied from an idle and from a busy server",
        bounds: "60 rounds (short: 12)",
        run: old_copy_put_back,
    },
    Attack {
        name: "directory-deleted",
        row: 3,
        does: "the directory is deleted under a running server",
        bounds: "20 s",
        run: directory_deleted,
    },
    Attack {
        name: "backup-too-early",
        row: 4,
        does: "a backup is taken right after a grant, from a live and from a killed server",
        bounds: "24 rounds (short: 6)",
        run: backup_too_early,
    },
    Attack {
        name: "torn-tail-misreported",
        row: 5,
        does: "the last frame, acknowledged before a SIGKILL, is damaged; the next start reports what it cut off",
        bounds: "1 round",
        run: torn_tail_misreported,
    },
    Attack {
        name: "open-to-everybody",
        row: 23,
        does: "a server is started on 0.0.0.0, and one on a directory of mode 0777",
        bounds: "2 starts",
        run: open_to_everybody,
    },
];

fn open_to_everybody(harness: &Harness) -> Result<Outcome, String> {
    let mut start = Start::new("serve", &harness.path("anywhere"));
    start.listen = SocketAddr::from(([0, 0, 0, 0], 0));
    harness.shell("mkdir open && chmod 0777 open")?;
    let open = Start::new("serve", &harness.path("open"));
    let mut silent = Vec::new();
    let starts = [("0.0.0.0", &start), ("mode 0777", &open)];
    // A server with TLS and rules may listen everywhere.
    let warned_of = usize::from(harness.is_secure());
    for (name, start) in &starts[warned_of..] {
        // A refusal is better than a warning.
        if let Ok(server) = harness.start(start)
            && !server.log().contains("WARN")
        {
            silent.push(*name);
        }
    }
    Ok(Outcome::measured(
        silent.is_empty(),
        if silent.is_empty() {
            "a warning or a refusal for each".to_owned()
        } else {
            format!("accepted without a warning: {}", silent.join(", "))
        },
        "a warning or a refusal for each",
    ))
}

fn lock_file_renamed(harness: &Harness) -> Result<Outcome, String> {
    let (mut second_servers, mut twice) = (0, 0);
    for how in ["mv LOCK LOCK.old", "rm -f LOCK"] {
        let data = format!("data-{}", &how[..2]);
        let first = harness.serve(&data)?;
        let mut tokens = tokens(&first, "first", 10)?;
        if harness.path(&data).join("LOCK").exists() {
            harness.shell(&format!("cd {data} && {how}"))?;
        }
        // A refusal is the expected result.
        let Ok(second) = harness.serve(&data) else {
            continue;
        };
        second_servers += 1;
        // Either server may have stopped by now.
        let later = [
            self::tokens(&second, "second", 10),
            self::tokens(&first, "third", 10),
        ];
        for token in later.into_iter().flatten().flatten() {
            twice += usize::from(!tokens.insert(token));
        }
    }
    Ok(Outcome::measured(
        second_servers == 0 && twice == 0,
        format!("{second_servers} of 2 second servers started, {twice} tokens issued twice"),
        "none, none",
    ))
}

/// Tokens of new grants.
fn tokens(server: &Program, label: &str, count: usize) -> Result<BTreeSet<u64>, String> {
    let grant = |at| http::grant(server.address, &format!("{label}-{at}"), label, 3_600_000);
    (0..count).map(grant).collect()
}

/// How the older copy OLD replaces DATA. The last two work like rsync, which skips files of the same size and time.
const WAYS: [(&str, &str); 6] = [
    ("rm -rf, cp -a", "rm -rf DATA; cp -a OLD DATA"),
    ("rm files, cp -a", "rm -rf DATA/*; cp -a OLD/. DATA/"),
    ("cp -a over it", "cp -a OLD/. DATA/"),
    ("tar over it", "tar -C OLD -cf - . | tar -C DATA -xf -"),
    (
        "rsync",
        "for f in OLD/*; do n=${f##*/}; same $f DATA/$n || { cp -a $f DATA/.$n.tmp; mv DATA/.$n.tmp DATA/$n; }; done; \
         for f in DATA/*; do [ -e OLD/${f##*/} ] || rm -r $f; done",
    ),
    (
        "rsync --inplace",
        "for f in OLD/*; do n=${f##*/}; same $f DATA/$n || { cat $f > DATA/$n; touch -r $f DATA/$n; }; done; \
         for f in DATA/*; do [ -e OLD/${f##*/} ] || rm -r $f; done",
    ),
];

/// Whether rsync considers two files equal.
const SAME: &str =
    "same() { [ -d $1 ] || [ \"$(stat -c %s%y $1)\" = \"$(stat -c %s%y $2 2>/dev/null)\" ]; }";

fn old_copy_put_back(harness: &Harness) -> Result<Outcome, String> {
    let rounds = harness.amount(10, 2);
    let (mut accepted, mut twice) = ([0; WAYS.len()], 0);
    for round in 0..rounds {
        for (way, (_, line)) in WAYS.iter().enumerate() {
            let repeated = put_back(harness, &format!("{way}-{round}"), line, round % 2 == 0)?;
            if let Some(repeated) = repeated {
                accepted[way] += 1;
                twice += usize::from(repeated);
            }
        }
    }
    let figures = WAYS.iter().zip(accepted);
    let figures: Vec<_> = figures
        .map(|((name, _), count)| format!("{name} {count}"))
        .collect();
    Ok(Outcome::measured(
        accepted.iter().all(|count| *count == 0),
        format!(
            "accepted of {rounds} each: {}; a token repeated {twice} times",
            figures.join(", ")
        ),
        "0 each",
    ))
}

/// One round: `None` if the older copy was refused, otherwise whether its next token had already been issued.
fn put_back(
    harness: &Harness,
    name: &str,
    way: &str,
    at_rest: bool,
) -> Result<Option<bool>, String> {
    let (data, old) = (format!("data-{name}"), format!("old-{name}"));
    let copy = format!("cp -a {data} {old}");
    let server = harness.serve(&data)?;
    let mut issued = tokens(&server, "before", 3)?;
    if at_rest {
        server.terminate()?;
        harness.shell(&copy)?;
        let server = harness.serve(&data)?;
        issued.extend(tokens(&server, "after", 5)?);
        server.terminate()?;
    } else {
        harness.shell(&copy)?;
        issued.extend(tokens(&server, "after", 5)?);
        // Dropped: killed.
    }
    let way = way.replace("DATA", &data).replace("OLD", &old);
    harness.shell(&format!("{SAME}; {way}"))?;
    let Ok(server) = harness.serve(&data) else {
        return Ok(None);
    };
    let repeats = tokens(&server, "again", 1)?
        .iter()
        .any(|token| issued.contains(token));
    Ok(Some(repeats))
}

fn directory_deleted(harness: &Harness) -> Result<Outcome, String> {
    let mut server = harness.serve("data")?;
    let issued = tokens(&server, "before", 3)?;
    std::fs::remove_dir_all(harness.path("data")).map_err(text)?;
    let mut after = 0;
    let stopped = until(Duration::from_secs(20), || {
        let lock = format!("after-{after}");
        after += u32::from(http::grant(server.address, &lock, "after", 60_000).is_ok());
        server.process.is_over()
    });
    let says = if stopped {
        "stopped by itself"
    } else {
        "keeps running and reports that it serves"
    };
    drop(server);
    let again = tokens(&harness.serve("data")?, "again", 1)?;
    let repeated = again.intersection(&issued).count();
    Ok(Outcome::measured(
        stopped,
        format!(
            "{after} grants after it in at most 20 s, then it {says}; the next start repeats {repeated} token"
        ),
        "it stops by itself",
    ))
}

fn backup_too_early(harness: &Harness) -> Result<Outcome, String> {
    let rounds = harness.amount(12, 3);
    let mut missing = 0;
    for round in 0..rounds {
        let data = format!("data-{round}");
        let server = harness.serve(&data)?;
        http::grant(server.address, "first", "c", 3_600_000)?;
        missing += usize::from(locks_in_backup(harness, &data, &format!("live-{round}"))? < 1);
        http::grant(server.address, "second", "c", 3_600_000)?;
        drop(server);
        missing += usize::from(locks_in_backup(harness, &data, &format!("killed-{round}"))? < 2);
    }
    Ok(Outcome::measured(
        missing == 0,
        format!(
            "{missing} of {} backups lack the grant acknowledged before them",
            2 * rounds
        ),
        "0",
    ))
}

/// Takes a backup, restores it, and returns how many locks are held in it.
fn locks_in_backup(harness: &Harness, data: &str, name: &str) -> Result<u64, String> {
    let path = |name: &str| harness.path(name).display().to_string();
    let (backup, restored) = (
        path(&format!("{name}-backup")),
        path(&format!("{name}-new")),
    );
    let output = harness.run(&["backup", &backup, "--data", &path(data), "--json"])?;
    if !output.status.success() {
        return Err(format!(
            "no backup: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let output = harness.run(&["restore", &backup, "--data", &restored, "--json"])?;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let locks = said["locks"].as_u64();
    locks.ok_or_else(|| format!("no restore: {}", String::from_utf8_lossy(&output.stderr)))
}

fn torn_tail_misreported(harness: &Harness) -> Result<Outcome, String> {
    let server = harness.serve("data")?;
    let mut connection = http::Connection::to(server.address)?;
    for lock in ["a", "b", "c"] {
        connection.acquire(lock, "c", 3_600_000)?;
    }
    server.process.send(Signal::KILL);
    drop(server);
    damage_last_frame(&harness.path("data"))?;
    let data = harness.path("data");
    let (figure, held) = match harness.start(&Start::new("serve", &data)) {
        Err(why) => (format!("refused: {why}"), true),
        Ok(server) => {
            let log = server.log();
            let warned = log.contains("WARN");
            let promised = log.contains("ever acknowledged") && !warned;
            (
                format!(
                    "cut off; at WARN: {warned}; says that nothing in it was acknowledged: {promised}"
                ),
                warned && !promised,
            )
        }
    };
    Ok(Outcome::measured(
        held,
        figure,
        "refused, or a warning that does not promise",
    ))
}

/// Changes the last byte of the log that is not zero.
fn damage_last_frame(data: &Path) -> Result<(), String> {
    let mut last = None;
    for entry in std::fs::read_dir(data).map_err(text)? {
        let path = entry.map_err(text)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("log-") {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(text)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte != 0) {
            let newest: &Option<(std::path::PathBuf, usize, Vec<u8>)> = &last;
            if newest.as_ref().is_none_or(|(newest, _, _)| *newest < path) {
                last = Some((path, at, bytes));
            }
        }
    }
    let (path, at, mut bytes) = last.ok_or("no segment was found")?;
    bytes[at] ^= 0xff;
    std::fs::write(path, bytes).map_err(text)
}
