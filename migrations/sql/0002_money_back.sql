-- Money that goes back, money that comes in parts, orders that end, and what housekeeping needs to know.

-- Orders -------------------------------------------------------------------------------------------------------------

ALTER TABLE orders
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN session_provider text,
    ADD COLUMN session_account text,
    ADD COLUMN session_id text,
    ADD COLUMN made_by_scope text,
    ADD COLUMN made_by_key text,
    ADD CONSTRAINT orders_session_names_its_provider CHECK (
        (session_provider IS NULL) = (session_id IS NULL) AND (session_provider IS NULL) = (session_account IS NULL));
CREATE INDEX orders_to_expire ON orders (expires_at) WHERE status IN ('pending_payment', 'payment_pending', 'failed_final');
CREATE INDEX orders_unpaid ON orders (created_at) WHERE status IN ('pending_payment', 'payment_pending', 'failed_final');
CREATE UNIQUE INDEX orders_made_once_by_a_key ON orders (made_by_scope, made_by_key) WHERE made_by_key IS NOT NULL;

-- OrderStatus::after, every move that changes the status; a test compares the two, pair by pair. Whoever else writes to
-- orders (a shop that saves its stale copy, say) is held to it, too, and must raise the version.
CREATE FUNCTION order_status_must_move_by_the_table() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.status, NEW.status) NOT IN (
        ('pending_payment', 'payment_pending'), ('pending_payment', 'failed_final'), ('payment_pending', 'failed_final'),
        ('pending_payment', 'paid'), ('payment_pending', 'paid'), ('failed_final', 'paid'),
        ('pending_payment', 'cancelled'), ('payment_pending', 'cancelled'), ('failed_final', 'cancelled'),
        ('pending_payment', 'expired'), ('payment_pending', 'expired'), ('failed_final', 'expired'),
        ('paid', 'partially_refunded'), ('paid', 'refunded'), ('partially_refunded', 'refunded'),
        ('partially_refunded', 'paid'), ('refunded', 'partially_refunded'), ('refunded', 'paid')) THEN
        RAISE EXCEPTION 'an order does not go from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_status_moves';
    END IF;
    IF NEW.version <= OLD.version THEN
        RAISE EXCEPTION 'a change of an order''s status must raise its version' USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_status_moves';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER orders_status_moves BEFORE UPDATE OF status ON orders FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION order_status_must_move_by_the_table();

-- Payments -----------------------------------------------------------------------------------------------------------

-- Every status has a rank of its own, as PaymentStatus::rank has it: no two can tie, so any order of arrival ends alike.
CREATE OR REPLACE FUNCTION payment_rank(status text) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE status WHEN 'pending' THEN 1::smallint WHEN 'authorised' THEN 2::smallint WHEN 'failed' THEN 3::smallint
        WHEN 'expired' THEN 4::smallint WHEN 'cancelled' THEN 5::smallint WHEN 'captured' THEN 6::smallint ELSE 0::smallint END;

ALTER TABLE payments
    -- What of the captured money pays the order. The rest, if any, belongs to nobody yet.
    ADD COLUMN settled_minor bigint NOT NULL DEFAULT 0,
    -- The row before the last news, written by that news itself: an UPDATE cannot return what it replaced.
    ADD COLUMN before_disposition text NOT NULL DEFAULT 'none',
    ADD COLUMN before_minor bigint NOT NULL DEFAULT 0,
    ADD COLUMN before_settled_minor bigint NOT NULL DEFAULT 0,
    -- The provider's cumulative figure, where it names no single refund: a difference from `refunds` prompts a look-up.
    ADD COLUMN refunds_reported_minor bigint NOT NULL DEFAULT 0,
    -- Why money that was put aside is not sent back by itself.
    ADD COLUMN hold_note text,
    -- Recorded by backfill, and how much of it is therefore not in our books.
    ADD COLUMN backfilled boolean NOT NULL DEFAULT false,
    ADD COLUMN quiet_minor bigint NOT NULL DEFAULT 0;
UPDATE payments SET settled_minor = amount_minor WHERE disposition = 'settled';
ALTER TABLE payments
    ADD CONSTRAINT payments_settled_is_part_of_captured CHECK (settled_minor = 0 OR (disposition = 'settled' AND settled_minor BETWEEN 0 AND amount_minor)),
    ADD CONSTRAINT payments_before_known CHECK (before_disposition IN ('none', 'settled', 'extra', 'held')),
    ADD CONSTRAINT payments_held_says_why CHECK (disposition <> 'held' OR held_reason IS NOT NULL);
-- A process of the first release may still run while this one comes up: what it settles it settles whole.
CREATE FUNCTION payment_settles_whole() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.settled_minor := NEW.amount_minor; RETURN NEW; END $$;
CREATE TRIGGER payments_settle_whole BEFORE INSERT OR UPDATE OF disposition ON payments FOR EACH ROW
    WHEN (NEW.disposition = 'settled' AND NEW.settled_minor = 0 AND NEW.amount_minor > 0) EXECUTE FUNCTION payment_settles_whole();
CREATE INDEX payments_aside ON payments (created_at) WHERE disposition IN ('extra', 'held');
CREATE INDEX payments_in_doubt ON payments (updated_at) WHERE refunds_reported_minor > 0;

-- Refunds ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION refund_rank(status text) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE status WHEN 'requested' THEN 1::smallint WHEN 'pending' THEN 2::smallint WHEN 'succeeded' THEN 3::smallint WHEN 'failed' THEN 4::smallint ELSE 0::smallint END;

CREATE TABLE refunds (
    id uuid PRIMARY KEY,
    order_id uuid NOT NULL CONSTRAINT refunds_order_exists REFERENCES orders (id),
    provider text NOT NULL,
    account text NOT NULL,
    payment_id text NOT NULL,
    provider_refund_id text,
    origin text NOT NULL CONSTRAINT refunds_origin_known CHECK (origin IN ('api', 'provider', 'extra', 'late', 'mismatch')),
    status text NOT NULL CONSTRAINT refunds_status_known CHECK (status IN ('requested', 'pending', 'succeeded', 'failed')),
    amount_minor bigint NOT NULL CONSTRAINT refunds_amount_positive CHECK (amount_minor > 0),
    currency text NOT NULL CONSTRAINT refunds_currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$'),
    source text NOT NULL CONSTRAINT refunds_source_known CHECK (source IN ('sales', 'unallocated')),
    reason text,
    -- The key under which the provider is asked: derived from the action, stored before the first call, never changed.
    provider_key text NOT NULL,
    calls integer NOT NULL DEFAULT 0,
    first_called_at timestamptz,
    held_reason text,
    last_error text,
    made_by_scope text,
    made_by_key text,
    -- How often it was taken up again, and when next: held ones, and ones whose message died.
    resumptions integer NOT NULL DEFAULT 0,
    next_resumption_at timestamptz NOT NULL DEFAULT now() + interval '1 hour',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    quiet_minor bigint NOT NULL DEFAULT 0,
    CONSTRAINT refunds_provider_key_unique UNIQUE (provider, account, provider_key),
    CONSTRAINT refunds_payment_exists FOREIGN KEY (provider, account, payment_id) REFERENCES payments (provider, account, payment_id),
    CONSTRAINT refunds_are_known_to_the_provider CHECK (status IN ('requested', 'failed') OR provider_refund_id IS NOT NULL)
);
CREATE UNIQUE INDEX refunds_one_row_for_a_refund ON refunds (provider, account, provider_refund_id) WHERE provider_refund_id IS NOT NULL;
CREATE UNIQUE INDEX refunds_made_once_by_a_key ON refunds (made_by_scope, made_by_key) WHERE made_by_key IS NOT NULL;
CREATE INDEX refunds_by_payment ON refunds (provider, account, payment_id);
CREATE INDEX refunds_by_order ON refunds (order_id);
CREATE INDEX refunds_under_way ON refunds (created_at) WHERE status IN ('requested', 'pending');

-- Disputes -----------------------------------------------------------------------------------------------------------

CREATE FUNCTION dispute_rank(status text) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE status WHEN 'inquiry' THEN 1::smallint WHEN 'closed' THEN 2::smallint WHEN 'opened' THEN 3::smallint WHEN 'lost' THEN 4::smallint
        WHEN 'won' THEN 5::smallint ELSE 0::smallint END;

CREATE TABLE disputes (
    provider text NOT NULL,
    account text NOT NULL,
    dispute_id text NOT NULL,
    order_id uuid NOT NULL CONSTRAINT disputes_order_exists REFERENCES orders (id),
    payment_id text NOT NULL,
    status text NOT NULL CONSTRAINT disputes_status_known CHECK (status IN ('inquiry', 'opened', 'closed', 'lost', 'won')),
    amount_minor bigint NOT NULL CONSTRAINT disputes_amount_not_negative CHECK (amount_minor >= 0),
    currency text NOT NULL CONSTRAINT disputes_currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$'),
    reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    quiet_minor bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (provider, account, dispute_id),
    CONSTRAINT disputes_payment_exists FOREIGN KEY (provider, account, payment_id) REFERENCES payments (provider, account, payment_id)
);
CREATE INDEX disputes_by_payment ON disputes (provider, account, payment_id);
CREATE INDEX disputes_by_order ON disputes (order_id);

-- What a status may become, for both: only what ranks higher.
CREATE FUNCTION status_must_rise_in_rank() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    rises boolean;
BEGIN
    IF TG_TABLE_NAME = 'refunds' THEN
        -- One that we gave up, and that its provider then turns out to have made, is what its provider says.
        rises := refund_rank(NEW.status) > refund_rank(OLD.status)
            OR (OLD.status = 'failed' AND OLD.provider_refund_id IS NULL AND NEW.provider_refund_id IS NOT NULL);
    ELSIF TG_TABLE_NAME = 'disputes' THEN rises := dispute_rank(NEW.status) > dispute_rank(OLD.status);
    ELSE rises := payment_rank(NEW.status) > payment_rank(OLD.status);
    END IF;
    IF NOT rises THEN
        RAISE EXCEPTION '% do not go from % to %', TG_TABLE_NAME, OLD.status, NEW.status USING ERRCODE = 'check_violation', CONSTRAINT = TG_TABLE_NAME || '_status_rises';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refunds_status_rises BEFORE UPDATE OF status ON refunds FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION status_must_rise_in_rank();
CREATE TRIGGER disputes_status_rises BEFORE UPDATE OF status ON disputes FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION status_must_rise_in_rank();
CREATE TRIGGER payments_status_rises BEFORE UPDATE OF status ON payments FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION status_must_rise_in_rank();

-- Webhook events -----------------------------------------------------------------------------------------------------

ALTER TABLE webhook_events
    -- When the provider made the event, by its own word.
    ADD COLUMN made_at timestamptz,
    -- Deliveries that came more than 24 hours after that.
    ADD COLUMN late_deliveries bigint NOT NULL DEFAULT 0;
CREATE INDEX webhook_events_by_age ON webhook_events USING brin (received_at);
CREATE INDEX webhook_events_claims ON webhook_events (received_at) WHERE reason = 'claimed_by_other_order';
CREATE INDEX webhook_events_to_drive_again ON webhook_events (received_at) WHERE outcome = 'deferred';

-- Housekeeping -------------------------------------------------------------------------------------------------------

-- When an order was last read from its provider, how often in vain, and when next.
CREATE TABLE provider_reads (
    order_id uuid PRIMARY KEY CONSTRAINT provider_reads_order_exists REFERENCES orders (id) ON DELETE CASCADE,
    read_at timestamptz,
    reads integer NOT NULL DEFAULT 0,
    next_read_at timestamptz NOT NULL DEFAULT now(),
    last_error text
);
CREATE INDEX provider_reads_due ON provider_reads (next_read_at);

CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);
CREATE INDEX idempotency_keys_in_progress ON idempotency_keys (created_at) WHERE status = 'in_progress';
CREATE INDEX outbox_by_age ON outbox USING brin (created_at);
CREATE INDEX processed_events_by_age ON processed_events USING brin (created_at);

-- The books against the payments --------------------------------------------------------------------------------------

-- Captured − refunded − charged back, and what stands in assets:receivable, wherever the two differ. What backfill recorded
-- (quiet_minor) is in neither. An order that has just changed may have an event on its way: see changed_at.
CREATE VIEW books_differences AS
WITH moved AS (
    SELECT order_id, currency, amount_minor - quiet_minor AS minor FROM payments WHERE status = 'captured'
    UNION ALL
    SELECT order_id, currency, CASE WHEN status = 'succeeded' THEN -amount_minor ELSE 0 END - quiet_minor FROM refunds
    UNION ALL
    SELECT order_id, currency, CASE WHEN status IN ('opened', 'lost') THEN -amount_minor ELSE 0 END - quiet_minor FROM disputes
), expected AS (
    SELECT order_id, currency, sum(minor)::bigint AS minor FROM moved GROUP BY order_id, currency
), booked AS (
    -- By the payment: the event of a payment that a second order claims names that other order.
    SELECT COALESCE(p.order_id, e.order_id) AS order_id, l.currency, sum(l.amount_minor)::bigint AS minor
    FROM ledger_lines l JOIN ledger_entries e ON e.id = l.entry_id
    LEFT JOIN payments p ON p.provider = e.payment_provider AND p.account = e.payment_account AND p.payment_id = e.payment_id
    WHERE l.account LIKE 'assets:receivable:%' GROUP BY 1, 2
)
SELECT COALESCE(x.order_id, b.order_id) AS order_id, COALESCE(x.currency, b.currency) AS currency,
    COALESCE(x.minor, 0) AS expected_minor, COALESCE(b.minor, 0) AS booked_minor, o.updated_at AS changed_at
FROM expected x FULL JOIN booked b ON b.order_id = x.order_id AND b.currency = x.currency
LEFT JOIN orders o ON o.id = COALESCE(x.order_id, b.order_id)
WHERE COALESCE(x.minor, 0) <> COALESCE(b.minor, 0);
