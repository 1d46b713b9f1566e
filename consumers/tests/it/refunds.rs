//! Refunds against simulated providers, over real HTTP.

use std::time::Duration;

use counterfoil_tests::simulator::{Fault, Payment};
use counterfoil_tests::{event, until};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Bench, refund_event};

const PROVIDERS: [&str; 3] = ["stripe", "razorpay", "square"];

/// An order with a refund of it asked for; the event, and the refund's id.
async fn asked(bench: &Bench, provider: &str) -> (Value, Uuid) {
    let order = Uuid::new_v4();
    bench.insert_order(order, "ann@example.com").await;
    let id = bench.insert_refund(provider, order, 1099).await;
    (refund_event(order, id, provider), id)
}

async fn field(bench: &Bench, id: Uuid, column: &str) -> String {
    let text = format!("SELECT COALESCE({column}::text, '') FROM refunds WHERE id = '{id}'");
    sqlx::query_scalar(sqlx::AssertSqlSafe(text)).fetch_one(&bench.stage.pool()).await.unwrap()
}

#[tokio::test]
async fn a_refund_whose_answer_is_lost_is_looked_for_first_and_made_once_even_when_its_provider_has_forgotten_the_key() {
    let bench = Bench::of("refunds").await;
    let _consumer = bench.start().ready().await;
    for provider in PROVIDERS {
        for fault in [Fault::DropAfter, Fault::AnswerAfter(500), Fault::AnswerAfter(502)] {
            let (event, id) = asked(&bench, provider).await;
            bench.simulator.next([fault.clone()]);
            bench.stage.put_events("refunds", std::slice::from_ref(&event)).await;
            until("the first call was made", 20, true, async || bench.simulator.refunds().iter().any(|refund| refund.mark == id.to_string())).await;
            bench.simulator.forget_keys(); // as after a day
            bench.done(&event).await;
            assert_eq!(bench.effects(&event, "").await, 1, "{provider} {fault:?}");
            assert_eq!(field(&bench, id, "status").await, "succeeded", "{provider} {fault:?}");
        }
    }
}

#[tokio::test]
async fn every_attempt_carries_the_same_key_derived_from_the_action_and_two_intended_refunds_of_equal_amount_both_happen() {
    let bench = Bench::of("refunds").await;
    let _consumer = bench.start().ready().await;
    for provider in PROVIDERS {
        let order = Uuid::new_v4();
        bench.insert_order(order, "ann@example.com").await;
        let ids = [bench.insert_refund(provider, order, 300).await, bench.insert_refund(provider, order, 300).await];
        let events = ids.map(|id| refund_event(order, id, provider));
        bench.simulator.next([Fault::Refuse(409), Fault::Refuse(500)]);
        bench.stage.put_events("refunds", &events).await;
        for (event, id) in events.iter().zip(ids) {
            bench.done(event).await;
            let made: Vec<_> = bench.simulator.refunds().into_iter().filter(|refund| refund.mark == id.to_string()).collect();
            assert_eq!((made.len(), made[0].amount), (1, 300), "{provider}");
            let key = made[0].key.replace('_', ":");
            assert_eq!(key, format!("refund:{id}"), "{provider}");
        }
    }
}

#[tokio::test]
async fn a_rate_limit_is_an_outage_that_uses_up_no_attempt_and_a_refusal_is_refund_failed_once() {
    let bench = Bench::of("refunds").await;
    let _consumer = bench.start().ready().await;
    let (event, id) = asked(&bench, "stripe").await;
    bench.simulator.next([Fault::Refuse(429), Fault::Refuse(429)]);
    bench.stage.put_events("refunds", std::slice::from_ref(&event)).await;
    bench.done(&event).await;
    assert_eq!((bench.effects(&event, "").await, field(&bench, id, "status").await), (1, "succeeded".into()));
    let attempts: i32 = sqlx::query_scalar("SELECT attempts FROM processed_events").fetch_one(&bench.stage.pool()).await.unwrap();
    assert_eq!(attempts, 1, "however long it lasts, an outage does not use up the calls that are allowed");
    // The whole amount has gone back already: the provider refuses the second.
    let order: Uuid = event["subject"].as_str().unwrap().parse().unwrap();
    let second = bench.insert_refund("stripe", order, 1).await;
    let refused = refund_event(order, second, "stripe");
    bench.stage.put_events("refunds", std::slice::from_ref(&refused)).await;
    bench.done(&refused).await;
    assert_eq!(field(&bench, second, "status").await, "failed");
    assert!(field(&bench, second, "last_error").await.contains("nothing is left"), "known here, before the provider is asked");
    assert_eq!(bench.stage.count("SELECT count(*) FROM outbox WHERE topic = 'refund.failed'").await, 1);
    assert!(bench.stage.take_all(&bench.dead_queue()).await.is_empty());
}

#[tokio::test]
async fn a_consumer_killed_between_the_providers_answer_and_its_record_refunds_once_at_each_provider() {
    for provider in PROVIDERS {
        for point in ["refund.before_call", "refund.after_call"] {
            let bench = Bench::of("refunds").await;
            let (event, id) = asked(&bench, provider).await;
            bench.stage.put_events("refunds", std::slice::from_ref(&event)).await;
            assert_eq!(bench.start_dying_at(point).ended().await, None);
            bench.stage.execute("UPDATE processed_events SET lease_until = now() WHERE state = 'claimed'").await;
            bench.simulator.forget_keys();
            let _healthy = bench.start();
            bench.done(&event).await;
            assert_eq!((bench.effects(&event, "").await, field(&bench, id, "status").await), (1, "succeeded".into()), "{provider} {point}");
        }
    }
}

#[tokio::test]
async fn a_refund_in_flight_elsewhere_waits_and_without_a_key_it_is_held_and_visible() {
    let bench = Bench::of("refunds").await;
    let consumer = bench.fleet().consumer("refunds").ready().await;
    let (event, id) = asked(&bench, "stripe").await;
    bench.simulator.next([Fault::Hold(Duration::from_millis(1500))]);
    bench.stage.put_events("refunds", &[event.clone(), event.clone()]).await;
    bench.done(&event).await;
    bench.drained().await;
    assert_eq!((bench.effects(&event, "").await, field(&bench, id, "status").await), (1, "succeeded".into()));
    drop(consumer);
    let mut fleet = bench.fleet();
    fleet.without = vec!["COUNTERFOIL_STRIPE_API_KEY"];
    let _keyless = fleet.consumer("refunds").ready().await;
    let (event, id) = asked(&bench, "stripe").await;
    bench.stage.put_events("refunds", std::slice::from_ref(&event)).await;
    bench.done(&event).await;
    assert_eq!((bench.effects(&event, "").await, field(&bench, id, "status").await), (0, "requested".into()));
    assert!(field(&bench, id, "held_reason").await.contains("COUNTERFOIL_STRIPE_API_KEY"));
    let (_, seen) = bench.fleet().counterfoil(&["attention"]).await;
    assert!(seen.contains(&id.to_string()) && seen.contains("COUNTERFOIL_STRIPE_API_KEY"), "{seen}");
}

/// A paid order with a second captured payment, and the event that says so.
async fn twice_paid(bench: &Bench) -> (Uuid, Value) {
    let order = Uuid::new_v4();
    bench.insert_order(order, "ann@example.com").await;
    for (payment, disposition, settled) in [("first", "settled", 1099), ("second", "extra", 0)] {
        let id = format!("pi_{payment}_{order}");
        bench.simulator.captured("stripe", &id, &order.to_string(), 1099);
        sqlx::query("INSERT INTO payments (provider, payment_id, order_id, status, disposition, settled_minor, amount_minor, currency, booked_captured_minor, booked_settled_minor) VALUES ('stripe', $1, $2, 'captured', $3, $4, 1099, 'EUR', 1099, $4)")
            .bind(id).bind(order).bind(disposition).bind(settled).execute(&bench.stage.pool()).await.unwrap();
    }
    (order, aside("payment.extra", order, &format!("pi_second_{order}"), "already_paid"))
}

fn aside(topic: &str, order: Uuid, payment: &str, reason: &str) -> Value {
    event(
        topic,
        order,
        &json!({ "order_id": order, "version": 3, "reason": reason,
        "payment": { "provider": "stripe", "account": "", "payment_id": payment, "amount_minor": 1099, "currency": "EUR", "settled_minor": 0 } }),
    )
}

#[tokio::test]
async fn an_extra_payment_goes_back_only_after_both_were_read_and_found_captured_distinct_whole_and_of_this_order() {
    let bench = Bench::of("refunds").await;
    let _consumer = bench.start().ready().await;
    type Spoil = fn(&Bench, Uuid);
    let table: [(&str, Spoil, &str); 7] = [
        ("all is well", |_, _| {}, ""),
        ("the first is not captured", |bench, order| spoil(bench, order, "first", |payment| payment.status = "authorised".into()), "not captured"),
        ("the second is not captured", |bench, order| spoil(bench, order, "second", |payment| payment.status = "failed".into()), "not captured"),
        ("the first is another order's", |bench, order| spoil(bench, order, "first", |payment| payment.order = Some("other".into())), "not say that"),
        ("the second names none", |bench, order| spoil(bench, order, "second", |payment| payment.order = None), "not say that"),
        ("the first is about to go back", |_, _| {}, "is under way"),
        ("the first went back", |bench, order| drop(bench.simulator.refund_by_hand("stripe", &format!("pi_first_{order}"), 5)), "gone back already"),
    ];
    for (what, spoil, held) in table {
        let (order, event) = twice_paid(&bench).await;
        spoil(&bench, order);
        if held == "is under way" {
            let row = format!(
                "INSERT INTO refunds (id, order_id, provider, account, payment_id, origin, status, amount_minor, currency, provider_key)
                VALUES (gen_random_uuid(), '{order}', 'stripe', '', 'pi_first_{order}', 'api', 'requested', 5, 'EUR', 'k{order}')"
            );
            bench.stage.execute(&row).await;
        }
        bench.stage.put_events("refunds", &[event.clone(), event.clone()]).await;
        bench.done(&event).await;
        let made: Vec<_> = bench.simulator.refunds().into_iter().filter(|refund| refund.payment == format!("pi_second_{order}")).collect();
        let reason: Option<String> = sqlx::query_scalar("SELECT hold_note FROM payments WHERE payment_id = $1")
            .bind(format!("pi_second_{order}"))
            .fetch_one(&bench.stage.pool())
            .await
            .unwrap();
        if held.is_empty() {
            assert_eq!((made.len(), made[0].amount), (1, 1099), "{what}");
            assert_eq!(made[0].key, format!("refund:extra_capture:pi_second_{order}"));
        } else {
            assert!(made.is_empty(), "{what}");
            assert!(reason.is_some_and(|reason| reason.contains(held)), "{what}");
        }
    }
}

fn spoil(bench: &Bench, order: Uuid, which: &str, how: fn(&mut Payment)) {
    let order_name = Some(order.to_string());
    let mut payment = Payment {
        provider: "stripe".into(),
        id: format!("pi_{which}_{order}"),
        amount: 1099,
        currency: "EUR".into(),
        order: order_name,
        status: "captured".into(),
        session: None,
        authorised: 0,
        tip: 0,
    };
    how(&mut payment);
    bench.simulator.put(payment);
}

#[tokio::test]
async fn money_that_does_not_fit_goes_back_or_is_held_as_its_policy_says_and_a_claim_by_two_orders_is_always_held() {
    for policy in ["refund", "hold"] {
        let bench = Bench::of("refunds").await;
        let fleet = bench.fleet().with("COUNTERFOIL_POLICY_EXTRA", policy).with("COUNTERFOIL_POLICY_LATE", policy).with("COUNTERFOIL_POLICY_MISMATCH", policy);
        let _consumer = fleet.consumer("refunds").ready().await;
        for reason in ["already_paid", "order_cancelled", "order_expired", "amount_differs", "currency_differs", "claimed_by_other_order"] {
            let (order, extra) = twice_paid(&bench).await;
            let held = aside("payment.held", order, &format!("pi_second_{order}"), reason);
            let event = if reason == "already_paid" { extra } else { held };
            bench.stage.put_events("refunds", std::slice::from_ref(&event)).await;
            bench.done(&event).await;
            let made = bench.simulator.refunds().iter().filter(|refund| refund.payment == format!("pi_second_{order}")).count();
            assert_eq!(made, usize::from(policy == "refund" && reason != "claimed_by_other_order"), "{policy} {reason}");
        }
    }
}

/// Housekeeping's step, an hour later; the event that asks again.
async fn asked_again(bench: &Bench, id: Uuid) -> Value {
    bench.stage.execute("UPDATE refunds SET created_at = now() - interval '1 day', next_resumption_at = now()").await;
    let pool = bench.stage.pool();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(counterfoil_settlement::housekeeping::resume_refunds(&mut tx, 10).await.unwrap(), 1);
    tx.commit().await.unwrap();
    let (event_id, order, data): (Uuid, Uuid, Value) =
        sqlx::query_as("SELECT event_id, order_id, payload FROM outbox WHERE topic = 'refund.requested' ORDER BY id DESC LIMIT 1")
            .fetch_one(&pool)
            .await
            .unwrap();
    let mut again = event("refund.requested", order, &data);
    again["id"] = json!(event_id);
    assert_eq!(again["data"]["refund"]["id"], json!(id));
    again
}

#[tokio::test]
async fn a_dispute_between_request_and_call_holds_the_refund_and_it_goes_out_once_when_the_dispute_is_won() {
    let bench = Bench::of("refunds").await;
    let (event, id) = asked(&bench, "stripe").await;
    let order = event["subject"].as_str().unwrap();
    let insert = format!(
        "INSERT INTO disputes (provider, account, dispute_id, order_id, payment_id, status, amount_minor, currency) VALUES ('stripe', '', 'dp_1', '{order}', 'pi_{order}', 'opened', 1099, 'EUR')"
    );
    bench.stage.execute(&insert).await;
    let _consumer = bench.start().ready().await;
    bench.stage.put_events("refunds", std::slice::from_ref(&event)).await;
    bench.done(&event).await;
    assert_eq!((bench.simulator.refund_calls(), field(&bench, id, "status").await), (0, "requested".into()));
    assert!(field(&bench, id, "held_reason").await.contains("disputed"));
    bench.stage.execute("UPDATE disputes SET status = 'won'").await;
    let again = asked_again(&bench, id).await;
    bench.stage.put_events("refunds", &[again.clone(), again.clone()]).await;
    bench.done(&again).await;
    assert_eq!((bench.effects(&event, "").await, field(&bench, id, "status").await), (1, "succeeded".into()));
}

#[tokio::test]
async fn a_key_that_may_not_do_it_holds_its_own_refund_alone_and_a_refusal_after_an_unknown_call_is_not_taken_at_its_word() {
    let bench = Bench::of("refunds").await;
    let _consumer = bench.start().ready().await;
    let (denied, id) = asked(&bench, "stripe").await;
    bench.simulator.next([Fault::Refuse(403)]);
    bench.stage.put_events("refunds", std::slice::from_ref(&denied)).await;
    bench.done(&denied).await;
    assert_eq!(field(&bench, id, "status").await, "requested");
    assert!(field(&bench, id, "held_reason").await.contains("403"));
    let (other, _) = asked(&bench, "razorpay").await;
    bench.stage.put_events("refunds", std::slice::from_ref(&other)).await;
    bench.done(&other).await;
    assert_eq!(bench.effects(&other, "").await, 1, "no other refund waits for it");
    let again = asked_again(&bench, id).await;
    bench.stage.put_events("refunds", std::slice::from_ref(&again)).await;
    bench.done(&again).await;
    assert_eq!(bench.effects(&denied, "").await, 1, "the key was mended");
    let (unsure, id) = asked(&bench, "stripe").await;
    bench.simulator.next([Fault::Refuse(500), Fault::Refuse(400)]);
    bench.stage.put_events("refunds", std::slice::from_ref(&unsure)).await;
    bench.done(&unsure).await;
    assert_eq!(field(&bench, id, "status").await, "requested");
    assert!(field(&bench, id, "held_reason").await.contains("unknown"));
}

/// An order whose captured payment is here and at the provider, and the event that says that some of its tickets are others'.
async fn unfulfilled(bench: &Bench, amount_minor: Option<i64>) -> (Uuid, Value) {
    let order = Uuid::new_v4();
    bench.insert_order(order, "ann@example.com").await;
    bench.insert_refund("stripe", order, 1).await; // makes the payment, too
    bench.stage.execute(&format!("DELETE FROM refunds WHERE order_id = '{order}'")).await;
    let data = json!({ "order_id": order, "version": 2, "reference": format!("ref-{order}"), "customer": { "email": null, "name": null, "phone": null },
        "payment": { "provider": "stripe", "account": "", "payment_id": format!("pi_{order}") }, "amount_minor": amount_minor, "currency": "EUR",
        "lines": [{ "line": 0, "draw_id": order, "quantity": 1, "amount_minor": 600 }] });
    (order, event("tickets.unavailable", order, &data))
}

#[tokio::test]
async fn money_for_tickets_that_are_not_there_goes_back_once_as_the_policy_says_and_never_on_top_of_a_refund_that_we_do_not_know() {
    let bench = Bench::of("refunds").await;
    let refunds = async |order: Uuid| {
        let text = format!(
            "SELECT COALESCE(string_agg(origin || ' ' || status || ' ' || amount_minor || COALESCE(' ' || held_reason, ''), ', '), '') FROM refunds WHERE order_id = '{order}'"
        );
        sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(text)).fetch_one(&bench.stage.pool()).await.unwrap()
    };
    let ((part, one), (whole, two), (by_hand, three)) =
        (unfulfilled(&bench, Some(600)).await, unfulfilled(&bench, None).await, unfulfilled(&bench, Some(600)).await);
    bench.simulator.refund_by_hand("stripe", &format!("pi_{by_hand}"), 600);
    {
        let _consumer = bench.start().ready().await;
        bench.stage.put_events("refunds", &[one.clone(), one.clone(), two.clone(), three.clone()]).await;
        for event in [&one, &two, &three] {
            bench.done(event).await;
        }
        bench.drained().await;
    }
    assert_eq!(refunds(part).await, "sold_out succeeded 600");
    assert_eq!(refunds(whole).await, "sold_out succeeded 1099");
    assert_eq!(refunds(by_hand).await, "", "the provider knows of more than we do: a person decides");
    assert_eq!(bench.simulator.refunds().len(), 3);
    let ((hold, four), (keyless, five)) = (unfulfilled(&bench, None).await, unfulfilled(&bench, None).await);
    {
        let _consumer = bench.fleet().with("COUNTERFOIL_POLICY_SOLD_OUT", "hold").consumer("refunds").ready().await;
        bench.stage.put_events("refunds", std::slice::from_ref(&four)).await;
        bench.done(&four).await;
    }
    assert_eq!(refunds(hold).await, "");
    let mut fleet = bench.fleet();
    fleet.without.push("COUNTERFOIL_STRIPE_API_KEY");
    let _consumer = fleet.consumer("refunds").ready().await;
    bench.stage.put_events("refunds", std::slice::from_ref(&five)).await;
    bench.done(&five).await;
    assert!(refunds(keyless).await.starts_with("sold_out requested 1099 no API key"), "held, and asked for again once there is a key");
}
