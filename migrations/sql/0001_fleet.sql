-- The tables of the fleet. Instants are the database's; money is whole minor units.

CREATE TABLE deployment (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT deployment_has_one_row CHECK (only_row),
    topology_version integer NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE orders (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    reference text NOT NULL CONSTRAINT orders_reference_unique UNIQUE,
    status text NOT NULL DEFAULT 'pending_payment' CONSTRAINT orders_status_known CHECK (status IN
        ('pending_payment', 'payment_pending', 'paid', 'partially_refunded', 'refunded', 'failed_final', 'expired', 'cancelled')),
    version bigint NOT NULL DEFAULT 1,
    amount_minor bigint NOT NULL CONSTRAINT orders_amount_not_negative CHECK (amount_minor >= 0),
    currency text NOT NULL CONSTRAINT orders_currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$'),
    customer_email text,
    customer_name text,
    customer_phone text,
    lines jsonb NOT NULL DEFAULT '[]',
    paid_provider text,
    paid_account text,
    paid_payment_id text,
    paid_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT orders_paid_names_its_payment CHECK (
        (status IN ('paid', 'partially_refunded', 'refunded')) = (paid_provider IS NOT NULL)
        AND (paid_provider IS NULL) = (paid_account IS NULL)
        AND (paid_provider IS NULL) = (paid_payment_id IS NULL)
        AND (paid_provider IS NULL) = (paid_at IS NULL)),
    CONSTRAINT orders_reference_is_no_uuid CHECK (reference !~* '^\{?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\}?$')
);
CREATE INDEX orders_by_customer ON orders (lower(customer_email));

CREATE TABLE payments (
    provider text NOT NULL,
    account text NOT NULL DEFAULT '',
    payment_id text NOT NULL,
    order_id uuid NOT NULL CONSTRAINT payments_order_exists REFERENCES orders (id),
    status text NOT NULL CONSTRAINT payments_status_known CHECK (status IN ('pending', 'authorised', 'failed', 'cancelled', 'expired', 'captured')),
    disposition text NOT NULL DEFAULT 'none' CONSTRAINT payments_disposition_known CHECK (disposition IN ('none', 'settled', 'extra', 'held')),
    held_reason text,
    amount_minor bigint,
    currency text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, account, payment_id),
    CONSTRAINT payments_only_captured_money_has_a_place CHECK (disposition = 'none' OR (status = 'captured' AND amount_minor IS NOT NULL AND currency IS NOT NULL))
);
CREATE INDEX payments_by_order ON payments (order_id);

-- The rank of a payment's status, as PaymentStatus::rank has it; a test compares the two.
CREATE FUNCTION payment_rank(status text) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    CASE status WHEN 'pending' THEN 1::smallint WHEN 'authorised' THEN 2::smallint WHEN 'captured' THEN 4::smallint ELSE 3::smallint END;

CREATE TABLE webhook_events (
    provider text NOT NULL,
    account text NOT NULL DEFAULT '',
    event_id text NOT NULL,
    provider_event_id text,
    event_type text NOT NULL,
    body bytea NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    deliveries bigint NOT NULL DEFAULT 1,
    secret_position integer NOT NULL,
    outcome text NOT NULL CONSTRAINT webhook_events_outcome_known CHECK (outcome IN
        ('applied', 'superseded', 'ignored', 'waiting', 'held', 'extra', 'deferred', 'unreadable', 'failed')),
    reason text,
    waits_for text,
    fact jsonb,
    processed_at timestamptz,
    processed_in xid8,
    last_error text,
    differing bigint NOT NULL DEFAULT 0,
    differing_body bytea,
    PRIMARY KEY (provider, account, event_id),
    CONSTRAINT webhook_events_waiting_says_for_what CHECK ((outcome = 'waiting') = (waits_for IS NOT NULL))
);
CREATE INDEX webhook_events_waiting ON webhook_events (waits_for) WHERE outcome = 'waiting';

CREATE TABLE idempotency_keys (
    scope text NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    status text NOT NULL CONSTRAINT idempotency_keys_status_known CHECK (status IN ('in_progress', 'completed')),
    response_status smallint,
    response_body bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz,
    PRIMARY KEY (scope, key)
);

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL,
    topic text NOT NULL,
    order_id uuid,
    version bigint,
    exchange text NOT NULL DEFAULT 'counterfoil.events',
    routing_key text NOT NULL,
    payload jsonb NOT NULL,
    headers jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    deferrals integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error text,
    parked_at timestamptz,
    published_at timestamptz
);
CREATE UNIQUE INDEX outbox_one_event_for_a_fact ON outbox (event_id) WHERE exchange = 'counterfoil.events';
CREATE INDEX outbox_fresh ON outbox (id) WHERE published_at IS NULL AND parked_at IS NULL AND deferrals = 0;
CREATE INDEX outbox_deferred ON outbox (next_attempt_at) WHERE published_at IS NULL AND parked_at IS NULL AND deferrals > 0;
CREATE INDEX outbox_by_order ON outbox (order_id);
CREATE INDEX outbox_parked ON outbox (id) WHERE parked_at IS NOT NULL;

CREATE TABLE processed_events (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    state text NOT NULL CONSTRAINT processed_events_state_known CHECK (state IN ('claimed', 'unknown', 'done', 'failed')),
    attempts integer NOT NULL DEFAULT 1,
    lease_until timestamptz,
    fence bigint NOT NULL DEFAULT 1,
    last_error text,
    external_ref text,
    created_at timestamptz NOT NULL DEFAULT now(),
    done_at timestamptz,
    PRIMARY KEY (consumer, event_id),
    CONSTRAINT processed_events_done_has_a_time CHECK ((state = 'done') = (done_at IS NOT NULL))
);

CREATE TABLE ledger_entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_event_id uuid NOT NULL CONSTRAINT ledger_entries_source_event_unique UNIQUE,
    order_id uuid NOT NULL,
    payment_provider text NOT NULL,
    payment_account text NOT NULL,
    payment_id text NOT NULL,
    topic text NOT NULL,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ledger_entries_by_payment ON ledger_entries (payment_provider, payment_account, payment_id);
CREATE INDEX ledger_entries_by_order ON ledger_entries (order_id);

CREATE TABLE ledger_lines (
    entry_id bigint NOT NULL CONSTRAINT ledger_lines_entry_exists REFERENCES ledger_entries (id),
    account text NOT NULL,
    amount_minor bigint NOT NULL,
    currency text NOT NULL CONSTRAINT ledger_lines_currency_is_a_code CHECK (currency ~ '^[A-Z]{3}$'),
    PRIMARY KEY (entry_id, account, currency)
);

CREATE FUNCTION ledger_entry_must_balance() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    entry bigint;
BEGIN
    IF TG_TABLE_NAME = 'ledger_lines' THEN entry := NEW.entry_id; ELSE entry := NEW.id; END IF;
    IF NOT EXISTS (SELECT FROM ledger_lines WHERE entry_id = entry) THEN
        RAISE EXCEPTION 'ledger entry % has no lines', entry USING ERRCODE = 'check_violation', CONSTRAINT = 'ledger_entry_balances';
    END IF;
    IF EXISTS (SELECT FROM ledger_lines WHERE entry_id = entry GROUP BY currency HAVING sum(amount_minor) <> 0) THEN
        RAISE EXCEPTION 'ledger entry % does not balance', entry USING ERRCODE = 'check_violation', CONSTRAINT = 'ledger_entry_balances';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: correct an entry by another entry' USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE CONSTRAINT TRIGGER ledger_entry_balances AFTER INSERT ON ledger_entries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_entry_must_balance();
CREATE CONSTRAINT TRIGGER ledger_lines_balance AFTER INSERT ON ledger_lines DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_entry_must_balance();
CREATE TRIGGER ledger_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();
CREATE TRIGGER ledger_lines_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_lines
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_is_append_only();

-- By permission, too. The foreign key's check locks ledger_entries rows as its owner, for which PostgreSQL asks for
-- UPDATE on one column; the trigger still refuses to change it.
REVOKE UPDATE, DELETE, TRUNCATE ON ledger_entries, ledger_lines FROM CURRENT_USER, PUBLIC;
GRANT UPDATE (id) ON ledger_entries TO CURRENT_USER;
