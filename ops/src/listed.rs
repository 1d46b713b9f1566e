//! Dead letters with what a person needs beside them: what a replay would do, and the shop's name of the order.

use counterfoil_inbox::dead::{self, DeadLetter, Filter, Judgement, Order};
use counterfoil_settlement::references;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

/// A dead letter.
#[derive(Debug)]
pub(crate) struct Listed {
    pub letter: DeadLetter,
    pub judged: Option<Judgement>,
    /// The shop's reference of its order.
    pub reference: Option<String>,
}

impl Listed {
    /// What a replay would do, in words.
    pub(crate) fn verdict(&self) -> String {
        self.judged.as_ref().map(|judged| judged.verdict.words(&judged.detail)).unwrap_or_default()
    }

    /// Its order, as people name it.
    pub(crate) fn order(&self) -> Option<String> {
        self.reference.clone().or_else(|| Some(self.letter.order_id?.to_string()))
    }

    pub(crate) fn json(&self) -> Value {
        let mut value = json!(self.letter);
        value["verdict"] = json!(self.verdict());
        value["reference"] = json!(self.reference);
        value
    }
}

/// What matches a filter, `limit` of them after the first `offset`.
pub(crate) async fn listed(connection: &mut PgConnection, filter: &Filter, order: Order, offset: i64, limit: i64, horizon_s: i64) -> sqlx::Result<Vec<Listed>> {
    let letters = dead::list(connection, filter, order, offset, limit).await?;
    with_more(connection, letters, horizon_s).await
}

/// One, by its number.
pub(crate) async fn find(connection: &mut PgConnection, id: i64, horizon_s: i64) -> sqlx::Result<Option<Listed>> {
    let letter = dead::find(connection, id).await?;
    Ok(with_more(connection, letter.into_iter().collect(), horizon_s).await?.pop())
}

async fn with_more(connection: &mut PgConnection, letters: Vec<DeadLetter>, horizon_s: i64) -> sqlx::Result<Vec<Listed>> {
    let ids: Vec<i64> = letters.iter().map(|letter| letter.id).collect();
    let orders: Vec<Uuid> = letters.iter().filter_map(|letter| letter.order_id).collect();
    let mut judged = dead::judge(connection, &ids, horizon_s).await?;
    let references = references(connection, &orders).await?;
    let beside = |letter: DeadLetter| Listed {
        judged: judged.iter().position(|judged| judged.id == letter.id).map(|at| judged.swap_remove(at)),
        reference: letter.order_id.and_then(|order| references.get(&order).cloned()),
        letter,
    };
    Ok(letters.into_iter().map(beside).collect())
}
