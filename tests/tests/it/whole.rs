//! From the signed webhook to three effects, through every process.

use counterfoil_tests::{Child, CrmStub, Fleet, Shop, SmtpStub, Stage, stripe_event, until};
use futures_util::future::join_all;
use serde_json::{Value, json};

pub(crate) struct Whole {
    pub(crate) stage: Stage,
    pub(crate) smtp: SmtpStub,
    pub(crate) crm: CrmStub,
    pub(crate) shop: Shop,
    pub(crate) processes: Vec<Child>,
}

impl Whole {
    pub(crate) async fn on(stage: Stage) -> Self {
        let (smtp, crm) = (SmtpStub::start().await, CrmStub::start().await);
        let fleet = Fleet::on(&stage).with("COUNTERFOIL_SMTP_URL", smtp.url.clone()).with("COUNTERFOIL_CRM_URL", crm.url.clone());
        let (ingest, shop) = fleet.ingest().await;
        let mut processes = vec![ingest];
        for process in [fleet.relay(), fleet.relay(), fleet.consumer("email"), fleet.consumer("crm"), fleet.consumer("ledger")] {
            processes.push(process.ready().await);
        }
        Self { stage, smtp, crm, shop, processes }
    }

    /// Paid orders, outbox rows, ledger entries, effects done.
    pub(crate) async fn counts(&self) -> [i64; 4] {
        [
            self.stage.count("SELECT count(*) FROM orders WHERE status = 'paid'").await,
            self.stage.count("SELECT count(*) FROM outbox").await,
            self.stage.count("SELECT count(*) FROM ledger_entries").await,
            self.stage.count("SELECT count(*) FROM processed_events WHERE state = 'done'").await,
        ]
    }
}

#[tokio::test]
async fn three_event_types_of_one_payment_in_all_orders_and_all_at_once_give_one_receipt_one_contact_and_one_ledger_entry() {
    let whole = Whole::on(Stage::new().await).await;
    let kinds = ["charge.succeeded", "payment_intent.succeeded", "checkout.session.completed"];
    let mut orders = Vec::new();
    for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let order = whole.shop.order().await;
        for kind in [a, b, c] {
            assert_eq!(whole.shop.stripe(&stripe_event(kinds[kind], &order, &format!("pi_{order}"), &json!({}))).await.0, 200);
        }
        orders.push(order);
    }
    for _ in 0..6 {
        let order = whole.shop.order().await;
        let events = kinds.map(|kind| stripe_event(kind, &order, &format!("pi_{order}"), &json!({})));
        join_all(events.iter().map(|event| whole.shop.stripe(event))).await;
        orders.push(order);
    }
    until("one of each", 60, [12, 12, 12, 36], async || whole.counts().await).await;
    for order in &orders {
        let read: Value = whole.shop.read(order).await.json().await.unwrap();
        let address = format!("{}@example.com", read["reference"].as_str().unwrap());
        assert_eq!(whole.smtp.mails_to(&address), 1, "one receipt");
        assert_eq!(whole.crm.seen().iter().filter(|seen| seen.body.contains(&address)).count(), 1, "one contact");
    }
    assert_eq!(whole.stage.count("SELECT sum(amount_minor)::bigint FROM ledger_lines").await, 0);
}

#[tokio::test]
async fn money_that_does_not_fit_is_booked_as_unallocated_and_nobody_gets_a_receipt_for_it() {
    let whole = Whole::on(Stage::new().await).await;
    let order = whole.shop.order().await;
    let event = |intent: &str, amount: i64| stripe_event("payment_intent.succeeded", &order, intent, &json!({ "amount_received": amount }));
    assert_eq!(whole.shop.stripe(&event("pi_less", 1)).await, (200, "held".into()));
    assert_eq!(whole.shop.stripe(&event("pi_right", 1099)).await, (200, "applied".into()));
    assert_eq!(whole.shop.stripe(&event("pi_again", 1099)).await, (200, "extra".into()));
    until("all are booked", 30, 3, async || whole.stage.count("SELECT count(*) FROM ledger_entries").await).await;
    let unallocated = whole.stage.count("SELECT sum(amount_minor)::bigint FROM ledger_lines WHERE account = 'liabilities:unallocated'").await;
    let receivable = whole.stage.count("SELECT sum(amount_minor)::bigint FROM ledger_lines WHERE account = 'assets:receivable:stripe'").await;
    assert_eq!((unallocated, receivable), (-1100, 2199), "captured money and the books agree");
    until("one receipt", 30, 1, async || whole.smtp.mails().len()).await;
}
