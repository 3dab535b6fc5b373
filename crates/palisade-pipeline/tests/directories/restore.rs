//! Directories that must not be opened twice, as a copy, or as a backup; and the restore that may.

use std::path::Path;

use palisade_core::{ClientId, LockName, Outcome, Token, Ttl, Under, Wish, limits};
use palisade_pipeline::durable::{self, Authority, Error, Settings};
use palisade_pipeline::{Answer, Request};
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

    // The control: the backup itself would issue a token that was issued already.
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

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn of_restores_into_one_directory_at_once_one_succeeds_and_the_others_leave_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (data, saved) = (place.path().join("data"), place.path().join("backup"));
    let authority = open(&data).unwrap();
    grant(&authority, "a").await;
    palisade_wal::backup(&data, &saved).unwrap();
    stop(authority);
    for round in 0..5 {
        let new = place.path().join(format!("new-{round}"));
        let ends: Vec<_> = std::thread::scope(|scope| {
            let restores: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| durable::restore(&saved, &new)))
                .collect();
            let ends = restores.into_iter().map(|restore| restore.join().unwrap());
            ends.collect()
        });
        let (done, refused): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
        assert_eq!(done.len(), 1, "{refused:?}");
        for refused in refused {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, Error::Place { .. }), "{refused}");
        }
        // The reported directory is the one that is there.
        let authority = open(&new).unwrap();
        let done = done.into_iter().next().unwrap().unwrap();
        assert_eq!(*authority.pipeline.handle.identity(), done.identity);
        stop(authority);
        std::fs::remove_dir_all(&new).unwrap();
        assert_eq!(names(place.path()), ["backup", "data"], "round {round}");
    }
}

#[tokio::test]
async fn a_restore_follows_no_link_and_deletes_nothing_of_others_beside_its_target() {
    let place = tempfile::tempdir().unwrap();
    let (data, saved) = (place.path().join("data"), place.path().join("backup"));
    let authority = open(&data).unwrap();
    grant(&authority, "a").await;
    palisade_wal::backup(&data, &saved).unwrap();
    stop(authority);
    let others = place.path().join("others");
    std::fs::create_dir(&others).unwrap();
    // The next name that it takes, the name of earlier versions, and a directory of another restore.
    let own = format!(".new.{}-0.restoring", std::process::id());
    for link in [own.as_str(), "new.restoring"] {
        std::os::unix::fs::symlink(&others, place.path().join(link)).unwrap();
    }
    let running = place.path().join(".new.1-0.restoring");
    std::fs::create_dir(&running).unwrap();
    std::fs::write(running.join("half"), "of another restore").unwrap();
    let lock = std::fs::File::open(&running).unwrap();
    lock.lock().unwrap();
    // Leftovers of people, or of restores to other names.
    for other in [
        ".new.x-0.restoring",
        ".new.1.restoring",
        ".old.1-0.restoring",
        ".new.1-0.restoring.bak",
    ] {
        std::fs::create_dir(place.path().join(other)).unwrap();
    }
    std::fs::write(place.path().join(".new.2-0.restoring"), "a file").unwrap();
    let before = names(place.path());
    // A leftover of a restore to this name that was killed. The control is the one that runs.
    let abandoned = place.path().join(".new.1-1.restoring");
    std::fs::create_dir_all(abandoned.join("whole")).unwrap();
    std::fs::write(abandoned.join("whole/half"), "").unwrap();
    let new = place.path().join("new");
    durable::restore(&saved, &new).unwrap();
    assert_eq!(names(&others), [""; 0]);
    assert_eq!(names(&running), ["half"]);
    let mut after = names(place.path());
    after.retain(|name| name != "new");
    assert_eq!(after, before);
    stop(open(&new).unwrap());
    // A link under the very name is refused, even one to an empty directory.
    let linked = place.path().join("linked");
    std::os::unix::fs::symlink(&others, &linked).unwrap();
    let refused = durable::restore(&saved, &linked).unwrap_err();
    assert!(matches!(refused, Error::Place { .. }), "{refused}");
    assert_eq!(names(&others), [""; 0]);
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
