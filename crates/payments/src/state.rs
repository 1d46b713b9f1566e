//! The states of orders and payments: one exhaustive match each, every refusal written out.

use serde::{Deserialize, Serialize};

use crate::fact::News;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name in tables, messages and answers.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Reads a name back; `None` for any other text.
            #[must_use]
            pub fn read(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

named! {
    /// Where an order stands.
    OrderStatus {
        /// Made, no payment heard of.
        PendingPayment = "pending_payment",
        /// A payment is under way.
        PaymentPending = "payment_pending",
        /// Paid in full.
        Paid = "paid",
        /// Paid, and some of it went back.
        PartiallyRefunded = "partially_refunded",
        /// Paid, and all of it went back.
        Refunded = "refunded",
        /// The provider said that this order's payment failed for good; still payable.
        FailedFinal = "failed_final",
        /// Its own deadline passed.
        Expired = "expired",
        /// We cancelled it.
        Cancelled = "cancelled",
    }
}

named! {
    /// Where one attempt to pay stands.
    PaymentStatus {
        /// Under way.
        Pending = "pending",
        /// Reserved, not taken.
        Authorised = "authorised",
        /// Did not work.
        Failed = "failed",
        /// Called off.
        Cancelled = "cancelled",
        /// Ran out of time.
        Expired = "expired",
        /// The money was taken.
        Captured = "captured",
    }
}

named! {
    /// What became of a payment's money.
    Disposition {
        /// No money moved yet, or nothing decided.
        None = "none",
        /// It paid its order.
        Settled = "settled",
        /// Its order was paid already by another payment.
        Extra = "extra",
        /// It does not fit its order: on-call decides.
        Held = "held",
    }
}

named! {
    /// Where money that goes back stands.
    RefundStatus {
        /// We want it; the provider may not know yet.
        Requested = "requested",
        /// The provider has taken it on.
        Pending = "pending",
        /// The money went back.
        Succeeded = "succeeded",
        /// It did not go back, or came home again.
        Failed = "failed",
    }
}

named! {
    /// Where a customer's objection at their bank stands.
    DisputeStatus {
        /// A question; no money has moved.
        Inquiry = "inquiry",
        /// The question was answered; no money has moved.
        Closed = "closed",
        /// The money was taken from us until it is decided.
        Opened = "opened",
        /// It ended without a decision, and the money is with us.
        Withdrawn = "withdrawn",
        /// The money is gone.
        Lost = "lost",
        /// The money came back.
        Won = "won",
    }
}

/// The higher of two: what makes any order of arrival end alike.
macro_rules! ranked {
    ($($name:ident),+) => {
        $(impl $name {
            /// The status after news of another one. News of a lower rank never replaces news of a higher one.
            #[must_use]
            pub fn after(self, news: Self) -> Self {
                if news.rank() > self.rank() { news } else { self }
            }
        })+
    };
}

ranked!(PaymentStatus, RefundStatus, DisputeStatus);

impl PaymentStatus {
    /// Every status has a rank of its own, so that no two can tie. `payment_rank` in SQL.
    #[must_use]
    pub fn rank(self) -> i16 {
        match self {
            Self::Pending => 1,
            Self::Authorised => 2,
            Self::Failed => 3,
            Self::Expired => 4,
            Self::Cancelled => 5,
            Self::Captured => 6,
        }
    }
}

impl RefundStatus {
    /// A refund that was said to have succeeded may still fail (the customer's bank sends it back), never the other way
    /// round (docs.stripe.com/refunds, failed refunds). `refund_rank` in SQL.
    #[must_use]
    pub fn rank(self) -> i16 {
        match self {
            Self::Requested => 1,
            Self::Pending => 2,
            Self::Succeeded => 3,
            Self::Failed => 4,
        }
    }

    /// Whether it takes from what can still be refunded.
    #[must_use]
    pub fn reserves(self) -> bool {
        match self {
            Self::Requested | Self::Pending | Self::Succeeded => true,
            Self::Failed => false,
        }
    }
}

impl DisputeStatus {
    /// A closed inquiry may still become a chargeback, one that was withdrawn be decided after all, and a lost one be won on
    /// appeal; a won one that comes again has another id. `dispute_rank` in SQL.
    #[must_use]
    pub fn rank(self) -> i16 {
        match self {
            Self::Inquiry => 1,
            Self::Closed => 2,
            Self::Opened => 3,
            Self::Withdrawn => 4,
            Self::Lost => 5,
            Self::Won => 6,
        }
    }

    /// Whether the money is away.
    #[must_use]
    pub fn charged_back(self) -> bool {
        match self {
            Self::Opened | Self::Lost => true,
            Self::Inquiry | Self::Closed | Self::Withdrawn | Self::Won => false,
        }
    }
}

/// What is left of an order's money after refunds: of all that was captured for it, in its currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// At least the order's amount.
    All,
    /// Some of it.
    Part,
    /// Nothing.
    Nothing,
}

impl Standing {
    /// Every value.
    pub const ALL: [Self; 3] = [Self::All, Self::Part, Self::Nothing];
}

/// What can move an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// News about one of its payments.
    News(News),
    /// We cancel it.
    Cancel,
    /// Its own deadline passes.
    Deadline,
    /// Money went back, came home again, or came once more.
    Money(Standing),
}

impl Move {
    /// Every move.
    pub fn all() -> impl Iterator<Item = Self> {
        News::ALL.into_iter().map(Self::News).chain([Self::Cancel, Self::Deadline]).chain(Standing::ALL.into_iter().map(Self::Money))
    }
}

/// Why an order does not follow a piece of news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is paid already: the same payment again, or an extra one.
    AlreadyPaid,
    /// We ended it: the money is held.
    Ended,
    /// The news is older than what the order knows.
    Older,
    /// It is news about an attempt, not about the order.
    AttemptOnly,
    /// It was never paid, so nothing can go back.
    NeverPaid,
}

impl OrderStatus {
    /// Whether a capture may pay it.
    #[must_use]
    pub fn payable(self) -> bool {
        match self {
            Self::PendingPayment | Self::PaymentPending | Self::FailedFinal => true,
            Self::Paid | Self::PartiallyRefunded | Self::Refunded | Self::Expired | Self::Cancelled => false,
        }
    }

    /// Whether it was paid, whatever came after.
    #[must_use]
    pub fn was_paid(self) -> bool {
        match self {
            Self::Paid | Self::PartiallyRefunded | Self::Refunded => true,
            Self::PendingPayment | Self::PaymentPending | Self::FailedFinal | Self::Expired | Self::Cancelled => false,
        }
    }

    /// Where `what` takes an order (for a capture: one whose amount and currency agree).
    /// SQL repeats this table in settlement's conditional updates and in the trigger `orders_status_moves`; tests compare.
    ///
    /// # Errors
    /// The reason why the order stays where it is.
    pub fn after(self, what: Move) -> Result<Self, Refusal> {
        use Move::{Cancel, Deadline, Money};
        match (self, what) {
            (_, Move::News(news)) => self.after_news(news),
            (Self::PendingPayment | Self::PaymentPending | Self::FailedFinal, Cancel) => Ok(Self::Cancelled),
            (Self::PendingPayment | Self::PaymentPending | Self::FailedFinal, Deadline) => Ok(Self::Expired),
            (Self::Paid | Self::PartiallyRefunded | Self::Refunded, Cancel | Deadline) => Err(Refusal::AlreadyPaid),
            (Self::Expired | Self::Cancelled, Cancel | Deadline) => Err(Refusal::Ended),
            (Self::Paid | Self::PartiallyRefunded | Self::Refunded, Money(Standing::All)) => Ok(Self::Paid),
            (Self::Paid | Self::PartiallyRefunded | Self::Refunded, Money(Standing::Part)) => Ok(Self::PartiallyRefunded),
            (Self::Paid | Self::PartiallyRefunded | Self::Refunded, Money(Standing::Nothing)) => Ok(Self::Refunded),
            (Self::PendingPayment | Self::PaymentPending | Self::FailedFinal | Self::Expired | Self::Cancelled, Money(_)) => Err(Refusal::NeverPaid),
        }
    }

    fn after_news(self, news: News) -> Result<Self, Refusal> {
        use News::{Authorised, Cancelled, Captured, Expired, Failed, FailedFinal, Pending};
        use OrderStatus as Order;
        match (self, news) {
            (Order::PendingPayment | Order::PaymentPending | Order::FailedFinal, Captured) => Ok(Order::Paid),
            (Order::PendingPayment, Pending | Authorised) => Ok(Order::PaymentPending),
            (Order::PendingPayment | Order::PaymentPending, FailedFinal) => Ok(Order::FailedFinal),
            (Order::PaymentPending | Order::FailedFinal, Pending | Authorised) | (Order::FailedFinal, FailedFinal) => Err(Refusal::Older),
            (Order::Paid | Order::PartiallyRefunded | Order::Refunded, Captured) => Err(Refusal::AlreadyPaid),
            (Order::Paid | Order::PartiallyRefunded | Order::Refunded, Pending | Authorised | FailedFinal) => Err(Refusal::Older),
            (Order::Expired | Order::Cancelled, Captured | Pending | Authorised | FailedFinal) => Err(Refusal::Ended),
            (
                Order::PendingPayment
                | Order::PaymentPending
                | Order::FailedFinal
                | Order::Paid
                | Order::PartiallyRefunded
                | Order::Refunded
                | Order::Expired
                | Order::Cancelled,
                Failed | Cancelled | Expired,
            ) => Err(Refusal::AttemptOnly),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_attempts_never_move_an_order() {
        for order in OrderStatus::ALL {
            for news in [News::Failed, News::Cancelled, News::Expired] {
                assert_eq!(order.after(Move::News(news)), Err(Refusal::AttemptOnly));
            }
        }
    }

    #[test]
    fn a_capture_pays_exactly_the_payable_orders() {
        for order in OrderStatus::ALL {
            assert_eq!(order.after(Move::News(News::Captured)).is_ok(), order.payable(), "{order:?}");
        }
    }

    #[test]
    fn a_payment_only_rises_in_rank_and_ends_captured_in_any_order_of_news() {
        for first in PaymentStatus::ALL {
            for second in PaymentStatus::ALL {
                assert!(first.after(*second).rank() >= first.rank());
                assert_eq!(first.after(*second).after(PaymentStatus::Captured), PaymentStatus::Captured);
                assert_eq!(PaymentStatus::Captured.after(*first), PaymentStatus::Captured);
            }
        }
    }

    #[test]
    fn ranks_are_different_so_that_no_two_statuses_can_tie() {
        fn all_differ(ranks: impl Iterator<Item = i16>) -> bool {
            let ranks: Vec<i16> = ranks.collect();
            ranks.iter().collect::<std::collections::BTreeSet<_>>().len() == ranks.len()
        }
        assert!(all_differ(PaymentStatus::ALL.iter().map(|status| status.rank())));
        assert!(all_differ(RefundStatus::ALL.iter().map(|status| status.rank())));
        assert!(all_differ(DisputeStatus::ALL.iter().map(|status| status.rank())));
    }

    #[test]
    fn refunds_never_move_an_order_that_was_never_paid_nor_take_a_paid_one_out_of_the_paid_states() {
        for order in OrderStatus::ALL {
            for standing in Standing::ALL {
                assert_eq!(order.after(Move::Money(standing)).is_ok_and(OrderStatus::was_paid), order.was_paid(), "{order:?} {standing:?}");
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for order in OrderStatus::ALL {
            assert_eq!(OrderStatus::read(order.name()), Some(*order));
        }
        assert_eq!(OrderStatus::read("PAID"), None);
    }
}
