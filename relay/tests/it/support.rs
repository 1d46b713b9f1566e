//! Outbox rows and drainers in few words.

use std::time::Duration;

use counterfoil_broker::Link;
use counterfoil_relay::{Drained, Drainer};
use counterfoil_tests::Stage;
use sqlx::PgPool;

/// Adds `count` rows of a topic in one statement.
pub(crate) async fn rows(pool: &PgPool, topic: &str, count: i64) {
    sqlx::query(
        "INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload)
         SELECT gen_random_uuid(), $1, gen_random_uuid(), 1, $1, jsonb_build_object('n', n) FROM generate_series(1, $2) AS n",
    )
    .bind(topic)
    .bind(count)
    .execute(pool)
    .await
    .unwrap();
}

pub(crate) fn drainer(pool: &PgPool, batch: usize) -> Drainer {
    Drainer::new(pool.clone(), batch, Duration::from_secs(5))
}

pub(crate) async fn link(stage: &Stage) -> Link {
    Link::connect(&stage.amqp_url, "test").await.unwrap()
}

/// One step on a channel of its own.
pub(crate) async fn step(drainer: &Drainer, link: &Link) -> Drained {
    drainer.drain_once(link, &mut None).await.unwrap()
}

/// Rows by state: unpublished, parked, published.
pub(crate) async fn states(pool: &PgPool) -> (i64, i64, i64) {
    sqlx::query_as(
        "SELECT count(*) FILTER (WHERE published_at IS NULL AND parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL), count(*) FILTER (WHERE published_at IS NOT NULL) FROM outbox",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}
