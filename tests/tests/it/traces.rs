//! One trace, from the webhook's request to each effect, exported by the standard variables.

use counterfoil_tests::{CrmStub, Fleet, SmtpStub, Stage, stripe_event, until};
use serde_json::json;

#[tokio::test]
async fn the_trace_of_the_webhooks_request_reaches_each_effect_and_is_exported_by_otlp() {
    let stage = Stage::new().await;
    let (collector, smtp, crm) = (CrmStub::start().await, SmtpStub::start().await, CrmStub::start().await);
    let endpoint = collector.url.trim_end_matches("/contacts").to_owned();
    let fleet = Fleet::on(&stage)
        .with("COUNTERFOIL_SMTP_URL", smtp.url.clone())
        .with("COUNTERFOIL_CRM_URL", crm.url.clone())
        .with("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .with("OTEL_BSP_SCHEDULE_DELAY", "200");
    let (ingest, shop) = fleet.ingest().await;
    let _others = [fleet.relay(), fleet.consumer("email"), fleet.consumer("crm"), fleet.consumer("ledger")];
    let order = shop.order().await;
    let body = stripe_event("payment_intent.succeeded", &order, "pi_1", &json!({})).to_string();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let time = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let signature = counterfoil_tests::fleet::stripe_signature(body.as_bytes(), time);
    let request = shop.client.post(format!("{}/webhooks/stripe", shop.base)).header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    assert_eq!(request.header("Stripe-Signature", signature).body(body).send().await.unwrap().status(), 200);
    until("three effects", 30, 3, async || stage.count("SELECT count(*) FROM processed_events WHERE state = 'done'").await).await;
    let carried: String = sqlx::query_scalar("SELECT headers->>'traceparent' FROM outbox").fetch_one(&stage.pool()).await.unwrap();
    assert!(carried.starts_with(&format!("00-{trace}-")), "{carried}");
    assert!(ingest.logged().contains(trace));
    let id = hex::decode(trace).unwrap();
    let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    until("spans of the webhook and of all three effects", 20, true, async || {
        let ours: Vec<Vec<u8>> =
            collector.seen().into_iter().filter(|seen| seen.head.starts_with("POST /v1/traces") && holds(&seen.bytes, &id)).map(|seen| seen.bytes).collect();
        ["delivery", "email", "crm", "ledger"].iter().all(|part| ours.iter().any(|bytes| holds(bytes, part.as_bytes())))
    })
    .await;
}
