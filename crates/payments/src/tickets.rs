//! The fields of ticket events' `data`; docs/events.md in code.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::data::Customer;
use crate::ids::{OrderId, PaymentKey};
use crate::money::Currency;

/// Consecutive numbers of one draw, for one order line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketRange {
    /// The order's line, from 0.
    pub line: i32,
    /// The draw's id.
    pub draw_id: Uuid,
    /// The shop's name for the draw.
    pub draw: String,
    /// The draw's name for people.
    pub name: String,
    /// The first number.
    pub first_number: i64,
    /// The last number, included.
    pub last_number: i64,
}

/// `data` of `tickets.issued` and `tickets.voided`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketsData {
    /// The order.
    pub order_id: OrderId,
    /// The order's version in the event that caused this one.
    pub version: i64,
    /// The shop's reference.
    pub reference: String,
    /// Who bought.
    pub customer: Customer,
    /// All ranges that are meant.
    pub tickets: Vec<TicketRange>,
}

/// An order line whose tickets could not be given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnavailableLine {
    /// The order's line, from 0.
    pub line: i32,
    /// The draw's id.
    pub draw_id: Uuid,
    /// Tickets that were bought.
    pub quantity: i64,
    /// What is to go back for it, in minor units: its price, or its share of the order's amount where a discount is among the lines.
    pub amount_minor: i64,
}

/// `data` of `tickets.unavailable`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnavailableData {
    /// The order.
    pub order_id: OrderId,
    /// The order's version in the event that caused this one.
    pub version: i64,
    /// The shop's reference.
    pub reference: String,
    /// Who bought.
    pub customer: Customer,
    /// What paid the order.
    pub payment: PaymentKey,
    /// Minor units to send back; null when nothing of the order could be fulfilled: all of it.
    pub amount_minor: Option<i64>,
    /// Their currency.
    pub currency: Currency,
    /// The lines.
    pub lines: Vec<UnavailableLine>,
}
