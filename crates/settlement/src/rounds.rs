//! Cuts a batch into rounds in which each event, payment and order stands at most once.
//!
//! One statement may not touch a row twice (SQLSTATE 21000), and the three event types of one payment arrive together.

use std::collections::{HashMap, HashSet};

use counterfoil_payments::PaymentKey;
use uuid::Uuid;

use crate::delivery::Delivery;

/// The copies of one event inside a batch, as one.
#[derive(Debug)]
pub(crate) struct Item<'a> {
    /// The first to arrive: it stays in force.
    pub(crate) delivery: &'a Delivery,
    /// Positions in the batch of all copies.
    pub(crate) positions: Vec<usize>,
    /// How many deliveries this adds to the event: 0 when a stored event is driven again.
    pub(crate) deliveries: i64,
    /// A later copy with another body: the first that says something else, or else the last that is spelled otherwise.
    pub(crate) differing: Option<&'a [u8]>,
    /// Whether one of them says something else.
    pub(crate) changed: bool,
    /// The order it is about, once resolved.
    pub(crate) order: Option<Uuid>,
}

/// Folds the copies of each event into one item, in order of arrival.
pub(crate) fn fold(batch: &[Delivery]) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = Vec::with_capacity(batch.len());
    let mut known: HashMap<(&str, &str, &str), usize> = HashMap::new();
    for (position, delivery) in batch.iter().enumerate() {
        let key = (delivery.provider.name(), delivery.account.as_str(), delivery.event_id.as_str());
        if let Some(&at) = known.get(&key) {
            let item = &mut items[at];
            item.positions.push(position);
            item.deliveries += 1;
            if item.delivery.body != delivery.body && !item.changed {
                item.differing = Some(&delivery.body);
                item.changed = item.delivery.fact.meaning() != delivery.fact.meaning();
            }
        } else {
            known.insert(key, items.len());
            items.push(Item { delivery, positions: vec![position], deliveries: 1, differing: None, changed: false, order: None });
        }
    }
    items
}

/// Takes from `items` the next round: the longest prefix-preserving choice without a repeated order or payment.
/// An item that must wait makes later items of its order or payment wait, too, so that arrival order is kept.
pub(crate) fn next_round<'a, 'b>(items: &mut Vec<(&'b Item<'a>, Uuid, &'b PaymentKey)>) -> Vec<(&'b Item<'a>, Uuid, &'b PaymentKey)> {
    let mut orders = HashSet::new();
    let mut payments = HashSet::new();
    let (round, rest) = std::mem::take(items).into_iter().partition(|(_, order, payment)| {
        let new_order = orders.insert(*order);
        let new_payment = payments.insert((payment.provider, payment.payment_id.as_str())); // with its account or without
        new_order && new_payment
    });
    *items = rest;
    round
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterfoil_payments::{Fact, Provider};

    fn delivery(event_id: &str, body: &str) -> Delivery {
        Delivery {
            provider: Provider::Stripe,
            account: String::new(),
            event_id: event_id.into(),
            provider_event_id: None,
            event_type: "t".into(),
            body: body.into(),
            secret_position: 0,
            made_at: None,
            late: false,
            ids: Vec::new(),
            fact: Fact::Ignored { reason: String::new() },
            traceparent: None,
        }
    }

    fn payment(id: &str) -> PaymentKey {
        PaymentKey { provider: Provider::Stripe, account: String::new(), payment_id: id.into() }
    }

    #[test]
    fn copies_fold_into_the_first_and_a_differing_body_is_kept_aside() {
        let batch = [delivery("a", "1"), delivery("b", "1"), delivery("a", "1"), delivery("a", "2")];
        let items = fold(&batch);
        assert_eq!(items.len(), 2);
        assert_eq!((items[0].deliveries, items[0].positions.as_slice()), (3, [0, 2, 3].as_slice()));
        assert_eq!(items[0].differing, Some(b"2".as_slice()));
        assert_eq!(items[1].differing, None);
    }

    #[test]
    fn in_one_round_each_order_and_each_payment_stands_once() {
        let batch: Vec<_> = (0..4).map(|n| delivery(&n.to_string(), "")).collect();
        let items = fold(&batch);
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (p, q) = (payment("p"), payment("q"));
        let mut left = vec![(&items[0], one, &p), (&items[1], one, &q), (&items[2], two, &q), (&items[3], two, &p)];
        let sizes: Vec<_> = std::iter::from_fn(|| Some(next_round(&mut left).len()).filter(|size| *size > 0)).collect();
        assert_eq!(sizes, [1, 1, 1, 1], "each shares an order or a payment with an earlier one that waits");
    }
}
