//! One spelling for one name (rule F11): the canonical forms of paths and of the values of placeholders.
//!
//! ```text
//!   received             how some services read it
//!   07 +7 7.0 0_7 %207   7            numbers are parsed leniently
//!   7;v=1                7            parameters of a segment are cut off
//!   %37 %2537            7            decoded once, decoded twice
//!   8/../7 //7 %2F7      7            normalised before or after decoding
//!   F5…  {f5…}  urn:…    f5…          a UUID in any case and notation
//! ```
//!
//! The fence compares names byte by byte, so all of these are refused. Only the canonical spelling of a value
//! passes, and it is sent on unchanged.

use std::fmt::Write as _;

use palisade_core::Token;
use percent_encoding::percent_decode_str;

use crate::http::Problem;

/// Returns the decoded segments of an unambiguous path; a slash at its end makes no difference.
///
/// # Errors
/// [`Problem`] 400 `invalid` names the segment and, if there is one, its canonical spelling.
pub(super) fn segments(path: &str) -> Result<Vec<String>, Problem> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(segment).collect()
}

/// Decodes one segment.
pub(super) fn segment(raw: &str) -> Result<String, Problem> {
    let refused = |why: &str| {
        let shown = shown(raw);
        Problem::invalid(format!(
            "the segment {shown:?} of the address could be read as another one: {why}"
        ))
    };
    let decoded = percent_decode_str(raw).decode_utf8();
    let text = decoded.map_err(|_| refused("it is not UTF-8 when it is percent-decoded"))?;
    if matches!(text.as_ref(), "" | "." | "..") {
        return Err(refused("it is empty, '.' or '..'"));
    }
    if text.contains(['/', '\\', ';', '%']) || text.chars().any(char::is_control) {
        return Err(refused(
            "it must not contain a slash, a backslash, ';', '%' or control characters, encoded or not",
        ));
    }
    if text.trim() != text {
        return Err(refused("it begins or ends with a space"));
    }
    match canonical(&text, raw) {
        Some(()) => Ok(text.into_owned()),
        None => Err(refused(&format!("spell it {}", spelled(&text)))),
    }
}

/// Whether exactly the bytes that need encoding are encoded, in capitals. Punctuation that has a meaning in some
/// addresses (`:`, `@`, `,` …) may be encoded or not.
fn canonical(text: &str, raw: &str) -> Option<()> {
    let mut rest = raw;
    for byte in text.bytes() {
        rest = match rest.strip_prefix('%') {
            Some(_) if is_unreserved(byte) => return None,
            Some(hex) => hex.strip_prefix(format!("{byte:02X}").as_str())?,
            None if is_unreserved(byte) || PUNCTUATION.contains(&byte) => rest.get(1..)?,
            None => return None,
        };
    }
    Some(())
}

/// Returns the canonical spelling of a segment.
fn spelled(text: &str) -> String {
    let mut spelled = String::new();
    for byte in text.bytes() {
        if is_unreserved(byte) || PUNCTUATION.contains(&byte) {
            spelled.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(spelled, "%{byte:02X}");
        }
    }
    spelled
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

const PUNCTUATION: &[u8] = b"!$&'()*+,=:@";

/// The type of a placeholder; each has one spelling for one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceholderType {
    /// `{id}`: a [`PlaceholderType::Uint`], a [`PlaceholderType::Uuid`], or a [`PlaceholderType::Slug`] that cannot be read as either.
    Plain,
    /// `{id:uint}`: 0 ..= 2^53 − 1, decimal, without leading zeros: exact in every language.
    Uint,
    /// `{id:uint64}`: likewise, up to 2^64 − 1.
    Uint64,
    /// `{id:int}`: a [`PlaceholderType::Uint`], or a minus and a [`PlaceholderType::Uint`] except 0.
    Int,
    /// `{id:uuid}`: 8-4-4-4-12 hexadecimal digits, in lower case.
    Uuid,
    /// `{id:slug}`: lower-case letters, digits, `-` and `_`, beginning with a letter.
    Slug,
    /// `{id:name}`: letters, digits, `-`, `_`, `.` and `~`, neither beginning nor ending with a dot. For
    /// services that compare names byte by byte, and only for them.
    Name,
}

impl PlaceholderType {
    /// Parses the name of a type, which follows the colon of a placeholder.
    pub(super) fn named(name: &str) -> Option<PlaceholderType> {
        Some(match name {
            "uint" => PlaceholderType::Uint,
            "uint64" => PlaceholderType::Uint64,
            "int" => PlaceholderType::Int,
            "uuid" => PlaceholderType::Uuid,
            "slug" => PlaceholderType::Slug,
            "name" => PlaceholderType::Name,
            _ => return None,
        })
    }

    /// Whether a decoded segment is a value of this type in its one spelling.
    pub(super) fn fits(self, text: &str) -> bool {
        let uint = |text: &str, max: u64| {
            let number = text.parse::<u64>().ok().filter(|number| *number <= max);
            number.is_some_and(|number| number.to_string() == text)
        };
        let most = Token::MAX.get();
        match self {
            PlaceholderType::Plain => {
                let is_slug = PlaceholderType::Slug.fits(text) && !is_like_uuid(text);
                is_slug || uint(text, most) || PlaceholderType::Uuid.fits(text)
            }
            PlaceholderType::Uint => uint(text, most),
            PlaceholderType::Uint64 => uint(text, u64::MAX),
            PlaceholderType::Int => match text.strip_prefix('-') {
                Some(number) => number != "0" && uint(number, most),
                None => uint(text, most),
            },
            PlaceholderType::Uuid => {
                let digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
                text.len() == 36
                    && text.bytes().enumerate().all(|(at, byte)| match at {
                        8 | 13 | 18 | 23 => byte == b'-',
                        _ => digit(byte),
                    })
            }
            PlaceholderType::Slug => {
                let inner = |byte: u8| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
                };
                text.starts_with(|first: char| first.is_ascii_lowercase())
                    && text.bytes().all(inner)
            }
            PlaceholderType::Name => {
                !text.is_empty()
                    && !text.starts_with('.')
                    && !text.ends_with('.')
                    && text.bytes().all(is_unreserved)
            }
        }
    }

    /// Returns the refusal of a segment that does not fit, with its canonical spelling if there is one.
    pub(super) fn refusal(self, text: &str) -> Problem {
        let shown = shown(text);
        let wanted = match self {
            PlaceholderType::Plain => {
                "a number (no sign, no leading zeros), a UUID (lower case, with hyphens) or \
                 a name (lower-case letters, digits, '-' and '_', beginning with a letter)"
            }
            PlaceholderType::Uint => {
                "an integer in 0 ..= 9007199254740991 without a sign or leading zeros"
            }
            PlaceholderType::Uint64 => {
                "an integer in 0 ..= 18446744073709551615 without a sign or leading zeros"
            }
            PlaceholderType::Int => {
                "an integer in -9007199254740991 ..= 9007199254740991 without a plus or leading zeros"
            }
            PlaceholderType::Uuid => "a UUID in lower case, with hyphens",
            PlaceholderType::Slug => {
                "lower-case letters, digits, '-' and '_', beginning with a letter"
            }
            PlaceholderType::Name => {
                "letters, digits, '-', '_', '.' and '~', with no dot at either end"
            }
        };
        let instead = self.meant(text).map_or_else(String::new, |meant| {
            format!("; if you mean {meant}, spell it {meant}")
        });
        Problem::invalid(format!(
            "{shown:?} in the address must be {wanted}: another spelling could be read as another name{instead}"
        ))
    }

    /// Returns the value of this type that a lenient parser would find in a segment.
    fn meant(self, text: &str) -> Option<String> {
        let text = text.trim().to_ascii_lowercase();
        let bare = text
            .trim_start_matches("urn:uuid:")
            .trim_matches(['{', '}']);
        let number = bare.trim_start_matches('+').replace('_', "");
        let number = number
            .split_once('.')
            .map_or(number.as_str(), |(whole, _)| whole);
        let digits = number.trim_start_matches('0');
        let digits = if digits.is_empty() && !number.is_empty() {
            "0"
        } else {
            digits
        };
        [bare, digits]
            .into_iter()
            .find(|meant| self.fits(meant))
            .map(str::to_owned)
    }
}

/// Whether a lenient parser would read this as a UUID: 32 hexadecimal digits, with hyphens anywhere.
fn is_like_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-');
    digits.clone().count() == 32 && digits.into_iter().all(|byte| byte.is_ascii_hexdigit())
}

/// Shortens a caller's text for a message.
fn shown(text: &str) -> &str {
    let end = text.char_indices().nth(40).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_one_spelling() {
        let uuid = "f5509a3e-29b4-41d4-a716-446655440000";
        let bare = &uuid.replace('-', "");
        let odd = &format!("{}-{}", &bare[..3], &bare[3..]);
        let capitals = &uuid.to_uppercase();
        for (kind, good, bad) in [
            (
                PlaceholderType::Uint,
                &["0", "7", "9007199254740991"][..],
                &[
                    "",
                    "07",
                    "+7",
                    "-7",
                    "7.0",
                    "0_7",
                    "7e0",
                    "0x7",
                    "９",
                    "9007199254740992",
                    " 7",
                    "7 ",
                ][..],
            ),
            (
                PlaceholderType::Uint64,
                &["18446744073709551615"],
                &["18446744073709551616", "00"],
            ),
            (
                PlaceholderType::Int,
                &["-7", "0", "7"],
                &["-0", "-07", "+7", "--7", "-", "−7"],
            ),
            (
                PlaceholderType::Uuid,
                &[uuid],
                &[capitals, bare, odd, "{f5}", "urn:uuid:"],
            ),
            (
                PlaceholderType::Slug,
                &["a", "a-b_1"],
                &["", "A", "1a", "-a", "a.b", "a b", "ä", "a~"],
            ),
            (
                PlaceholderType::Name,
                &["a.B~c-_1", "07"],
                &["", ".a", "a.", "a b", "a:b", "ä"],
            ),
            (
                PlaceholderType::Plain,
                &["7", "a-b", uuid, "f5"],
                &["07", "7a", "Alice", bare, odd, capitals, "a.json", "_a"],
            ),
        ] {
            for text in good {
                assert!(kind.fits(text), "{kind:?} {text}");
            }
            for text in bad {
                assert!(!kind.fits(text), "{kind:?} {text}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_canonical_spelling() {
        for (kind, text, meant) in [
            (PlaceholderType::Uint, "007", "spell it 7"),
            (PlaceholderType::Plain, "+7.0", "spell it 7"),
            (PlaceholderType::Uint, "0_0", "spell it 0"),
            (PlaceholderType::Slug, "Alice", "spell it alice"),
            (
                PlaceholderType::Uuid,
                "{F5509A3E-29B4-41D4-A716-446655440000}",
                "spell it f5509a3e-29b4",
            ),
        ] {
            let refusal = format!("{:?}", kind.refusal(text));
            assert!(refusal.contains(meant), "{refusal}");
        }
        let refusal = format!("{:?}", PlaceholderType::Uint.refusal("seven"));
        assert!(!refusal.contains("spell it"), "{refusal}");
    }

    #[test]
    fn a_segment_with_two_readings_is_refused() {
        for good in ["7", "a%20b", "%C3%A4", "x:y", "x%3Ay", "a+b", "~"] {
            assert!(segment(good).is_ok(), "{good}");
        }
        for bad in [
            "", ".", "..", "%2e%2E", "a%2Fb", "a%5Cb", "a\\b", "a;b", "a%3Bb", "%2537", "a%25",
            "a%", "%zz", "%37", "%41", "%c3%a4", "%20a", "a%20", "%C2%A0a", "a%00", "a%0A", "%ff",
            "%C0%AF", "a|b", "{a}", "ä",
        ] {
            assert!(segment(bad).is_err(), "{bad}");
        }
        let refusal = format!("{:?}", segment("%37a%c3%a4").unwrap_err());
        assert!(refusal.contains("spell it 7a%C3%A4"), "{refusal}");
    }
}
