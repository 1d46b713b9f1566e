//! Refunds: sends money back at its provider. Outside, so at least once; every repeat carries the same key, and looks first.

use std::time::Duration;

use counterfoil_payments::event::{Body, PaymentEventData, UnavailableData, derived_refund};
use counterfoil_payments::{Currency, Event, Fact, Money, OrderKey, PaymentKey, RefundStatus};
use counterfoil_providers::Apis;
use counterfoil_providers::api::{Api, CallError, RefundCall};
use counterfoil_settlement::{
    NewRefund, Order, PaymentName, Refund, RefundRefused, Sending, begin_call, doubt_about, find_id, find_refund, hold_payment, hold_refund, payments_of,
    refund_answered, refund_refused, refunds_of, request_refund,
};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::runner::{Deliver, Effect, Failure};

/// How long after the first call a refusal leaves open whether that one had worked, in seconds: longer than any list lags.
const UNSURE_S: i64 = 24 * 60 * 60;

/// What is to be done with money that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// It goes back by itself.
    Refund,
    /// A person decides.
    Hold,
}

/// The policies, by what does not fit.
#[derive(Debug, Clone, Copy)]
pub struct Policies {
    /// A second payment of a paid order.
    pub extra: Policy,
    /// A payment of an order that we cancelled or that expired.
    pub late: Policy,
    /// Another amount or currency than the order's.
    pub mismatch: Policy,
    /// The payment of an order whose tickets were sold to others by then.
    pub sold_out: Policy,
}

impl Policies {
    /// What to do about money that was put aside for this reason, and what to call a refund of it.
    fn of(self, reason: &str) -> (Policy, &'static str) {
        match reason {
            "already_paid" | "extra_captured_more" => (self.extra, "extra"),
            "order_cancelled" | "order_expired" => (self.late, "late"),
            "amount_differs" | "currency_differs" | "captured_more" => (self.mismatch, "mismatch"),
            // Two orders claim it: sending it back would take it from the one that it paid.
            _ => (Policy::Hold, "mismatch"),
        }
    }
}

/// The consumer `refunds`.
#[derive(Debug)]
pub struct Refunds {
    apis: Apis,
    policies: Policies,
    pool: PgPool,
}

fn database(error: &sqlx::Error) -> Failure {
    Failure::outage(format!("the database: {error}"))
}

fn failure(error: CallError) -> Failure {
    match error {
        CallError::Outage { reason, pause } => Failure::Outage { reason, pause },
        CallError::Unknown(reason) => Failure::unknown(reason),
        CallError::Later(reason) | CallError::Refused(reason) | CallError::NotFound(reason) | CallError::Denied(reason) => Failure::transient(reason),
    }
}

/// Why money stays where it is until a person decides, or that it may go.
type MayGo = Result<(), String>;

impl Refunds {
    /// With these APIs and policies.
    #[must_use]
    pub fn new(apis: Apis, policies: Policies, pool: PgPool) -> Self {
        Self { apis, policies, pool }
    }

    /// Money that was put aside goes back, if the policy says so and the provider confirms that it may.
    async fn send_aside_back(&self, event: &Event, data: &PaymentEventData) -> Result<Effect, Failure> {
        let (policy, origin) = self.policies.of(&data.reason);
        if policy == Policy::Hold {
            return Ok(Effect::NotNeeded("held: a person decides"));
        }
        let payment = data.payment.key();
        let key = match data.reason.as_str() {
            "already_paid" => format!("refund:extra_capture:{}", payment.payment_id),
            reason @ ("captured_more" | "extra_captured_more") => format!("refund:{reason}:{}:{}", payment.payment_id, data.payment.amount_minor),
            reason => format!("refund:{reason}:{}", payment.payment_id),
        };
        let id = derived_refund(&format!("{}:{}:{key}", payment.provider, payment.account));
        let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
        let known = find_refund(&mut connection, id).await.map_err(|error| database(&error))?;
        drop(connection);
        if known.is_none() {
            if let Err(why) = self.may_go(event, data, id).await? {
                tracing::warn!(why, payment_id = payment.payment_id, "money is held: on-call decides");
                let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
                hold_payment(&mut connection, &payment, &why).await.map_err(|error| database(&error))?;
                return Ok(Effect::NotNeeded("held: the check at the provider did not pass"));
            }
            let new = NewRefund {
                id,
                order_id: event.order_id.0,
                payment: Some(PaymentName::from(&payment)),
                amount_minor: None,
                origin,
                reason: Some(data.reason.clone()),
                provider_key: key,
                made_by: None,
            };
            return self.request_and_send(&new).await;
        }
        self.send(id).await
    }

    /// What an order paid for tickets that were others' by then goes back, if the policy says so and the provider knows of no refund
    /// that we do not.
    async fn send_unfulfilled_back(&self, event: &Event, data: &UnavailableData) -> Result<Effect, Failure> {
        if self.policies.sold_out == Policy::Hold {
            return Ok(Effect::NotNeeded("held: a person decides"));
        }
        let payment = &data.payment;
        let provider_key = format!("refund:sold_out:{}", event.order_id);
        let new = NewRefund {
            id: derived_refund(&format!("{}:{}:{provider_key}", payment.provider, payment.account)),
            order_id: event.order_id.0,
            payment: Some(PaymentName::from(payment)),
            amount_minor: data.amount_minor,
            origin: "sold_out",
            reason: Some("no place was left when the payment came".into()),
            provider_key,
            made_by: None,
        };
        let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
        let known = find_refund(&mut connection, new.id).await.map_err(|error| database(&error))?;
        drop(connection);
        if known.is_none()
            && let Err(why) = self.nothing_else_went_back(event.order_id.0, payment, new.id).await?
        {
            tracing::warn!(why, payment_id = payment.payment_id, "money for tickets that are not there is held: on-call decides");
            let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
            hold_payment(&mut connection, payment, &why).await.map_err(|error| database(&error))?;
            return Ok(Effect::NotNeeded("held: the check at the provider did not pass"));
        }
        self.request_and_send(&new).await
    }

    /// Reads from the provider that a payment is captured, and that no more of it went back than we know of. Where nobody may ask, the
    /// refund is held for the same reason, and asked for again every hour.
    async fn nothing_else_went_back(&self, order: Uuid, payment: &PaymentKey, refund: Uuid) -> Result<MayGo, Failure> {
        let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
        if let Some(why) = doubt_about(&mut connection, order, refund).await.map_err(|error| database(&error))? {
            return Ok(Err(why));
        }
        drop(connection);
        let Some(api) = self.apis.of(payment.provider) else { return Ok(Ok(())) };
        let state = match api.payment(payment).await {
            Ok(state) => state,
            Err(CallError::Denied(_)) => return Ok(Ok(())),
            Err(CallError::NotFound(why) | CallError::Refused(why)) => return Ok(Err(format!("{} cannot be read: {why}", payment.payment_id))),
            Err(error) => return Err(failure(error)),
        };
        let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
        let refunds = refunds_of(&mut connection, order).await.map_err(|error| database(&error))?;
        let ours = refunds.iter().filter(|refund| refund.payment().is_ok_and(|key| key == *payment) && refund.status != "failed");
        let known: i64 = ours.filter(|refund| !refund.foreign_currency).map(|refund| refund.amount_minor).sum();
        Ok(match (state.captured(), state.refunded_minor > known) {
            (false, _) => Err(format!("{} says that {} is not captured", payment.provider, payment.payment_id)),
            (true, true) => Err(format!("{} says that more of {} went back than we know of", payment.provider, payment.payment_id)),
            (true, false) => Ok(()),
        })
    }

    /// Makes the row of an automatic refund, once, and sends it.
    async fn request_and_send(&self, new: &NewRefund) -> Result<Effect, Failure> {
        let mut tx = self.pool.begin().await.map_err(|error| database(&error))?;
        match request_refund(&mut tx, new, None).await {
            Ok(_) => tx.commit().await.map_err(|error| database(&error))?,
            Err(RefundRefused::Database(error)) => return Err(database(&error)),
            Err(RefundRefused::NoApi(_)) => return Ok(Effect::NotNeeded("held: its provider has no API to ask for a refund")),
            Err(RefundRefused::TooMuch { left: 1.., .. }) => return Ok(Effect::NotNeeded("held: some of it went back already, and less is left")),
            Err(RefundRefused::TooMuch { .. } | RefundRefused::NoOrder | RefundRefused::NoPayment | RefundRefused::KeyUsed) => {
                return Ok(Effect::NotNeeded("nothing of it is left to go back"));
            }
            Err(RefundRefused::Disputed) => return Ok(Effect::NotNeeded("held: the payment is disputed")),
            Err(RefundRefused::Ambiguous) => return Ok(Effect::NotNeeded("held: another payment has the same id")),
        }
        self.send(new.id).await
    }

    /// Whether nothing here speaks against it, no dispute, refund or claim of any payment of the order; then reads from the
    /// provider what is to go back, and, for a second payment, the first one, too: both captured, distinct, naming this order,
    /// nothing of them refunded yet.
    async fn may_go(&self, event: &Event, data: &PaymentEventData, refund: Uuid) -> Result<MayGo, Failure> {
        let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
        let order = find_id(&mut connection, event.order_id.0).await.map_err(|error| database(&error))?;
        let Some(order) = order else { return Ok(Err("its order is not here".into())) };
        if let Some(why) = doubt_about(&mut connection, order.id, refund).await.map_err(|error| database(&error))? {
            return Ok(Err(why));
        }
        let payment = data.payment.key();
        let mut to_read = vec![payment.clone()];
        if matches!(data.reason.as_str(), "already_paid" | "extra_captured_more") {
            let payments = payments_of(&mut connection, order.id).await.map_err(|error| database(&error))?;
            let Some(first) = payments.into_iter().find(|payment| payment.disposition == "settled") else {
                return Ok(Err("the payment that paid the order is not here".into()));
            };
            let first = first.key().map_err(|error| database(&error))?;
            if first == payment {
                return Ok(Err("it is the payment that paid the order".into()));
            }
            let mut going = refunds_of(&mut connection, order.id).await.map_err(|error| database(&error))?;
            going.retain(|refund| refund.payment().is_ok_and(|key| key == first) && refund.status != "failed");
            if going.iter().any(|refund| refund.origin != "sold_out") {
                return Ok(Err("the payment that paid the order is going back itself".into()));
            }
            // Of tickets that are not there the first one went back by our own doing: a second cannot stand in for it.
            if going.is_empty() {
                to_read.push(first);
            }
        }
        drop(connection);
        for key in to_read {
            let Some(api) = self.apis.of(key.provider) else { return Ok(Err(no_key(key.provider.name()))) };
            let state = match api.payment(&key).await {
                Ok(state) => state,
                Err(CallError::NotFound(why) | CallError::Refused(why) | CallError::Denied(why)) => {
                    return Ok(Err(format!("{} cannot be read: {why}", key.payment_id)));
                }
                Err(error) => return Err(failure(error)),
            };
            if !state.captured() {
                return Ok(Err(format!("{} says that {} is not captured", key.provider, key.payment_id)));
            }
            let grew = key == payment && data.reason == "extra_captured_more"; // what was there before may have gone back
            if state.refunded_minor > 0 && !grew {
                return Ok(Err(format!("{} says that {} has gone back already, all of it or some", key.provider, key.payment_id)));
            }
            if !names(state.order(), &order) {
                return Ok(Err(format!("{} does not say that {} is of this order", key.provider, key.payment_id)));
            }
        }
        Ok(Ok(()))
    }

    /// Sends one refund, under its own key; looks first, when it may have been sent before.
    async fn send(&self, id: Uuid) -> Result<Effect, Failure> {
        let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
        let Some(refund) = find_refund(&mut connection, id).await.map_err(|error| database(&error))? else {
            return Err(Failure::permanent(format!("the refund {id} is not here")));
        };
        if refund.status != "requested" {
            return Ok(Effect::Made(refund.provider_refund_id));
        }
        let payment = refund.payment().map_err(|error| database(&error))?;
        let Some(api) = self.apis.of(payment.provider) else {
            return hold(&mut connection, id, &no_key(payment.provider.name())).await;
        };
        drop(connection);
        if refund.calls > 0
            && let Some((refund_id, status)) = look(api, &refund).await?
        {
            return self.record(&refund, &refund_id, status).await;
        }
        let mut tx = self.pool.begin().await.map_err(|error| database(&error))?;
        let sending = begin_call(&mut tx, id).await.map_err(|error| database(&error))?;
        tx.commit().await.map_err(|error| database(&error))?;
        let (refund, since_first_call_s) = match sending {
            Sending::Send { refund, since_first_call_s } => (refund, since_first_call_s),
            Sending::Decided(refund) => return Ok(Effect::Made(refund.provider_refund_id)),
            Sending::Held(_) => return Ok(Effect::NotNeeded("held: counterfoil attention says why")),
            Sending::NothingLeft(refund) => return self.refuse(&refund, "others sent the money back, or the bank took it: nothing is left").await,
        };
        let currency: Currency = refund.currency.parse().map_err(|error| Failure::permanent(format!("{error}")))?;
        let money = Money::new(refund.amount_minor, currency);
        counterfoil_chassis::fault::point("refund.before_call");
        let answer = api.refund(&RefundCall { payment, money, key: refund.provider_key.clone(), mark: id }).await;
        counterfoil_chassis::fault::point("refund.after_call");
        match answer {
            Ok(answer) => self.record(&refund, &answer.refund_id, answer.status).await,
            // A refusal after a call whose outcome nobody knows may mean that it was made then, and is not listed yet.
            Err(CallError::Refused(why) | CallError::NotFound(why)) if since_first_call_s.is_some_and(|since| since < UNSURE_S) => {
                let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
                hold(&mut connection, id, &format!("refused after a call whose outcome is unknown: {why}")).await
            }
            Err(CallError::Refused(why) | CallError::NotFound(why)) => self.refuse(&refund, &why).await,
            Err(CallError::Denied(why)) => {
                let mut connection = self.pool.acquire().await.map_err(|error| database(&error))?;
                hold(&mut connection, id, &why).await
            }
            Err(error) => Err(failure(error)),
        }
    }

    async fn record(&self, refund: &Refund, refund_id: &str, status: RefundStatus) -> Result<Effect, Failure> {
        let mut tx = self.pool.begin().await.map_err(|error| database(&error))?;
        refund_answered(&mut tx, refund, refund_id, status, None).await.map_err(|error| database(&error))?;
        tx.commit().await.map_err(|error| database(&error))?;
        Ok(Effect::Made(Some(refund_id.to_owned())))
    }

    async fn refuse(&self, refund: &Refund, why: &str) -> Result<Effect, Failure> {
        tracing::error!(why, refund_id = %refund.id, "a refund will not be made");
        let mut tx = self.pool.begin().await.map_err(|error| database(&error))?;
        refund_refused(&mut tx, refund, why, None).await.map_err(|error| database(&error))?;
        tx.commit().await.map_err(|error| database(&error))?;
        Ok(Effect::NotNeeded("it will not be made: refund.failed says so"))
    }
}

/// Writes why a refund waits; housekeeping takes it up again.
async fn hold(connection: &mut PgConnection, id: Uuid, why: &str) -> Result<Effect, Failure> {
    tracing::warn!(why, refund_id = %id, "a refund is held");
    hold_refund(connection, id, why).await.map_err(|error| database(&error))?;
    Ok(Effect::NotNeeded("held: counterfoil attention says why"))
}

fn no_key(provider: &str) -> String {
    format!("no API key: COUNTERFOIL_{}_API_KEY is not set", provider.to_ascii_uppercase())
}

fn names(said: Option<&OrderKey>, order: &Order) -> bool {
    match said {
        Some(OrderKey::Id(id)) => id.0 == order.id,
        Some(OrderKey::Reference(reference)) => reference.as_str() == order.reference,
        None => false,
    }
}

/// Whether the provider knows our refund already, by the mark that it carries.
async fn look(api: &Api, refund: &Refund) -> Result<Option<(String, RefundStatus)>, Failure> {
    let payment = refund.payment().map_err(|error| database(&error))?;
    let facts = api.refunds_of(&payment).await.map_err(failure)?;
    Ok(facts.into_iter().find_map(|fact| match fact {
        Fact::Refund { refund_id, status, ours: Some(mark), .. } if mark == refund.id => Some((refund_id, status)),
        _ => None,
    }))
}

impl Deliver for Refunds {
    const NAME: &'static str = "refunds";
    const DEADLINE: Duration = Duration::from_secs(90); // at most four calls of 15 s, and the database

    async fn deliver(&self, event: &Event) -> Result<Effect, Failure> {
        match &event.body {
            Body::RefundRequested(data) => self.send(data.refund.id).await,
            Body::PaymentExtra(data) | Body::PaymentHeld(data) => self.send_aside_back(event, data).await,
            Body::TicketsUnavailable(data) => self.send_unfulfilled_back(event, data).await,
            Body::OrderPaid(_)
            | Body::OrderContactKnown(_)
            | Body::OrderRefunded(_)
            | Body::OrderDisputed(_)
            | Body::RefundFailed(_)
            | Body::TicketsIssued(_)
            | Body::TicketsVoided(_) => Ok(Effect::NotNeeded("not an event that sends money back")),
        }
    }
}
