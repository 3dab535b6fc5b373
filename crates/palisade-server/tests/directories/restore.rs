//! Directories that must not be opened twice, as a copy, or as a backup; and the restore that may.

use std::path::Path;

use palisade_core::{ClientId, LockName, Outcome, Token, Ttl, Under, Wish, limits};
use palisade_server::durable::{self, Authority, Error, Settings};
use palisade_server::pipeline::{Answer, Request};
use palisade_wal::OpenError;

fn open(dir: &Path) -> Result<Authority, Error> {
    durable::open(
        dir,
        &Settings {
            manual_clock: true,
            ..Settings::default()
        },
    )
}

async fn grant(authority: &Authority, lock: &str) -> u64 {
    let wish = Wish::new(
        LockName::new(lock).unwrap(),
        ClientId::new("c").unwrap(),
        Under::new(Ttl::from_millis(10_000).unwrap()),
        None,
    );
    match authority.pipeline.handle.call(Request::Acquire(wish)).await {
        Answer::Outcome(Outcome::Granted(granted)) => granted.token.get(),
        other => panic!("{other:?}"),
    }
}

fn stop(authority: Authority) {
    authority.pipeline.handle.stop();
    authority.join();
}

fn refusal(dir: &Path) -> OpenError {
    match open(dir).err() {
        Some(Error::Open(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn a_restored_backup_issues_only_tokens_higher_than_any_before() {
    let place = tempfile::tempdir().unwrap();
    let (data, saved, new) = (
        place.path().join("data"),
        place.path().join("backup"),
        place.path().join("new"),
    );
    let authority = open(&data).unwrap();
    grant(&authority, "before").await;
    palisade_wal::backup(&data, &saved).unwrap();
    let mut highest = 0;
    for lock in 0..50 {
        highest = grant(&authority, &format!("after-{lock}")).await;
    }
    let identity = authority.pipeline.handle.identity().clone();
    stop(authority);

    assert!(matches!(refusal(&saved), OpenError::Backup { .. }));
    let restored = durable::restore(&saved, &new).unwrap();
    assert_eq!(
        restored.identity.authority, identity.authority,
        "fences stay bound to it"
    );
    assert_ne!(restored.identity.incarnation, identity.incarnation);
    let again = open(&new).unwrap();
    let token = grant(&again, "first after the restore").await;
    assert!(token > highest);
    assert!(token > limits::RESTORE_LEAP);
    stop(again);

    // The same backup once more, after the first restore issued a token.
    let newer = place.path().join("newer");
    durable::restore(&saved, &newer).unwrap();
    let again = open(&newer).unwrap();
    let second = grant(&again, "first after the second restore").await;
    assert!(second > token);
    stop(again);

    // The control: what the backup itself would have issued is a token that was issued already.
    let naive = place.path().join("naive");
    palisade_wal::restore(&saved, &naive).unwrap();
    let naive = open(&naive).unwrap();
    assert!(grant(&naive, "without the leap").await <= highest);
    stop(naive);
}

#[tokio::test]
async fn a_restore_touches_nothing_that_exists() {
    let place = tempfile::tempdir().unwrap();
    let (data, saved) = (place.path().join("data"), place.path().join("backup"));
    let authority = open(&data).unwrap();
    grant(&authority, "a").await;
    palisade_wal::backup(&data, &saved).unwrap();
    stop(authority);
    let error = durable::restore(&saved, &data).unwrap_err();
    assert!(matches!(error, Error::Place { .. }), "{error}");
    let authority = open(&data).unwrap();
    assert_eq!(
        grant(&authority, "b").await,
        2,
        "the directory was left as it was"
    );
    stop(authority);
}

#[tokio::test]
async fn a_directory_is_opened_once_and_never_as_a_copy() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let authority = open(&data).unwrap();
    grant(&authority, "a").await;
    assert!(matches!(refusal(&data), OpenError::Locked { .. }));
    stop(authority);

    let copied = place.path().join("copied");
    copy(&data, &copied);
    assert!(matches!(refusal(&copied), OpenError::Copied { .. }));

    let moved = place.path().join("moved");
    std::fs::rename(&data, &moved).unwrap();
    let authority = open(&moved).unwrap();
    assert_eq!(
        grant(&authority, "b").await,
        2,
        "a moved directory is still itself"
    );
    stop(authority);
}

/// The control is the restore before the last: it leaves tokens, and a lock is granted.
#[tokio::test]
async fn a_restore_that_leaves_no_token_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let authority = open(&path("data")).unwrap();
    stop(authority);
    let leaps = Token::MAX.get() / limits::RESTORE_LEAP;
    let mut restores = 0;
    let refused = loop {
        let (saved, new) = (path("saved"), path("new"));
        palisade_wal::backup(&path("data"), &saved).unwrap();
        let restored = durable::restore(&saved, &new);
        std::fs::remove_dir_all(&saved).unwrap();
        match restored {
            Ok(restored) => assert!(restored.next_token.is_some()),
            Err(error) => break error,
        }
        std::fs::remove_dir_all(path("data")).unwrap();
        std::fs::rename(new, path("moved")).unwrap();
        std::fs::rename(path("moved"), path("data")).unwrap();
        restores += 1;
        assert!(restores <= leaps);
    };
    assert!(refused.to_string().contains("used up"), "{refused}");
    assert!(restores > 0 && !path("new").exists());
    let in_place = durable::restore_in_place(&path("data")).unwrap_err();
    assert!(in_place.to_string().contains("used up"), "{in_place}");
    let authority = open(&path("data")).unwrap();
    grant(&authority, "the last range").await;
    stop(authority);
}
