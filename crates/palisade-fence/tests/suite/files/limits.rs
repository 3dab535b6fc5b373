//! Bad input, lost, damaged and changed state, and a holder that keeps the fence's lock.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use palisade_core::AuthorityId;
use palisade_fence::files::{Folder, Root};
use palisade_fence::{Admin as _, Edit, Error, Rearm, Reject, Result, Write};
use rustix::fs::{FlockOperation, flock};

use super::t;

const PUT: Write<'static> = Write::new("/a", Edit::Put(b"text"));

fn floor(number: u64) -> Rearm<'static> {
    Rearm {
        floor: t(number),
        authority: None,
        lower_from: None,
    }
}

#[test]
fn a_name_outside_the_folder_is_refused_and_nothing_is_written() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::open(place.path()).unwrap();
    let long = format!("/{}", "x".repeat(256));
    for (key, problem) in [
        ("a", "must start with '/'"),
        ("/../a", "'.' or '..'"),
        ("/..", "'.' or '..'"),
        ("/b/a", "subfolder"),
        ("/.palisade-fence", "belongs to the fence"),
        ("/.palisade-staged-1", "belongs to the fence"),
        // The same file, if the file system ignores case or invisible characters.
        ("/.Palisade-Fence", "belongs to the fence"),
        ("/.pali\u{17f}ade-lock", "belongs to the fence"),
        ("/.palisade\u{200d}-fence", "belongs to the fence"),
        ("/a\nb", "control character"),
        (&long, "1 ..= 255 bytes"),
    ] {
        let write = Write { key, ..PUT };
        let refused = folder.write(t(1), write).unwrap_err().to_string();
        assert!(refused.contains(problem), "{key:?}: {refused}");
        assert!(folder.read(t(1), key).is_err());
        assert!(folder.observe(key).is_err());
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    for key in ["/palisade-fence", "/.palisade", "/x.palisade-fence"] {
        let write = Write { key, ..PUT };
        assert!(folder.write(t(1), write).is_ok(), "{key}");
    }
    let none = Folder::open(place.path().join("none")).unwrap_err();
    assert!(none.to_string().contains("open folder"), "{none}");
    let longest = format!("/{}", "x".repeat(255));
    let write = Write {
        key: &longest,
        ..PUT
    };
    folder.write(t(1), write).unwrap();
}

#[test]
fn a_symbolic_link_or_a_pipe_is_not_followed() {
    let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = Folder::open(place.path()).unwrap();
    folder.claim(t(1)).unwrap();
    let target = outside.path().join("target");
    fs::write(&target, "theirs").unwrap();
    symlink(&target, place.path().join("a")).unwrap();
    for change in [Edit::Put(b"x"), Edit::Append(b"x"), Edit::Delete] {
        let refused = folder.write(t(1), Write::new("/a", change)).unwrap_err();
        assert!(
            refused.to_string().contains("not a regular file"),
            "{refused}"
        );
    }
    assert!(folder.read(t(1), "/a").is_err());
    assert_eq!(fs::read_to_string(target).unwrap(), "theirs");
}

/// A hard link is one file of two folders. An append under one mark must not change the file that the other mark
/// guards.
#[test]
fn an_append_changes_no_file_of_another_folder_and_no_fence() {
    let place = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| place.path().join(name));
    for path in [&ours, &theirs] {
        fs::create_dir(path).unwrap();
    }
    let [own, other] = [&ours, &theirs].map(|path| Folder::open(path).unwrap());
    other.write(t(9), PUT).unwrap();
    own.claim(t(1)).unwrap();
    for target in ["a", ".palisade-fence"] {
        let (target, link) = (theirs.join(target), ours.join("link"));
        let before = fs::read(&target).unwrap();
        fs::hard_link(&target, &link).unwrap();
        let append = Write::new("/link", Edit::Append(b"x"));
        let refused = own.write(t(1), append).unwrap_err();
        assert!(refused.to_string().contains("hard links"), "{refused}");
        // A put makes a file of its own; the control is the append to that one.
        for change in [Edit::Put(b"x"), Edit::Append(b"y")] {
            own.write(t(1), Write::new("/link", change)).unwrap();
        }
        assert_eq!(fs::read(&target).unwrap(), before);
        let delete = Write::new("/link", Edit::Delete);
        own.write(t(1), delete).unwrap();
    }
    assert!(other.claim(t(8)).unwrap_err().rejected().is_some());
}

#[test]
fn files_without_their_fence_are_refused_until_it_is_rearmed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("reports");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("old.csv"), "there before").unwrap();
    let folder = Folder::open(&path).unwrap();
    assert!(matches!(folder.claim(t(5)), Err(Error::FenceLost(_))));
    assert!(matches!(folder.write(t(5), PUT), Err(Error::FenceLost(_))));
    let forgot = folder.write_tokenless("/a", PUT.change);
    assert!(matches!(forgot, Err(Error::FenceLost(_))));
    assert!(matches!(
        folder.read(t(5), "/old.csv"),
        Err(Error::FenceLost(_))
    ));
    rearm(place.path(), floor(5)).unwrap();
    let stale = Reject::Stale {
        presented: t(4),
        highest: t(5),
    };
    assert_eq!(folder.claim(t(4)).unwrap_err().rejected(), Some(&stale));
    let read = folder.read(t(5), "/old.csv").unwrap().value;
    assert_eq!(read, Some(b"there before".to_vec()));
}

#[test]
fn a_damaged_state_is_refused_until_it_is_rearmed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("reports");
    fs::create_dir(&path).unwrap();
    let folder = Folder::open(&path).unwrap();
    folder.write(t(5), PUT).unwrap();
    let sidecar = path.join(".palisade-fence");
    let good = fs::read_to_string(&sidecar).unwrap();
    for bad in [
        String::new(),
        good[..good.len() / 2].to_owned(),
        good.replace("token 5", "token 4"),
        good.replace("palisade-fence 1", "palisade-fence 2"),
    ] {
        fs::write(&sidecar, &bad).unwrap();
        let refused = folder.claim(t(6));
        assert!(matches!(refused, Err(Error::Damaged(_))), "{bad}");
        assert_eq!(fs::read_to_string(&sidecar).unwrap(), bad);
    }
    rearm(place.path(), floor(6)).unwrap();
    folder.claim(t(6)).unwrap();
}

/// Code without a token cannot be stopped; its change to the last file is noticed.
#[test]
fn a_file_written_without_the_fence_is_noticed() {
    type Meddle = fn(&std::path::Path) -> std::io::Result<()>;
    let meddlers: [(Meddle, &str); 3] = [
        (|path| fs::write(path, "longer than before"), "has 18 bytes"),
        (|path| fs::write(path, ""), "has 0 bytes"),
        (|path| fs::remove_file(path), "is missing"),
    ];
    for (meddle, words) in meddlers {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("reports");
        fs::create_dir(&path).unwrap();
        let folder = Folder::open(&path).unwrap();
        folder.write(t(5), PUT).unwrap();
        meddle(&path.join("a")).unwrap();
        let noticed = folder.write(t(5), PUT).unwrap_err();
        assert!(matches!(noticed, Error::Damaged(_)), "{noticed:?}");
        assert!(noticed.to_string().contains(words), "{noticed}");
        assert!(matches!(folder.claim(t(6)), Err(Error::Damaged(_))));
        rearm(place.path(), floor(6)).unwrap();
        folder.write(t(6), PUT).unwrap();
    }
}

#[test]
fn the_wait_for_the_fences_lock_is_bounded() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::open(place.path()).unwrap();
    folder.claim(t(1)).unwrap();
    let lock = File::options()
        .write(true)
        .open(place.path().join(".palisade-lock"))
        .unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let soon = folder.clone().patience(Duration::from_millis(30));
    let busy = soon.claim(t(2)).unwrap_err();
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(busy, Error::Busy(_)), "{busy}");
    let resource = place.path().file_name().unwrap().to_str().unwrap();
    let root = Root::new(place.path().parent().unwrap());
    let holders = root.blockers(resource).unwrap();
    assert!(holders[0].process == own && !holders[0].stopped);
    assert!(busy.to_string().contains(&holders[0].to_string()), "{busy}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| folder.claim(t(2)));
        drop(lock);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_put_keeps_the_permissions() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::open(place.path()).unwrap();
    folder.write(t(1), PUT).unwrap();
    let file = place.path().join("a");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    folder.write(t(1), PUT).unwrap();
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

fn rearm(root: &std::path::Path, with: Rearm<'_>) -> Result<()> {
    runtime().block_on(Root::new(root).rearm("reports", &with))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

#[test]
fn an_operator_looks_and_rearms() {
    let place = tempfile::tempdir().unwrap();
    for name in ["b-2", "a-1", "b-1", "b-3", "b-unfenced"] {
        let path = place.path().join(name);
        fs::create_dir(&path).unwrap();
        let folder = Folder::open(path).unwrap();
        if name != "b-unfenced" {
            folder.claim(t(7)).unwrap();
        }
    }
    fs::write(place.path().join("b-file"), "").unwrap();
    let mut root = Root::new(place.path());
    let on = runtime();
    let listed = on.block_on(root.list("b", Some("b-1"), 9)).unwrap();
    let names: Vec<&str> = listed.iter().map(|each| each.resource.as_str()).collect();
    assert_eq!(names, ["b-2", "b-3"]);
    assert_eq!(on.block_on(root.list("", None, 1)).unwrap().len(), 1);
    assert_eq!(listed[0].state.highest(), Some(t(7)));
    let lower = on.block_on(root.rearm("a-1", &floor(6)));
    assert!(matches!(lower, Err(Error::FloorTooLow(low)) if low.highest == t(7)));
    let ours = AuthorityId::new("ours").unwrap();
    let with = Rearm {
        authority: Some(&ours),
        lower_from: Some(t(7)),
        ..floor(6)
    };
    on.block_on(root.rearm("a-1", &with)).unwrap();
    let state = on.block_on(root.show("a-1")).unwrap().unwrap();
    assert_eq!((state.highest(), state.authority), (Some(t(6)), Some(ours)));
    for bad in ["..", ".", "a/b", ""] {
        assert!(on.block_on(root.show(bad)).is_err(), "{bad:?}");
    }
}
