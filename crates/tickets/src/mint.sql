-- Gives out numbers to order lines whose places are paid for; see mint.rs.
WITH found AS MATERIALIZED (
    SELECT w.n, w.order_id, w.line, w.draw_id, r.quantity, r.status = 'confirmed' AND r.draw_id = w.draw_id AND t.order_id IS NULL AS ready,
        t.order_id IS NOT NULL AS known, s.order_id IS NOT NULL AS void
    FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::uuid[]) AS w (n, order_id, line, draw_id)
    -- Each row by its index: joins without OFFSET 0 may be planned as reading a table whole, once it is small or looks so.
    LEFT JOIN LATERAL (SELECT quantity, status, draw_id FROM reservations WHERE order_id = w.order_id AND line = w.line OFFSET 0) r ON true
    LEFT JOIN LATERAL (SELECT order_id FROM tickets WHERE order_id = w.order_id AND line = w.line OFFSET 0) t ON true
    LEFT JOIN LATERAL (SELECT order_id FROM ticket_standings WHERE order_id = w.order_id AND order_status = 'refunded' OFFSET 0) s ON true
), moved AS (
    -- Locks the draws in the order of their ids, and counts from their newest versions.
    UPDATE draws d SET minted = d.minted + s.quantity, updated_at = now()
    FROM (SELECT draw_id, sum(quantity)::bigint AS quantity FROM found WHERE ready GROUP BY draw_id ORDER BY draw_id) s WHERE d.id = s.draw_id
    RETURNING d.id, d.ordinal, d.reference, d.name, d.minted - s.quantity AS before
), made AS (
    INSERT INTO tickets (order_id, line, draw_id, draw_ordinal, first_number, last_number, status, voided_at)
    SELECT order_id, line, draw_id, ordinal, upto - quantity + 1, upto, CASE WHEN void THEN 'void' ELSE 'valid' END, CASE WHEN void THEN now() END
    FROM (SELECT f.*, m.ordinal, m.before + (sum(f.quantity) OVER (PARTITION BY f.draw_id ORDER BY f.n))::bigint AS upto
        FROM found f JOIN moved m ON m.id = f.draw_id WHERE f.ready) numbered ORDER BY n
    RETURNING order_id, line, first_number, last_number, status
)
SELECT f.n AS "n!", m.first_number AS "first_number?", m.last_number AS "last_number?", m.status AS "status?", d.reference AS "reference?", d.name AS "name?",
    f.known AS "known!"
FROM found f LEFT JOIN moved d ON d.id = f.draw_id LEFT JOIN made m ON m.order_id = f.order_id AND m.line = f.line ORDER BY f.n
