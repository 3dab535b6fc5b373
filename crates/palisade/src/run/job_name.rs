//! The metadata that a lock gets from `palisade run` unless the command line sets it: `USER@HOST PROGRAM`.
//!
//! A listing then says whose job holds a lock. The program's arguments are left out, because secrets may be among them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use palisade_core::limits::METADATA_BYTES;

use super::sys;
use crate::cli::LockArgs;

/// The lock waits for a user's name no longer than this: a directory service may hang.
const PATIENCE: Duration = Duration::from_millis(200);

/// The metadata of a job: what the command line sets, nothing if that is empty, and else the job's name.
pub(super) fn metadata(lock: &LockArgs, command: &[OsString]) -> Option<String> {
    match &lock.metadata {
        Some(given) => Some(given.clone()).filter(|given| !given.is_empty()),
        // A lock without tokens has no place for it.
        None if lock.connection.is_redlock() => None,
        None => command.first().map(|program| of(program)),
    }
}

fn of(program: &OsStr) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let passwd = fs::read("/etc/passwd").unwrap_or_default();
    let user = in_passwd(&passwd, uid).or_else(|| within(PATIENCE, move || sys::user_name(uid)));
    let user = user.map_or_else(|| uid.to_string(), |name| printable(&name));
    let host = rustix::system::uname();
    let host = printable(host.nodename().to_bytes());
    let base = Path::new(program).file_name().unwrap_or(program);
    let program = printable(base.as_encoded_bytes());
    cut(format!("{user}@{host} {program}"))
}

/// The name of a user in the text of `/etc/passwd`, which most users are in.
fn in_passwd(passwd: &[u8], uid: u32) -> Option<Vec<u8>> {
    let uid = uid.to_string();
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)? == uid.as_bytes()).then(|| name.to_vec())
    })
}

/// The result of a look-up that may hang; `None` if it takes longer than this. Its thread is left behind then.
fn within<T: Send + 'static>(
    patience: Duration,
    look_up: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let (found, answer) = mpsc::channel();
    let thread = std::thread::Builder::new().spawn(move || found.send(look_up()));
    thread.ok()?;
    answer.recv_timeout(patience).ok()?
}

/// Bytes that are no text, and characters that would move a terminal's cursor or turn its text around, become `\xNN`.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    };
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let turns = matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if letter.is_control() || turns {
                escape(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(letter);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// The longest start of a text that fits.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(METADATA_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_number_and_not_by_another_field() {
        let passwd =
            b"root:x:0:0:root:/root:/bin/sh\n:x:7::\nbroken\nweb:x:1000:7:Web,,7:/srv:/bin/sh\n";
        assert_eq!(in_passwd(passwd, 0).as_deref(), Some(&b"root"[..]));
        assert_eq!(in_passwd(passwd, 1_000).as_deref(), Some(&b"web"[..]));
        assert_eq!(in_passwd(passwd, 7), None);
    }

    /// The control is a look-up that answers.
    #[test]
    fn a_look_up_that_hangs_is_not_waited_for() {
        let (release, hung) = mpsc::channel::<()>();
        let hangs = move || hung.recv().ok().map(|()| "late");
        assert_eq!(within(Duration::from_millis(5), hangs), None);
        drop(release);
        assert_eq!(within(Duration::from_secs(60), || Some("web")), Some("web"));
        assert_eq!(within(Duration::from_secs(60), || None::<u8>), None);
    }

    #[test]
    fn odd_bytes_are_escaped_and_text_stays() {
        assert_eq!(printable("Größe 🦀 a\\b".as_bytes()), "Größe 🦀 a\\b");
        assert_eq!(printable(b"a\x1b[2Jb\n\xff"), "a\\x1b[2Jb\\x0a\\xff");
        assert_eq!(printable("\u{202e}x".as_bytes()), "\\xe2\\x80\\xaex");
    }

    #[test]
    fn a_long_text_ends_at_a_whole_character() {
        let long = format!("{}é", "a".repeat(METADATA_BYTES - 1));
        assert_eq!(cut(long).len(), METADATA_BYTES - 1);
        let fits = format!("{}é", "a".repeat(METADATA_BYTES - 2));
        assert_eq!(cut(fits.clone()), fits);
    }

    #[test]
    fn a_program_is_named_without_its_folder() {
        let named = of(OsStr::new("/opt/jobs/nightly"));
        assert!(
            named.ends_with(" nightly") && named.contains('@'),
            "{named}"
        );
    }
}
