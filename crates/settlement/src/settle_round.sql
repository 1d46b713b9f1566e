-- Settles one round of deliveries; see statement.rs for the rules and for what each parameter is.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::bigint[],
        $10::bytea[], $11::text[], $12::uuid[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::text[], $18::text[], $19::text[],
        $20::text[], $21::uuid[], $22::jsonb[], $23::boolean[], $24::bigint[], $25::boolean[], $26::bigint[], $27::uuid[], $28::boolean[], $29::text[],
        $30::bigint[], $31::boolean[])
    AS i (n, provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
        differing_body, remark, order_id, said_account, payment_id, payment_status, amount_minor, currency, email, name,
        phone, paid_event_id, headers, final, made_at, late, tip_minor, meaning, changed, ids, released_minor, by_price)
), locked AS MATERIALIZED (
    SELECT id, status, amount_minor, currency, customer_email IS NULL AS without_email FROM orders
    WHERE id = ANY ($12::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), named AS MATERIALIZED (
    SELECT i.*, o.status AS order_status, o.currency AS order_currency, o.without_email,
        account_of_payment(i.provider, i.said_account, i.payment_id) AS payment_account, -- once its order is locked
        f.fits, f.fits AND o.status IN ('pending_payment', 'payment_pending', 'failed_final') AS pays
    FROM input i JOIN locked o ON o.id = i.order_id
    CROSS JOIN LATERAL (SELECT i.payment_status = 'captured' AND i.amount_minor - i.tip_minor = o.amount_minor AND i.currency = o.currency AS fits) f
), events AS (
    INSERT INTO webhook_events AS w (provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
        outcome, reason, processed_at, processed_in, differing, differing_body, made_at, late_deliveries, payment_account, payment_id, meaning, changed, ids)
    SELECT provider, account, event_id, provider_event_id, event_type, body, secret_position, deliveries,
        'applied', remark, now(), pg_current_xact_id(), (differing_body IS NOT NULL)::integer, differing_body,
        to_timestamp(made_at::float8), late::integer * deliveries, payment_account, payment_id, meaning, changed::integer, string_to_array(ids, E'\x1f')
    FROM named ORDER BY provider, account, event_id
    ON CONFLICT (provider, account, event_id) DO UPDATE SET
        deliveries = w.deliveries + excluded.deliveries,
        late_deliveries = w.late_deliveries + excluded.late_deliveries,
        payment_account = COALESCE(w.payment_account, excluded.payment_account),
        payment_id = COALESCE(w.payment_id, excluded.payment_id),
        differing = w.differing + (excluded.deliveries > 0 AND w.body <> excluded.body)::integer + excluded.differing,
        -- The first copy that says something else is kept for good; till then the last that is spelled otherwise.
        changed = w.changed + excluded.changed + (excluded.deliveries > 0 AND w.meaning <> excluded.meaning AND w.body <> excluded.body)::integer,
        differing_body = CASE WHEN w.changed > 0 THEN w.differing_body
            WHEN excluded.deliveries > 0 AND w.meaning IS DISTINCT FROM excluded.meaning AND w.body <> excluded.body THEN excluded.body
            WHEN excluded.changed > 0 THEN excluded.differing_body
            WHEN excluded.deliveries > 0 AND w.body <> excluded.body THEN excluded.body ELSE COALESCE(excluded.differing_body, w.differing_body) END,
        processed_at = CASE WHEN w.outcome IN ('waiting', 'failed', 'deferred') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN now() ELSE w.processed_at END,
        processed_in = CASE WHEN w.outcome IN ('waiting', 'failed', 'deferred') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN pg_current_xact_id() ELSE w.processed_in END,
        waits_for = CASE WHEN w.outcome = 'waiting' AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN NULL ELSE w.waits_for END,
        reason = CASE WHEN w.outcome IN ('waiting', 'failed', 'deferred') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN excluded.reason ELSE w.reason END,
        outcome = CASE WHEN w.outcome IN ('waiting', 'failed', 'deferred') AND (excluded.deliveries = 0 OR w.body = excluded.body) THEN 'applied' ELSE w.outcome END
    RETURNING provider, account, event_id, outcome, w.processed_in IS NOT DISTINCT FROM pg_current_xact_id() AS fresh, w.body
), paid AS (
    INSERT INTO payments AS p (provider, account, payment_id, order_id, status, amount_minor, tip_minor, released_minor, by_price, currency, fits,
        disposition, settled_minor, booked_captured_minor, booked_settled_minor, booked_tip_minor)
    SELECT n.provider, n.payment_account, n.payment_id, n.order_id, n.payment_status, n.amount_minor,
        CASE WHEN n.payment_status = 'captured' THEN n.tip_minor ELSE 0 END, CASE WHEN n.payment_status = 'captured' THEN n.released_minor ELSE 0 END,
        n.payment_status = 'captured' AND n.by_price, n.currency, COALESCE(n.fits, false),
        CASE WHEN n.pays THEN 'settled' ELSE 'none' END, CASE WHEN n.pays THEN n.amount_minor - n.tip_minor ELSE 0 END,
        CASE WHEN n.pays THEN n.amount_minor ELSE 0 END, CASE WHEN n.pays THEN n.amount_minor - n.tip_minor ELSE 0 END, CASE WHEN n.pays THEN n.tip_minor ELSE 0 END
    FROM named n JOIN events e USING (provider, account, event_id) WHERE e.fresh
    ORDER BY n.provider, n.payment_account, n.payment_id
    -- An attempt without money binds nobody: its row follows the news of the highest rank, whichever order that names.
    ON CONFLICT (provider, account, payment_id) DO UPDATE SET
        order_id = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.order_id ELSE p.order_id END,
        status = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.status ELSE p.status END,
        -- Captured in parts: the figure is cumulative, so the highest one is the newest. The price of a checkout stands until the
        -- payment tells its own figure, higher or lower, and is none beside it.
        amount_minor = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN COALESCE(excluded.amount_minor, p.amount_minor)
            WHEN p.order_id = excluded.order_id AND excluded.status = 'captured' AND p.status = 'captured' AND p.currency = excluded.currency
                AND (p.by_price OR NOT excluded.by_price)
                THEN CASE WHEN p.by_price AND NOT excluded.by_price THEN excluded.amount_minor ELSE GREATEST(p.amount_minor, excluded.amount_minor) END
            ELSE p.amount_minor END,
        by_price = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.by_price
            ELSE p.by_price AND (excluded.status <> 'captured' OR excluded.by_price) END,
        released_minor = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.released_minor
            WHEN p.order_id = excluded.order_id AND excluded.status = 'captured' AND p.status = 'captured' AND p.currency = excluded.currency
                THEN CASE WHEN p.by_price AND NOT excluded.by_price OR excluded.amount_minor > p.amount_minor THEN excluded.released_minor
                    WHEN excluded.amount_minor = p.amount_minor THEN GREATEST(p.released_minor, excluded.released_minor) ELSE p.released_minor END
            ELSE p.released_minor END,
        tip_minor = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.tip_minor
            WHEN p.order_id = excluded.order_id AND excluded.status = 'captured' AND p.status = 'captured' AND p.currency = excluded.currency
                AND (p.by_price AND NOT excluded.by_price OR (excluded.amount_minor > p.amount_minor AND p.by_price = excluded.by_price)) THEN excluded.tip_minor
            ELSE p.tip_minor END,
        currency = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN COALESCE(excluded.currency, p.currency) ELSE p.currency END,
        fits = CASE WHEN payment_rank(excluded.status) > payment_rank(p.status) THEN excluded.fits
            WHEN p.order_id = excluded.order_id AND excluded.status = 'captured' AND p.currency = excluded.currency AND (p.by_price OR NOT excluded.by_price)
                THEN excluded.fits OR (p.fits AND (NOT (p.by_price AND NOT excluded.by_price) OR p.disposition = 'settled'))
            ELSE p.fits END,
        -- What was captured before has its place, or is given one by what follows this statement.
        disposition = CASE WHEN p.status <> 'captured' THEN excluded.disposition ELSE p.disposition END,
        settled_minor = CASE WHEN p.status <> 'captured' THEN excluded.settled_minor ELSE p.settled_minor END,
        booked_captured_minor = CASE WHEN p.status <> 'captured' THEN excluded.booked_captured_minor ELSE p.booked_captured_minor END,
        booked_settled_minor = CASE WHEN p.status <> 'captured' THEN excluded.booked_settled_minor ELSE p.booked_settled_minor END,
        booked_tip_minor = CASE WHEN p.status <> 'captured' THEN excluded.booked_tip_minor ELSE p.booked_tip_minor END,
        updated_at = now()
    RETURNING provider, account, payment_id, order_id, status, disposition, settled_minor, amount_minor, tip_minor, currency, fits, booked_captured_minor
), updated AS (
    UPDATE orders o SET
        status = CASE WHEN n.pays THEN 'paid' WHEN n.final THEN 'failed_final' ELSE 'payment_pending' END,
        version = o.version + 1,
        paid_provider = CASE WHEN n.pays THEN p.provider END,
        paid_account = CASE WHEN n.pays THEN p.account END,
        paid_payment_id = CASE WHEN n.pays THEN p.payment_id END,
        paid_at = CASE WHEN n.pays THEN now() END,
        customer_email = COALESCE(o.customer_email, n.email),
        customer_name = COALESCE(o.customer_name, n.name),
        customer_phone = COALESCE(o.customer_phone, n.phone),
        updated_at = now()
    FROM named n JOIN paid p ON p.provider = n.provider AND p.account = n.payment_account AND p.payment_id = n.payment_id
    WHERE o.id = n.order_id AND (
        (n.pays AND p.order_id = n.order_id AND p.disposition = 'settled' AND p.settled_minor = o.amount_minor AND p.currency = o.currency
            AND o.status IN ('pending_payment', 'payment_pending', 'failed_final'))
        OR (n.final AND o.status IN ('pending_payment', 'payment_pending'))
        OR (n.payment_status IN ('pending', 'authorised') AND o.status = 'pending_payment'))
    RETURNING o.id, o.reference, o.status, o.version, o.amount_minor, o.currency, o.customer_email, o.customer_name, o.customer_phone, o.lines,
        o.paid_at, o.paid_provider, o.paid_account, o.paid_payment_id,
        p.amount_minor AS captured_minor, p.settled_minor, p.tip_minor
), emitted AS (
    INSERT INTO outbox (event_id, topic, order_id, version, routing_key, payload, headers)
    SELECT n.paid_event_id, 'order.paid', o.id, o.version, 'order.paid', jsonb_build_object(
        'order_id', o.id, 'reference', o.reference, 'version', o.version, 'amount_minor', o.amount_minor, 'currency', o.currency,
        'customer', jsonb_build_object('email', o.customer_email, 'name', o.customer_name, 'phone', o.customer_phone), 'lines', o.lines,
        'paid_at', to_char(o.paid_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'payment', jsonb_build_object('provider', o.paid_provider, 'account', o.paid_account, 'payment_id', o.paid_payment_id,
            'amount_minor', o.captured_minor, 'currency', o.currency, 'settled_minor', o.settled_minor),
        'books', jsonb_build_object('currency', o.currency,
            'before', jsonb_build_object('captured_minor', 0, 'settled_minor', 0, 'tip_minor', 0, 'refund_pending_minor', 0, 'refunded_minor', 0,
                'disputed_minor', 0, 'charged_back_minor', 0),
            'after', jsonb_build_object('captured_minor', o.captured_minor, 'settled_minor', o.settled_minor, 'tip_minor', o.tip_minor,
                'refund_pending_minor', 0, 'refunded_minor', 0, 'disputed_minor', 0, 'charged_back_minor', 0))), n.headers
    FROM updated o JOIN named n ON n.order_id = o.id WHERE o.status = 'paid' ORDER BY n.n
    ON CONFLICT (event_id) WHERE exchange = 'counterfoil.events' DO NOTHING
)
SELECT CASE WHEN n.n IS NULL THEN EXISTS (SELECT FROM orders o WHERE o.id = i.order_id) ELSE true END AS "order_exists!",
    n.order_status AS "order_status?", n.order_currency AS "order_currency?",
    n.without_email AS "order_without_email?", e.fresh AS "fresh?", e.outcome AS "outcome?", n.deliveries > 0 AND (e.body <> n.body OR n.differing_body IS NOT NULL) AS "differs?",
    p.account AS "payment_account?", p.order_id AS "payment_order?", p.status AS "payment_status?", p.disposition AS "payment_disposition?",
    p.fits AS "payment_fits?", p.amount_minor > p.booked_captured_minor AS "payment_grew?",
    p.amount_minor < p.booked_captured_minor AS "payment_shrank?", u.status AS "order_became?",
    -- A payment of the same order that did not fit while the order was unpaid.
    u.status = 'paid' AND EXISTS (SELECT FROM payments x WHERE x.order_id = i.order_id AND x.disposition = 'held') AS "others_held?",
    -- A refund or dispute that came before its capture; a capture that named no order and came before the event that does.
    EXISTS (SELECT FROM webhook_events w WHERE (w.outcome = 'waiting' OR w.unplaced_minor IS NOT NULL) AND w.payment_id = i.payment_id
        AND w.provider = i.provider AND (w.unplaced_minor IS NOT NULL OR i.payment_status = 'captured')) AS "awaited!"
FROM input i
LEFT JOIN named n ON n.n = i.n
LEFT JOIN events e ON e.provider = n.provider AND e.account = n.account AND e.event_id = n.event_id
LEFT JOIN paid p ON p.provider = n.provider AND p.account = n.payment_account AND p.payment_id = n.payment_id
LEFT JOIN updated u ON u.id = n.order_id
ORDER BY i.n
