//! Makes spans from log events: grants, and rejections by a fence.
//!
//! It reads the fields of the request's span and of two events, as the log writes them, so the servers' code does not
//! know OpenTelemetry.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use opentelemetry_proto::tonic::trace::v1::{Status, status::StatusCode};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::grants::{Shared, TracedGrant};
use super::span::{ParentSpan, now, number, text};

/// The layer of the process's log.
pub(crate) struct SpanLayer(Arc<Shared>);

impl SpanLayer {
    pub(super) fn new(shared: Arc<Shared>) -> SpanLayer {
        SpanLayer(shared)
    }

    /// Whether the layer needs this event or span, whatever the log leaves out.
    pub(crate) fn needs(metadata: &Metadata<'_>) -> bool {
        match metadata.target() {
            REQUESTS => metadata.is_span(),
            GRANTS | FENCES => metadata.is_event(),
            _ => false,
        }
    }
}

/// The modules that make the spans and events.
const REQUESTS: &str = "palisade_server::shell::trace";
const GRANTS: &str = "palisade_server::net::traces";
const FENCES: &str = "palisade_fence::audit";

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = FieldValues::default();
        attributes.record(&mut fields);
        if let (Some(parent), Some(span)) = (fields.parent(), context.span(id)) {
            span.extensions_mut().insert(parent);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut scope = context.event_scope(event).into_iter().flatten();
        let Some(parent) = scope.find_map(|span| span.extensions().get::<ParentSpan>().copied())
        else {
            return;
        };
        let mut fields = FieldValues::default();
        event.record(&mut fields);
        match (event.metadata().target(), fields.text("message")) {
            (GRANTS, Some("granted")) => self.granted(parent, &fields),
            (FENCES, Some("rejected")) => self.rejected(parent, &fields),
            _ => {}
        }
    }
}

impl SpanLayer {
    fn granted(&self, parent: ParentSpan, fields: &FieldValues) {
        let (Some(lock), Some(client), Some(token)) = (
            fields.text("lock"),
            fields.text("client_id"),
            fields.number("fencing_token"),
        ) else {
            return;
        };
        let held = TracedGrant {
            parent,
            lock: lock.to_owned(),
            client: client.to_owned(),
            token,
            since: now(),
        };
        let grant = fields.number("grant_id").unwrap_or(token);
        let span = self.0.grants().granted(grant, held);
        if let Some(span) = span {
            self.0.send(span);
        }
    }

    fn rejected(&self, parent: ParentSpan, fields: &FieldValues) {
        let texts = ["resource", "reason", "lock", "authority"];
        let numbers = [("token", "fencing_token"), ("highest", "highest_token")];
        let texts = texts
            .iter()
            .filter_map(|name| Some(text(&format!("palisade.{name}"), fields.text(name)?)));
        let numbers = numbers.iter().filter_map(|(name, key)| {
            Some(number(&format!("palisade.{key}"), fields.number(name)?))
        });
        let attributes = texts.chain(numbers).collect();
        let at = now();
        let mut span = parent.child("rejected", (at, at), attributes);
        // The caller's write failed.
        span.status = Some(Status {
            code: StatusCode::Error.into(),
            message: fields.text("reason").unwrap_or_default().to_owned(),
        });
        self.0.send(span);
    }
}

/// The fields of an event or a span.
#[derive(Default)]
struct FieldValues {
    texts: BTreeMap<&'static str, String>,
    numbers: BTreeMap<&'static str, u64>,
}

impl FieldValues {
    fn text(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// Where the caller is, if its trace is recorded.
    fn parent(&self) -> Option<ParentSpan> {
        let sampled = self.text("trace_flags") == Some("01");
        sampled.then_some(())?;
        Some(ParentSpan {
            trace: u128::from_str_radix(self.text("trace_id")?, 16)
                .ok()?
                .to_be_bytes(),
            span: u64::from_str_radix(self.text("span_id")?, 16)
                .ok()?
                .to_be_bytes(),
        })
    }
}

impl Visit for FieldValues {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut written = String::new();
        // Writing to a string cannot fail.
        let _ = write!(written, "{value:?}");
        self.texts.insert(field.name(), written);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.texts.insert(field.name(), value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.numbers.insert(field.name(), value);
    }
}
