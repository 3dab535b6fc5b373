//! The trace that a request belongs to, by the header `traceparent` of W3C Trace Context.
//!
//! A request that carries one is handled inside a span with the trace's id, so every line of the log that is about the
//! request names it. Traces are joined and never begun here: a request without a valid header has no span, and costs
//! nothing.

use std::fmt;

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use tracing::Span;

/// The caller's place in a trace. A request that has one carries it among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The caller's own span in it.
    pub span: SpanId,
    /// Whether the caller records it.
    pub sampled: bool,
}

/// The id of a trace; never zero. It is written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The id of a span; never zero. It is written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

impl TraceParent {
    /// The place that a request's headers name. A header that is not valid, or not the only one of its name, names none:
    /// the standard asks to ignore it.
    pub(super) fn of(headers: &HeaderMap) -> Option<TraceParent> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let (Some(only), None) = (all.next(), all.next()) else {
            return None;
        };
        TraceParent::parse(only.as_bytes())
    }

    /// Reads `VERSION-TRACE-PARENT-FLAGS`. Later versions may append fields.
    fn parse(text: &[u8]) -> Option<TraceParent> {
        let (known, more) = text.split_at_checked(LENGTH)?;
        let mut fields = known.split(|byte| *byte == b'-');
        let [version] = hex(fields.next()?)?;
        let (trace, parent) = (hex::<16>(fields.next()?)?, hex::<8>(fields.next()?)?);
        let [flags] = hex(fields.next()?)?;
        let ends = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let is_valid = ends && trace != [0; 16] && parent != [0; 8];
        is_valid.then_some(TraceParent {
            trace: TraceId(trace),
            span: SpanId(parent),
            sampled: flags & 1 == 1,
        })
    }

    /// The span of a request. Its fields have the names that OpenTelemetry gives them in logs; no span of this server is
    /// in the trace yet, so `span_id` is the caller's.
    pub(super) fn span(&self, head: &Parts) -> Span {
        tracing::info_span!(
            "request",
            trace_id = %self.trace,
            span_id = %self.span,
            trace_flags = if self.sampled { "01" } else { "00" },
            method = %head.method,
            path = head.uri.path(),
        )
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The length of version 0.
const LENGTH: usize = 55;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn parsed(text: &str) -> Option<String> {
        TraceParent::parse(text.as_bytes()).map(|parent| parent.trace.to_string())
    }

    #[test]
    fn a_valid_header_names_its_trace() {
        for valid in [
            format!("00-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-00"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01-more"),
        ] {
            assert_eq!(parsed(&valid).as_deref(), Some(TRACE), "{valid}");
            let parent = TraceParent::parse(valid.as_bytes()).unwrap();
            assert_eq!(parent.span.to_string(), "00f067aa0ba902b7", "{valid}");
        }
    }

    #[test]
    fn the_lowest_flag_says_that_the_trace_is_recorded() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let text = format!("00-{TRACE}-00f067aa0ba902b7-{flags}");
            let parent = TraceParent::parse(text.as_bytes()).unwrap();
            assert_eq!(parent.sampled, sampled, "{flags}");
        }
    }

    #[test]
    fn any_other_header_names_none() {
        let zero = "0".repeat(32);
        for invalid in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{zero}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}f-0f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-0-"),
            "-".repeat(55),
            "é".repeat(55),
        ] {
            assert_eq!(parsed(&invalid), None, "{invalid}");
        }
    }

    #[test]
    fn two_headers_name_none() {
        let value =
            HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, value.clone());
        assert!(TraceParent::of(&headers).is_some());
        headers.append(TRACEPARENT, value);
        assert_eq!(TraceParent::of(&headers), None);
    }
}
