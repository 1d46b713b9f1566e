//! What a fact does to an order: `webhook_events`, `orders`, `payments`, `refunds`, `disputes`, `idempotency_keys`,
//! `claim_tokens` and `receipts`.
//!
//! [`settle()`] takes a batch of deliveries in one transaction. Its happy path is one statement for each round
//! ([`statement`]); what that leaves over is classified afterwards ([`classify`]). Money that goes back is settled one by
//! one ([`moneyback`]); what no message starts is found by [`housekeeping`].

#![warn(clippy::float_arithmetic)] // money is integers

mod aside;
mod attention;
mod backfill;
mod claims;
mod classify;
mod creation;
mod customer;
mod delivery;
mod disputes;
mod erase;
mod events;
mod failure;
mod health;
pub mod housekeeping;
mod keys;
mod moneyback;
mod named;
mod orders;
mod paying;
mod positions;
mod reads;
mod receipts;
mod refunding;
mod refunds;
mod rounds;
mod seen;
mod settle;
mod statement;
mod stored;

pub use attention::{ATTENTION_KINDS, Attention, AttentionCount, Decision, attention, count_attention, decide, decisions, undo_decision};
pub use backfill::{Backfilled, backfill, known_events};
pub use claims::{ClaimRefused, Claimed, NewToken, claim, issue_token, purge_tokens};
pub use creation::{LineText, NewOrder, begin_orders, insert_orders, settle_early};
pub use customer::{CustomerState, customer_state};
pub use delivery::{Delivery, LATE_AFTER_SECONDS, Outcome, Settled, Verdict};
pub use disputes::{Dispute, disputes_of};
pub use erase::{Erased, erase_again, erase_customer, erased_lately, orders_of_customer};
pub use events::store_failed;
pub use failure::Failure;
pub use health::{ProviderHealth, provider_health};
pub use keys::{Begun, KeyAsk, Stored, begin_keys, complete_keys};
pub use named::{orders_named, references};
pub use orders::{Order, OrderView, Payment, Refused, cancel, expire, find, find_id, orders_after, payments_of, session_of, set_session, view};
pub use reads::{ReadPlan, claim_due_reads, claim_read, plan_of, read_failed};
pub use receipts::{Receipt, ReceiptKind, receipts_of, record_receipt};
pub use refunding::{
    NewRefund, PaymentName, RefundRefused, Sending, begin_call, doubt_about, hold_payment, hold_refund, refund_answered, refund_refused, request_refund,
};
pub use refunds::{Refund, find as find_refund, refunds_of};
pub use seen::{Seen, StoredEvent, deliveries_naming, deliveries_of_order, stored_events, waiting_for_order};
pub use settle::{lock_orders, settle, settle_or_wait};
