-- Gives out numbers to order lines whose places are paid for; see mint.rs.
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::uuid[]) AS w (n, order_id, line, draw_id)
), locked AS MATERIALIZED (
    SELECT id, ordinal, reference, name, minted FROM draws WHERE id = ANY ($4::uuid[]) ORDER BY id FOR NO KEY UPDATE
), ready AS MATERIALIZED (
    SELECT w.n, w.order_id, w.line, w.draw_id, l.ordinal, r.quantity, l.minted + (sum(r.quantity) OVER (PARTITION BY w.draw_id ORDER BY w.n))::bigint AS upto,
        EXISTS (SELECT FROM ticket_standings s WHERE s.order_id = w.order_id AND s.order_status = 'refunded') AS void
    FROM wanted w JOIN locked l ON l.id = w.draw_id
    JOIN reservations r ON r.order_id = w.order_id AND r.line = w.line AND r.draw_id = w.draw_id AND r.status = 'confirmed'
    WHERE NOT EXISTS (SELECT FROM tickets t WHERE t.order_id = w.order_id AND t.line = w.line)
), moved AS (
    UPDATE draws d SET minted = s.upto, updated_at = now() FROM (SELECT draw_id, max(upto) AS upto FROM ready GROUP BY draw_id) s WHERE d.id = s.draw_id
), made AS (
    INSERT INTO tickets (order_id, line, draw_id, draw_ordinal, first_number, last_number, status, voided_at)
    SELECT order_id, line, draw_id, ordinal, upto - quantity + 1, upto, CASE WHEN void THEN 'void' ELSE 'valid' END, CASE WHEN void THEN now() END
    FROM ready ORDER BY n
    RETURNING order_id, line, first_number, last_number, status
)
SELECT w.n AS "n!", m.first_number AS "first_number?", m.last_number AS "last_number?", m.status AS "status?", l.reference AS "reference?", l.name AS "name?",
    EXISTS (SELECT FROM tickets t WHERE t.order_id = w.order_id AND t.line = w.line) AS "known!"
FROM wanted w LEFT JOIN locked l ON l.id = w.draw_id LEFT JOIN made m ON m.order_id = w.order_id AND m.line = w.line ORDER BY w.n
