//! The credentials of this client: their ends, and their files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use palisade_tls::{Certificate, ClientFiles};

use super::super::args::AuthorityArgs;
use super::super::shell::shell_word;
use super::finding::Finding;
use super::judge::expiry;

/// The findings about the files that this client names.
pub(super) fn credentials(connection: &AuthorityArgs, now_ms: u64) -> Vec<Finding> {
    let ClientFiles { ca, own } = connection.tls();
    let mut findings = Vec::new();
    if let Some(ca) = &ca {
        let next = "get the new CA of the servers, and name its file: --ca-file FILE";
        findings.push(ends(ca, "the CA that this client trusts", 30, now_ms, next));
    }
    if let Some((certificate, key)) = &own {
        let next = "make a new one, and put it in place with its key: palisade auth cert NAME";
        findings.push(ends(
            certificate,
            "this client's certificate",
            7,
            now_ms,
            next,
        ));
        findings.extend(secret(key));
    }
    findings.extend(connection.token_file().and_then(secret));
    let token = connection.token();
    if let Err(fault) = &token {
        let next = "correct the file or the variable, or get a new token: palisade auth token new PRINCIPAL";
        findings.push(Finding::problem("credential", "token", fault.to_string()).next(next));
    }
    if matches!(token, Ok(Some(_))) && connection.authority.starts_with("http://") {
        let what = "a token is sent to this machine only: http:// to another one would show it to everybody on the way";
        findings.push(
            Finding::note("credential", "token", what)
                .next("write https:// for servers on other machines"),
        );
    }
    findings
}

fn ends(file: &Path, subject: &str, notice_days: u64, now_ms: u64, next: &str) -> Finding {
    let at = file.display().to_string();
    match Certificate::in_file(file) {
        Ok(read) => expiry(
            "certificate",
            &at,
            subject,
            read.expires(),
            notice_days,
            now_ms,
            next,
        ),
        Err(error) => Finding::problem("certificate", &at, error.to_string()).next(next),
    }
}

/// A file that nobody but its owner should read; `None` if it is not there.
pub(super) fn secret(file: &Path) -> Option<Finding> {
    let at = file.display().to_string();
    let mode = fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let next = format!("chmod 600 {}", shell_word(&at));
    Some(match mode {
        _ if mode & 0o007 != 0 => {
            let what = format!(
                "every user of this machine may read or change it (mode {mode:04o}); it is a secret"
            );
            Finding::problem("secret", &at, what)
                .next(next + ", and replace the secret if others may have read it")
        }
        _ if mode & 0o070 != 0 => {
            let what = format!("its group may read or change it (mode {mode:04o})");
            Finding::note("secret", &at, what).next(format!("if the group should not: {next}"))
        }
        _ => Finding::ok(
            "secret",
            &at,
            format!("only its owner may read it (mode {mode:04o})"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn a_secret_that_others_may_read_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        assert_eq!(secret(&file), None);
        fs::write(&file, "x").unwrap();
        for (mode, expected) in [
            (0o600, Severity::Ok),
            (0o400, Severity::Ok),
            (0o640, Severity::Note),
            (0o604, Severity::Problem),
            (0o602, Severity::Problem),
        ] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(secret(&file).unwrap().state, expected, "{mode:o}");
        }
    }
}
