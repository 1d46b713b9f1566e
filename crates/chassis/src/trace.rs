//! Trace context (W3C Trace Context, level 1): from the webhook's request through outbox row and message to each effect.

use std::fmt;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// A `traceparent`: `00-<trace id>-<span id>-<flags>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: TraceId,
    span_id: SpanId,
    flags: TraceFlags,
}

impl TraceParent {
    /// Reads a header; `None` when it is malformed, which the standard says to ignore.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if version.len() != 2 || version == "ff" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
            return None;
        }
        let parent = Self {
            trace_id: TraceId::from_hex(trace).ok()?,
            span_id: SpanId::from_hex(span).ok()?,
            flags: TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        };
        (parent.trace_id != TraceId::INVALID && parent.span_id != SpanId::INVALID).then_some(parent)
    }

    /// A context of our own, for work that comes with none.
    #[must_use]
    pub fn random() -> Self {
        let (high, low, span): (u64, u64, u64) = (fastrand(), fastrand(), fastrand());
        Self { trace_id: TraceId::from((u128::from(high) << 64) | u128::from(low)), span_id: SpanId::from(span), flags: TraceFlags::SAMPLED }
    }

    /// The trace's id, for logs.
    #[must_use]
    pub fn trace_id(&self) -> String {
        self.trace_id.to_string()
    }

    fn remote(self) -> SpanContext {
        SpanContext::new(self.trace_id, self.span_id, self.flags, true, TraceState::default())
    }

    /// Links `span` to this context: they belong together, and neither is the other's part.
    pub fn link(self, span: &Span) {
        span.add_link(self.remote());
    }

    /// Makes `span` a child of this context, and returns what its effects carry on: the span's own context when
    /// spans are exported, else this one.
    #[must_use]
    pub fn enter(self, span: &Span) -> Self {
        let remote = self.remote();
        if span.set_parent(opentelemetry::Context::new().with_remote_span_context(remote)).is_err() {
            return self; // nothing exports spans
        }
        let context = span.context();
        let own = context.span().span_context().clone();
        if own.is_valid() { Self { trace_id: own.trace_id(), span_id: own.span_id(), flags: own.trace_flags() } } else { self }
    }
}

/// Random bits that need not be secret, never zero.
fn fastrand() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::Instant::now()) | 1
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_back_and_a_malformed_one_ignored() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(TraceParent::read(text).unwrap().to_string(), text);
        let own = TraceParent::random();
        assert_eq!(TraceParent::read(&own.to_string()), Some(own));
        for wrong in ["", "00-0-0-0", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            assert_eq!(TraceParent::read(wrong), None, "{wrong}");
        }
    }
}
