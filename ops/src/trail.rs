//! The trail of one order: every step with its time, in order, and every effect that is missing.

use std::collections::BTreeMap;

use counterfoil_broker::topology::CONSUMERS;
use counterfoil_inbox::dead::{self, DeadLetter};
use counterfoil_inbox::{Effect, effects};
use counterfoil_ledger::Booked;
use counterfoil_outbox::Published;
use counterfoil_payments::event;
use counterfoil_payments::{DisputeStatus, OrderId, Provider, RefundStatus};
use counterfoil_settlement::{Dispute, Order, Payment, Receipt, Refund, Seen, deliveries_of_order, disputes_of, find_id, payments_of, receipts_of, refunds_of};
use counterfoil_tickets::{Reservation, Ticket, reservations_of, tickets_of};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::actions::{Action, EVER_S, actions, actions_on_letter};

/// What happened to one order.
#[derive(Debug)]
pub struct Trail {
    pub(crate) order: Order,
    pub(crate) deliveries: Vec<Seen>,
    pub(crate) payments: Vec<Payment>,
    pub(crate) refunds: Vec<Refund>,
    pub(crate) disputes: Vec<Dispute>,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) published: Vec<Published>,
    /// Events whose outbox row is past its retention: topic by id, known by what is left of them.
    pub(crate) past: BTreeMap<Uuid, String>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) booked: Vec<Booked>,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) dead: Vec<DeadLetter>,
    pub(crate) actions: Vec<Action>,
}

/// Reads the trail of an order.
///
/// # Errors
/// When the database fails.
pub async fn trail(connection: &mut PgConnection, order: Uuid) -> sqlx::Result<Option<Trail>> {
    let Some(order) = find_id(&mut *connection, order).await? else { return Ok(None) };
    let id = order.id;
    let mut trail = Trail {
        deliveries: deliveries_of_order(&mut *connection, id).await?,
        payments: payments_of(&mut *connection, id).await?,
        refunds: refunds_of(&mut *connection, id).await?,
        disputes: disputes_of(&mut *connection, id).await?,
        reservations: reservations_of(&mut *connection, id).await?,
        tickets: tickets_of(&mut *connection, id).await?,
        published: counterfoil_outbox::of_order(&mut *connection, id).await?,
        booked: counterfoil_ledger::of_order(&mut *connection, id).await?,
        receipts: receipts_of(&mut *connection, id).await?,
        dead: dead::of_order(&mut *connection, id).await?,
        past: BTreeMap::new(),
        effects: Vec::new(),
        actions: Vec::new(),
        order,
    };
    let mut derived = trail.derived();
    derived.extend(trail.booked.iter().map(|line| (line.source_event_id, line.topic.clone())));
    derived.extend(trail.dead.iter().filter_map(|letter| Some((letter.event_id?, letter.topic.clone()?))));
    let known: Vec<Uuid> = trail.published.iter().map(|event| event.event_id).collect();
    let ids: Vec<Uuid> = known.iter().copied().chain(derived.keys().copied()).collect();
    trail.effects = effects(&mut *connection, &ids).await?;
    let paid = trail.order.paid_at.is_some().then(|| event::order_paid(OrderId(trail.order.id)));
    let seen = |id: &Uuid| {
        paid == Some(*id)
            || trail.effects.iter().any(|effect| effect.event_id == *id)
            || trail.booked.iter().any(|line| line.source_event_id == *id)
            || trail.dead.iter().any(|letter| letter.event_id == Some(*id))
    };
    trail.past = derived.iter().filter(|(id, _)| !known.contains(id) && seen(id)).map(|(id, topic)| (*id, topic.clone())).collect();
    for letter in &trail.dead {
        trail.actions.extend(actions_on_letter(&mut *connection, letter.id).await?);
    }
    for event in &trail.published {
        trail.actions.extend(actions(&mut *connection, EVER_S, Some(&format!("outbox {}", event.id)), None, 20).await?);
    }
    Ok(Some(trail))
}

impl Trail {
    /// The events that this order can have had: their ids are derived from their facts, so that they are known without the outbox.
    fn derived(&self) -> BTreeMap<Uuid, String> {
        let order = OrderId(self.order.id);
        let mut events = BTreeMap::from([
            (event::order_paid(order), "order.paid".to_owned()),
            (event::order_contact_known(order), "order.contact_known".to_owned()),
            (event::tickets_issued(order), "tickets.issued".to_owned()),
            (event::tickets_issued_again(order, "contact"), "tickets.issued".to_owned()),
            (event::tickets_unavailable(order), "tickets.unavailable".to_owned()),
        ]);
        for version in 2..=self.order.version {
            events.insert(event::tickets_voided(order, version), "tickets.voided".into());
            events.insert(event::tickets_issued_again(order, &version.to_string()), "tickets.issued".into());
        }
        for key in self.payments.iter().filter_map(|payment| payment.key().ok()) {
            events.insert(event::payment_extra(&key), "payment.extra".into());
            for reason in [
                "amount_differs",
                "currency_differs",
                "claimed_by_other_order",
                "order_cancelled",
                "order_expired",
                "captured_more",
                "extra_captured_more",
                "captured_less",
            ] {
                events.insert(event::payment_held(&key, reason), "payment.held".into());
            }
        }
        for refund in &self.refunds {
            events.insert(event::refund_requested(refund.id), "refund.requested".into());
            events.insert(event::refund_failed(refund.id, None), "refund.failed".into());
            events.insert(event::refund_failed(refund.id, refund.provider_refund_id.as_deref()), "refund.failed".into());
            if let (Ok(provider), Some(theirs)) = (refund.provider.parse::<Provider>(), &refund.provider_refund_id) {
                events.extend(RefundStatus::ALL.iter().map(|status| (event::order_refunded(provider, theirs, *status), "order.refunded".to_owned())));
            }
        }
        for dispute in &self.disputes {
            if let Ok(provider) = dispute.provider.parse::<Provider>() {
                events.extend(
                    DisputeStatus::ALL.iter().map(|status| (event::order_disputed(provider, &dispute.dispute_id, *status), "order.disputed".to_owned())),
                );
            }
        }
        events
    }

    /// Effects that an event of this topic should have, and have: by consumer.
    pub(crate) fn expected(&self, event_id: Uuid, topic: &str) -> Vec<(&'static str, Option<&Effect>, Option<&DeadLetter>)> {
        let of = CONSUMERS.iter().filter(|consumer| consumer.topics.contains(&topic));
        of.map(|consumer| {
            let effect = self.effects.iter().find(|effect| effect.event_id == event_id && effect.consumer == consumer.name);
            let dead = self.dead.iter().find(|letter| letter.event_id == Some(event_id) && letter.consumer == consumer.name);
            (consumer.name, effect, dead)
        })
        .collect()
    }
}
