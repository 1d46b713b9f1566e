//! What settlement writes has the shape of the golden files of docs/events.md.

use counterfoil_payments::{Contact, DisputeStatus, Fact, News, OrderId, OrderKey, RefundStatus, Topic};
use counterfoil_settlement::{Delivery, NewRefund, request_refund};
use counterfoil_tests::Stage;
use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{delivery, dispute, named, news, order, outcomes, refund};

/// Names of all fields, with their paths; of a list, those of its first item.
fn shape(value: &Value, path: &str, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| shape(value, &format!("{path}.{name}"), into)),
        Value::Array(items) => items.iter().take(1).for_each(|item| shape(item, &format!("{path}[]"), into)),
        _ => into.push(path.to_owned()),
    }
}

async fn written(pool: &PgPool, topic: &str) -> Value {
    sqlx::query_scalar("SELECT payload FROM outbox WHERE topic = $1").bind(topic).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn every_payload_that_settlement_writes_has_exactly_the_fields_of_its_golden_file() {
    let pool = Stage::with_schema().await.pool();
    let bare: Uuid = sqlx::query_scalar("INSERT INTO orders (reference, amount_minor, currency, lines) VALUES ('bare', 1099, 'EUR', '[{\"description\": \"Tea\", \"quantity\": 1, \"amount_minor\": 1099}]') RETURNING id").fetch_one(&pool).await.unwrap();
    let late = match news(News::Captured, bare, "pi_1") {
        Delivery { fact: Fact::Payment { news, payment, order, money, details, .. }, .. } => {
            let contact = Contact { email: Some("late@example.com".into()), ..Contact::default() };
            Delivery { fact: Fact::Payment { news, payment, order, money, details, contact, remark: None }, ..self::news(News::Captured, bare, "pi_1") }
        }
        other => other,
    };
    let wrong = delivery(News::Captured, Some(OrderKey::Id(OrderId(order(&pool).await))), "pi_3", 1, "EUR");
    outcomes(&pool, &[news(News::Captured, bare, "pi_1"), late, news(News::Captured, bare, "pi_2"), wrong]).await;
    let (back, won) = (refund("pi_1", "re_1", RefundStatus::Succeeded, 99), refund("pi_1", "re_1", RefundStatus::Failed, 99));
    outcomes(&pool, &[back, won, dispute("pi_1", "dp_1", DisputeStatus::Opened, 5)]).await;
    let mut tx = pool.begin().await.unwrap();
    let new = NewRefund {
        id: Uuid::new_v4(),
        order_id: bare,
        payment: named("pi_2"),
        amount_minor: Some(1),
        origin: "api",
        reason: None,
        provider_key: "k".into(),
        made_by: None,
    };
    request_refund(&mut tx, &new, None).await.unwrap();
    tx.commit().await.unwrap();
    for topic in Topic::ALL.map(Topic::name).into_iter().filter(|topic| !topic.starts_with("tickets.")) {
        let file = std::fs::read(format!("{}/../payments/tests/golden/{topic}.json", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let file: Value = serde_json::from_slice(&file).unwrap();
        let (mut golden, mut ours) = (Vec::new(), Vec::new());
        shape(&file["data"], topic, &mut golden);
        shape(&written(&pool, topic).await, topic, &mut ours);
        golden.sort();
        ours.sort();
        assert_eq!(ours, golden);
    }
}
