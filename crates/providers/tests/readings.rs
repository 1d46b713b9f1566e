//! What each provider's events mean: the tables of the documentation, and the traps of real payloads.

use counterfoil_payments::{Fact, News, OrderKey, PaymentDetails};
use counterfoil_providers::{Adapter, Mode, Razorpay, Reading, Secret, Square, Standard, Stripe};
use http::HeaderMap;
use serde_json::{Value, json};

fn stripe() -> Stripe {
    Stripe::new(&[Secret::new("s").unwrap()])
}

fn read(adapter: &dyn Adapter, body: &Value) -> Reading {
    adapter.read(&HeaderMap::new(), body.to_string().as_bytes(), Mode::Test)
}

/// A mark of ours on a refund.
const MARK: &str = "0190a3c4-0000-7000-8000-000000000001";

/// News, payment, amount and order of a reading, or the name of what else it is.
fn said(reading: &Reading) -> String {
    match &reading.fact {
        Fact::Payment { news, payment, money, order, .. } => {
            let order = match order {
                Some(OrderKey::Reference(reference)) => reference.as_str().to_owned(),
                Some(OrderKey::Id(id)) => id.to_string(),
                None => "-".into(),
            };
            let money = money.map_or_else(|| "-".to_owned(), |money| format!("{} {}", money.amount_minor, money.currency));
            format!("{} {} {money} {order}", format!("{news:?}").to_lowercase(), payment.payment_id)
        }
        Fact::Refund { payment, refund_id, status, money, ours, .. } => {
            let ours = ours.map_or_else(String::new, |ours| format!(" ours {ours}"));
            format!("refund {refund_id} {} {} {} of {}{ours}", status.name(), money.amount_minor, money.currency, payment.payment_id)
        }
        Fact::RefundsReported { payment, total } => format!("reported {} {} of {}", total.amount_minor, total.currency, payment.payment_id),
        Fact::Dispute { payment, dispute_id, status, money, .. } => {
            format!("dispute {dispute_id} {} {} {} of {}", status.name(), money.amount_minor, money.currency, payment.payment_id)
        }
        Fact::Unsupported { payment, .. } => format!("unsupported {}", payment.payment_id),
        Fact::Ignored { .. } => "ignored".into(),
        Fact::Unreadable { .. } => "unreadable".into(),
    }
}

/// What only some providers tell of a payment.
fn details(reading: &Reading) -> PaymentDetails {
    let Fact::Payment { details, .. } = &reading.fact else { panic!("{reading:?}") };
    details.clone()
}

fn stripe_says(kind: &str, object: &Value) -> String {
    said(&read(&stripe(), &json!({ "id": "evt_1", "type": kind, "livemode": false, "data": { "object": object } })))
}

#[test]
fn stripes_types_mean_what_its_documentation_says() {
    let back = |status: &str| json!({ "id": "re_1", "payment_intent": "pi_1", "amount": 3, "currency": "eur", "status": status });
    let dispute = |status: &str| json!({ "id": "dp_1", "charge": "ch_1", "payment_intent": null, "amount": 5, "currency": "eur", "status": status });
    let session = |status: &str| json!({ "id": "cs_1", "payment_intent": "pi_1", "amount_total": 5, "currency": "eur", "payment_status": status, "client_reference_id": "A" });
    let intent = || json!({ "id": "pi_1", "amount": 9, "amount_received": 5, "currency": "eur", "metadata": { "order_id": "A" } });
    let charge = |captured: bool| json!({ "id": "ch_1", "payment_intent": "pi_1", "amount": 5, "amount_captured": 5, "currency": "eur", "captured": captured, "metadata": { "order_id": "A" } });
    let free = json!({ "id": "cs_1", "payment_intent": null, "amount_total": 0, "currency": "eur", "payment_status": "paid" });
    let expanded = json!({ "id": "ch_1", "payment_intent": { "id": "pi_1" }, "amount": 5, "currency": "eur", "captured": true });
    let table = [
        ("checkout.session.completed", session("paid"), "captured pi_1 5 EUR A"),
        ("checkout.session.completed", session("no_payment_required"), "captured pi_1 5 EUR A"),
        ("checkout.session.completed", session("unpaid"), "pending pi_1 5 EUR A"),
        ("checkout.session.completed", session("on_the_moon"), "ignored"),
        ("checkout.session.async_payment_succeeded", session("paid"), "captured pi_1 5 EUR A"),
        ("checkout.session.async_payment_failed", session("unpaid"), "failed pi_1 5 EUR A"),
        ("checkout.session.expired", session("unpaid"), "expired pi_1 5 EUR A"),
        ("payment_intent.succeeded", intent(), "captured pi_1 5 EUR A"),
        ("payment_intent.processing", intent(), "pending pi_1 9 EUR A"),
        ("payment_intent.requires_action", intent(), "pending pi_1 9 EUR A"),
        ("payment_intent.amount_capturable_updated", intent(), "authorised pi_1 9 EUR A"),
        ("payment_intent.payment_failed", intent(), "failed pi_1 9 EUR A"),
        ("payment_intent.canceled", intent(), "cancelled pi_1 9 EUR A"),
        ("charge.succeeded", charge(true), "captured pi_1 5 EUR A"),
        ("charge.succeeded", charge(false), "authorised pi_1 5 EUR A"),
        ("charge.captured", charge(true), "captured pi_1 5 EUR A"),
        ("charge.failed", charge(false), "failed pi_1 5 EUR A"),
        ("charge.expired", charge(false), "expired pi_1 5 EUR A"),
        (
            "charge.refunded",
            json!({ "id": "ch_1", "payment_intent": "pi_1", "amount": 5, "amount_captured": 5, "amount_refunded": 3, "currency": "eur" }),
            "reported 3 EUR of pi_1",
        ),
        ("refund.created", back("pending"), "refund re_1 pending 3 EUR of pi_1"),
        ("refund.updated", back("requires_action"), "refund re_1 pending 3 EUR of pi_1"),
        ("charge.refund.updated", back("succeeded"), "refund re_1 succeeded 3 EUR of pi_1"),
        ("refund.failed", back("failed"), "refund re_1 failed 3 EUR of pi_1"),
        ("refund.updated", back("canceled"), "refund re_1 failed 3 EUR of pi_1"),
        ("refund.updated", back("odd"), "unreadable"),
        ("charge.dispute.created", dispute("needs_response"), "dispute dp_1 opened 5 EUR of ch_1"),
        ("charge.dispute.funds_withdrawn", dispute("under_review"), "dispute dp_1 opened 5 EUR of ch_1"),
        ("charge.dispute.created", dispute("warning_needs_response"), "dispute dp_1 inquiry 5 EUR of ch_1"),
        ("charge.dispute.closed", dispute("warning_closed"), "dispute dp_1 closed 5 EUR of ch_1"),
        ("charge.dispute.closed", dispute("prevented"), "dispute dp_1 withdrawn 5 EUR of ch_1"),
        ("charge.dispute.closed", dispute("lost"), "dispute dp_1 lost 5 EUR of ch_1"),
        ("charge.dispute.closed", dispute("won"), "dispute dp_1 won 5 EUR of ch_1"),
        ("invoice.paid", json!({ "id": "in_1", "payment_intent": "pi_1", "amount_paid": 5, "currency": "eur" }), "captured pi_1 5 EUR -"),
        ("invoice.paid", json!({ "id": "in_1", "amount_paid": 5, "currency": "eur" }), "ignored"),
        ("checkout.session.completed", free, "captured cs_1 0 EUR -"),
        ("checkout.session.completed", json!({ "id": "cs_1", "mode": "setup", "payment_status": "no_payment_required" }), "ignored"),
        ("charge.succeeded", expanded, "captured pi_1 5 EUR -"),
        ("customer.created", json!({}), "ignored"),
    ];
    for (kind, object, wanted) in table {
        assert_eq!(stripe_says(kind, &object), wanted, "{kind} {object}");
    }
}

#[test]
fn stripes_minor_units_are_brought_to_those_of_iso_4217() {
    let says = |amount: i64, currency: &str| stripe_says("payment_intent.succeeded", &json!({ "id": "pi", "amount_received": amount, "currency": currency }));
    assert_eq!(says(1000, "jpy"), "captured pi 1000 JPY -");
    assert_eq!(says(500, "isk"), "captured pi 5 ISK -");
    assert_eq!(says(501, "isk"), "unreadable");
    assert_eq!(says(5, "mga"), "captured pi 500 MGA -");
    assert_eq!(says(5120, "kwd"), "captured pi 5120 KWD -");
    assert_eq!(says(5, "xxx"), "unreadable");
    assert_eq!(says(-5, "eur"), "unreadable");
}

#[test]
fn events_that_state_another_mode_or_none_are_ignored() {
    let object = json!({ "id": "pi", "amount_received": 1, "currency": "eur" });
    let event = |livemode: Value| json!({ "id": "evt_1", "type": "payment_intent.succeeded", "livemode": livemode, "data": { "object": object } });
    for (livemode, wanted) in [(json!(false), "captured pi 1 EUR -"), (json!(true), "ignored"), (json!(null), "ignored"), (json!("false"), "ignored")] {
        assert_eq!(said(&read(&stripe(), &event(livemode))), wanted);
    }
    let live = stripe().read(&HeaderMap::new(), event(json!(true)).to_string().as_bytes(), Mode::Live);
    assert_eq!(said(&live), "captured pi 1 EUR -");
}

fn event_with(fields: &str) -> String {
    format!(r#"{{"id":"evt_1","type":"payment_intent.succeeded","livemode":false,"data":{{"object":{{"id":"pi","currency":"eur",{fields}}}}}}}"#)
}

fn bytes_say(body: &[u8]) -> String {
    said(&stripe().read(&HeaderMap::new(), body, Mode::Test))
}

#[test]
fn amounts_that_are_no_exact_integers_and_fields_said_twice_are_quarantined() {
    assert_eq!(bytes_say(event_with(r#""amount_received":1000,"amount_received":1"#).as_bytes()), "unreadable");
    for amount in ["1e3", "1000.0", "1000.5", "1e400", "9223372036854775808", "\"1000\"", "null", "true"] {
        assert_eq!(bytes_say(event_with(&format!(r#""amount_received":{amount}"#)).as_bytes()), "unreadable", "{amount}");
    }
    assert_eq!(bytes_say(event_with(r#""amount_received":9007199254740993"#).as_bytes()), "captured pi 9007199254740993 EUR -");
}

#[test]
fn depth_nul_half_an_emoji_latin_1_and_a_byte_order_mark_lose_no_paid_event() {
    let paid = "captured pi 5 EUR -";
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(bytes_say(event_with(&format!(r#""amount_received":5,"unneeded":{deep}"#)).as_bytes()), paid);
    assert_eq!(bytes_say(event_with(&format!(r#""amount_received":5,"metadata":{deep}"#)).as_bytes()), paid);
    assert_eq!(bytes_say(event_with(r#""amount_received":5,"description":"a\u0000b \ud800""#).as_bytes()), paid);
    let mut latin1 = event_with(r#""amount_received":5,"description":"X""#).into_bytes();
    let at = latin1.iter().position(|byte| *byte == b'X').unwrap();
    latin1[at] = 0xe9;
    assert_eq!(bytes_say(&latin1), paid);
    assert_eq!(bytes_say(&[b"\xef\xbb\xbf".as_slice(), event_with(r#""amount_received":5"#).as_bytes()].concat()), paid);
    let named = event_with(r#""amount_received":5,"customer_details":{"name":"N\u0000ul \ud83d","email":"n@example.com"}"#);
    let Fact::Payment { contact, .. } = stripe().read(&HeaderMap::new(), named.as_bytes(), Mode::Test).fact else { panic!() };
    assert!(contact.name.unwrap().starts_with("N\u{FFFD}ul ") && contact.email.as_deref() == Some("n@example.com"));
}

#[test]
fn what_is_no_event_is_unreadable_under_the_digest_of_its_bytes() {
    for body in ["not json", "", "{}", "[]", "null", "1"] {
        let reading = stripe().read(&HeaderMap::new(), body.as_bytes(), Mode::Test);
        assert!(reading.event_id.starts_with("sha256:"), "{body}");
        assert_eq!(said(&reading), "unreadable", "{body}");
    }
}

#[test]
fn two_different_order_names_are_remarked_and_thin_events_ignored() {
    let object = json!({ "id": "pi", "amount_received": 1, "currency": "eur", "client_reference_id": "A", "metadata": { "order_id": "B" } });
    let reading =
        read(&stripe(), &json!({ "id": "evt_1", "type": "payment_intent.succeeded", "livemode": false, "account": "acct_1", "data": { "object": object } }));
    assert!(matches!(&reading.fact, Fact::Payment { remark: Some(_), payment, .. } if payment.account == "acct_1"));
    let thin = read(&stripe(), &json!({ "id": "evt_2", "object": "v2.core.event", "type": "v1.x", "context": "acct_2", "created": "2026-01-01T00:00:00Z" }));
    assert_eq!((said(&thin).as_str(), thin.account.as_str()), ("ignored", "acct_2"));
}

#[test]
fn razorpays_types_and_traps() {
    let adapter = Razorpay::new(&[Secret::new("s").unwrap()]);
    let event = |kind: &str, payload: Value| json!({ "entity": "event", "event": kind, "account_id": "acc_1", "created_at": 7, "payload": payload });
    let payment = |notes: Value| json!({ "entity": { "id": "pay_1", "amount": 5, "currency": "INR", "status": "captured", "notes": notes, "email": "void@razorpay.com" } });
    let order = json!({ "entity": { "id": "order_1", "receipt": "R", "notes": [] } });
    let back = |notes: Value| json!({ "refund": { "entity": { "id": "rfnd_1", "payment_id": "pay_1", "amount": 5, "currency": "INR", "status": "pending", "notes": notes } } });
    let dispute = |status: &str, phase: &str| json!({ "dispute": { "entity": { "id": "disp_1", "payment_id": "pay_1", "amount": 5, "currency": "INR", "status": status, "phase": phase } } });
    let table = [
        ("payment.captured", json!({ "payment": payment(json!({ "order_id": "A" })) }), "captured pay_1 5 INR A", "payment.captured:pay_1:7"),
        ("payment.authorized", json!({ "payment": payment(json!([])) }), "authorised pay_1 5 INR -", "payment.authorized:pay_1:7"),
        ("payment.failed", json!({ "payment": payment(json!([])) }), "failed pay_1 5 INR -", "payment.failed:pay_1:7"),
        ("order.paid", json!({ "payment": payment(json!([])), "order": order }), "captured pay_1 5 INR R", "order.paid:order_1:7"),
        ("order.paid", json!({ "order": { "entity": { "id": "order_1" } } }), "unreadable", "order.paid:order_1:7"),
        ("refund.created", back(json!([])), "refund rfnd_1 pending 5 INR of pay_1", "refund.created:rfnd_1:7"),
        (
            "refund.processed",
            back(json!({ "counterfoil_refund": MARK })),
            &format!("refund rfnd_1 pending 5 INR of pay_1 ours {MARK}"),
            "refund.processed:rfnd_1:7",
        ),
        ("payment.dispute.created", dispute("open", "retrieval"), "dispute disp_1 inquiry 5 INR of pay_1", "payment.dispute.created:disp_1:7"),
        ("payment.dispute.created", dispute("open", "chargeback"), "dispute disp_1 opened 5 INR of pay_1", "payment.dispute.created:disp_1:7"),
        ("payment.dispute.won", dispute("won", "chargeback"), "dispute disp_1 won 5 INR of pay_1", "payment.dispute.won:disp_1:7"),
        (
            "payment_link.partially_paid",
            json!({ "payment": payment(json!({ "order_id": "A" })), "payment_link": { "entity": { "id": "plink_1" } } }),
            "captured pay_1 5 INR A",
            "payment_link.partially_paid:plink_1:pay_1:7",
        ),
        (
            "payment_link.expired",
            json!({ "payment_link": { "entity": { "id": "plink_1", "reference_id": "A" } } }),
            "expired plink_1 - A",
            "payment_link.expired:plink_1:7",
        ),
        ("subscription.charged", json!({}), "ignored", ""),
    ];
    for (kind, payload, wanted, id) in table {
        let reading = read(&adapter, &event(kind, payload));
        assert_eq!(said(&reading), wanted, "{kind}");
        assert!(reading.event_id == id || (id.is_empty() && reading.event_id.starts_with("sha256:")), "{kind}: {}", reading.event_id);
        if let Fact::Payment { contact, .. } = reading.fact {
            assert_eq!(contact.email, None, "a placeholder is no address");
        }
    }
}

#[test]
fn squares_states_and_the_tip() {
    let adapter = Square::new(&[Secret::new("s").unwrap()], "https://x.example").unwrap();
    let money = |amount: i64| json!({ "amount": amount, "currency": "USD" });
    let payment = |status: &str| json!({ "id": "sq", "status": status, "reference_id": "A", "amount_money": money(5), "total_money": money(6) });
    let event = |status: &str| json!({ "event_id": "e", "type": "payment.updated", "data": { "object": { "payment": payment(status) } } });
    for (status, news) in
        [("COMPLETED", News::Captured), ("APPROVED", News::Authorised), ("PENDING", News::Pending), ("CANCELED", News::Cancelled), ("FAILED", News::Failed)]
    {
        assert_eq!(said(&read(&adapter, &event(status))), format!("{} sq 6 USD A", format!("{news:?}").to_lowercase()));
    }
    assert_eq!(said(&read(&adapter, &event("NEW"))), "ignored");
    let refund = |status: &str| {
        json!({ "event_id": "e", "type": "refund.updated", "data": { "object": { "refund": {
        "id": "rf", "payment_id": "sq", "status": status, "amount_money": money(3), "reason": format!("counterfoil {MARK}") } } } })
    };
    for (status, wanted) in [("PENDING", "pending"), ("COMPLETED", "succeeded"), ("REJECTED", "failed"), ("FAILED", "failed")] {
        assert_eq!(said(&read(&adapter, &refund(status))), format!("refund rf {wanted} 3 USD of sq ours {MARK}"));
    }
    let dispute = |state: &str| {
        json!({ "event_id": "e", "type": "dispute.state.updated", "data": { "object": { "dispute": {
        "id": "dp", "state": state, "disputed_payment": { "payment_id": "sq" }, "amount_money": money(5) } } } })
    };
    for (state, wanted) in [
        ("INQUIRY_PROCESSING", "inquiry"),
        ("EVIDENCE_REQUIRED", "opened"),
        ("WON", "won"),
        ("LOST", "lost"),
        ("ACCEPTED", "lost"),
        ("INQUIRY_CLOSED", "closed"),
    ] {
        assert_eq!(said(&read(&adapter, &dispute(state))), format!("dispute dp {wanted} 5 USD of sq"));
    }
    assert_eq!(said(&read(&adapter, &json!({ "event_id": "e", "type": "payment.updated", "data": null }))), "unreadable");
}

/// A tip is captured with the rest, and pays no part of the order.
#[test]
fn squares_tip_is_what_the_total_has_beyond_the_amount() {
    let adapter = Square::new(&[Secret::new("s").unwrap()], "https://x.example").unwrap();
    let money = |amount: i64| json!({ "amount": amount, "currency": "USD" });
    let tip = |total: Value| {
        let payment = json!({ "id": "sq", "status": "COMPLETED", "order_id": "sqo_1", "amount_money": money(1099), "total_money": total });
        let reading = read(&adapter, &json!({ "event_id": "e", "type": "payment.updated", "data": { "object": { "payment": payment } } }));
        (said(&reading), details(&reading).tip_minor, details(&reading).checkout.unwrap(), reading.ids)
    };
    let ids = || vec!["sq".to_owned(), "sqo_1".to_owned()];
    assert_eq!(tip(money(1299)), ("captured sq 1299 USD -".into(), 200, "sqo_1".into(), ids()));
    assert_eq!(tip(Value::Null), ("captured sq 1099 USD -".into(), 0, "sqo_1".into(), ids()));
    assert_eq!(tip(json!({ "amount": 1299, "currency": "EUR" })).1, 0, "another currency's total is no tip");
}

/// docs.stripe.com/changelog/basil/2025-03-31: until then the uncaptured rest of an authorisation was told of as a refund.
#[test]
fn what_stripe_released_is_no_refund() {
    let charge = |amount: i64, captured: Value, refunded: i64| {
        json!({ "id": "ch_1", "payment_intent": "pi_1", "amount": amount, "amount_captured": captured,
        "amount_refunded": refunded, "currency": "eur", "captured": captured != json!(0), "metadata": { "order_id": "A" } })
    };
    let event = |version: Value, kind: &str, object: Value| {
        read(&stripe(), &json!({ "id": "evt_1", "type": kind, "api_version": version, "livemode": false, "data": { "object": object } }))
    };
    let (old, new) = (json!("2024-06-20"), json!("2025-03-31.basil"));
    let captured = event(old.clone(), "charge.captured", charge(2000, json!(1099), 901));
    assert_eq!((said(&captured).as_str(), details(&captured).released_minor), ("captured pi_1 1099 EUR A", 901));
    let intent = json!({ "id": "pi_1", "amount": 2000, "amount_received": 1099, "currency": "eur" });
    assert_eq!(details(&event(new.clone(), "payment_intent.succeeded", intent)).released_minor, 901);
    let told = |version: &Value, refunded| said(&event(version.clone(), "charge.refunded", charge(2000, json!(1099), refunded)));
    assert_eq!((told(&old, 901), told(&Value::Null, 901)), ("ignored".into(), "ignored".into()), "only the rest was released");
    assert_eq!((told(&old, 1000), told(&new, 901)), ("reported 99 EUR of pi_1".into(), "reported 901 EUR of pi_1".into()));
    let told = |version: &Value, captured: i64, refunded| said(&event(version.clone(), "charge.refunded", charge(2000, json!(captured), refunded)));
    assert_eq!((told(&new, 500, 1600), told(&old, 500, 400)), ("reported 100 EUR of pi_1".into(), "reported 400 EUR of pi_1".into()), "the figures tell");
    assert_eq!(said(&event(old.clone(), "charge.refunded", charge(1099, json!(0), 1099))), "cancelled pi_1 1099 EUR A", "a void");
    let expired =
        json!({ "id": "re_1", "payment_intent": "pi_1", "amount": 901, "currency": "eur", "status": "succeeded", "reason": "expired_uncaptured_charge" });
    assert_eq!(said(&event(old.clone(), "charge.refund.updated", expired)), "expired pi_1 901 EUR -");
    let refund = json!({ "id": "re_1", "payment_intent": "pi_1", "amount": 901, "currency": "eur", "status": "succeeded" });
    let marked =
        json!({ "id": "re_1", "payment_intent": "pi_1", "amount": 901, "currency": "eur", "status": "succeeded", "metadata": { "counterfoil_refund": MARK } });
    let may_be = |version: &Value, object: &Value| {
        matches!(event(version.clone(), "charge.refund.updated", object.clone()).fact, Fact::Refund { may_be_release: true, .. })
    };
    assert_eq!((may_be(&old, &refund), may_be(&new, &refund), may_be(&old, &marked)), (true, false, false));
}

/// A session knows its price, not what was captured; one of a subscription has no payment of its own.
#[test]
fn stripes_sessions_tell_their_price_and_subscriptions_are_not_supported() {
    let session = |intent: Value, mode: &str, amount: i64| {
        json!({ "id": "cs_1", "mode": mode, "payment_intent": intent, "amount_total": amount, "currency": "eur",
        "payment_status": "paid", "client_reference_id": 1_042_074_810_u64, "invoice": "in_1" })
    };
    let reading =
        |object: Value| read(&stripe(), &json!({ "id": "evt_1", "type": "checkout.session.completed", "livemode": false, "data": { "object": object } }));
    let paid = reading(session(json!("pi_1"), "payment", 5));
    assert_eq!((said(&paid).as_str(), details(&paid).by_price, details(&paid).checkout.as_deref()), ("captured pi_1 5 EUR 1042074810", true, Some("cs_1")));
    assert_eq!(paid.ids, ["cs_1", "pi_1", "in_1", "1042074810"]);
    assert_eq!(said(&reading(session(Value::Null, "subscription", 5))), "unsupported cs_1");
    assert_eq!(said(&reading(session(Value::Null, "payment", 0))), "captured cs_1 0 EUR 1042074810", "a coupon of 100 %");
}

/// Whether money was taken is what `captured` says, not the status nor the type.
#[test]
fn razorpay_money_that_was_never_captured_pays_nothing_and_its_refund_is_none() {
    let adapter = Razorpay::new(&[Secret::new("s").unwrap()]);
    let payment = |status: &str, captured: bool| json!({ "entity": { "id": "pay_1", "order_id": "order_1", "amount": 5, "currency": "INR", "status": status, "captured": captured, "notes": { "order_id": 1_042_074_810_u64 } } });
    let says = |kind: &str, payload: Value| said(&read(&adapter, &json!({ "event": kind, "created_at": 7, "payload": payload })));
    let refund = json!({ "entity": { "id": "rfnd_1", "payment_id": "pay_1", "amount": 5, "currency": "INR", "status": "processed", "notes": [] } });
    for (kind, status, captured, wanted) in [
        ("payment.captured", "captured", true, "captured pay_1 5 INR 1042074810"),
        ("payment.captured", "authorized", false, "authorised pay_1 5 INR 1042074810"),
        ("order.paid", "refunded", false, "cancelled pay_1 5 INR 1042074810"),
        ("invoice.partially_paid", "captured", true, "captured pay_1 5 INR 1042074810"),
        ("payment.failed", "failed", false, "failed pay_1 5 INR 1042074810"),
    ] {
        assert_eq!(says(kind, json!({ "payment": payment(status, captured) })), wanted, "{kind} {status}");
    }
    assert_eq!(says("refund.processed", json!({ "refund": refund, "payment": payment("refunded", false) })), "cancelled pay_1 5 INR 1042074810");
    assert_eq!(says("refund.processed", json!({ "refund": refund, "payment": payment("refunded", true) })), "refund rfnd_1 succeeded 5 INR of pay_1");
}

/// docs/disputes.md has the table: each end that a provider documents ends it here, with the money where the provider left it.
#[test]
fn every_documented_state_of_a_dispute_has_its_meaning() {
    let razorpay = Razorpay::new(&[Secret::new("s").unwrap()]);
    let says = |phase: &str, status: &str, deducted: i64| {
        let dispute =
            json!({ "id": "d", "payment_id": "pay_1", "amount": 10, "amount_deducted": deducted, "currency": "INR", "phase": phase, "status": status });
        said(&read(&razorpay, &json!({ "event": "payment.dispute.action_required", "created_at": 7, "payload": { "dispute": { "entity": dispute } } })))
    };
    for (phase, status, deducted, wanted) in [
        ("fraud", "open", 0, "inquiry 10"),
        ("fraud", "under_review", 0, "inquiry 10"),
        ("fraud", "closed", 0, "withdrawn 10"),
        ("retrieval", "open", 0, "inquiry 10"),
        ("retrieval", "open", 10, "opened 10"),
        ("chargeback", "open", 0, "opened 10"),
        ("chargeback", "closed", 0, "withdrawn 10"),
        ("pre_arbitration", "under_review", 0, "opened 10"),
        ("arbitration", "won", 0, "won 10"),
        ("chargeback", "won", 1, "lost 1"),
        ("chargeback", "lost", 0, "lost 10"),
    ] {
        assert_eq!(says(phase, status, deducted), format!("dispute d {wanted} INR of pay_1"), "{phase} {status}");
    }
    let square = Square::new(&[Secret::new("s").unwrap()], "https://x.example").unwrap();
    let says = |state: &str| {
        let dispute = json!({ "id": "d", "state": state, "disputed_payment": { "payment_id": "sq" }, "amount_money": { "amount": 10, "currency": "USD" } });
        said(&read(&square, &json!({ "event_id": "e", "type": "dispute.state.updated", "data": { "object": { "dispute": dispute } } })))
    };
    assert_eq!((says("WAITING_THIRD_PARTY").as_str(), says("UNKNOWN_STATE").as_str()), ("dispute d opened 10 USD of sq", "unreadable"));
}

/// Two parts of one link are paid within a second: two events.
#[test]
fn razorpays_ids_of_parts_name_their_payments() {
    let adapter = Razorpay::new(&[Secret::new("s").unwrap()]);
    let id = |kind: &str, of: &str, payment: &str| {
        let payload = json!({ of: { "entity": { "id": "x_1" } }, "payment": { "entity": { "id": payment, "amount": 5, "currency": "INR" } } });
        read(&adapter, &json!({ "event": kind, "created_at": 7, "payload": payload })).event_id
    };
    for (kind, of) in [("payment_link.partially_paid", "payment_link"), ("invoice.partially_paid", "invoice")] {
        assert_eq!(id(kind, of, "pay_1"), format!("{kind}:x_1:pay_1:7"));
        assert_ne!(id(kind, of, "pay_1"), id(kind, of, "pay_2"));
    }
}

/// What we do not read cannot harm, keys included.
#[test]
fn half_a_surrogate_pair_in_a_key_that_nobody_reads_loses_no_paid_event() {
    let paid = "captured pi 5 EUR A";
    for fields in [r#""amount_received":5,"metadata":{"k\ud800":"x","order_id":"A"}"#, r#""amount_received":5,"\udc00":1,"metadata":{"order_id":"A"}"#] {
        assert_eq!(bytes_say(event_with(fields).as_bytes()), paid);
    }
}

#[test]
fn standard_webhooks_bodies() {
    let adapter = Standard::new(&[Secret::new("whsec_c2VjcmV0").unwrap()]).unwrap();
    let headers: HeaderMap = [(http::HeaderName::from_static("webhook-id"), "msg_1".parse().unwrap())].into_iter().collect();
    let says = |data: &Value| said(&adapter.read(&headers, json!({ "type": "t", "data": data }).to_string().as_bytes(), Mode::Test));
    let mut data =
        json!({ "order": "A", "payment_id": "p", "amount_minor": 5, "currency": "EUR", "status": "", "livemode": false, "refund_id": "r", "dispute_id": "d" });
    for (status, wanted) in [
        ("captured", "captured p 5 EUR A"),
        ("pending", "pending p 5 EUR A"),
        ("failed", "failed p 5 EUR A"),
        ("failed_final", "failedfinal p 5 EUR A"),
        ("odd", "ignored"),
        ("refund_pending", "refund r pending 5 EUR of p"),
        ("refunded", "refund r succeeded 5 EUR of p"),
        ("refund_failed", "refund r failed 5 EUR of p"),
        ("disputed", "dispute d opened 5 EUR of p"),
        ("dispute_lost", "dispute d lost 5 EUR of p"),
        ("dispute_won", "dispute d won 5 EUR of p"),
    ] {
        data["status"] = json!(status);
        assert_eq!(says(&data), wanted);
    }
    data["status"] = json!("captured");
    data["livemode"] = Value::Null;
    assert_eq!(says(&data), "ignored", "it states no mode");
    data["livemode"] = json!(false);
    data["amount_minor"] = Value::Null;
    assert_eq!(says(&data), "unreadable");
    assert_eq!(adapter.read(&headers, b"x", Mode::Test).event_id, "msg_1");
}

#[test]
fn real_payloads_of_the_shared_fixtures_are_read() {
    let shared = std::env::var("COUNTERFOIL_TEST_SHARED").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
    let secret = [Secret::new("s").unwrap()];
    let (stripe, razorpay, square) = (stripe(), Razorpay::new(&secret), Square::new(&secret, "https://x.example").unwrap());
    let table: [(&dyn Adapter, &str, &str); 9] = [
        (&stripe, "stripe/checkout.session.completed.json", "captured"),
        (&stripe, "stripe/payment_intent.succeeded.json", "captured"),
        (&stripe, "stripe/charge.refunded.partial.json", "reported"),
        (&stripe, "stripe/charge.dispute.created.legacy_request_string.json", "dispute"),
        (&razorpay, "razorpay/payment.authorized.signed.json", "authorised"),
        (&razorpay, "razorpay/order.paid.json", "captured"),
        (&razorpay, "razorpay/refund.processed.json", "refund"),
        (&square, "square/payment.updated.json", ""),
        (&square, "square/dispute.created.json", "dispute"),
    ];
    let mut run = 0;
    for (adapter, path, wanted) in table {
        let Ok(body) = std::fs::read(format!("{shared}/fixtures/{path}")) else { continue };
        let modes = [Mode::Test, Mode::Live].map(|mode| said(&adapter.read(&HeaderMap::new(), &body, mode)));
        assert!(modes.iter().any(|said| said.starts_with(wanted)) && !modes.contains(&"unreadable".to_owned()), "{path}: {modes:?}");
        run += 1;
    }
    println!("{run} shared fixtures were read");
}
