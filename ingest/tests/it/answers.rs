//! Every answer that a provider can get.

use std::time::{Duration, Instant};

use counterfoil_tests::fleet::{STRIPE_SECRET, stripe_signature};
use counterfoil_tests::{Fleet, Shop, Stage, stripe_event, until};
use reqwest::{Body, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn signed(shop: &Shop, path: &str, body: &[u8]) -> RequestBuilder {
    let time = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs();
    shop.client.post(format!("{}{path}", shop.base)).header("Stripe-Signature", stripe_signature(body, time)).body(body.to_vec())
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn every_answer_is_as_documented_and_refusals_are_problem_documents() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).with("COUNTERFOIL_SQUARE_SECRETS", "").ingest().await;
    let body = stripe_event("payment_intent.succeeded", "nobody", "pi_1", &json!({})).to_string().into_bytes();
    let hook = format!("{}/webhooks/stripe", shop.base);
    assert_eq!(status(shop.client.post(&hook).body(body.clone())).await, 401);
    assert_eq!(status(shop.client.post(&hook).header("Stripe-Signature", stripe_signature(&body, 1)).body(body.clone())).await, 401);
    assert_eq!(status(signed(&shop, "/webhooks/nobody", &body)).await, 404);
    assert_eq!(status(signed(&shop, "/webhooks/square", &body)).await, 404, "a provider without secrets is off");
    assert_eq!(status(signed(&shop, "/nowhere", &body)).await, 404);
    assert_eq!(status(signed(&shop, "/webhooks/%FF", &body)).await, 404);
    for method in [Method::GET, Method::HEAD, Method::PUT] {
        let refused = shop.client.request(method, &hook).send().await.unwrap();
        assert_eq!((refused.status().as_u16(), refused.headers()["allow"].to_str().unwrap()), (405, "POST"));
    }
    assert_eq!(status(signed(&shop, "/webhooks/stripe", &body).header("Content-Encoding", "gzip")).await, 415);
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events").await, 0, "nothing refused is stored");
    assert_eq!(status(signed(&shop, "/webhooks/stripe", &body).header("Content-Encoding", "identity")).await, 200);
    assert_eq!(status(signed(&shop, "/webhooks/stripe/", &body).header("Content-Type", "text/plain")).await, 200);
    let refused = shop.client.post(&hook).body(body).send().await.unwrap();
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let problem: Value = refused.json().await.unwrap();
    assert_eq!((problem["status"].as_u64(), problem["title"].as_str()), (Some(401), Some("Unauthorized")));
    assert!(problem["detail"].as_str().unwrap().contains("secret"), "{problem}");
}

#[tokio::test]
async fn a_body_over_1_mib_is_refused_declared_or_chunked_and_one_of_1_mib_is_taken() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let exactly = vec![b'x'; 1 << 20];
    assert_eq!(status(signed(&shop, "/webhooks/stripe", &exactly)).await, 200);
    let over = vec![b'x'; (1 << 20) + 1];
    assert_eq!(status(signed(&shop, "/webhooks/stripe", &over)).await, 413);
    let chunks: Vec<Result<Vec<u8>, std::io::Error>> = (0..3 << 10).map(|_| Ok(vec![b'x'; 1 << 10])).collect();
    let chunked = signed(&shop, "/webhooks/stripe", b"").body(Body::wrap_stream(futures_util::stream::iter(chunks)));
    assert_eq!(status(chunked).await, 413);
    assert_eq!(stage.count("SELECT count(*) FROM webhook_events").await, 1);
}

#[tokio::test]
async fn the_stored_body_is_exactly_what_was_signed_byte_by_byte() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    for body in [&b"\xef\xbb\xbf{\"id\":\"evt_bom\"}\r\n"[..], b"{}", b"{\"name\":\"\xe9\"}", b"{ \"id\" : \"evt_odd\", \"id\": \"x\" }", b"not json \xff\x00"]
    {
        assert_eq!(shop.stripe_bytes(body.to_vec()).await.0, 200, "{body:?}");
        let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM webhook_events WHERE body = $1").bind(body).fetch_one(&stage.pool()).await.unwrap();
        assert_eq!(stored, 1, "{body:?}");
    }
}

#[tokio::test]
async fn the_matching_secrets_position_is_stored_and_every_configured_secret_is_tried() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).with("COUNTERFOIL_STRIPE_SECRETS", format!("whsec_newer,{STRIPE_SECRET}")).ingest().await;
    assert_eq!(shop.stripe(&stripe_event("payment_intent.succeeded", "nobody", "pi", &json!({}))).await, (200, "waiting".into()));
    assert_eq!(stage.count("SELECT secret_position::bigint FROM webhook_events").await, 1);
}

#[tokio::test]
async fn a_client_that_trickles_its_body_is_cut_off() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let mut stream = TcpStream::connect(shop.base.trim_start_matches("http://")).await.unwrap();
    stream.write_all(b"POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n").await.unwrap();
    let begun = Instant::now();
    let mut answer = Vec::new();
    let trickle = async {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if stream.write_all(b"x").await.is_err() {
                break;
            }
            let mut piece = [0; 1024];
            if let Ok(Ok(count)) = tokio::time::timeout(Duration::from_millis(10), stream.read(&mut piece)).await {
                answer.extend_from_slice(&piece[..count]);
                if count == 0 {
                    break;
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), trickle).await.unwrap();
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_cancel_a_settlement_that_has_begun() {
    let stage = Stage::with_schema().await;
    let (_ingest, shop) = Fleet::on(&stage).ingest().await;
    let mut events = Vec::new();
    for nth in 0..30 {
        let order = shop.order().await;
        let body = stripe_event("payment_intent.succeeded", &order, &format!("pi_{nth}"), &json!({})).to_string();
        let request = signed(&shop, "/webhooks/stripe", body.as_bytes()).build().unwrap();
        let signature = request.headers()["Stripe-Signature"].to_str().unwrap();
        let mut stream = TcpStream::connect(shop.base.trim_start_matches("http://")).await.unwrap();
        let head = format!("POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\nStripe-Signature: {signature}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(nth % 6)).await; // hang up at every stage, before it began or after
        drop(stream);
        events.push(body.into_bytes());
    }
    let counts = async || {
        let count = async |query| stage.count(query).await;
        (
            count("SELECT count(*) FROM webhook_events").await,
            count("SELECT count(*) FROM orders WHERE status = 'paid'").await,
            count("SELECT count(*) FROM outbox").await,
        )
    };
    until("what has begun is settled whole", 10, true, async || {
        let (stored, paid, emitted) = counts().await;
        stored > 0 && stored == paid && paid == emitted
    })
    .await;
    for event in events {
        assert_eq!(shop.stripe_bytes(event).await.0, 200);
    }
    assert_eq!(counts().await, (30, 30, 30), "the resend completes the others");
}

#[tokio::test]
async fn labels_stay_bounded_whatever_is_asked_for() {
    let stage = Stage::with_schema().await;
    let (ingest, shop) = Fleet::on(&stage).ingest().await;
    for nth in 0..200 {
        let _ = status(shop.client.get(format!("{}/webhooks/scan-{nth}", shop.base))).await;
        let _ = status(shop.client.get(format!("{}/scan/{nth}", shop.base))).await;
    }
    let metrics = ingest.metrics().await;
    let series = metrics.lines().filter(|line| line.starts_with("counterfoil_ingest_answers_total")).count();
    assert!(series < 10 && metrics.contains("provider=\"other\""), "{series} series:\n{metrics}");
}

/// A subscription's checkout takes money that this release does not settle: the answer says so, and the list of what waits.
#[tokio::test]
async fn captured_money_that_is_not_supported_says_so_in_the_answer_the_list_and_the_trail() {
    let stage = Stage::with_schema().await;
    let fleet = Fleet::on(&stage);
    let (_ingest, shop) = fleet.ingest().await;
    let order = shop.order().await;
    let session = json!({ "id": "cs_1", "mode": "subscription", "payment_intent": null, "invoice": "in_1", "payment_status": "paid", "amount_total": 1099 });
    let event = stripe_event("checkout.session.completed", &order, "pi_1", &session);
    let body = serde_json::to_vec(&event).unwrap();
    let tag = stripe_signature(&body, std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs());
    let answer = shop.client.post(format!("{}/webhooks/stripe", shop.base)).header("Stripe-Signature", tag).body(body).send().await.unwrap();
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["outcome"], "ignored");
    assert!(answer["reason"].as_str().unwrap().contains("a subscription's checkout is not supported"), "{answer}");
    let (_, listed) = fleet.counterfoil(&["attention"]).await;
    assert!(listed.contains("unplaced") && listed.contains("a subscription's checkout is not supported") && listed.contains(&order), "{listed}");
    for id in [order.as_str(), "cs_1", "in_1"] {
        let (code, trail) = fleet.counterfoil(&["trail", id]).await;
        assert!(code == Some(0) && trail.contains("a subscription's checkout is not supported"), "{id}: {trail}");
    }
}
