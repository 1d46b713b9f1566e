//! Gathering the facts: the broker within a deadline, what is dear once a minute, the rest on one snapshot.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_settlement::{ProviderHealth, count_attention, provider_health};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::time::timeout;

use crate::depths::depths;
use crate::facts::{BrokerAt, Facts, Waiting, read};

/// Longest time for asking the broker: a page does not wait for one that accepts and says nothing.
const BROKER_PATIENCE: Duration = Duration::from_secs(3);

/// Facts that take a look at many rows are read at most so often.
const SELDOM: Duration = Duration::from_secs(60);

/// What takes a look at many rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wide {
    pub(crate) attention: Vec<Waiting>,
    pub(crate) health: Vec<ProviderHealth>,
    pub(crate) violations: Vec<(String, i64)>,
}

/// Gathers facts, and keeps for a minute what is dear.
#[derive(Debug, Default)]
pub struct Gatherer {
    broker: Option<BrokerAt>,
    wide: Mutex<Option<(Instant, Wide)>>,
}

impl Gatherer {
    /// Asks the broker, too, where it is known.
    #[must_use]
    pub fn new(broker: Option<BrokerAt>) -> Self {
        Self { broker, wide: Mutex::default() }
    }

    /// The facts. Changes nothing.
    ///
    /// # Errors
    /// When the database fails. A broker that cannot be asked is said so in the facts.
    pub async fn gather(&self, pool: &PgPool) -> anyhow::Result<Facts> {
        let queues = match &self.broker {
            None => Err("COUNTERFOIL_AMQP_URL is not set".to_owned()),
            Some(at) => timeout(BROKER_PATIENCE, depths(&at.amqp_url, &at.rungs))
                .await
                .map_or_else(|_| Err("the broker does not answer in time".to_owned()), |asked| asked.map_err(|error| format!("{error:#}"))),
        };
        let mut connection = pool.acquire().await?;
        let wide = self.wide(&mut connection).await;
        let mut tx = connection.begin().await?;
        let facts = read(&mut tx, queues, self.broker.is_some(), wide).await?;
        tx.rollback().await?;
        Ok(facts)
    }

    /// What is dear, at most a minute old; what it was before, when it cannot be read now.
    async fn wide(&self, connection: &mut PgConnection) -> Wide {
        let known = self.wide.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, wide)) = known.as_ref().filter(|(at, _)| at.elapsed() < SELDOM) {
            return wide.clone();
        }
        match read_wide(connection).await {
            Ok(wide) => {
                *self.wide.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), wide.clone()));
                wide
            }
            Err(error) => {
                tracing::warn!(%error, "held money, providers and invariants could not be read now");
                known.map(|(_, wide)| wide).unwrap_or_default()
            }
        }
    }
}

async fn read_wide(connection: &mut PgConnection) -> sqlx::Result<Wide> {
    let violations =
        sqlx::query!(r#"SELECT check_name AS "name!", count(*) AS "count!" FROM invariant_violations GROUP BY check_name"#).fetch_all(&mut *connection).await?;
    Ok(Wide {
        violations: violations.into_iter().map(|row| (row.name, row.count)).collect(),
        health: provider_health(&mut *connection).await?,
        attention: attention(connection).await?,
    })
}

async fn attention(connection: &mut PgConnection) -> sqlx::Result<Vec<Waiting>> {
    let mut kinds: BTreeMap<String, Waiting> = BTreeMap::new();
    for counted in count_attention(connection).await? {
        let empty = || Waiting { kind: counted.kind.clone(), count: 0, overdue: 0, amounts: BTreeMap::new() };
        let waiting = kinds.entry(counted.kind.clone()).or_insert_with(empty);
        waiting.count += usize::try_from(counted.count).unwrap_or(usize::MAX);
        waiting.overdue += usize::try_from(counted.overdue).unwrap_or(usize::MAX);
        if let (Some(currency), Some(minor)) = (counted.currency, counted.amount_minor) {
            waiting.amounts.insert(currency, minor);
        }
    }
    Ok(kinds.into_values().collect())
}
