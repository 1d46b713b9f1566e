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

impl PaymentStatus {
    /// News of a lower rank never replaces news of a higher one; at equal rank the first stays.
    #[must_use]
    pub fn rank(self) -> i16 {
        match self {
            Self::Pending => 1,
            Self::Authorised => 2,
            Self::Failed | Self::Cancelled | Self::Expired => 3,
            Self::Captured => 4,
        }
    }

    /// The status after `news`, which may be the same.
    #[must_use]
    pub fn after(self, news: Self) -> Self {
        if news.rank() > self.rank() { news } else { self }
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

    /// Where `news` about one of its payments takes an order whose amount and currency agree.
    /// SQL repeats this table as settlement's conditional update; a test compares the two.
    ///
    /// # Errors
    /// The reason why the order stays where it is.
    pub fn after(self, news: News) -> Result<Self, Refusal> {
        use News::{Authorised, Cancelled, Captured, Expired, Failed, Pending};
        use OrderStatus as Order;
        match (self, news) {
            (Order::PendingPayment | Order::PaymentPending | Order::FailedFinal, Captured) => Ok(Order::Paid),
            (Order::PendingPayment, Pending | Authorised) => Ok(Order::PaymentPending),
            (Order::PaymentPending | Order::FailedFinal, Pending | Authorised) => Err(Refusal::Older),
            (Order::Paid | Order::PartiallyRefunded | Order::Refunded, Captured) => Err(Refusal::AlreadyPaid),
            (Order::Paid | Order::PartiallyRefunded | Order::Refunded, Pending | Authorised) => Err(Refusal::Older),
            (Order::Expired | Order::Cancelled, Captured | Pending | Authorised) => Err(Refusal::Ended),
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
                assert_eq!(order.after(news), Err(Refusal::AttemptOnly));
            }
        }
    }

    #[test]
    fn a_capture_pays_exactly_the_payable_orders() {
        for order in OrderStatus::ALL {
            assert_eq!(order.after(News::Captured).is_ok(), order.payable(), "{order:?}");
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
    fn names_are_read_back() {
        for order in OrderStatus::ALL {
            assert_eq!(OrderStatus::read(order.name()), Some(*order));
        }
        assert_eq!(OrderStatus::read("PAID"), None);
    }
}
