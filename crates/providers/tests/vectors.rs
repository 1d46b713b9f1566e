//! Signature vectors: our own always, the shared file's where it exists.

use counterfoil_providers::{Adapter, BadSecret, Razorpay, Secret, Square, Standard, Stripe, verify_razorpay_return};
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};

/// What a vector comes out as, in the words of the file.
fn outcome(vector: &Value, payload: &[u8]) -> &'static str {
    let text = |name: &str| vector[name].as_str().unwrap_or_default();
    let secret = Secret::new(if vector["public_key"].is_string() { text("public_key") } else { text("secret") });
    let adapter: Result<Box<dyn Adapter>, BadSecret> = secret.and_then(|secret| {
        let keys = std::slice::from_ref(&secret);
        let adapter: Box<dyn Adapter> = match text("provider") {
            "stripe" => Box::new(Stripe::new(keys).with_tolerance(vector["tolerance"].as_i64().unwrap_or(300))),
            "razorpay" => Box::new(Razorpay::new(keys)),
            "square" => Box::new(Square::new(keys, text("notification_url"))?),
            _ => Box::new(Standard::new(keys)?),
        };
        Ok(adapter)
    });
    let Ok(adapter) = adapter else { return "config-error" };
    let accepted = if vector["signature"].is_string() {
        let payload = std::str::from_utf8(payload).unwrap();
        verify_razorpay_return(&Secret::new(text("secret")).unwrap(), &payload.split('|').collect::<Vec<_>>(), text("signature")).is_ok()
    } else {
        let header = |(name, value): (&String, &Value)| (name.parse::<HeaderName>().unwrap(), value.as_str().unwrap().parse().unwrap());
        let headers: HeaderMap = vector["headers"].as_object().unwrap().iter().map(header).collect();
        adapter.verify(&headers, payload, vector["now"].as_i64().unwrap_or_default()).is_ok()
    };
    if accepted { "accept" } else { "reject" }
}

fn shared() -> String {
    std::env::var("COUNTERFOIL_TEST_SHARED").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned())
}

#[test]
fn every_shared_vector_of_the_four_providers_comes_out_as_written() {
    let Ok(file) = std::fs::read(format!("{}/vectors.json", shared())) else {
        println!("0 shared vectors ran: the file is not there; our own run in any case");
        return;
    };
    let file: Value = serde_json::from_slice(&file).unwrap();
    let mut run = 0;
    for vector in file["vectors"].as_array().unwrap() {
        if !["stripe", "razorpay", "square", "standard-webhooks"].contains(&vector["provider"].as_str().unwrap()) {
            continue;
        }
        let inline = vector["payload"].as_str().unwrap_or_default().as_bytes().to_vec();
        let payload = vector["payload_file"].as_str().map_or(inline, |path| std::fs::read(format!("{}/{path}", shared())).unwrap());
        assert_eq!(outcome(vector, &payload), vector["expect"].as_str().unwrap(), "{}", vector["id"]);
        run += 1;
    }
    println!("{run} shared vectors ran");
    assert!(run >= 40, "the file has lost vectors: {run}");
}

const BODY: &str = r#"{"id":"evt_1","name":"Zoë 😀 \u001b"}"#;

/// Payloads and secrets of ours; the signatures were computed with Python's hmac and base64.
#[test]
fn our_own_vectors_come_out_as_written() {
    let stripe = |header: &str, now: i64| json!({ "provider": "stripe", "secret": "whsec_counterfoil", "now": now, "headers": { "Stripe-Signature": header } });
    let razorpay = |secret: &str| json!({ "provider": "razorpay", "secret": secret, "headers": { "X-Razorpay-Signature": RAZORPAY_TAG } });
    let square =
        |url: &str| json!({ "provider": "square", "secret": "sq", "notification_url": url, "headers": { "x-square-hmacsha256-signature": SQUARE_TAG } });
    let good = format!("t=1700000000,v1={STRIPE_TAG}");
    for (vector, expected) in [
        (stripe(&good, 1_700_000_000), "accept"),
        (stripe(&good, 1_700_000_300), "accept"),
        (stripe(&good, 1_699_999_700), "accept"),
        (stripe(&good, 1_700_000_301), "reject"),
        (stripe(&good, 1_699_999_699), "reject"),
        (stripe(&good.replace("t=17", "t=16"), 1_600_000_000), "reject"),
        (stripe(&format!("{good},v0=00,v1=zz"), 1_700_000_000), "accept"),
        (stripe("", 1_700_000_000), "reject"),
        (razorpay("rzp"), "accept"),
        (razorpay("old"), "reject"),
        (square("https://shop.example/hook"), "accept"),
        (square("https://shop.example/hook/"), "reject"),
    ] {
        assert_eq!(outcome(&vector, BODY.as_bytes()), expected, "{vector}");
    }
}

const STRIPE_TAG: &str = "468eb3553cf9416e690f9c6d9139d17b0f9883b223d740e4e2af925f6f59c215";
const RAZORPAY_TAG: &str = "4e6a0c0dd56dd32f20a45b3d04286a658823d25fed190230cef6846cf40ebde5";
const SQUARE_TAG: &str = "aUNx54VQ7cD0w1CefGleo5rn/VuIaYJ4jpn/sIubQrM=";

#[test]
fn several_secrets_are_tried_and_the_position_of_the_one_that_matched_is_told() {
    let keys: Vec<Secret> = ["new", "rzp"].map(|text| Secret::new(text).unwrap()).to_vec();
    let headers: HeaderMap = [(HeaderName::from_static("x-razorpay-signature"), RAZORPAY_TAG.parse().unwrap())].into_iter().collect();
    assert_eq!(Razorpay::new(&keys).verify(&headers, BODY.as_bytes(), 0), Ok(1));
}
