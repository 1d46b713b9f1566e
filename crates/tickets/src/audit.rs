//! The proof of a draw: captured payments, orders, reservations, tickets and voids add up, and so does the share for charity.
//!
//! Read it in one snapshot (REPEATABLE READ). What a line brought in is what it cost (where a discount is among the lines, its share
//! of the order's amount, rounded down), while its tickets are valid; of what went back in part, a line bears its share, rounded down; the share for charity is the fraction of the rest, rounded down to the
//! minor unit, and what remains is the house's, so that the two always sum to the whole.

use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

/// Rows that do not add up and are named, at the most.
const FINDINGS_MAX: i64 = 1000;

/// One equation of the proof.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What must agree, in words.
    pub what: &'static str,
    /// One side.
    pub expected: i64,
    /// The other side.
    pub found: i64,
    /// Whether they agree.
    pub ok: bool,
}

/// The money of a draw in one currency, in minor units.
#[derive(Debug, Clone, Serialize)]
pub struct Proceeds {
    /// The currency.
    pub currency: String,
    /// Paid orders with lines of this draw.
    pub orders: i64,
    /// What was captured for them and paid them.
    pub captured_minor: i64,
    /// What of it is still here: less what went back or was charged back, more where a second payment stands in.
    pub here_minor: i64,
    /// What their lines of this draw cost.
    pub lines_minor: i64,
    /// Of that, lines whose money went back whole.
    pub void_minor: i64,
    /// Of that, lines that could not be fulfilled.
    pub lost_minor: i64,
    /// Of that, the lines' share of what went back in part.
    pub refunded_minor: i64,
    /// What remains.
    pub net_minor: i64,
    /// The share for charity of what remains.
    pub charity_minor: i64,
    /// What remains after that.
    pub house_minor: i64,
}

/// A row that does not add up.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What is wrong with it.
    pub problem: String,
    /// The order, by its reference.
    pub order: String,
    /// The order's line, from 0.
    pub line: i32,
}

/// The whole proof.
#[derive(Debug, Clone, Serialize)]
pub struct Audit {
    /// The draw.
    pub draw_id: Uuid,
    /// The shop's name for it.
    pub reference: String,
    /// Its name for people.
    pub name: String,
    /// The share for charity, `numerator/denominator`.
    pub charity: String,
    /// Whether everything adds up.
    pub ok: bool,
    /// The equations.
    pub checks: Vec<Check>,
    /// The money, by currency.
    pub proceeds: Vec<Proceeds>,
    /// The rows that do not add up.
    pub findings: Vec<Finding>,
    /// Orders that changed just now, and are not held to what their events have yet to do.
    pub unsettled: i64,
}

struct Counts {
    reference: String,
    name: String,
    capacity: Option<i64>,
    reserved: i64,
    minted: i64,
    charity_numerator: i64,
    charity_denominator: i64,
    kept: i64,
    ranges: i64,
    numbers: i64,
    first_number: i64,
    last_number: i64,
    breaks: i64,
    valid: i64,
    void: i64,
}

/// Audits a draw; `None` when there is none of this id. Orders that changed in the last `settled_s` seconds may have an event on
/// its way, and are not held to what its consumer has not done yet.
///
/// # Errors
/// When the database fails, or a sum does not fit 64 bits.
pub async fn audit(connection: &mut PgConnection, draw: Uuid, settled_s: i64) -> sqlx::Result<Option<Audit>> {
    let Some(counts) = counts(&mut *connection, draw).await? else { return Ok(None) };
    let proceeds = proceeds(&mut *connection, draw, &counts).await?;
    let unsettled = sqlx::query_scalar!(
        r#"SELECT count(DISTINCT order_id) AS "count!" FROM draw_lines WHERE draw_id = $1 AND changed_at BETWEEN now() - make_interval(secs => $2::bigint::float8) AND now()"#,
        draw,
        settled_s
    );
    let unsettled = unsettled.fetch_one(&mut *connection).await?;
    let findings = findings(connection, draw, settled_s).await?;
    let checks = checks(&counts, &proceeds, &findings);
    Ok(Some(Audit {
        draw_id: draw,
        ok: checks.iter().all(|check| check.ok),
        charity: format!("{}/{}", counts.charity_numerator, counts.charity_denominator),
        reference: counts.reference,
        name: counts.name,
        checks,
        proceeds,
        findings,
        unsettled,
    }))
}

fn checks(counts: &Counts, proceeds: &[Proceeds], findings: &[Finding]) -> Vec<Check> {
    let equal = |what, expected: i64, found: i64| Check { what, expected, found, ok: expected == found };
    let mut checks = vec![
        equal("places reserved = held and confirmed reservations", counts.reserved, counts.kept),
        equal("numbers given out = numbers of all ranges", counts.minted, counts.numbers),
        equal("the last number = numbers given out", counts.minted, counts.last_number),
        equal("the first number is 1", i64::from(counts.ranges > 0), counts.first_number),
        equal("ranges that do not begin where the one before ends", 0, counts.breaks),
        equal("valid and void numbers = numbers given out", counts.minted, counts.valid + counts.void),
        equal("rows that do not add up", 0, i64::try_from(findings.len()).unwrap_or(i64::MAX)),
    ];
    if let Some(capacity) = counts.capacity {
        checks.push(Check { what: "places reserved are within the capacity", expected: capacity, found: counts.reserved, ok: counts.reserved <= capacity });
    }
    for money in proceeds {
        let parts = money.void_minor + money.lost_minor + money.refunded_minor + money.net_minor;
        checks.push(equal("what the lines cost = void + lost + gone back in part + what remains", money.lines_minor, parts));
        checks.push(equal("charity + house = what remains", money.net_minor, money.charity_minor + money.house_minor));
        let ok = money.net_minor <= money.here_minor;
        checks.push(Check { what: "what remains is not more than the money that is here", expected: money.here_minor, found: money.net_minor, ok });
    }
    checks
}

async fn counts(connection: &mut PgConnection, draw: Uuid) -> sqlx::Result<Option<Counts>> {
    sqlx::query_as!(
        Counts,
        r#"WITH ranges AS (
            SELECT first_number, last_number, status, first_number <> COALESCE(lag(last_number) OVER (ORDER BY first_number), 0) + 1 AS broken FROM tickets WHERE draw_id = $1
        ), numbers AS (
            SELECT count(*) AS ranges, COALESCE(sum(last_number - first_number + 1), 0)::bigint AS numbers, COALESCE(min(first_number), 0) AS first_number,
                COALESCE(max(last_number), 0) AS last_number, count(*) FILTER (WHERE broken) AS breaks,
                COALESCE(sum(last_number - first_number + 1) FILTER (WHERE status = 'valid'), 0)::bigint AS valid,
                COALESCE(sum(last_number - first_number + 1) FILTER (WHERE status = 'void'), 0)::bigint AS void FROM ranges
        )
        SELECT d.reference, d.name, d.capacity, d.reserved, d.minted, d.charity_numerator, d.charity_denominator,
            COALESCE((SELECT sum(quantity) FROM reservations r WHERE r.draw_id = d.id AND r.status IN ('held', 'confirmed')), 0)::bigint AS "kept!",
            n.ranges AS "ranges!", n.numbers AS "numbers!", n.first_number AS "first_number!", n.last_number AS "last_number!", n.breaks AS "breaks!",
            n.valid AS "valid!", n.void AS "void!"
        FROM draws d CROSS JOIN numbers n WHERE d.id = $1"#,
        draw,
    )
    .fetch_optional(connection)
    .await
}

async fn proceeds(connection: &mut PgConnection, draw: Uuid, counts: &Counts) -> sqlx::Result<Vec<Proceeds>> {
    let rows = sqlx::query!(
        r#"WITH paid AS (
            SELECT *, order_status = 'refunded' AS went_back, reservation_status IS NOT DISTINCT FROM 'lost' AS lost FROM draw_lines
            WHERE draw_id = $1 AND order_status IN ('paid', 'partially_refunded', 'refunded')
        ), priced AS (
            -- What went back is first what could not be fulfilled.
            SELECT *, CASE WHEN went_back OR lost OR order_minor <= order_lost_minor THEN 0
                ELSE LEAST(worth_minor, ceil(GREATEST(order_back_minor - order_lost_minor, 0)::numeric * worth_minor / (order_minor - order_lost_minor))) END AS back FROM paid
        )
        SELECT currency AS "currency!", count(DISTINCT order_id) AS "orders!",
            (SELECT COALESCE(sum(settled_minor), 0)::bigint FROM (SELECT DISTINCT order_id, settled_minor FROM paid s WHERE s.currency = p.currency) s) AS "captured!",
            (SELECT COALESCE(sum(order_minor - order_back_minor), 0)::bigint FROM (SELECT DISTINCT order_id, order_minor, order_back_minor FROM paid s WHERE s.currency = p.currency) s) AS "here!",
            COALESCE(sum(worth_minor), 0)::bigint AS "lines!", COALESCE(sum(worth_minor) FILTER (WHERE went_back AND NOT lost), 0)::bigint AS "void!",
            COALESCE(sum(worth_minor) FILTER (WHERE lost), 0)::bigint AS "lost!",
            COALESCE(sum(back), 0)::bigint AS "refunded!", COALESCE(sum(worth_minor - back) FILTER (WHERE NOT went_back AND NOT lost), 0)::bigint AS "net!"
        FROM priced p GROUP BY currency ORDER BY currency"#,
        draw,
    )
    .fetch_all(connection)
    .await?;
    let share = |net: i64| {
        let exact = i128::from(net) * i128::from(counts.charity_numerator);
        i64::try_from(exact.div_euclid(i128::from(counts.charity_denominator))).map_err(|error| sqlx::Error::Decode(Box::new(error)))
    };
    rows.into_iter()
        .map(|row| {
            let charity_minor = share(row.net)?;
            Ok(Proceeds {
                currency: row.currency,
                orders: row.orders,
                captured_minor: row.captured,
                here_minor: row.here,
                lines_minor: row.lines,
                void_minor: row.void,
                lost_minor: row.lost,
                refunded_minor: row.refunded,
                net_minor: row.net,
                charity_minor,
                house_minor: row.net - charity_minor,
            })
        })
        .collect()
}

async fn findings(connection: &mut PgConnection, draw: Uuid, settled_s: i64) -> sqlx::Result<Vec<Finding>> {
    sqlx::query_as!(
        Finding,
        r#"WITH lines AS (
            SELECT *, order_status IN ('paid', 'partially_refunded', 'refunded') AS was_paid, changed_at NOT BETWEEN now() - make_interval(secs => $2::bigint::float8) AND now() AS settled
            FROM draw_lines WHERE draw_id = $1
        ), problems AS (
            SELECT order_id, line, reference, CASE
                WHEN was_paid AND (payment_status IS DISTINCT FROM 'captured' OR settled_minor IS DISTINCT FROM order_minor) THEN 'its order is paid, and no captured payment of its amount is there'
                WHEN was_paid AND order_minor > 0 AND order_status <> CASE WHEN order_refunded_minor >= order_minor THEN 'refunded' WHEN order_refunded_minor > 0
                    THEN 'partially_refunded' ELSE 'paid' END THEN 'its order says ' || order_status || ', and its payments and refunds say something else'
                WHEN was_paid AND reservation_status = 'held' THEN 'its order is paid, and its place is only held'
                WHEN was_paid AND settled AND reservation_id IS NULL THEN 'its order is paid, and it has no reservation'
                WHEN NOT was_paid AND reservation_status IN ('confirmed', 'lost') THEN 'its order is not paid, and its reservation says so'
                WHEN reservation_id IS NOT NULL AND (reserved_in <> draw_id OR quantity <> line_quantity) THEN 'its reservation is not what the order says'
                WHEN settled AND reservation_status = 'confirmed' AND first_number IS NULL THEN 'it is paid for, and has no tickets'
                WHEN first_number IS NOT NULL AND reservation_status IS DISTINCT FROM 'confirmed' THEN 'it has tickets, and no confirmed reservation'
                WHEN minted_in <> (SELECT ordinal FROM draws WHERE id = $1) THEN 'its numbers are those of another draw'
                WHEN last_number - first_number + 1 <> quantity THEN 'it has another number of tickets than it paid for'
                WHEN settled AND ticket_status = 'valid' AND order_status = 'refunded' THEN 'its money went back, and its tickets are valid'
                WHEN settled AND ticket_status = 'void' AND order_status <> 'refunded' THEN 'its money is here, and its tickets are void'
                WHEN settled AND reservation_status = 'lost' AND order_status IN ('paid', 'partially_refunded') AND order_back_minor < order_lost_minor
                    THEN 'it has no tickets, and its money has not gone back'
                WHEN settled AND order_status IN ('paid', 'partially_refunded') AND reservation_status = 'released' THEN 'its order is paid, and nobody has looked for a place'
            END AS problem FROM lines
            UNION ALL
            SELECT order_id, line, order_id::text, CASE WHEN first_number > before + 1 THEN 'the numbers ' || before + 1 || ' to ' || first_number - 1 || ' in front of its own are missing'
                ELSE 'its numbers begin in front of the end of those before' END
            FROM (SELECT order_id, line, first_number, COALESCE(lag(last_number) OVER (ORDER BY first_number), 0) AS before FROM tickets WHERE draw_id = $1) ranges WHERE first_number <> before + 1
            UNION ALL
            SELECT t.order_id, t.line, t.order_id::text, 'tickets of an order line that does not name this draw' FROM tickets t
            WHERE t.draw_id = $1 AND NOT EXISTS (SELECT FROM lines l WHERE l.order_id = t.order_id AND l.line = t.line)
            UNION ALL
            SELECT r.order_id, r.line, r.order_id::text, 'a reservation of an order line that does not name this draw' FROM reservations r
            WHERE r.draw_id = $1 AND NOT EXISTS (SELECT FROM lines l WHERE l.order_id = r.order_id AND l.line = r.line)
        )
        SELECT problem AS "problem!", reference AS "order!", line AS "line!" FROM problems WHERE problem IS NOT NULL ORDER BY order_id, line LIMIT $3"#,
        draw,
        settled_s,
        FINDINGS_MAX,
    )
    .fetch_all(connection)
    .await
}
