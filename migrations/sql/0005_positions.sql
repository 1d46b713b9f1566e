-- Where each payment's money stands, what two orders claim, what counts for no order, and what people decided about it.

-- What an earlier release announced states no position: it must be in the books before positions are counted from there.
DO $$ BEGIN
    IF EXISTS (SELECT FROM outbox o WHERE o.exchange = 'counterfoil.events' AND o.topic IN ('order.paid', 'payment.extra', 'payment.held', 'order.refunded', 'refund.failed', 'order.disputed')
        AND o.created_at > now() - interval '30 days'
        AND NOT EXISTS (SELECT FROM processed_events p WHERE p.consumer = 'ledger' AND p.event_id = o.event_id AND p.state = 'done')) THEN
        RAISE EXCEPTION 'the ledger has not posted all events of the earlier release: stop ingest, let the earlier relay and ledger consumer finish, replay the ledger''s dead letters, then migrate';
    END IF;
END $$;

-- Payments -----------------------------------------------------------------------------------------------------------

ALTER TABLE payments
    -- What of the captured money is a tip: it pays no part of the order.
    ADD COLUMN tip_minor bigint NOT NULL DEFAULT 0,
    -- A capture of exactly what the order costs was heard of, be it that more was captured later.
    ADD COLUMN fits boolean NOT NULL DEFAULT false,
    -- What had been authorised and was not captured; the provider's refund that tells of its release, where one does.
    ADD COLUMN released_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN release_refund_id text,
    -- What is captured is known by the price of a checkout alone, not by the payment's own word.
    ADD COLUMN by_price boolean NOT NULL DEFAULT false,
    -- Another order claims this money, too: it stands in for nothing.
    ADD COLUMN contested boolean NOT NULL DEFAULT false,
    -- The position that events have said so far, and that the books therefore reach (counterfoil_payments::Position), in the
    -- payment's currency. An event moves it and names both ends, in the transaction that writes the event.
    ADD COLUMN booked_captured_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN booked_settled_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN booked_tip_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN booked_refund_pending_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN booked_refunded_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN booked_disputed_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN booked_charged_back_minor bigint NOT NULL DEFAULT 0;
-- The account under which a payment is known: one may be told of with the platform's own account and without. Volatile, so
-- that it sees what was committed while its caller waited or looked elsewhere: the caller holds the order's lock by then.
CREATE FUNCTION account_of_payment(of_provider text, said_account text, of_payment text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN COALESCE((SELECT p.account FROM payments p WHERE p.payment_id = of_payment AND p.provider = of_provider
        AND (p.account = said_account OR p.account = '' OR said_account = '') ORDER BY p.account <> said_account, p.account LIMIT 1), said_account);
END $$;
DROP TRIGGER payments_settle_whole ON payments;
DROP FUNCTION payment_settles_whole();

UPDATE payments p SET fits = p.disposition = 'settled',
    booked_captured_minor = CASE WHEN p.disposition <> 'none' THEN p.amount_minor ELSE 0 END, booked_settled_minor = p.settled_minor,
    booked_refund_pending_minor = m.pending, booked_refunded_minor = m.refunded, booked_disputed_minor = m.disputed, booked_charged_back_minor = m.lost
FROM (SELECT k.provider, k.account, k.payment_id,
        COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.provider = k.provider AND r.account = k.account AND r.payment_id = k.payment_id
            AND r.currency = k.currency AND r.status = 'pending'), 0) AS pending,
        COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.provider = k.provider AND r.account = k.account AND r.payment_id = k.payment_id
            AND r.currency = k.currency AND r.status = 'succeeded'), 0) AS refunded,
        COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.provider = k.provider AND d.account = k.account AND d.payment_id = k.payment_id
            AND d.currency = k.currency AND d.status = 'opened'), 0) AS disputed,
        COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.provider = k.provider AND d.account = k.account AND d.payment_id = k.payment_id
            AND d.currency = k.currency AND d.status = 'lost'), 0) AS lost
    FROM payments k WHERE k.status = 'captured') m
WHERE p.provider = m.provider AND p.account = m.account AND p.payment_id = m.payment_id;

ALTER TABLE payments
    DROP COLUMN before_disposition, DROP COLUMN before_minor, DROP COLUMN before_settled_minor,
    -- A checkout's price may have settled more than its payment then says was captured.
    DROP CONSTRAINT payments_settled_is_part_of_captured,
    ADD CONSTRAINT payments_settled_has_its_place CHECK (settled_minor >= 0 AND (settled_minor = 0 OR disposition = 'settled')),
    ADD CONSTRAINT payments_tip_is_part_of_captured CHECK (tip_minor BETWEEN 0 AND COALESCE(amount_minor, 0)),
    -- What belongs to nobody yet and is still here; what went back or was charged back took from it first.
    ADD COLUMN unallocated_minor bigint NOT NULL GENERATED ALWAYS AS (GREATEST(booked_captured_minor - booked_settled_minor - booked_tip_minor
        - booked_refund_pending_minor - booked_refunded_minor - booked_charged_back_minor, 0)) STORED,
    -- What went back, was taken by banks or was counted for the order beyond what was captured.
    ADD COLUMN overdrawn_minor bigint NOT NULL GENERATED ALWAYS AS (GREATEST(booked_refunded_minor + booked_disputed_minor
        + booked_charged_back_minor - booked_captured_minor, booked_settled_minor + booked_tip_minor - booked_captured_minor, 0)) STORED,
    -- What the provider says went back and no refund of ours explains.
    ADD COLUMN refunds_known_minor bigint NOT NULL DEFAULT 0;
UPDATE payments p SET refunds_known_minor = COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.provider = p.provider AND r.account = p.account
    AND r.payment_id = p.payment_id AND r.currency = p.currency AND r.provider_refund_id IS NOT NULL), 0) WHERE refunds_reported_minor > 0;
-- What backfill kept out of the books is one figure for each payment.
UPDATE payments p SET quiet_minor = p.quiet_minor
    + COALESCE((SELECT sum(r.quiet_minor) FROM refunds r WHERE r.provider = p.provider AND r.account = p.account AND r.payment_id = p.payment_id AND r.currency = p.currency), 0)
    + COALESCE((SELECT sum(d.quiet_minor) FROM disputes d WHERE d.provider = p.provider AND d.account = p.account AND d.payment_id = p.payment_id AND d.currency = p.currency), 0)
WHERE p.backfilled;
DROP INDEX payments_aside, payments_in_doubt;
CREATE INDEX payments_open ON payments (created_at) WHERE unallocated_minor > 0 OR (disposition = 'held' AND amount_minor = 0);
CREATE INDEX payments_overdrawn ON payments (updated_at) WHERE overdrawn_minor > 0;
CREATE INDEX payments_misfits ON payments (order_id) WHERE disposition = 'held' AND held_reason IN ('amount_differs', 'currency_differs') AND unallocated_minor > 0;
CREATE INDEX payments_contested ON payments (order_id) WHERE contested AND disposition <> 'settled';
CREATE INDEX payments_in_doubt ON payments (updated_at) WHERE refunds_reported_minor > refunds_known_minor;
-- For whoever asks whether the same id stands under another account.
CREATE INDEX payments_by_id ON payments (payment_id);
DROP INDEX payments_of_accounts;

-- Payments that another order named when their money had its place.
CREATE TABLE payment_claims (
    provider text NOT NULL,
    account text NOT NULL,
    payment_id text NOT NULL,
    order_id uuid NOT NULL CONSTRAINT payment_claims_order_exists REFERENCES orders (id),
    amount_minor bigint NOT NULL,
    currency text NOT NULL CONSTRAINT payment_claims_currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$'),
    claimed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, account, payment_id, order_id),
    CONSTRAINT payment_claims_payment_exists FOREIGN KEY (provider, account, payment_id) REFERENCES payments (provider, account, payment_id)
);
CREATE INDEX payment_claims_by_order ON payment_claims (order_id);
DROP INDEX webhook_events_claims;

-- Refunds and disputes -----------------------------------------------------------------------------------------------

DROP VIEW books_differences;
ALTER TABLE refunds
    DROP COLUMN source, DROP COLUMN quiet_minor,
    -- Its provider may mean by it what had been authorised and was not captured.
    ADD COLUMN may_be_release boolean NOT NULL DEFAULT false,
    -- A later refund of the same payment, of as much or more, stands for a failed one.
    ADD COLUMN answered boolean NOT NULL DEFAULT false,
    -- Its payment is in another currency: not booked, a person decides.
    ADD COLUMN foreign_currency boolean NOT NULL DEFAULT false;
UPDATE refunds r SET answered = EXISTS (SELECT FROM refunds later WHERE later.provider = r.provider AND later.account = r.account AND later.payment_id = r.payment_id
    AND later.amount_minor >= r.amount_minor AND later.created_at > r.created_at AND later.status <> 'failed') WHERE status = 'failed';
UPDATE refunds r SET foreign_currency = true FROM payments p
    WHERE p.provider = r.provider AND p.account = r.account AND p.payment_id = r.payment_id AND p.currency <> r.currency;
CREATE INDEX refunds_failed ON refunds (updated_at) WHERE status = 'failed' AND NOT answered;
CREATE INDEX refunds_foreign ON refunds (created_at) WHERE foreign_currency;

CREATE OR REPLACE FUNCTION dispute_rank(status text) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE status WHEN 'inquiry' THEN 1::smallint WHEN 'closed' THEN 2::smallint WHEN 'opened' THEN 3::smallint WHEN 'withdrawn' THEN 4::smallint
        WHEN 'lost' THEN 5::smallint WHEN 'won' THEN 6::smallint ELSE 0::smallint END;
ALTER TABLE disputes DROP COLUMN quiet_minor,
    DROP CONSTRAINT disputes_status_known,
    ADD CONSTRAINT disputes_status_known CHECK (status IN ('inquiry', 'closed', 'opened', 'withdrawn', 'lost', 'won')),
    -- Its payment is in another currency: not booked, a person decides.
    ADD COLUMN foreign_currency boolean NOT NULL DEFAULT false;
CREATE INDEX disputes_open ON disputes (created_at) WHERE status IN ('inquiry', 'opened');
CREATE INDEX disputes_foreign ON disputes (created_at) WHERE foreign_currency;

-- Webhook events -----------------------------------------------------------------------------------------------------

ALTER TABLE webhook_events
    -- A fingerprint of what the body in force says (counterfoil_payments::Fact::meaning); copies that differ in it, and the
    -- first of them, which stays in differing_body.
    ADD COLUMN meaning uuid,
    ADD COLUMN changed bigint NOT NULL DEFAULT 0,
    -- The other ids that the body names: of a charge, a session, a refund, a dispute, an order.
    ADD COLUMN ids text[],
    -- Captured money that the event reports and that counts for no order.
    ADD COLUMN unplaced_minor bigint,
    ADD COLUMN unplaced_currency text;
CREATE INDEX webhook_events_by_ids ON webhook_events USING gin (ids) WHERE ids IS NOT NULL;
CREATE INDEX webhook_events_changed ON webhook_events (received_at) WHERE changed > 0;
CREATE INDEX webhook_events_unreadable ON webhook_events (received_at) WHERE outcome = 'unreadable';
CREATE INDEX webhook_events_awaiting ON webhook_events (payment_id) WHERE outcome = 'waiting' OR unplaced_minor IS NOT NULL;
CREATE INDEX webhook_events_unplaced ON webhook_events (received_at) WHERE unplaced_minor IS NOT NULL;
CREATE INDEX webhook_events_waiting_by_age ON webhook_events (received_at) WHERE outcome = 'waiting';

-- Tickets ------------------------------------------------------------------------------------------------------------

-- A line that is paid for and has no place: nobody has looked for one yet, or it is lost and its money is still here.
ALTER TABLE reservations ADD COLUMN owed boolean NOT NULL DEFAULT false;
UPDATE reservations r SET owed = true FROM orders o WHERE o.id = r.order_id AND r.status IN ('released', 'lost') AND o.status IN ('paid', 'partially_refunded');
CREATE INDEX reservations_owed ON reservations (order_id) WHERE owed;
CREATE OR REPLACE FUNCTION order_keeps_or_leaves_its_places() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status IN ('paid', 'partially_refunded') THEN
        UPDATE reservations SET status = 'confirmed', reason = NULL, updated_at = now() WHERE order_id = NEW.id AND status = 'held';
        UPDATE reservations SET owed = true WHERE order_id = NEW.id AND status IN ('released', 'lost') AND NOT owed;
    ELSE
        UPDATE reservations SET expires_at = LEAST(expires_at, now()), reason = NEW.status, updated_at = now() WHERE order_id = NEW.id AND status = 'held';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER orders_keep_or_leave_their_places ON orders;
CREATE TRIGGER orders_keep_or_leave_their_places AFTER UPDATE OF status ON orders FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status IN ('paid', 'partially_refunded', 'failed_final', 'expired', 'cancelled')
        AND NEW.lines @? '$[*].draw')
    EXECUTE FUNCTION order_keeps_or_leaves_its_places();

-- As before, without money that another order claims and without refunds in another currency than their payment's.
CREATE OR REPLACE VIEW ticket_money AS
SELECT o.id AS order_id, GREATEST(o.amount_minor - m.captured + m.refunded, 0)::bigint AS refunded_minor,
    GREATEST(o.amount_minor - m.captured + m.refunded + m.charged_back, 0)::bigint AS back_minor,
    LEAST(o.amount_minor, COALESCE((SELECT sum(line_worth(o.amount_minor, o.lines, (o.lines -> r.line ->> 'amount_minor')::bigint)) FROM reservations r
        WHERE r.order_id = o.id AND r.status = 'lost'), 0))::bigint AS lost_minor, o.status AS order_status
FROM orders o CROSS JOIN LATERAL (SELECT
    COALESCE((SELECT sum(p.amount_minor) FROM payments p WHERE p.order_id = o.id AND p.status = 'captured' AND p.currency = o.currency
        AND (p.disposition = 'settled' OR NOT p.contested)), 0) AS captured,
    COALESCE((SELECT sum(f.amount_minor) FROM refunds f JOIN payments p ON p.provider = f.provider AND p.account = f.account AND p.payment_id = f.payment_id
        WHERE f.order_id = o.id AND f.status = 'succeeded' AND f.currency = o.currency AND p.currency = o.currency AND (p.disposition = 'settled' OR NOT p.contested)), 0) AS refunded,
    COALESCE((SELECT sum(d.amount_minor) FROM disputes d JOIN payments p ON p.provider = d.provider AND p.account = d.account AND p.payment_id = d.payment_id
        WHERE d.order_id = o.id AND d.status IN ('opened', 'lost') AND d.currency = o.currency AND p.currency = o.currency AND (p.disposition = 'settled' OR NOT p.contested)), 0) AS charged_back) m;

CREATE OR REPLACE VIEW unfulfilled_orders AS
SELECT o.reference, o.currency, o.updated_at AS since, CASE WHEN m.lost_minor > 0 THEN m.lost_minor - m.back_minor ELSE o.amount_minor - m.back_minor END AS minor
FROM (SELECT DISTINCT order_id FROM reservations WHERE owed) r JOIN orders o ON o.id = r.order_id
CROSS JOIN LATERAL (SELECT * FROM ticket_money t WHERE t.order_id = r.order_id OFFSET 0) m
WHERE o.status IN ('paid', 'partially_refunded') AND (m.lost_minor > m.back_minor OR (o.updated_at < now() - interval '10 minutes'
    AND EXISTS (SELECT FROM reservations x WHERE x.order_id = o.id AND x.owed AND x.status = 'released')));

-- What recurs costs what is open ---------------------------------------------------------------------------------------

-- By BRIN a purge reads every block that once held old rows, for nothing.
DROP INDEX webhook_events_by_age, processed_events_by_age;
CREATE INDEX webhook_events_by_age ON webhook_events (received_at);
CREATE INDEX processed_events_by_age ON processed_events (created_at);
-- What no vacuum has summarised is read whole each time: it is, as it comes.
ALTER INDEX outbox_by_age SET (autosummarize = on);
ALTER INDEX orders_by_paid_at SET (autosummarize = on);
CREATE INDEX outbox_stuck ON outbox (id) WHERE published_at IS NULL AND (parked_at IS NOT NULL OR deferrals > 0);
CREATE INDEX lost_messages_by_age ON lost_messages (found_at);
DROP INDEX orders_erased;
CREATE INDEX orders_erased ON orders (erased_at) WHERE erased_at IS NOT NULL;

-- Of the last day, row by row through the keys: what is older was looked at when it was young.
CREATE OR REPLACE VIEW invariant_violations AS
SELECT 'one_order_paid'::text AS check_name, 'order ' || o.reference || ' is ' || o.status || ' and has no order.paid event' AS what, o.id AS order_id
FROM orders o LEFT JOIN LATERAL (SELECT true AS there FROM outbox e WHERE e.order_id = o.id AND e.topic = 'order.paid' AND e.exchange = 'counterfoil.events' LIMIT 1) x ON true
WHERE o.paid_at BETWEEN now() - interval '1 day' AND now() - interval '1 minute' AND o.status IN ('paid', 'partially_refunded', 'refunded') AND x.there IS NULL
UNION ALL
SELECT 'version_order', 'the tickets of order ' || s.order_id || ' stand at version ' || s.version || ', and version ' || e.version || ' was applied', s.order_id
FROM outbox e JOIN LATERAL (SELECT order_id, version FROM ticket_standings t WHERE t.order_id = e.order_id OFFSET 0) s ON e.version > s.version
JOIN LATERAL (SELECT true FROM processed_events p WHERE p.consumer = 'tickets' AND p.event_id = e.event_id AND p.state = 'done' OFFSET 0) p ON true
WHERE e.created_at > now() - interval '1 day' AND e.exchange = 'counterfoil.events' AND e.topic IN ('order.refunded', 'refund.failed', 'payment.extra', 'payment.held')
    AND EXISTS (SELECT FROM tickets t WHERE t.order_id = s.order_id);

-- Up to where books and payments were compared: by what was written since, and in turns through all orders. The orders that
-- differed are looked at each time.
CREATE TABLE books_compared (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT books_compared_has_one_row CHECK (only_row),
    outbox_id bigint NOT NULL,
    order_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
);
INSERT INTO books_compared (outbox_id) SELECT COALESCE(max(id), 0) FROM outbox;
CREATE TABLE books_differing (
    order_id uuid PRIMARY KEY,
    found_at timestamptz NOT NULL DEFAULT now()
);

-- Attention ----------------------------------------------------------------------------------------------------------

-- What a person decided about an entry of `counterfoil attention`, as long as the entry says what it said then.
CREATE TABLE attention_decisions (
    subject text PRIMARY KEY,
    state text NOT NULL,
    person text NOT NULL,
    reason text NOT NULL CONSTRAINT attention_decisions_say_why CHECK (reason <> ''),
    decided_at timestamptz NOT NULL DEFAULT now()
);

-- Every state in which money or a customer waits for a person, or for something that may never come: one row each. Each part
-- is found by an index of what is open alone, so that the list costs what is in it, not what has been. A decision holds for a
-- subject in a state: when the state changes, the entry is open again. docs/attention.md has the kinds and where each shows.
CREATE VIEW attention_entries AS
SELECT 'waiting' AS kind, 'waiting:' || w.provider || ':' || w.account || ':' || w.event_id AS subject, w.waits_for AS state,
    w.provider || ' ' || w.event_type || ' ' || w.event_id AS what, w.waits_for AS order_name,
    (COALESCE(w.fact #> '{fact,payment,money}', w.fact #> '{fact,refund,money}', w.fact #> '{fact,dispute,money}', w.fact #> '{fact,refunds_reported,total}') ->> 'amount_minor')::bigint AS amount_minor,
    COALESCE(w.fact #> '{fact,payment,money}', w.fact #> '{fact,refund,money}', w.fact #> '{fact,dispute,money}', w.fact #> '{fact,refunds_reported,total}') ->> 'currency' AS currency,
    'nothing here has this name yet' AS why, w.received_at AS since
FROM webhook_events w WHERE w.outcome = 'waiting'
    -- What goes back of a payment that ended without a capture is its authorisation: no money waits.
    AND NOT (w.waits_for LIKE 'payment:%' AND EXISTS (SELECT FROM payments p WHERE p.payment_id = w.payment_id AND p.provider = w.provider AND p.status IN ('cancelled', 'expired')))
UNION ALL
-- Once for each payment, whichever of its events told of it.
SELECT 'unplaced', 'unplaced:' || w.provider || ':' || w.account || ':' || COALESCE(w.payment_id, w.event_id), w.unplaced_minor || ' ' || w.unplaced_currency,
    w.provider || ' ' || COALESCE(w.payment_id, w.event_id), COALESCE(w.fact #>> '{fact,unsupported,order,reference}', w.fact #>> '{fact,unsupported,order,id}'),
    w.unplaced_minor, w.unplaced_currency,
    'captured, and counts for no order: ' || COALESCE(w.reason, ''), w.received_at
FROM (SELECT DISTINCT ON (provider, COALESCE(payment_id, event_id)) * FROM webhook_events WHERE unplaced_minor IS NOT NULL
    ORDER BY provider, COALESCE(payment_id, event_id), unplaced_minor DESC, received_at) w
UNION ALL
SELECT 'failed', 'failed:' || w.provider || ':' || w.account || ':' || w.event_id, COALESCE(w.last_error, ''),
    w.provider || ' ' || w.event_type || ' ' || w.event_id, NULL, NULL, NULL, COALESCE(w.last_error, ''), w.received_at
FROM webhook_events w WHERE w.outcome = 'failed'
UNION ALL
SELECT 'unreadable', 'unreadable:' || w.provider || ':' || w.account || ':' || w.event_id, COALESCE(w.reason, ''),
    w.provider || ' ' || w.event_type || ' ' || w.event_id, NULL, NULL, NULL, COALESCE(w.reason, ''), w.received_at
FROM webhook_events w WHERE w.outcome = 'unreadable'
UNION ALL
SELECT 'changed', 'changed:' || w.provider || ':' || w.account || ':' || w.event_id, w.changed::text,
    w.provider || ' ' || w.event_type || ' ' || w.event_id, NULL, NULL, NULL, 'a copy of the event says something else; the first stays in force, both are kept', w.received_at
FROM webhook_events w WHERE w.changed > 0
UNION ALL
SELECT CASE p.disposition WHEN 'extra' THEN 'extra' ELSE 'held' END, 'money:' || p.provider || ':' || p.account || ':' || p.payment_id,
    concat_ws(' ', p.disposition, p.unallocated_minor, p.held_reason, p.hold_note), p.provider || ' ' || p.payment_id, o.reference, p.unallocated_minor, p.currency,
    CASE WHEN p.disposition = 'settled' THEN 'more was captured than the order costs'
        WHEN p.amount_minor = 0 THEN 'nothing was to be paid for it, a coupon say, and the order has a price' ELSE COALESCE(p.held_reason, '') END
        || COALESCE(': ' || p.hold_note, ''), p.created_at
FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.unallocated_minor > 0 OR (p.disposition = 'held' AND p.amount_minor = 0)
UNION ALL
SELECT 'overpaid', 'overpaid:' || p.provider || ':' || p.account || ':' || p.payment_id, p.overdrawn_minor::text, p.provider || ' ' || p.payment_id, o.reference,
    p.overdrawn_minor, p.currency, CASE WHEN p.booked_settled_minor + p.booked_tip_minor > p.booked_captured_minor
        THEN 'less was captured than the checkout said, and the order was paid by that' ELSE 'more went back, or was charged back, than was captured' END, p.updated_at
FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.overdrawn_minor > 0
UNION ALL
SELECT 'claimed', 'claimed:' || c.provider || ':' || c.account || ':' || c.payment_id || ':' || c.order_id, c.amount_minor || ' ' || c.currency,
    c.provider || ' ' || c.payment_id, o.reference, c.amount_minor, c.currency,
    'its payment counts for order ' || COALESCE((SELECT x.reference FROM payments p JOIN orders x ON x.id = p.order_id
        WHERE p.provider = c.provider AND p.account = c.account AND p.payment_id = c.payment_id), '?') || ', and this order claims it, too', c.claimed_at
FROM payment_claims c JOIN orders o ON o.id = c.order_id
UNION ALL
SELECT 'refund', 'refund:' || r.id, concat_ws(' ', r.status, r.held_reason), r.provider || ' ' || r.payment_id || ' refund ' || r.id, o.reference, r.amount_minor, r.currency,
    COALESCE(r.held_reason, r.status || ' since'), r.created_at
FROM refunds r JOIN orders o ON o.id = r.order_id
WHERE r.status IN ('requested', 'pending') AND (r.held_reason IS NOT NULL OR r.created_at < now() - interval '1 hour')
UNION ALL
SELECT 'refund', 'refund:' || r.id, 'failed ' || COALESCE(r.provider_refund_id, ''), r.provider || ' ' || r.payment_id || ' refund ' || r.id, o.reference, r.amount_minor, r.currency,
    'failed: ' || COALESCE(r.last_error, 'the provider says so'), r.updated_at
FROM refunds r JOIN orders o ON o.id = r.order_id WHERE r.status = 'failed' AND NOT r.answered
UNION ALL
SELECT 'refund', 'reported:' || p.provider || ':' || p.account || ':' || p.payment_id, p.refunds_reported_minor || ' ' || p.refunds_known_minor,
    p.provider || ' ' || p.payment_id, o.reference, p.refunds_reported_minor - p.refunds_known_minor, p.currency,
    'the provider says that so much more went back, and names no refund for it', p.updated_at
FROM payments p JOIN orders o ON o.id = p.order_id WHERE p.refunds_reported_minor > p.refunds_known_minor AND p.updated_at < now() - interval '1 hour'
UNION ALL
SELECT 'currency', 'currency:refund:' || r.id, r.status || ' ' || r.amount_minor, r.provider || ' ' || r.payment_id || ' refund ' || COALESCE(r.provider_refund_id, r.id::text), o.reference, r.amount_minor, r.currency,
    'a refund in another currency than its payment''s: it is not booked', r.created_at
FROM refunds r JOIN orders o ON o.id = r.order_id WHERE r.foreign_currency
UNION ALL
SELECT 'currency', 'currency:dispute:' || d.provider || ':' || d.account || ':' || d.dispute_id, d.status || ' ' || d.amount_minor, d.provider || ' ' || d.dispute_id, o.reference, d.amount_minor, d.currency,
    'a dispute in another currency than its payment''s: it is not booked', d.created_at
FROM disputes d JOIN orders o ON o.id = d.order_id WHERE d.foreign_currency
UNION ALL
SELECT 'disputed', 'dispute:' || d.provider || ':' || d.account || ':' || d.dispute_id, d.status || ' ' || d.amount_minor, d.provider || ' ' || d.dispute_id, o.reference, d.amount_minor, d.currency,
    d.status || COALESCE(': ' || d.reason, ''), d.created_at
FROM disputes d JOIN orders o ON o.id = d.order_id WHERE d.status IN ('inquiry', 'opened')
UNION ALL
SELECT 'unfulfilled', 'unfulfilled:' || u.reference, u.minor::text, 'tickets of ' || u.reference, u.reference, u.minor, u.currency,
    'paid for, and there are no tickets for it: its place was sold to others', u.since
FROM unfulfilled_orders u
UNION ALL
SELECT 'key', 'key:' || k.scope || ':' || k.key, 'in_progress', k.scope || ' ' || k.key, NULL, NULL, NULL, 'in progress since', k.created_at
FROM idempotency_keys k WHERE k.status = 'in_progress' AND k.created_at < now() - interval '1 minute';

-- The books against the payments --------------------------------------------------------------------------------------

-- Captured − refunded − disputed − charged back, by the rows, and what stands in assets:receivable, wherever the two differ.
-- What backfill recorded (quiet_minor) is in neither; nor is what went back in another currency than its payment's. An order
-- that has just changed may have an event on its way: see changed_at. Joined by order: of one order, an index finds all of it.
CREATE VIEW order_books AS
SELECT o.id AS order_id, c.currency, o.updated_at AS changed_at,
    (COALESCE((SELECT sum(p.amount_minor - p.quiet_minor) FROM payments p WHERE p.order_id = o.id AND p.status = 'captured' AND p.currency = c.currency), 0)
     - COALESCE((SELECT sum(r.amount_minor) FROM refunds r WHERE r.order_id = o.id AND r.status = 'succeeded' AND r.currency = c.currency AND NOT r.foreign_currency), 0)
     - COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.order_id = o.id AND d.status IN ('opened', 'lost') AND d.currency = c.currency AND NOT d.foreign_currency), 0)
    )::bigint AS expected_minor,
    COALESCE((SELECT sum(l.amount_minor) FROM payments p JOIN ledger_entries e ON e.payment_provider = p.provider AND e.payment_account = p.account AND e.payment_id = p.payment_id
        JOIN ledger_lines l ON l.entry_id = e.id WHERE p.order_id = o.id AND l.currency = c.currency AND l.account LIKE 'assets:receivable:%'), 0)::bigint
    -- Of payments that are not here.
    + COALESCE((SELECT sum(l.amount_minor) FROM ledger_entries e JOIN ledger_lines l ON l.entry_id = e.id
        WHERE e.order_id = o.id AND l.currency = c.currency AND l.account LIKE 'assets:receivable:%' AND NOT EXISTS (SELECT FROM payments p
            WHERE p.provider = e.payment_provider AND p.account = e.payment_account AND p.payment_id = e.payment_id)), 0)::bigint AS booked_minor
FROM orders o CROSS JOIN LATERAL (
    SELECT p.currency FROM payments p WHERE p.order_id = o.id AND p.status = 'captured'
    UNION SELECT l.currency FROM ledger_entries e JOIN ledger_lines l ON l.entry_id = e.id WHERE e.order_id = o.id) c;

CREATE VIEW books_differences AS
SELECT order_id, currency, expected_minor, booked_minor, changed_at FROM order_books WHERE expected_minor <> booked_minor;
