-- Run after counterfoil-migrate, in one transaction, while the shop pauses for a moment: draws, sold entries, and sessions that may
-- still be paid become Counterfoil's; the procedure stops selling. Run again, it adds nothing twice.
--
-- Your columns have other names? Change the SELECTs over legacy.…; the rest stands. Money: amount_minor in minor units.
-- Numbers keep their ranges; where a draw's entries do not begin at 1 without gaps, `counterfoil draws audit` names the gaps, then and
-- later: the old numbers are not ours to mend.
\set ON_ERROR_STOP on
BEGIN;
LOCK TABLE legacy.draws, legacy.checkout_sessions, legacy.orders, legacy.entries IN SHARE ROW EXCLUSIVE MODE;

-- 1. Draws. Places that open sessions hold are counted in step 4.
--    A share for charity cannot be added later: write charity_numerator and charity_denominator here, if there is one.
--    One that was oversold is refused (draws_are_never_oversold): raise its max_tickets to what was sold, first.
INSERT INTO draws (reference, name, capacity, reserved, minted)
SELECT 'draw-' || d.id, d.title, d.max_tickets, n.sold, n.sold FROM legacy.draws d
CROSS JOIN LATERAL (SELECT GREATEST(d.tickets_sold, COALESCE((SELECT max(e.last_number) FROM legacy.entries e WHERE e.draw_id = d.id), 0)) AS sold) n
ON CONFLICT ON CONSTRAINT draws_reference_unique DO NOTHING;

-- 2. Sold: orders that are paid, by the payment that the shop wrote down. Their money is in the shop's books, not in ours
--    (quiet_minor), and nothing is announced: their customers have their receipts.
CREATE TEMP TABLE moved ON COMMIT DROP AS
SELECT s.id AS session_id, gen_random_uuid() AS id, s.id::text AS reference, s.draw_id, d.id AS draw, d.ordinal, s.quantity, s.amount_minor, upper(s.currency) AS currency,
    s.email, s.name, s.expires_at > now() AND s.status = 'pending' AS open, s.created_at, o.payment_intent_id, o.created_at AS paid_at, e.first_number, e.last_number
FROM legacy.checkout_sessions s
JOIN draws d ON d.reference = 'draw-' || s.draw_id
LEFT JOIN legacy.orders o ON o.session_id = s.id
LEFT JOIN legacy.entries e ON e.session_id = s.id
WHERE NOT EXISTS (SELECT FROM orders known WHERE known.reference = s.id::text)
  -- Sessions whose time is over may still be paid: a provider's webhook comes up to three days late.
  AND (e.session_id IS NOT NULL OR s.expires_at > now() - interval '7 days');

INSERT INTO orders (id, reference, amount_minor, currency, customer_email, customer_name, lines, created_at, status, version, paid_provider, paid_account, paid_payment_id, paid_at)
SELECT id, reference, amount_minor, currency, email, name,
    jsonb_build_array(jsonb_build_object('description', 'Tickets', 'quantity', quantity, 'amount_minor', amount_minor, 'draw', draw)), created_at,
    'paid', 2, 'stripe', '', payment_intent_id, paid_at
FROM moved WHERE first_number IS NOT NULL;
INSERT INTO payments (provider, account, payment_id, order_id, status, disposition, amount_minor, currency, settled_minor, fits, booked_captured_minor, booked_settled_minor, backfilled, quiet_minor)
SELECT 'stripe', '', payment_intent_id, id, 'captured', 'settled', amount_minor, currency, amount_minor, true, amount_minor, amount_minor, true, amount_minor
FROM moved WHERE first_number IS NOT NULL;
INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at)
SELECT gen_random_uuid(), id, 0, draw, quantity, 'confirmed', paid_at FROM moved WHERE first_number IS NOT NULL;

-- 3. Their numbers, as they are.
INSERT INTO tickets (order_id, line, draw_id, draw_ordinal, first_number, last_number, issued_at)
SELECT id, 0, draw, ordinal, first_number, last_number, paid_at FROM moved WHERE first_number IS NOT NULL;

-- 4. Unpaid sessions: orders that wait for their payment; the open ones with their places, as far as there are any. One without a
--    place is served when its money comes, or refunded. An order's reference is the session's id, as the shop's checkout passes it on already
--    (client_reference_id). Where session ids are UUIDs, make them the orders' ids instead: a reference must not look like one.
INSERT INTO orders (id, reference, amount_minor, currency, customer_email, customer_name, lines, created_at)
SELECT id, reference, amount_minor, currency, email, name,
    jsonb_build_array(jsonb_build_object('description', 'Tickets', 'quantity', quantity, 'amount_minor', amount_minor, 'draw', draw)), created_at
FROM moved WHERE first_number IS NULL;
WITH placed AS (
    SELECT m.*, d.reserved + sum(m.quantity) OVER (PARTITION BY m.draw ORDER BY m.session_id) <= COALESCE(d.capacity, 9007199254740991) AS fits
    FROM moved m JOIN draws d ON d.id = m.draw WHERE m.first_number IS NULL AND m.open
), held AS (
    INSERT INTO reservations (id, order_id, line, draw_id, quantity, status, expires_at)
    SELECT gen_random_uuid(), id, 0, draw, quantity, 'held', now() + interval '15 minutes' FROM placed WHERE fits RETURNING draw_id, quantity
)
UPDATE draws d SET reserved = d.reserved + h.quantity FROM (SELECT draw_id, sum(quantity)::bigint AS quantity FROM held GROUP BY draw_id) h WHERE d.id = h.draw_id;

-- 5. The procedure sells no more: not even a call of it that is under way, whose old body waits for our locks. Whoever still calls it
--    hears so, and its webhook handler may answer 500: the provider sends again.
CREATE OR REPLACE FUNCTION legacy.sells_no_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'session % is sold by Counterfoil now: POST its webhook to /webhooks/stripe', NEW.session_id;
END $$;
CREATE OR REPLACE TRIGGER sells_no_more BEFORE INSERT ON legacy.entries FOR EACH ROW EXECUTE FUNCTION legacy.sells_no_more();
CREATE OR REPLACE TRIGGER sells_no_more BEFORE INSERT ON legacy.orders FOR EACH ROW EXECUTE FUNCTION legacy.sells_no_more();
CREATE OR REPLACE FUNCTION legacy.complete_checkout(session bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'session % is sold by Counterfoil now: POST its webhook to /webhooks/stripe', session;
END $$;
COMMIT;
