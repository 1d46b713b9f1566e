//! Odd lives of money, each with its right end; docs/cases.md names them.

use counterfoil_payments::{DisputeStatus, Fact, Money, News, OrderId, OrderKey, PaymentKey, Provider, RefundStatus};
use counterfoil_settlement::{
    Attention, Delivery, NewRefund, Outcome, PaymentName, RefundRefused, attention, begin_call, deliveries_naming, doubt_about, find_refund, orders_named,
    refund_refused, request_refund, set_session,
};
use counterfoil_tests::Stage;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{book, delivery, differing, disposition, dispute, key, named, news, order, outcomes, refund, says, settled, status, topics};

fn captured(order: Uuid, payment: &str, amount: i64) -> Delivery {
    delivery(News::Captured, Some(OrderKey::Id(OrderId(order))), payment, amount, "EUR")
}

async fn listed(pool: &PgPool, kind: &str) -> Vec<Attention> {
    let list = attention(&mut pool.acquire().await.unwrap(), 100).await.unwrap();
    list.into_iter().filter(|entry| entry.kind == kind).collect()
}

/// What the accounts of an order stand at, without the receivable's provider.
async fn books(pool: &PgPool, order: Uuid) -> Vec<(String, i64)> {
    book(pool).await;
    assert_eq!(differing(pool).await, 0);
    sqlx::query_as(
        "SELECT l.account || CASE WHEN l.currency = 'EUR' THEN '' ELSE ' ' || l.currency END, sum(l.amount_minor)::bigint FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id
         WHERE e.order_id = $1 GROUP BY 1 HAVING sum(l.amount_minor) <> 0 ORDER BY 1",
    )
    .bind(order)
    .fetch_all(pool)
    .await
    .unwrap()
}

fn owned(rows: &[(&str, i64)]) -> Vec<(String, i64)> {
    rows.iter().map(|(account, minor)| ((*account).to_owned(), *minor)).collect()
}

async fn ask(pool: &PgPool, order: Uuid, payment: Option<PaymentName>, amount: Option<i64>, origin: &'static str) -> Result<Uuid, RefundRefused> {
    let id = Uuid::new_v4();
    let new = NewRefund { id, order_id: order, payment, amount_minor: amount, origin, reason: None, provider_key: id.to_string(), made_by: None };
    let mut tx = pool.begin().await.unwrap();
    match request_refund(&mut tx, &new, None).await {
        Ok(_) => tx.commit().await.unwrap(),
        Err(refused) => {
            tx.rollback().await.unwrap(); // dropped, it would hold its locks a little longer
            return Err(refused);
        }
    }
    Ok(id)
}

#[tokio::test]
async fn a_smaller_figure_pays_nothing_once_all_the_money_went_back() {
    let pool = Stage::with_schema().await.pool();
    let table = [
        (2000, RefundStatus::Succeeded, "pending_payment"),
        (2000, RefundStatus::Pending, "pending_payment"),
        (901, RefundStatus::Succeeded, "paid"),
        (1000, RefundStatus::Succeeded, "partially_refunded"),
    ];
    for (back, ended, then) in table {
        let (id, payment) = (order(&pool).await, format!("pi_{back}_{ended:?}"));
        assert_eq!(outcomes(&pool, &[captured(id, &payment, 2000)]).await, [Outcome::Held]);
        outcomes(&pool, &[refund(&payment, &format!("re_{payment}"), ended, back)]).await;
        outcomes(&pool, &[captured(id, &payment, 1099)]).await;
        assert_eq!(status(&pool, id).await, then, "{back} {ended:?}");
    }
    // It comes home again: then the right amount is here, and pays.
    let pending: Uuid = sqlx::query_scalar("SELECT order_id FROM payments WHERE payment_id = 'pi_2000_Pending'").fetch_one(&pool).await.unwrap();
    outcomes(&pool, &[refund("pi_2000_Pending", "re_pi_2000_Pending", RefundStatus::Failed, 2000)]).await;
    assert_eq!(status(&pool, pending).await, "paid");
    assert_eq!(books(&pool, pending).await, owned(&[("assets:receivable:stripe", 2000), ("income:sales", -1099), ("liabilities:unallocated", -901)]));
}

/// What is captured is the payment's own word; a session knows its price alone.
#[tokio::test]
async fn the_price_of_a_checkout_raises_no_figure_of_a_payment() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    assert_eq!(outcomes(&pool, &[captured(id, "pi_1", 500)]).await, [Outcome::Held]);
    assert_eq!(outcomes(&pool, &[priced(id, "pi_1")]).await, [Outcome::Superseded]);
    assert_eq!(status(&pool, id).await, "pending_payment");
    assert_eq!(outcomes(&pool, &[priced(id, "pi_2")]).await, [Outcome::Applied], "of a payment that has told nothing, it is all that is known");
}

/// The capture of a checkout's price, told by the session.
fn priced(order: Uuid, payment: &str) -> Delivery {
    let mut delivery = captured(order, payment, 1099);
    if let Fact::Payment { details, .. } = &mut delivery.fact {
        details.by_price = true;
    }
    delivery
}

/// Once the payment tells its own figure, that is in the books, lower or higher; a person hears of the difference.
#[tokio::test]
async fn a_payments_own_figure_replaces_the_price_of_its_checkout() {
    let pool = Stage::with_schema().await.pool();
    for (own, outcome, kind, listed_minor) in [(500, Outcome::Held, "overpaid", 599), (2000, Outcome::Held, "held", 901), (1099, Outcome::Superseded, "", 0)] {
        let (id, payment) = (order(&pool).await, format!("pi_{own}"));
        assert_eq!(outcomes(&pool, &[priced(id, &payment)]).await, [Outcome::Applied]);
        assert_eq!(outcomes(&pool, &[captured(id, &payment, own)]).await, [outcome], "{own}");
        assert_eq!(status(&pool, id).await, if own < 1099 { "partially_refunded" } else { "paid" }, "it follows from the money that stands");
        let receivable = books(&pool, id).await.into_iter().find(|(account, _)| account == "assets:receivable:stripe").unwrap().1;
        assert_eq!(receivable, own, "what was captured is in the books");
        let waits: Vec<_> = attention(&mut pool.acquire().await.unwrap(), 100).await.unwrap();
        let waits: Vec<_> = waits.iter().filter(|entry| entry.what.ends_with(&payment)).map(|entry| (entry.kind.as_str(), entry.amount_minor)).collect();
        assert_eq!(waits, if kind.is_empty() { vec![] } else { vec![(kind, Some(listed_minor))] });
        let ours = ask(&pool, id, None, Some(own.min(1099) + 1), "api").await;
        assert!(own == 2000 || matches!(ours, Err(RefundRefused::TooMuch { .. })), "no more goes back than was captured: {ours:?}");
    }
}

#[tokio::test]
async fn a_coupon_of_a_whole_price_is_listed_until_the_order_is_paid() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    assert_eq!(outcomes(&pool, &[captured(id, "cs_1", 0)]).await, [Outcome::Held]);
    let list = listed(&pool, "held").await;
    assert!(list.len() == 1 && list[0].why.contains("coupon"), "{list:?}");
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    assert_eq!((status(&pool, id).await.as_str(), listed(&pool, "held").await.len()), ("paid", 0));
}

/// A capture that names no order is kept, listed and found by each of its ids; it counts as soon as its order is known, by
/// another event of the payment or by the checkout that the shop has told of.
#[tokio::test]
async fn captured_money_without_an_order_is_listed_until_its_order_is_known() {
    let pool = Stage::with_schema().await.pool();
    let nameless = |payment: &str, checkout: Option<&str>| {
        let mut event = delivery(News::Captured, None, payment, 1099, "EUR");
        event.ids = vec![format!("ch_{payment}")].into_iter().chain(checkout.map(str::to_owned)).collect();
        if let Fact::Payment { details, .. } = &mut event.fact {
            details.checkout = checkout.map(str::to_owned);
        }
        event
    };
    assert_eq!(outcomes(&pool, &[nameless("pi_1", None), nameless("pi_2", Some("cs_2"))]).await, [Outcome::Ignored, Outcome::Ignored]);
    assert_eq!(outcomes(&pool, &[nameless("pi_1", None)]).await, [Outcome::Ignored], "another event of it is no more money");
    let list = listed(&pool, "unplaced").await;
    assert_eq!(list.iter().map(|entry| (entry.amount_minor, entry.currency.as_deref())).collect::<Vec<_>>(), [(Some(1099), Some("EUR")); 2]);
    for (id, events) in [("pi_1", 2), ("ch_pi_1", 2), ("ch_pi_2", 1), ("cs_2", 1)] {
        assert_eq!(deliveries_naming(&mut pool.acquire().await.unwrap(), id).await.unwrap().len(), events, "{id}");
    }
    let (one, two) = (order(&pool).await, order(&pool).await);
    outcomes(&pool, &[news(News::Authorised, one, "pi_1")]).await;
    assert_eq!(status(&pool, one).await, "paid");
    let mut tx = pool.begin().await.unwrap();
    let session = PaymentKey { provider: Provider::Stripe, account: String::new(), payment_id: "cs_2".into() };
    assert!(set_session(&mut tx, two, &session).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(status(&pool, two).await, "paid");
    assert!(listed(&pool, "unplaced").await.is_empty());
    let excused: i64 =
        sqlx::query_scalar("SELECT count(*) FROM webhook_events WHERE outcome = 'applied' AND reason IS NOT NULL").fetch_one(&pool).await.unwrap();
    assert_eq!(excused, 0, "what is applied says no longer why it was not");
    assert_eq!(orders_named(&mut pool.acquire().await.unwrap(), "ch_pi_1").await.unwrap(), [one]);
    // The session is known before its payment is captured: met at once.
    let three = order(&pool).await;
    let mut tx = pool.begin().await.unwrap();
    assert!(set_session(&mut tx, three, &PaymentKey { payment_id: "cs_3".into(), ..session }).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(outcomes(&pool, &[nameless("pi_3", Some("cs_3"))]).await, [Outcome::Applied]);
    assert_eq!(status(&pool, three).await, "paid");
}

#[tokio::test]
async fn captured_money_that_is_not_supported_is_listed_with_its_reason() {
    let pool = Stage::with_schema().await.pool();
    let money = Some(Money::new(1099, "EUR".parse().unwrap()));
    let event = says(Fact::Unsupported { payment: key("cs_1"), money, order: None, reason: "a subscription's checkout is not supported".into() });
    assert_eq!(outcomes(&pool, &[event]).await, [Outcome::Ignored]);
    let list = listed(&pool, "unplaced").await;
    assert!(list.len() == 1 && list[0].why.contains("a subscription's checkout is not supported"), "{list:?}");
}

/// One payment is told of with the platform's own account and without, in one batch or in two: it is one.
#[tokio::test]
async fn a_payment_told_of_with_and_without_its_account_is_one_payment() {
    let pool = Stage::with_schema().await.pool();
    for (nth, (with_first, at_once)) in [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate() {
        let (id, payment) = (order(&pool).await, format!("pi_{nth}"));
        let mut with = news(News::Captured, id, &payment);
        with.account = "acct_platform".into();
        if let Fact::Payment { payment, .. } = &mut with.fact {
            payment.account = "acct_platform".into();
        }
        let bare = news(News::Captured, id, &payment);
        let told = if with_first { [with, bare] } else { [bare, with] };
        if at_once {
            settled(&pool, &told).await;
        } else {
            settled(&pool, &told[..1]).await;
            settled(&pool, &told[1..]).await;
        }
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM payments WHERE payment_id = $1").bind(&payment).fetch_one(&pool).await.unwrap();
        assert_eq!((rows, topics(&pool, id).await), (1, vec!["order.paid".to_owned()]), "{with_first} {at_once}");
        // Its refund and its dispute meet it under either name.
        let mut back = refund(&payment, &format!("re_{nth}"), RefundStatus::Succeeded, 1099);
        if let Fact::Refund { payment, .. } = &mut back.fact {
            payment.account = if with_first { String::new() } else { "acct_platform".into() };
        }
        assert_eq!(outcomes(&pool, &[back]).await, [Outcome::Applied]);
        assert_eq!(status(&pool, id).await, "refunded");
    }
}

/// Two rows that an earlier release made of one payment: no refund is offered for money that cannot be told apart.
#[tokio::test]
async fn no_refund_is_made_of_a_payment_that_cannot_be_told_from_another() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    sqlx::query("INSERT INTO payments (provider, account, payment_id, order_id, status, disposition, held_reason, amount_minor, currency, booked_captured_minor) VALUES ('stripe', 'acct_1', 'pi_1', $1, 'captured', 'extra', 'already_paid', 1099, 'EUR', 1099)")
        .bind(id)
        .execute(&pool)
        .await
        .unwrap();
    let bare = Some(PaymentName { payment_id: "pi_1".into(), provider: None, account: None });
    let whole = Some(PaymentName { payment_id: "pi_1".into(), provider: Some(Provider::Stripe), account: Some("acct_1".into()) });
    for payment in [None, bare, whole] {
        assert!(matches!(ask(&pool, id, payment, Some(5), "api").await, Err(RefundRefused::Ambiguous)));
    }
}

#[tokio::test]
async fn amounts_of_another_currency_are_kept_apart_and_wait_for_a_person() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    let yen = Money::new(900, "JPY".parse().unwrap());
    outcomes(
        &pool,
        &[says(Fact::Refund {
            payment: key("pi_1"),
            refund_id: "re_1".into(),
            status: RefundStatus::Succeeded,
            money: yen,
            ours: None,
            may_be_release: false,
        })],
    )
    .await;
    outcomes(&pool, &[says(Fact::Dispute { payment: key("pi_1"), dispute_id: "dp_1".into(), status: DisputeStatus::Lost, money: yen, reason: None })]).await;
    assert_eq!((status(&pool, id).await.as_str(), listed(&pool, "currency").await.len(), listed(&pool, "overpaid").await.len()), ("paid", 2, 0));
    assert_eq!(books(&pool, id).await, owned(&[("assets:receivable:stripe", 1099), ("income:sales", -1099)]));
    assert!(ask(&pool, id, None, Some(1099), "api").await.is_ok(), "all of its own currency can still go back");
}

/// A changed copy is counted, kept for good and listed; a copy that is only spelled otherwise is neither.
#[tokio::test]
async fn a_copy_that_says_something_else_is_told_from_one_that_is_spelled_otherwise() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let first = news(News::Captured, id, "pi_1");
    let copy = |amount: i64, body: &str| Delivery { event_id: first.event_id.clone(), body: body.into(), ..captured(id, "pi_1", amount) };
    let found = async || {
        sqlx::query_as::<_, (i64, i64, Option<Vec<u8>>)>("SELECT differing, changed, differing_body FROM webhook_events").fetch_one(&pool).await.unwrap()
    };
    settled(&pool, &[first.clone(), copy(1099, "spelled otherwise")]).await;
    assert_eq!(found().await, (1, 0, Some(b"spelled otherwise".to_vec())));
    assert!(listed(&pool, "changed").await.is_empty());
    settled(&pool, &[copy(9999, "more money")]).await;
    settled(&pool, &[copy(1099, "spelled otherwise again"), copy(5, "less money")]).await;
    let (differing, changed, kept) = found().await;
    assert!(differing >= 3 && changed >= 2 && kept == Some(b"more money".to_vec()), "the first change stays: {differing} {changed} {kept:?}");
    assert_eq!(listed(&pool, "changed").await.len(), 1);
}

#[tokio::test]
async fn a_surplus_goes_back_once_and_first_whoever_sends_it() {
    let pool = Stage::with_schema().await.pool();
    for dashboard in [false, true] {
        let (id, payment) = (order(&pool).await, format!("pi_{dashboard}"));
        outcomes(&pool, &[captured(id, &payment, 1099), captured(id, &payment, 2000)]).await;
        assert_eq!(listed(&pool, "held").await[0].amount_minor, Some(901));
        let policy = async || ask(&pool, id, named(&payment), None, "mismatch").await;
        if dashboard {
            outcomes(&pool, &[refund(&payment, "re_hand", RefundStatus::Succeeded, 901)]).await;
        } else {
            let ours = ask(&pool, id, named(&payment), Some(901), "api").await.unwrap();
            assert!(matches!(policy().await, Err(RefundRefused::TooMuch { left: 0, .. })), "the API asked first");
            let back = Fact::Refund {
                payment: key(&payment),
                refund_id: "re_api".into(),
                status: RefundStatus::Succeeded,
                money: Money::new(901, "EUR".parse().unwrap()),
                ours: Some(ours),
                may_be_release: false,
            };
            outcomes(&pool, &[says(back)]).await;
        }
        assert!(matches!(policy().await, Err(RefundRefused::TooMuch { left: 0, .. })));
        assert!(listed(&pool, "held").await.is_empty(), "it went back");
        assert_eq!(books(&pool, id).await, owned(&[("assets:receivable:stripe", 1099), ("income:sales", -1099)]), "nothing of it was taken from the sales");
        assert_eq!(status(&pool, id).await, "paid");
    }
}

/// The same facts in any order end in the same accounts: 500, then 1099, a refund of 200 between them.
#[tokio::test]
async fn a_refund_between_two_figures_of_one_payment_ends_in_the_same_account() {
    let pool = Stage::with_schema().await.pool();
    let mut ends = Vec::new();
    for (nth, order_of) in [[0, 1, 2], [0, 2, 1], [2, 0, 1], [1, 2, 0]].into_iter().enumerate() {
        let (id, payment) = (order(&pool).await, format!("pi_{nth}"));
        let facts = [captured(id, &payment, 500), captured(id, &payment, 1099), refund(&payment, &format!("re_{nth}"), RefundStatus::Succeeded, 200)];
        for at in order_of {
            outcomes(&pool, &[facts[at].clone()]).await;
        }
        ends.push((status(&pool, id).await, books(&pool, id).await));
    }
    let wanted = owned(&[("assets:receivable:stripe", 899), ("income:refunds", 200), ("income:sales", -1099)]);
    assert_eq!(ends, vec![("partially_refunded".to_owned(), wanted); 4]);
}

/// Refused here, made there after all, and sent home by the bank: two failures of one refund, two events.
#[tokio::test]
async fn a_refund_that_fails_twice_says_so_twice() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    outcomes(&pool, &[news(News::Captured, id, "pi_1")]).await;
    let ours = ask(&pool, id, None, Some(99), "api").await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let row = find_refund(&mut tx, ours).await.unwrap().unwrap();
    refund_refused(&mut tx, &row, "refused", None).await.unwrap();
    tx.commit().await.unwrap();
    for status in [RefundStatus::Succeeded, RefundStatus::Failed] {
        let money = Money::new(99, "EUR".parse().unwrap());
        outcomes(&pool, &[says(Fact::Refund { payment: key("pi_1"), refund_id: "re_1".into(), status, money, ours: Some(ours), may_be_release: false })]).await;
    }
    assert_eq!(topics(&pool, id).await, ["order.paid", "refund.requested", "refund.failed", "order.refunded", "refund.failed"]);
    assert_eq!(books(&pool, id).await, owned(&[("assets:receivable:stripe", 1099), ("income:sales", -1099)]));
}

/// Any doubt about any payment of an order holds an automatic refund.
#[tokio::test]
async fn disputes_refunds_and_claims_of_any_payment_hold_an_automatic_refund() {
    let pool = Stage::with_schema().await.pool();
    let doubts: [(&str, Option<&str>); 9] = [
        ("nothing", None),
        ("an inquiry", Some("has a dispute: inquiry")),
        ("a dispute", Some("has a dispute: opened")),
        ("a loss", Some("has a dispute: lost")),
        ("a win", None),
        ("a pending refund", Some("is under way")),
        ("a failed refund", Some("failed")),
        ("a claim", Some("another order claims")),
        ("the first one's refund", Some("went back itself")),
    ];
    for (nth, (what, why)) in doubts.into_iter().enumerate() {
        let (id, first, second) = (order(&pool).await, format!("pi_first_{nth}"), format!("pi_second_{nth}"));
        outcomes(&pool, &[news(News::Captured, id, &first), news(News::Captured, id, &second)]).await;
        let automatic = ask(&pool, id, named(&second), None, "extra").await.unwrap();
        let disputed = |status| dispute(&first, &format!("dp_{nth}"), status, 1099);
        let event = match what {
            "an inquiry" => Some(disputed(DisputeStatus::Inquiry)),
            "a dispute" => Some(disputed(DisputeStatus::Opened)),
            "a loss" => Some(disputed(DisputeStatus::Lost)),
            "a win" => Some(disputed(DisputeStatus::Won)),
            "a pending refund" => Some(refund(&first, &format!("re_{nth}"), RefundStatus::Pending, 5)),
            "a failed refund" => Some(refund(&first, &format!("re_{nth}"), RefundStatus::Failed, 5)),
            "the first one's refund" => Some(refund(&first, &format!("re_{nth}"), RefundStatus::Succeeded, 1099)),
            "a claim" => Some(news(News::Captured, order(&pool).await, &second)),
            _ => None,
        };
        if let Some(event) = event {
            settled(&pool, &[event]).await;
        }
        let doubt = doubt_about(&mut pool.acquire().await.unwrap(), id, automatic).await.unwrap();
        assert!(why.map_or(doubt.is_none(), |why| doubt.as_ref().is_some_and(|doubt| doubt.contains(why))), "{what}: {doubt:?}");
        let mut tx = pool.begin().await.unwrap();
        let held = matches!(begin_call(&mut tx, automatic).await.unwrap(), counterfoil_settlement::Sending::Held(_));
        assert_eq!(held, why.is_some(), "{what}: it is looked at once more before the call");
        tx.rollback().await.unwrap();
    }
}

fn partly(order: Uuid, payment: &str, taken: i64, released_minor: i64) -> Delivery {
    let mut capture = captured(order, payment, taken);
    if let Fact::Payment { details, .. } = &mut capture.fact {
        details.released_minor = released_minor;
    }
    capture
}

fn told(refund_id: &str, status: RefundStatus, may_be_release: bool) -> Delivery {
    let money = Money::new(901, "EUR".parse().unwrap());
    says(Fact::Refund { payment: key("pi_1"), refund_id: refund_id.into(), status, money, ours: None, may_be_release })
}

/// The rest of an authorisation that was never captured is told of as a refund, before or after everything else.
#[tokio::test]
async fn the_released_rest_of_an_authorisation_is_no_refund() {
    let pool = Stage::with_schema().await.pool();
    let (id, rest) = (order(&pool).await, || told("re_rest", RefundStatus::Succeeded, true));
    outcomes(&pool, &[rest(), partly(id, "pi_1", 1099, 901), rest()]).await;
    assert_eq!((status(&pool, id).await.as_str(), topics(&pool, id).await.len()), ("paid", 1));
    assert!(ask(&pool, id, None, Some(1099), "api").await.is_ok(), "all that was captured can go back");
    sqlx::query("DELETE FROM refunds").execute(&pool).await.unwrap();
    // A second one of the same amount is a refund, and so is the same one by the word of a version that tells no releases so.
    outcomes(&pool, &[told("re_more", RefundStatus::Succeeded, true)]).await;
    assert_eq!(status(&pool, id).await, "partially_refunded");
    assert_eq!(disposition(&pool, "pi_1").await.1, "settled");
}

/// Heard before anyone said how much was not captured, it is booked, and taken back as soon as the payment says so.
#[tokio::test]
async fn a_release_that_was_taken_for_a_refund_is_taken_back() {
    let pool = Stage::with_schema().await.pool();
    let (id, rest) = (order(&pool).await, || told("re_rest", RefundStatus::Succeeded, true));
    outcomes(&pool, &[priced(id, "pi_1"), rest()]).await;
    assert_eq!(status(&pool, id).await, "partially_refunded", "nobody can know yet");
    outcomes(&pool, &[partly(id, "pi_1", 1099, 901), rest()]).await;
    assert_eq!(topics(&pool, id).await, ["order.paid", "order.refunded", "refund.failed"]);
    assert_eq!((status(&pool, id).await.as_str(), listed(&pool, "refund").await.len()), ("paid", 0));
    assert_eq!(books(&pool, id).await, owned(&[("assets:receivable:stripe", 1099), ("income:sales", -1099)]));
    assert!(ask(&pool, id, None, Some(1099), "api").await.is_ok(), "all that was captured can go back");
}

/// A provider's sum that no refund explains, not even as the release, is listed after an hour.
#[tokio::test]
async fn more_gone_than_any_refund_explains_is_listed_after_an_hour() {
    let pool = Stage::with_schema().await.pool();
    let id = order(&pool).await;
    let total = Money::new(901, "EUR".parse().unwrap());
    outcomes(&pool, &[partly(id, "pi_1", 1099, 901), told("re_real", RefundStatus::Succeeded, true)]).await;
    outcomes(&pool, &[says(Fact::RefundsReported { payment: key("pi_1"), total })]).await;
    assert!(listed(&pool, "refund").await.is_empty(), "its refund may be on its way");
    sqlx::query("UPDATE payments SET updated_at = now() - interval '2 hours'").execute(&pool).await.unwrap();
    assert_eq!(listed(&pool, "refund").await.iter().map(|entry| entry.amount_minor).collect::<Vec<_>>(), [Some(901)]);
    outcomes(&pool, &[told("re_real", RefundStatus::Succeeded, false)]).await;
    assert_eq!(
        (listed(&pool, "refund").await.len(), status(&pool, id).await.as_str()),
        (0, "partially_refunded"),
        "by the word of a version that tells no releases"
    );
}

/// A refund of as much as was released, and the release: whichever comes first, and whatever becomes of the refund.
#[tokio::test]
async fn a_refund_that_equals_the_release_is_told_from_it_by_what_becomes_of_it() {
    use RefundStatus::{Failed, Pending, Succeeded};
    let lives: [(&[(&str, RefundStatus)], &str); 5] = [
        (&[("re_real", Pending), ("re_rest", Succeeded), ("re_real", Failed)], "paid"),
        (&[("re_rest", Succeeded), ("re_real", Pending), ("re_real", Failed)], "paid"),
        (&[("re_real", Succeeded), ("re_rest", Succeeded), ("re_real", Failed)], "paid"),
        (&[("re_real", Succeeded), ("re_real", Failed), ("re_rest", Succeeded)], "paid"),
        (&[("re_real", Succeeded), ("re_real", Pending), ("re_rest", Succeeded)], "partially_refunded"),
    ];
    for (life, then) in lives {
        let pool = Stage::with_schema().await.pool();
        let id = order(&pool).await;
        outcomes(&pool, &[partly(id, "pi_1", 1099, 901)]).await;
        for (refund_id, status) in life {
            outcomes(&pool, &[told(refund_id, *status, true)]).await;
        }
        assert_eq!(status(&pool, id).await, then, "{life:?}");
        let back = if then == "paid" { vec![("assets:receivable:stripe", 1099)] } else { vec![("assets:receivable:stripe", 198), ("income:refunds", 901)] };
        let found: Vec<_> = books(&pool, id).await.into_iter().filter(|(account, _)| account != "income:sales").collect();
        assert_eq!(found, owned(&back), "{life:?}");
    }
}
