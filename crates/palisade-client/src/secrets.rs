//! URLs with their secrets removed.

/// Returns the URL for printing, without the part before an `@` and the part after a `?`.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    if is_path(url) {
        return url.to_owned();
    }
    let scheme = scheme_of(url);
    let Some(pieces) = Pieces::of(url) else {
        return format!("{scheme}…");
    };
    let user = pieces.user.map_or("", |_| "…@");
    let query = pieces.query.map_or("", |_| "?…");
    format!("{scheme}{user}{}{query}", pieces.place)
}

/// Returns the URL for a program that must not know the password: it keeps the user's name and the settings that are
/// not secret. If a secret cannot be separated from the rest, only the scheme remains.
#[must_use]
pub fn without_password(url: &str) -> String {
    if is_path(url) {
        return url.to_owned();
    }
    let scheme = scheme_of(url);
    let Some(pieces) = Pieces::of(url) else {
        return scheme.to_owned();
    };
    let mut kept = scheme.to_owned();
    let user = pieces.user.and_then(|user| user.split(':').next());
    if let Some(user) = user.filter(|user| !user.is_empty()) {
        kept.push_str(user);
        kept.push('@');
    }
    kept.push_str(pieces.place);
    let settings = pieces.query.unwrap_or_default().split('&');
    let settings: Vec<_> = settings.filter(|setting| is_no_secret(setting)).collect();
    if !settings.is_empty() {
        kept.push('?');
        kept.push_str(&settings.join("&"));
    }
    kept
}

/// Whether it names only Unix sockets, whose paths contain neither users nor passwords.
fn is_path(url: &str) -> bool {
    url.starts_with("unix:") && !url.contains(",")
}

fn is_no_secret(setting: &str) -> bool {
    let name = setting.split('=').next().unwrap_or_default();
    NO_SECRETS.contains(&name)
}

/// The settings, of all authorities, that are not secret. Any other setting counts as a secret.
const NO_SECRETS: &[&str] = &[
    "application_name",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "port",
    "replicas",
    "sslmode",
    "target_session_attrs",
    "user",
];

/// Returns the scheme of a URL with its `://`; empty if there is none.
fn scheme_of(url: &str) -> &str {
    url.find("://").map_or("", |at| &url[..at + 3])
}

/// A URL after its scheme, split up.
struct Pieces<'a> {
    /// The text before the `@`: a name, and perhaps a password.
    user: Option<&'a str>,
    /// Hosts and path.
    place: &'a str,
    query: Option<&'a str>,
}

impl<'a> Pieces<'a> {
    /// Returns `None` if a `/` or `?` comes before an `@`, because it may belong to a password.
    fn of(url: &'a str) -> Option<Pieces<'a>> {
        let rest = &url[scheme_of(url).len()..];
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, _)) if user.contains(['/', '?']) => return None,
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (rest, None),
        };
        Some(Pieces { user, place, query })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        for (url, printed) in [
            (
                "postgres://u:p@ss@host/db?password=x",
                "postgres://…@host/db?…",
            ),
            ("etcd://host:2379/root", "etcd://host:2379/root"),
            ("unix:///run/p@1?.sock", "unix:///run/p@1?.sock"),
            ("unix:/a,http://u:p@b", "unix:/a,http://…@b"),
            ("nonsense", "nonsense"),
            ("u:p@host", "…@host"),
            ("redis://:p?w@host/0", "redis://…"),
            ("postgres://u:p/w@host/db", "postgres://…"),
            ("postgres://host/db?password=a@b", "postgres://…"),
        ] {
            assert_eq!(without_secrets(url), printed);
        }
    }

    #[test]
    fn what_is_handed_on_names_the_same_authority_without_the_password() {
        for (url, kept) in [
            ("http://127.0.0.1:7420", "http://127.0.0.1:7420"),
            ("palisade://host", "palisade://host"),
            ("unix:/run/p@1.sock", "unix:/run/p@1.sock"),
            ("etcd://a:2379,b:2379/root", "etcd://a:2379,b:2379/root"),
            ("zookeeper://[::1]:2181/root", "zookeeper://[::1]:2181/root"),
            ("redlock://a,b,c", "redlock://a,b,c"),
            (
                "redis://:secret@host:1/2?replicas=2",
                "redis://host:1/2?replicas=2",
            ),
            ("redis://user:secret@host", "redis://user@host"),
            ("postgres://app@host/db", "postgres://app@host/db"),
            ("postgres://app:se@cret@host/db", "postgres://app@host/db"),
            (
                "postgresql://host/db?user=app&password=secret&sslmode=disable",
                "postgresql://host/db?user=app&sslmode=disable",
            ),
            ("postgres://host/db?p%61ssword=secret", "postgres://host/db"),
            ("postgres://host/db?password=se@cret", "postgres://"),
            ("redis://:sec?ret@host/0", "redis://"),
            ("postgres://app:sec/ret@host/db", "postgres://"),
        ] {
            assert_eq!(without_password(url), kept);
        }
    }
}
