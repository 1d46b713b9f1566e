//! The entry list of a draw as CSV with a hash chain, for an auditor.
//!
//! Every line names the draw; the last one says how many numbers there are and when the list was made. A line's last field is the SHA-256, in hexadecimal, of the hash above it, a line feed, and the rest of the line in front of the last
//! comma. The hash above the first entry is the SHA-256 of the head line. Whoever holds the last hash can tell whether a line
//! was changed, left out, added or moved. Fields are quoted by RFC 4180.

use ring::digest;
use sqlx::PgConnection;
use uuid::Uuid;

/// Entries read at once.
const PAGE: i64 = 5000;

/// The first line.
pub const HEAD: &str = "draw,first_number,last_number,quantity,order,line,status,at,hash";

/// One entry: consecutive numbers of one order line.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The first number.
    pub first_number: i64,
    /// The last number, included.
    pub last_number: i64,
    /// The order's reference.
    pub order: String,
    /// The order's line, from 0.
    pub line: i32,
    /// `valid` or `void`.
    pub status: String,
    /// When the numbers were given out, RFC 3339.
    pub issued_at: String,
}

/// Reads the entries behind a number, in order of their numbers.
///
/// # Errors
/// When the database fails.
pub async fn page(connection: &mut PgConnection, draw: Uuid, after: i64) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as!(
        Entry,
        r#"SELECT t.first_number, t.last_number, COALESCE(l.reference, t.order_id::text) AS "order!", t.line, t.status,
            to_char(t.issued_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS "issued_at!"
        FROM tickets t LEFT JOIN draw_lines l ON l.order_id = t.order_id AND l.line = t.line
        WHERE t.draw_id = $1 AND t.first_number > $2 ORDER BY t.first_number LIMIT $3"#,
        draw,
        after,
        PAGE,
    )
    .fetch_all(connection)
    .await
}

/// The chain so far.
#[derive(Debug, Clone)]
pub struct Chain {
    draw: String,
    hash: String,
}

fn sha256(text: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, text.as_bytes()))
}

/// A field in one line: quoted where it must be, other controls than what RFC 4180 allows as blanks.
fn quoted(field: &str) -> String {
    let field = field.replace(char::is_control, " ");
    if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

impl Chain {
    /// Of the draw with this reference; its first link is the head line.
    #[must_use]
    pub fn of(draw: &str) -> Self {
        Self { draw: quoted(draw), hash: sha256(HEAD) }
    }

    /// The last hash.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    fn link(&mut self, fields: &str) -> String {
        self.hash = sha256(&format!("{}\n{fields}", self.hash));
        format!("{fields},{}", self.hash)
    }

    /// The line of the next entry, with its hash and without its end.
    pub fn line(&mut self, entry: &Entry) -> String {
        let quantity = entry.last_number - entry.first_number + 1;
        let (draw, order) = (&self.draw, quoted(&entry.order));
        let fields = format!("{draw},{},{},{quantity},{order},{},{},{}", entry.first_number, entry.last_number, entry.line, entry.status, entry.issued_at);
        self.link(&fields)
    }

    /// The last line: how many numbers were given out, and when the list was made.
    pub fn end(&mut self, numbers: i64, at: &str) -> String {
        let fields = format!("{},,,{numbers},,,end,{at}", self.draw);
        self.link(&fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_the_hash_of_all_before_it() {
        let entry = |order: &str| Entry {
            first_number: 1,
            last_number: 3,
            order: order.into(),
            line: 0,
            status: "valid".into(),
            issued_at: "2026-01-01T00:00:00Z".into(),
        };
        let (mut one, mut other) = (Chain::of("D"), Chain::of("D"));
        assert!(one.line(&entry("a,\"b\"")).starts_with("D,1,3,3,\"a,\"\"b\"\"\",0,valid,2026-01-01T00:00:00Z,"));
        let _ = other.line(&entry("c"));
        assert_ne!(one.line(&entry("d")), other.line(&entry("d")), "what came before shows in every later hash");
    }
}
