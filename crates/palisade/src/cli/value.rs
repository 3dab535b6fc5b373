//! Parsers of option values. A value out of range is an error that names the range; nothing is clamped.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::Uri;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use palisade_core::{LockName, Permits, Span, Token, Ttl, limits};
use palisade_replica::Profile;
use palisade_server::shell::Listen;
use rustix::process::Signal;

/// A duration: `10s`, `500ms`, `1m30s`, `1d`. A zero needs no unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    // A day has 24 hours here: this is a length of time, not a date.
    if let Some((days, rest)) = text.split_once('d')
        && let Ok(days) = days.parse::<u32>()
    {
        let rest = if rest.is_empty() { "0" } else { rest };
        let rest = duration(rest).map_err(|_| not_a_duration(text))?;
        return Ok(Duration::from_secs(u64::from(days) * 86_400) + rest);
    }
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| not_a_duration(text))?;
    Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())
}

/// A signal that a job can handle, by its name with or without `SIG`.
pub(crate) fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    match name.strip_prefix("SIG").unwrap_or(&name) {
        "TERM" => Ok(Signal::TERM),
        "INT" => Ok(Signal::INT),
        "HUP" => Ok(Signal::HUP),
        "QUIT" => Ok(Signal::QUIT),
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        "WINCH" => Ok(Signal::WINCH),
        _ => Err("TERM, INT, HUP, QUIT, USR1, USR2 and WINCH are allowed".to_owned()),
    }
}

/// The name of a signal that [`signal`] reads.
pub(crate) fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::HUP => "HUP",
        Signal::QUIT => "QUIT",
        Signal::USR1 => "USR1",
        Signal::USR2 => "USR2",
        _ => "WINCH",
    }
}

/// How long the history keeps a grant.
pub(crate) fn history_age(text: &str) -> Result<Duration, String> {
    let age = duration(text)?;
    let (least, most) = (Duration::from_secs(60), Duration::from_secs(3_660 * 86_400));
    if (least..=most).contains(&age) {
        return Ok(age);
    }
    Err("1m to 3660d are allowed; --no-history keeps nothing".to_owned())
}

/// A number of bytes: `64MiB`, `1GiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1_u64 << 40),
    ];
    let named = units
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let size =
        named.and_then(|(number, bytes)| number.trim_end().parse::<u64>().ok()?.checked_mul(bytes));
    match size {
        Some(size) if (1 << 20..=1 << 44).contains(&size) => Ok(size),
        Some(_) => Err("1MiB to 16TiB are allowed".to_owned()),
        None => Err("not a size; write 64MiB or 1GiB".to_owned()),
    }
}

fn not_a_duration(text: &str) -> String {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = if text.len() <= 6 { text } else { "10" };
        return format!("a duration needs a unit, for example {seconds}s or {seconds}ms");
    }
    "not a duration; write 10s, 500ms or 1m30s".to_owned()
}

/// An address to listen on: an IP address and a port.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => format!(
            "not an IP address; use 127.0.0.1:{port} for this machine only, 0.0.0.0:{port} or [::]:{port} \
             for every network"
        ),
        _ => "not an IP address and a port, such as 127.0.0.1:7420".to_owned(),
    })
}

/// Parses a listening address: an address with a port, or `unix:/PATH`.
pub(crate) fn listen_on(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("unix:") {
        Some(path) => Listen::unix(path),
        None if text.starts_with(['/', '.']) => Err(format!(
            "not an IP address and a port; a Unix socket is written unix:{text}"
        )),
        None => listen(text).map(Listen::Tcp),
    }
}

/// A URL for clients: a scheme, a host and perhaps a port.
pub(crate) fn advertise(text: &str) -> Result<Uri, String> {
    let uri = text.parse::<Uri>().ok();
    let fits = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.path() == "/"
            && uri.query().is_none()
    };
    uri.filter(fits)
        .ok_or_else(|| "write http://HOST:PORT or https://HOST:PORT".to_owned())
}

/// A profile of a cluster's times, by its name.
pub(crate) fn timers() -> impl TypedValueParser<Value = Profile> {
    let names = Profile::ALL.map(Profile::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Profile>())
}

/// A time to live: 100 ms – 24 h in whole milliseconds.
pub(crate) fn ttl(text: &str) -> Result<Ttl, String> {
    let range = || in_words(&format!("{} ..= {}", Ttl::MIN, Ttl::MAX));
    let duration = duration(text).map_err(|why| format!("{why} (a lease lasts {})", range()))?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err("a lease lasts whole milliseconds".to_owned());
    }
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Ttl::from_millis(millis).map_err(|invalid| in_words(&invalid.to_string()))
}

/// How long to wait in a queue: up to 24 h; there is no unbounded wait.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    let longest = limits::MAX_WAIT;
    let longest_ms = longest.as_millis();
    let duration =
        duration(text).map_err(|why| in_words(&format!("{why} (0 ..= {longest_ms} ms)")))?;
    if Span::from(duration) > longest {
        let given = duration.as_millis();
        let why = format!("a wait of {given} ms is outside 0 ..= {longest_ms} ms");
        return Err(in_words(&why));
    }
    Ok(duration)
}

/// The name of a lock: 1 – 255 bytes of printable ASCII, and not `.` or `..`. Libraries and proxies tidy these two up in
/// paths, so the clients that speak HTTP could not reach such a lock.
pub(crate) fn lock(text: &str) -> Result<LockName, String> {
    if matches!(text, "." | "..") {
        return Err(format!(
            "{text:?} is not the name of a lock: URLs drop it from their paths, so most clients could not reach the lock"
        ));
    }
    LockName::new(text).map_err(|invalid| in_words(&invalid.to_string()))
}

/// A fencing token: an integer between 1 and 2^53 − 1.
pub(crate) fn token(text: &str) -> Result<Token, String> {
    let range = || format!("a fencing token is an integer between 1 and {}", Token::MAX);
    let number = text.parse().map_err(|_| range())?;
    Token::new(number).map_err(|_| range())
}

/// Permits of a semaphore: `COUNT/OF`.
pub(crate) fn permits(text: &str) -> Result<Permits, String> {
    let form = || "permits are COUNT/OF, such as 2/5 for two of five".to_owned();
    let (wanted, of) = text.split_once('/').ok_or_else(form)?;
    let number = |text: &str| text.parse().map_err(|_| form());
    let permits = Permits::new(number(wanted)?, number(of)?);
    permits.map_err(|invalid| in_words(&invalid.to_string()))
}

/// The number of permits that a semaphore has.
pub(crate) fn permits_of_all(text: &str) -> Result<u32, String> {
    let most = limits::PERMITS;
    let number = text.parse().ok();
    number
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| format!("a semaphore has 1 to {most} permits"))
}

/// Text that is shown with the holder.
pub(crate) fn metadata(text: &str) -> Result<String, String> {
    short(text, limits::METADATA_BYTES)
}

/// The reason for a revocation.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("give a reason: everyone who watches the lock sees it".to_owned());
    }
    short(text, limits::REASON_BYTES)
}

/// A client id: 1 – 255 bytes of printable ASCII.
pub(crate) fn client_id(text: &str) -> Result<String, String> {
    let client = palisade_core::ClientId::new(text);
    let client = client.map_err(|invalid| in_words(&invalid.to_string()))?;
    Ok(client.as_str().to_owned())
}

fn short(text: &str, max: usize) -> Result<String, String> {
    if text.len() > max {
        return Err(format!("{} bytes; at most {max} are allowed", text.len()));
    }
    Ok(text.to_owned())
}

/// A message for people. Libraries and the protocol write a range as `100 ms ..= 86400000 ms`, which a program can take
/// apart; here it becomes `100 ms to 24 h`, and "is outside" it "is not between".
pub(crate) fn in_words(message: &str) -> String {
    let mut parts = message.split("..=");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (low, high) = (shortened(words.trim_end()), part.trim_start());
        let unit = high.trim_start_matches(|c: char| c.is_ascii_digit());
        let (number, rest) = high.split_at(high.len() - unit.len());
        let millis = number.parse().ok().filter(|_| unit.starts_with(" ms"));
        let high = match millis {
            Some(millis) => format!("{}{}", length(millis), &rest[" ms".len()..]),
            None => high.to_owned(),
        };
        words = match low.rsplit_once(" is outside ") {
            Some((what, low)) if low.len() < LONGEST_BOUND => {
                format!("{what} is not between {low} and {high}")
            }
            _ => format!("{low} to {high}"),
        };
    }
    words
}

/// A text that ends with a bound in milliseconds, or does not.
fn shortened(text: &str) -> String {
    let bound = text.strip_suffix(" ms").map(|text| {
        let before = text.trim_end_matches(|c: char| c.is_ascii_digit());
        text.split_at(before.len())
    });
    match bound.map(|(before, number)| (before, number.parse())) {
        Some((before, Ok(millis))) => format!("{before}{}", length(millis)),
        _ => text.to_owned(),
    }
}

/// The text between "is outside" and the range is the lower bound.
const LONGEST_BOUND: usize = 30;

/// A length of time that is exact.
fn length(millis: u64) -> String {
    let units = [(3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let whole = units
        .into_iter()
        .find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit));
    whole.map_or_else(
        || format!("{millis} ms"),
        |(unit, name)| format!("{} {name}", millis / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_people_write_them() {
        for (text, millis) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1d2h", 93_600_000),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn names_that_paths_lose_are_refused() {
        for lost in [".", ".."] {
            assert!(lock(lost).unwrap_err().contains("URLs"), "{lost}");
        }
        for kept in ["...", ".x", "a/..", "%2E"] {
            assert_eq!(lock(kept).as_deref(), Ok(kept));
        }
    }

    #[test]
    fn an_error_about_a_bare_number_names_the_missing_unit() {
        assert!(duration("10").unwrap_err().contains("10s"));
        assert!(duration(&"9".repeat(31)).unwrap_err().contains("unit"));
        assert!(duration("").is_err() && duration("soon").is_err() && duration("-5s").is_err());
    }

    #[test]
    fn a_ttl_out_of_range_names_the_range() {
        let too_much = format!("1{}s", "0".repeat(30));
        for text in ["0", "0s", "99ms", "25h", "-5s", "text", "", "1", &too_much] {
            let message = ttl(text).unwrap_err();
            assert!(
                message.contains("100 ms and 24 h") || message.contains("100 ms to 24 h"),
                "{text}: {message}"
            );
        }
        assert!(ttl("100500us").is_err());
        assert_eq!(ttl("100ms"), Ok(Ttl::MIN));
        assert_eq!(ttl("24h"), Ok(Ttl::MAX));
    }

    #[test]
    fn ranges_are_said_in_words() {
        for (range, words) in [
            (
                "a lease of 1 ms is outside 100 ms ..= 86400000 ms",
                "a lease of 1 ms is not between 100 ms and 24 h",
            ),
            (
                "a lock delay of 61000 ms is outside 0 ..= 60000 ms",
                "a lock delay of 61000 ms is not between 0 and 1 min",
            ),
            (
                "lock name is empty; 1 ..= 255 bytes are allowed",
                "lock name is empty; 1 to 255 bytes are allowed",
            ),
            ("3651 is not in 1..=3650", "3651 is not in 1 to 3650"),
            (
                "a lease of 1 ms is outside 1000 ms ..= 60000 ms",
                "a lease of 1 ms is not between 1 s and 1 min",
            ),
            ("no range", "no range"),
        ] {
            assert_eq!(in_words(range), words);
        }
    }

    #[test]
    fn a_wait_is_bounded() {
        assert_eq!(wait("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["86401s", "-1s", "soon"] {
            assert!(wait(text).unwrap_err().contains("24 h"), "{text}");
        }
    }

    #[test]
    fn a_token_is_never_0_nor_2_to_the_53() {
        assert_eq!(token("1"), Ok(Token::FIRST));
        assert_eq!(token("9007199254740991"), Ok(Token::MAX));
        for text in [
            "0",
            "9007199254740992",
            "-1",
            "",
            "1.5",
            "x",
            "99999999999999999999",
        ] {
            assert!(
                token(text)
                    .unwrap_err()
                    .contains("between 1 and 9007199254740991"),
                "{text}"
            );
        }
    }
}
