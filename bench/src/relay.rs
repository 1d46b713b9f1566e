//! Messages a second drained by one relay, against a bare publisher with pipelined confirms into the same kind of queue.

use std::time::{Duration, Instant};

use counterfoil_broker::lapin::BasicProperties;
use counterfoil_broker::publish::WINDOW_MAX;
use counterfoil_broker::{Fate, Link, Outgoing, publish_window, topology};
use counterfoil_tests::{Fleet, Stage, until};
use sqlx::{Connection, PgConnection};

use crate::{ROUNDS, median, say};

/// Messages a round.
const MESSAGES: i64 = 30_000;

pub(crate) async fn measure() -> anyhow::Result<()> {
    let stage = Stage::new().await;
    let mut database = PgConnection::connect(&stage.database_url).await?;
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let bare = bare(&stage).await?;
        let relay = drained(&stage, &mut database).await?;
        say(&format!("round {round}: relay {relay:.0}/s, bare publisher {bare:.0}/s, ratio {:.2}", relay / bare));
        rates.push(relay);
        ratios.push(relay / bare);
    }
    say(&format!("relay: {:.0} messages/s, {:.2} times a bare publisher, medians of {ROUNDS} rounds", median(rates), median(ratios)));
    Ok(())
}

/// Publishes bodies of the relay's size, a window of 256 at a time, to the topic that one quorum queue gets.
async fn bare(stage: &Stage) -> anyhow::Result<f64> {
    let link = Link::connect(&stage.amqp_url, "bench").await?;
    let channel = link.confirming_channel().await?;
    let message = |n: i64| Outgoing {
        correlation: n,
        exchange: topology::EVENTS.into(),
        routing_key: "payment.held".into(),
        body: vec![b'x'; 700],
        properties: BasicProperties::default().with_delivery_mode(2),
    };
    let all: Vec<Outgoing> = (0..MESSAGES).map(message).collect();
    let begun = Instant::now();
    for window in all.chunks(WINDOW_MAX) {
        let published = publish_window(&channel, window, Duration::from_secs(10)).await;
        anyhow::ensure!(published.fates.iter().all(|fate| *fate == Fate::Confirmed), "not all were confirmed");
    }
    let rate = MESSAGES as f64 / begun.elapsed().as_secs_f64();
    purge(&link).await?;
    link.close().await;
    Ok(rate)
}

/// Lets one relay drain a full outbox; the rate between its first and its last batch.
async fn drained(stage: &Stage, database: &mut PgConnection) -> anyhow::Result<f64> {
    sqlx::raw_sql("TRUNCATE outbox").execute(&mut *database).await?;
    sqlx::query(
        "INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, headers)
         SELECT gen_random_uuid(), 'payment.held', gen_random_uuid(), 1, 'payment.held', jsonb_build_object('padding', repeat('x', 400)), '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}'
         FROM generate_series(1, $1)",
    )
    .bind(MESSAGES)
    .execute(&mut *database)
    .await?;
    sqlx::raw_sql("ANALYZE outbox").execute(&mut *database).await?;
    let _relay = Fleet::on(stage).with("COUNTERFOIL_LOG", "warn").relay();
    until("the outbox is drained", 120, 0, async || stage.count("SELECT count(*) FROM outbox WHERE published_at IS NULL").await).await;
    let seconds: f64 =
        sqlx::query_scalar("SELECT extract(epoch FROM max(published_at) - min(published_at))::float8 FROM outbox").fetch_one(&mut *database).await?;
    let link = Link::connect(&stage.amqp_url, "bench").await?;
    purge(&link).await?;
    link.close().await;
    Ok(MESSAGES as f64 / seconds)
}

async fn purge(link: &Link) -> anyhow::Result<()> {
    link.channel().await?.queue_purge("counterfoil.ledger".into(), Default::default()).await?;
    Ok(())
}
