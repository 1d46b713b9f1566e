//! `counterfoil-simulator`: the providers of the local fleet. Never part of a deployment.

use std::time::Duration;

use counterfoil_tests::simulator::{Simulator, Webhooks};

#[tokio::main]
async fn main() {
    let setting = |name: &str| std::env::var(name).unwrap_or_default();
    let simulator = Simulator::on(&setting("COUNTERFOIL_LOCAL_SIMULATOR_LISTEN")).await;
    simulator.send_webhooks(Webhooks {
        ingest: format!("http://{}", setting("COUNTERFOIL_LISTEN")),
        stripe: setting("COUNTERFOIL_STRIPE_SECRETS"),
        razorpay: setting("COUNTERFOIL_RAZORPAY_SECRETS"),
        square: setting("COUNTERFOIL_SQUARE_SECRETS"),
        square_url: setting("COUNTERFOIL_SQUARE_NOTIFICATION_URL"),
        delay: Duration::from_millis(50),
    });
    std::future::pending().await
}
