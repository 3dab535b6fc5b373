//! Real directories: locks, copies, backups, threads.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Journal, fill, payload};
use palisade_wal::{
    Compactor, CreateOptions, DirStorage, OpenError, Opened, Options, Preparation, Seq, Storage,
    Wal, backup, restore,
};

fn settings() -> Options {
    Options {
        segment_bytes: 16 << 10,
        first_segment_bytes: 8 << 10,
        ..Options::default()
    }
}

fn create(dir: &Path) -> Wal {
    Wal::create(dir, &CreateOptions::default(), &settings())
        .unwrap()
        .into_wal()
}

fn open(dir: &Path) -> Result<Opened, OpenError> {
    Wal::open(dir, &settings())
}

/// Copies a directory as `cp -r` does.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_directory_is_created_once_and_opened_again() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("deep/er");
    assert!(matches!(open(&dir), Err(OpenError::Missing { .. })));
    let mut wal = create(&dir);
    let identity = *wal.identity();
    fill(&mut wal, 100);
    wal.close().unwrap();
    let again = Wal::create(&dir, &CreateOptions::default(), &settings())
        .err()
        .unwrap();
    assert!(matches!(again, OpenError::Exists { .. }), "{again}");
    let opened = Wal::open_or_create(&dir, &CreateOptions::default(), &settings()).unwrap();
    assert_eq!(*opened.identity(), identity);
    assert_eq!(Journal::of(&opened), Journal::upto(100));
}

#[test]
fn the_defaults_work() {
    let home = tempfile::tempdir().unwrap();
    let mut wal = Wal::create(home.path(), &CreateOptions::default(), &Options::default())
        .unwrap()
        .into_wal();
    // More than the first segment holds, so that a whole one is prepared and used.
    for seq in 1..=3 {
        wal.reserve(600 << 10).unwrap();
        assert_eq!(wal.commit(&vec![seq as u8; 600 << 10]).unwrap().get(), seq);
    }
    wal.close().unwrap();
    let opened = Wal::open(home.path(), &Options::default()).unwrap();
    assert_eq!(
        (opened.report().last, opened.report().torn.clone()),
        (Seq::new(3), None)
    );
}

#[test]
fn a_second_opener_is_refused_with_the_path_and_the_process_id() {
    let home = tempfile::tempdir().unwrap();
    let wal = create(home.path());
    let refused = open(home.path()).err().unwrap();
    let text = refused.to_string();
    assert!(
        matches!(refused, OpenError::Locked { pid: Some(pid), .. } if pid == std::process::id())
    );
    assert!(
        text.contains(&home.path().display().to_string()) && text.contains("another process"),
        "{text}"
    );
    // A compactor keeps the directory: it may be removing files.
    let compactor = wal.compactor();
    drop(wal);
    assert!(matches!(open(home.path()), Err(OpenError::Locked { .. })));
    drop(compactor);
    open(home.path()).unwrap();
}

#[test]
fn a_moved_directory_opens_and_a_copied_one_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (first, moved, copied) = (
        home.path().join("a"),
        home.path().join("b"),
        home.path().join("c"),
    );
    let mut wal = create(&first);
    fill(&mut wal, 10);
    wal.close().unwrap();
    fs::rename(&first, &moved).unwrap();
    drop(open(&moved).unwrap());
    copy(&moved, &copied);
    let refused = open(&copied).err().unwrap();
    assert!(matches!(refused, OpenError::Copied { .. }));
    assert!(
        refused.to_string().contains("palisade restore"),
        "{refused}"
    );
    // A restore opens it.
    let restored = home.path().join("d");
    restore(&copied, &restored).unwrap();
    assert_eq!(Journal::of(&open(&restored).unwrap()), Journal::upto(10));
}

#[test]
fn a_backup_opens_only_by_restore_with_the_same_owner_in_a_new_life() {
    let home = tempfile::tempdir().unwrap();
    let (live, saved, restored) = (
        home.path().join("a"),
        home.path().join("b"),
        home.path().join("c"),
    );
    let mut wal = create(&live);
    fill(&mut wal, 50);
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    fill(&mut wal, 70);
    let original = *wal.identity();

    // Frame 70 is acknowledged, and nothing behind it proves so yet.
    let report = backup(&live, &saved).unwrap();
    assert_eq!(
        (report.last, report.identity.incarnation),
        (Seq::new(70), original.incarnation)
    );
    assert!(matches!(
        backup(&live, &saved),
        Err(OpenError::NotEmpty { .. })
    ));
    assert!(matches!(open(&saved), Err(OpenError::Backup { .. })));

    // A backup may travel: its inode does not matter.
    let carried = home.path().join("carried");
    copy(&saved, &carried);
    restore(&carried, &restored).unwrap();
    assert!(matches!(
        restore(&carried, &restored),
        Err(OpenError::NotEmpty { .. })
    ));
    let opened = open(&restored).unwrap();
    assert_eq!(opened.identity().owner, original.owner);
    assert_ne!(opened.identity().incarnation, original.incarnation);
    assert_eq!(Journal::of(&opened), Journal::upto(70));
    let mut wal = opened.into_wal();
    fill(&mut wal, 200);
    wal.close().unwrap();
    assert_eq!(Journal::of(&open(&restored).unwrap()), Journal::upto(200));
}

/// Runs `compact` until `stop` is set and once more; returns how many snapshots were made.
fn compact_until(compactor: &Compactor, stop: &AtomicBool) -> usize {
    let mut made = 0;
    loop {
        let last_round = stop.load(Ordering::Acquire);
        made += usize::from(
            compactor
                .compact(&mut Journal::default())
                .unwrap()
                .is_some(),
        );
        if last_round {
            return made;
        }
    }
}

#[test]
fn commits_compaction_and_backups_go_on_together() {
    let home = tempfile::tempdir().unwrap();
    let live = home.path().join("live");
    let mut wal = create(&live);
    let stop = AtomicBool::new(false);
    let stop = &stop;
    std::thread::scope(|scope| {
        let background = wal.compactor();
        let compacting = scope.spawn(move || compact_until(&background, stop));
        let backing_up = scope.spawn(|| {
            let mut last = 0;
            for i in 0..10 {
                let (saved, restored) = (
                    home.path().join(format!("s{i}")),
                    home.path().join(format!("r{i}")),
                );
                let report = backup(&live, &saved).unwrap();
                restore(&saved, &restored).unwrap();
                let opened = open(&restored).unwrap();
                let now = report.last.map_or(0, Seq::get);
                assert!(now >= last, "a later backup holds no less");
                assert_eq!(Journal::of(&opened), Journal::upto(now));
                last = now;
            }
        });
        let mut last = 0;
        // Not for ever: the snapshot grows with the log, and a backup takes longer the larger it is.
        while last < 1_000 || (last < 3_000 && !backing_up.is_finished()) {
            last += 1;
            wal.commit(&payload(last)).unwrap();
        }
        backing_up.join().unwrap();
        stop.store(true, Ordering::Release);
        assert!(compacting.join().unwrap() > 0);
        assert_eq!(wal.compactor().sealed_bytes(), 0);
        wal.close().unwrap();
        let opened = open(&live).unwrap();
        assert!(opened.report().snapshot.is_some());
        assert_eq!(Journal::of(&opened), Journal::upto(last));
    });
}

#[test]
fn files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("new");
    let mut wal = create(&dir);
    fill(&mut wal, 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    // The segment being prepared appears and disappears; the others stay.
    for name in ["LOCK", "identity", "log-00000000000000000001.seg"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
}

/// A child that inherited one would keep the directory locked after the end of its parent.
#[test]
fn no_descriptor_of_a_log_is_inherited_by_a_child() {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    let home = tempfile::tempdir().unwrap();
    let mut wal = create(home.path());
    fill(&mut wal, 100);
    let (mut of_directory, mut of_files) = (0, 0);
    for fd in fs::read_dir("/proc/self/fd").unwrap() {
        let fd = fd.unwrap();
        let info = format!("/proc/self/fdinfo/{}", fd.file_name().display());
        // Other threads work beside this one, so a descriptor may be gone by now.
        let (Ok(path), Ok(info)) = (fs::read_link(fd.path()), fs::read_to_string(info)) else {
            continue;
        };
        if path.starts_with(home.path()) {
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = u32::from_str_radix(flags.unwrap().trim(), 8).unwrap();
            assert_ne!(flags & CLOSE_ON_EXEC, 0, "{}", path.display());
            of_directory += usize::from(path == home.path());
            of_files += usize::from(path != home.path());
        }
    }
    // The directory has four spares; the files are at least LOCK, the identity and the segment that is written to.
    assert_eq!(of_directory, 5);
    assert!(of_files >= 3, "{of_files}");
}

#[test]
fn a_file_is_no_directory_to_open() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(open(file.path()), Err(OpenError::Missing { .. })));
}

#[test]
fn a_real_storage_does_what_the_trait_says() {
    let home = tempfile::tempdir().unwrap();
    let storage = DirStorage::create(home.path()).unwrap();
    let file = storage.open("a", palisade_wal::OpenMode::Create).unwrap();
    assert!(file.is_empty().unwrap());
    file.write_at(3, b"xyz").unwrap();
    assert!(!file.is_empty().unwrap());
    let mut buf = [9; 8];
    assert_eq!(
        (file.read_at(0, &mut buf).unwrap(), &buf),
        (6, b"\0\0\0xyz\x09\x09")
    );
    let id = file.id().unwrap();
    assert!(file.was_written_last().unwrap());
    storage.rename("a", "b").unwrap();
    let renamed = storage.id_of("b").unwrap();
    assert_eq!((renamed.device, renamed.inode), (id.device, id.inode));
    assert!(renamed.changed_ns >= id.changed_ns && id.changed_ns > 1_700_000_000_000_000_000);
    assert_eq!(storage.path(), home.path());
    // A file system's clock moves in steps of some milliseconds.
    let renamed_later = (0..100_000).any(|_| {
        storage.rename("b", "c").unwrap();
        storage.rename("c", "b").unwrap();
        !file.was_written_last().unwrap()
    });
    assert!(renamed_later);
    fs::create_dir(home.path().join("sub")).unwrap();
    let unreadable = storage.open("sub", palisade_wal::OpenMode::Read).unwrap();
    unreadable.read_at(0, &mut buf).unwrap_err();
    let renamed = storage.id_of("b").unwrap();
    let same = storage.open("b", palisade_wal::OpenMode::Write).unwrap();
    assert_eq!(same.id().unwrap(), renamed);
    assert!(file.try_lock().unwrap() && !same.try_lock().unwrap());
    assert!(storage.is_in_place().unwrap());
    assert_ne!(storage.random().unwrap(), storage.random().unwrap());
    storage.remove("b").unwrap();
    let gone = storage
        .open("b", palisade_wal::OpenMode::Write)
        .err()
        .unwrap();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(Options::default().preparation, Preparation::Background);
}

#[test]
fn a_real_directory_that_is_renamed_removed_or_replaced_poisons_its_log() {
    type Change = fn(&Path, &Path);
    let changes: [Change; 3] = [
        |dir, other| fs::rename(dir, other).unwrap(),
        |dir, _| fs::remove_dir_all(dir).unwrap(),
        |dir, other| {
            fs::rename(dir, other).unwrap();
            fs::create_dir(dir).unwrap();
        },
    ];
    for change in changes {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("log");
        let inline = Options {
            preparation: Preparation::Inline,
            ..settings()
        };
        let opened = Wal::create(&dir, &CreateOptions::default(), &inline).unwrap();
        let wal = opened.into_wal();
        wal.check_directory().unwrap();
        change(&dir, &home.path().join("other"));
        let refused = wal.check_directory().unwrap_err().to_string();
        let why = format!("{} was removed, renamed or replaced", dir.display());
        assert!(refused.contains(&why), "{refused}");
    }
}
