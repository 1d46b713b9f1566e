//! `counterfoil ledger`, and the real hledger and beancount.

use std::process::Command;

use counterfoil_tests::{Fleet, Stage, stripe_event, until};
use serde_json::{Value, json};

/// Orders in currencies of every exponent, with refunds and disputes, booked by the real consumer.
async fn books() -> (Stage, Fleet) {
    let stage = Stage::new().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let _fleet = (fleet.relay().ready().await, fleet.consumer("ledger").ready().await);
    for (n, (currency, amount)) in [("EUR", 1099), ("JPY", 1000), ("KWD", 1234), ("CLF", 12_345)].into_iter().enumerate() {
        let body =
            json!({ "reference": format!("A-{n}"), "amount_minor": amount, "currency": currency, "customer": { "email": "ann@example.com", "name": "Ann" } });
        assert_eq!(shop.post_order(&body, None).await.status(), 201);
        let of = |more: Value| {
            let mut more = more;
            more["currency"] = json!(currency.to_lowercase());
            more
        };
        let (order, pi) = (format!("A-{n}"), format!("pi_{n}\"x\\"));
        shop.stripe(&stripe_event("payment_intent.succeeded", &order, &pi, &of(json!({ "amount_received": amount })))).await;
        shop.stripe(&stripe_event("payment_intent.succeeded", &order, &format!("pi_extra_{n}"), &of(json!({ "amount_received": amount })))).await;
        let refund = json!({ "id": format!("re_{n}"), "payment_intent": pi, "amount": 9, "metadata": {} });
        for status in ["pending", "succeeded"] {
            let mut refund = refund.clone();
            refund["status"] = json!(status);
            shop.stripe(&stripe_event("refund.updated", &order, &pi, &of(refund))).await;
        }
        for status in ["needs_response", "lost", "won"] {
            let dispute = json!({ "id": format!("dp_{n}"), "payment_intent": pi, "amount": 7, "status": status, "metadata": {} });
            assert_eq!(shop.stripe(&stripe_event("charge.dispute.updated", &order, &pi, &of(dispute))).await.1, "applied");
        }
    }
    until("all is booked", 60, 4 * 7, async || stage.count("SELECT count(*) FROM ledger_entries").await).await;
    (stage, fleet)
}

#[tokio::test]
async fn the_export_is_accepted_by_the_real_hledger_and_bean_check_in_every_currency_with_its_exponent() {
    let (stage, fleet) = books().await;
    let root = counterfoil_tests::stage::root();
    let bean_check = root.join(".local/beancount/bin/bean-check");
    for (format, program, before) in [("hledger", "hledger".to_owned(), vec!["check", "-f"]), ("beancount", bean_check.to_str().unwrap().to_owned(), vec![])] {
        let (code, text) = fleet.counterfoil(&["ledger", "export", "--format", format]).await;
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("10.99 EUR") && text.contains("1000 JPY") && text.contains("1.234 KWD") && text.contains("1.2345 CLF"), "{text}");
        let path = root.join(format!(".local/test-log/books-{}.{format}", std::process::id()));
        std::fs::write(&path, &text).unwrap();
        let out = Command::new(&program)
            .args(before)
            .arg(&path)
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}; deploy/local/services accounting brings it"));
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && said.trim().is_empty(), "{format}: {said}\n{text}");
    }
    let balance: i64 = sqlx::query_scalar("SELECT sum(amount_minor)::bigint FROM ledger_lines WHERE account = 'assets:receivable:stripe' AND currency = 'EUR'")
        .fetch_one(&stage.pool())
        .await
        .unwrap();
    let out = Command::new("hledger")
        .args(["balance", "-f"])
        .arg(root.join(format!(".local/test-log/books-{}.hledger", std::process::id())))
        .args(["assets:receivable:stripe", "cur:EUR"])
        .output()
        .unwrap();
    assert_eq!(balance, 2 * 1099 - 9);
    assert!(String::from_utf8_lossy(&out.stdout).contains("21.89 EUR"), "hledger comes to the same: {}", String::from_utf8_lossy(&out.stdout));
}

#[tokio::test]
async fn the_check_of_books_against_payments_passes_when_they_agree_and_names_the_order_when_they_do_not() {
    let (stage, fleet) = books().await;
    let (code, said) = fleet.counterfoil(&["ledger", "check", "--settled-s", "0"]).await;
    assert_eq!(code, Some(0), "{said}");
    stage.execute("INSERT INTO payments (provider, payment_id, order_id, status, disposition, held_reason, amount_minor, currency) SELECT 'stripe', 'pi_unbooked', id, 'captured', 'held', 'x', 5, 'EUR' FROM orders WHERE reference = 'A-0'").await;
    let (code, said) = fleet.counterfoil(&["ledger", "check", "--settled-s", "0"]).await;
    let order: uuid::Uuid = sqlx::query_scalar("SELECT id FROM orders WHERE reference = 'A-0'").fetch_one(&stage.pool()).await.unwrap();
    assert!(code == Some(1) && said.contains(&order.to_string()) && said.contains("expected 21.94 EUR, booked 21.89 EUR"), "{said}");
}
