//! What a mail server's answers mean, phase by phase.

use counterfoil_tests::{event, paid_data, until};
use serde_json::Value;
use uuid::Uuid;

use crate::support::Bench;

async fn sent(bench: &Bench) -> (Value, String) {
    let (event, email) = bench.paid().await;
    bench.stage.put_events("email", std::slice::from_ref(&event)).await;
    (event, email)
}

#[tokio::test]
async fn temporary_refusals_and_broken_connections_are_tried_again_and_the_mail_arrives_once() {
    let bench = Bench::of("email").await;
    let _consumer = bench.start().ready().await;
    bench.smtp.at_recipient(&["450 greylisted", "450 greylisted"]);
    let (event, email) = sent(&bench).await;
    bench.done(&event).await;
    bench.smtp.at_banner(&["421 come later"]);
    bench.smtp.at_recipient(&["drop"]);
    bench.smtp.at_dot(&["451 try again"]);
    let (second, second_email) = sent(&bench).await;
    bench.done(&second).await;
    assert_eq!((bench.smtp.mails_to(&email), bench.smtp.mails_to(&second_email), bench.smtp.answers_left()), (1, 1, 0));
}

#[tokio::test]
async fn permanent_refusals_of_recipient_or_content_are_dead_letters_after_one_attempt() {
    let bench = Bench::of("email").await;
    let _consumer = bench.start().ready().await;
    for (phase, reply) in [("recipient", "550 5.1.1 no such user"), ("dot", "554 not wanted"), ("dot", "552 too large")] {
        if phase == "dot" {
            bench.smtp.at_dot(&[reply])
        } else {
            bench.smtp.at_recipient(&[reply])
        }
        let (event, email) = sent(&bench).await;
        until("it is dead", 15, 1, async || bench.stage.waiting(&bench.dead_queue()).await).await;
        let dead = bench.stage.take_all(&bench.dead_queue()).await.remove(0);
        assert_eq!((dead.header("x-counterfoil-kind"), dead.header("x-counterfoil-attempt")), ("permanent".into(), "1".into()), "{reply}");
        assert!(dead.header("x-counterfoil-reason").starts_with(&reply[..3]), "{}", dead.header("x-counterfoil-reason"));
        assert!(!dead.header("x-counterfoil-reason").contains(&email), "no customer data in a reason");
        assert_eq!(bench.state(&event).await, "failed");
    }
    let order = Uuid::new_v4();
    bench.stage.put_events("email", &[event("order.paid", order, &paid_data(order, "no address at all"))]).await;
    until("an address that is none is dead, too", 15, 1, async || bench.stage.waiting(&bench.dead_queue()).await).await;
}

#[tokio::test]
async fn a_refusal_at_the_banner_is_an_outage_of_ours_and_uses_up_no_messages_attempts() {
    let bench = Bench::of("email").await;
    bench.smtp.at_banner(&["554 not you"; 4]);
    let (event, email) = sent(&bench).await;
    let _consumer = bench.start();
    bench.done(&event).await;
    assert_eq!((bench.smtp.mails_to(&email), bench.stage.waiting(&bench.dead_queue()).await), (1, 0));
}

#[tokio::test]
async fn a_connection_lost_at_the_final_dot_is_unknown_and_the_repeat_carries_the_same_message_id() {
    let bench = Bench::of("email").await;
    bench.smtp.at_dot(&["take-and-drop"]);
    let consumer = bench.start().ready().await;
    let (event, email) = sent(&bench).await;
    bench.done(&event).await;
    assert_eq!(bench.smtp.mails_to(&email), 2);
    let ids: Vec<String> = bench.smtp.mails().iter().map(|mail| mail.lines().find(|line| line.starts_with("Message-ID")).unwrap().to_owned()).collect();
    assert_eq!(ids[0], ids[1]);
    assert!(consumer.metrics().await.contains("counterfoil_effects_unknown_total{consumer=\"email\"} 1"));
}

#[tokio::test]
async fn the_receipt_waits_for_the_contact_and_goes_out_once() {
    let bench = Bench::of("email").await;
    let _consumer = bench.start();
    let order = Uuid::new_v4();
    let mut bare = paid_data(order, "x");
    bare["customer"]["email"] = Value::Null;
    let (paid, known) = (event("order.paid", order, &bare), event("order.contact_known", order, &paid_data(order, "late@example.com")));
    bench.stage.put_events("email", &[paid.clone(), known.clone()]).await;
    bench.done(&paid).await;
    bench.done(&known).await;
    assert_eq!((bench.smtp.mails().len(), bench.smtp.mails_to("late@example.com")), (1, 1));
}

#[tokio::test]
async fn the_final_dot_is_awaited_at_sigterm_up_to_the_deadline_and_then_recorded_as_unknown() {
    let bench = Bench::of("email").await;
    bench.smtp.at_dot(&["hang"]);
    let mut consumer = bench.fleet().with("COUNTERFOIL_SHUTDOWN_DEADLINE_S", "5").consumer("email").ready().await;
    let (event, email) = sent(&bench).await;
    until("the server has the mail", 15, 1, async || bench.smtp.mails_to(&email)).await;
    consumer.signal("TERM");
    assert_eq!(consumer.ended().await, Some(0));
    assert_eq!(bench.state(&event).await, "unknown");
}
