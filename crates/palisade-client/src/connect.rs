//! Selection of the authority by URL.

use std::sync::Arc;

use crate::client::Options;
use crate::fault::Fault;
use crate::service::LockService;

/// The URL schemes, and the feature that each one needs.
const KNOWN: &[(&str, &str)] = &[
    ("palisade", "palisade"),
    ("http", "palisade"),
    ("https", "palisade"),
    ("etcd", "etcd"),
    ("zookeeper", "zookeeper"),
    ("redis", "redis"),
    ("redlock", "redlock"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
];

/// Connects to the authority that `url` names.
///
/// | URL | authority | feature |
/// |---|---|---|
/// | `palisade://host[:7420]`, `http://host:port` | a Palisade server | `palisade` |
/// | `etcd://host[:2379][,host…][/root]` | an etcd cluster | `etcd` |
/// | `zookeeper://host[:2181][,host…][/root]` | a ZooKeeper ensemble | `zookeeper` |
/// | `redis://[user[:password]@]host[:6379][/database][?replicas=N]` | one Redis primary | `redis` |
/// | `postgres://[user[:password]@]host[:5432]/database` | a table in PostgreSQL | `postgres` |
///
/// An operation that an authority does not have returns [`Fault::Unsupported`].
///
/// # Errors
/// [`Fault::Invalid`] for an address that is not valid or an authority that is not part of this build,
/// [`Fault::Unreachable`] if nothing answers there. A message never contains a password.
pub async fn connect(url: &str, options: &Options) -> Result<Arc<dyn LockService>, Fault> {
    // In a build without any authority there is nothing to configure.
    let _ = options;
    match scheme(url)? {
        #[cfg(feature = "palisade")]
        "palisade" | "http" | "https" => Ok(Arc::new(
            crate::palisade::Palisade::connect(url, options.connections).await?,
        )),
        #[cfg(feature = "etcd")]
        "etcd" => Ok(Arc::new(crate::etcd::Etcd::connect(url).await?)),
        #[cfg(feature = "redis")]
        "redis" => Ok(Arc::new(crate::redis::Redis::connect(url).await?)),
        "redlock" => Err(Fault::unsupported(
            "grant fencing tokens: Redlock has none, and a fence requires them; see the \
             module palisade_client::redlock",
        )),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Ok(Arc::new(crate::zookeeper::ZooKeeper::connect(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(
            crate::postgres::Postgres::connect(url, options.connections).await?,
        )),
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> Result<&str, Fault> {
    match url.split_once("://") {
        Some((scheme, _)) => Ok(scheme),
        None => Err(Fault::invalid(format!(
            "{:?} is not the address of an authority: a scheme is missing, as in palisade://host or \
             http://host:port",
            without_secrets(url)
        ))),
    }
}

fn unknown(scheme: &str) -> Fault {
    let known = KNOWN.iter().find(|(name, _)| *name == scheme);
    let Some((_, feature)) = known else {
        let known: Vec<_> = KNOWN.iter().map(|(name, _)| format!("{name}://")).collect();
        return Fault::invalid(format!(
            "there is no authority for {scheme}://; the known schemes are {}",
            known.join(", ")
        ));
    };
    Fault::invalid(format!(
        "{scheme}:// needs palisade-client's feature \"{feature}\", which is not part of this build"
    ))
}

/// The URL without its secrets, for printing: the part before an `@` and the part after a `?` are left out.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    let scheme = scheme_of(url);
    let Some(pieces) = Pieces::of(url) else {
        return format!("{scheme}…");
    };
    let user = pieces.user.map_or("", |_| "…@");
    let query = pieces.query.map_or("", |_| "?…");
    format!("{scheme}{user}{}{query}", pieces.place)
}

/// The URL as it may be handed on to a program that is not to know the password: the user's name and
/// the settings that name no secret stay. Where a secret cannot be told from the rest, only the scheme
/// is left.
#[must_use]
pub fn without_password(url: &str) -> String {
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

fn is_no_secret(setting: &str) -> bool {
    let name = setting.split('=').next().unwrap_or_default();
    NO_SECRETS.contains(&name)
}

/// The settings of all authorities that hold no secret. One that is not listed is taken for one.
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

/// What comes before the parts of a URL, `://` included; empty if there is none.
fn scheme_of(url: &str) -> &str {
    url.find("://").map_or("", |at| &url[..at + 3])
}

/// What follows the scheme.
struct Pieces<'a> {
    /// Before the `@`: a name, and perhaps a password.
    user: Option<&'a str>,
    /// Hosts and path.
    place: &'a str,
    query: Option<&'a str>,
}

impl<'a> Pieces<'a> {
    /// `None` where a `/` or `?` stands before an `@`: they may be part of a password.
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
    fn an_unknown_scheme_is_reported_with_the_known_ones() {
        let message = unknown("consul").to_string();
        assert!(
            message.contains("consul://") && message.contains("etcd://"),
            "{message}"
        );
    }

    #[test]
    fn a_scheme_missing_from_the_build_names_its_feature() {
        let message = unknown("zookeeper").to_string();
        assert!(message.contains("\"zookeeper\""), "{message}");
    }

    #[test]
    fn a_missing_scheme_is_said_to_be_missing() {
        let message = scheme("u:secret@127.0.0.1:7420").unwrap_err().to_string();
        assert!(message.contains("scheme"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }

    #[test]
    fn secrets_are_not_printed() {
        for (url, printed) in [
            (
                "postgres://u:p@ss@host/db?password=x",
                "postgres://…@host/db?…",
            ),
            ("etcd://host:2379/root", "etcd://host:2379/root"),
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
