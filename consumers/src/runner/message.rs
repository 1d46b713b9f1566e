//! A delivery, decoded once.

use counterfoil_broker::lapin::message::Delivery;
use counterfoil_broker::lapin::types::FieldTable;
use counterfoil_broker::publish::{number_header, text_header};
use counterfoil_chassis::TraceParent;
use counterfoil_payments::Event;
use counterfoil_payments::event::NotAnEvent;

/// The attempt that a message is at, in a header of ours: the broker's own counts differ between versions.
pub(crate) const ATTEMPT_HEADER: &str = "x-counterfoil-attempt";

/// The span of the attempt before this one, whether it was a retry's or a replay's: the next attempt links to it.
pub(crate) const PREVIOUS_HEADER: &str = "x-counterfoil-previous";

/// A message in hand. Its acknowledgement is the settler's business alone.
#[derive(Debug)]
pub struct Message {
    pub(crate) delivery: Delivery,
    /// The event, or why it is none.
    pub event: Result<Event, NotAnEvent>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Where its trace comes from.
    pub trace: TraceParent,
    /// The span of this attempt, once it has begun.
    pub(crate) own_trace: Option<TraceParent>,
}

impl Message {
    pub(crate) fn read(delivery: Delivery) -> Self {
        let headers = delivery.properties.headers().as_ref();
        let attempt = number_header(headers, ATTEMPT_HEADER).and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(1).max(1);
        let trace = text_header(headers, "traceparent").and_then(|text| TraceParent::read(&text)).unwrap_or_else(TraceParent::random);
        let event = Event::read(&delivery.data);
        Self { delivery, event, attempt, trace, own_trace: None }
    }

    /// Headers as they came.
    pub(crate) fn headers(&self) -> FieldTable {
        self.delivery.properties.headers().clone().unwrap_or_default()
    }

    /// A span for what is done with it, in the trace that it carries on.
    pub(crate) fn span(&mut self, consumer: &'static str) -> tracing::Span {
        let span = tracing::info_span!(
            "effect",
            consumer,
            attempt = self.attempt,
            trace_id = self.trace.trace_id(),
            event_id = tracing::field::Empty,
            order_id = tracing::field::Empty,
            topic = tracing::field::Empty
        );
        self.own_trace = Some(self.trace.enter(&span));
        if let Some(previous) = text_header(self.delivery.properties.headers().as_ref(), PREVIOUS_HEADER).and_then(|text| TraceParent::read(&text)) {
            previous.link(&span);
        }
        if let Ok(event) = &self.event {
            span.record("event_id", tracing::field::display(event.id));
            span.record("order_id", tracing::field::display(event.order_id));
            span.record("topic", event.topic().name());
        }
        span
    }
}
