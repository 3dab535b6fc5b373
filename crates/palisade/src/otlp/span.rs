//! Spans as OTLP writes them.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags};

/// The caller's place in a trace that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParentSpan {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
}

impl ParentSpan {
    /// A span of this server, a child of the caller's.
    pub(super) fn child(
        &self,
        name: &str,
        (start, end): (SystemTime, SystemTime),
        attributes: Vec<KeyValue>,
    ) -> Span {
        const SAMPLED: u32 = 1;
        let remote =
            SpanFlags::ContextHasIsRemoteMask as u32 | SpanFlags::ContextIsRemoteMask as u32;
        Span {
            trace_id: self.trace.to_vec(),
            span_id: new_id().to_vec(),
            parent_span_id: self.span.to_vec(),
            flags: SAMPLED | remote,
            name: name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: nanos(start),
            end_time_unix_nano: nanos(end),
            attributes,
            ..Span::default()
        }
    }
}

/// A new span's id, which is never zero.
fn new_id() -> [u8; 8] {
    let mut id = [0; 8];
    // Without random numbers from the system, a span's id is no worse than one that is taken twice.
    while id == [0; 8] {
        if getrandom::fill(&mut id).is_err() {
            id = [1; 8];
        }
    }
    id
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The machine's wall clock. It is only written into spans.
#[expect(
    clippy::disallowed_methods,
    reason = "spans have the wall clock, and nothing is decided by it"
)]
pub(super) fn now() -> SystemTime {
    SystemTime::now()
}

/// An attribute with a text.
pub(super) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// An attribute with a number. Tokens are at most 2^53 − 1.
pub(super) fn number(key: &str, value: u64) -> KeyValue {
    attribute(
        key,
        Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)),
    )
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
