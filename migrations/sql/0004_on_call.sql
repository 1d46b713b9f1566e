-- What on-call needs: dead letters that can be looked at and replayed, what was lost, pauses, and who did what.

-- Dead letters -------------------------------------------------------------------------------------------------------

CREATE TABLE dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL,
    -- NULL: its body is no event of ours. Then it is shown, and can only be discarded.
    event_id uuid,
    -- The event's id, else the SHA-256 of the body: one row for an event that died at a consumer, however often.
    identity text NOT NULL,
    topic text,
    order_id uuid,
    version bigint,
    amount_minor bigint,
    currency text,
    -- The bytes as they came, never edited; what erases a customer says so in erased_at.
    body bytea NOT NULL,
    headers jsonb NOT NULL DEFAULT '{}',
    -- The replay that it died of last; 0: none was tried yet.
    replay integer NOT NULL DEFAULT 0,
    -- open: needs a decision. queued: in a run, not released. replaying: an outbox row was written. resolved: its effect is done.
    -- discarded: a person said that it need not happen.
    state text NOT NULL DEFAULT 'open' CONSTRAINT dead_letters_state_known CHECK (state IN ('open', 'queued', 'replaying', 'resolved', 'discarded')),
    kind text NOT NULL,
    error text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    -- How often it died again after a replay, and of what before.
    came_back integer NOT NULL DEFAULT 0,
    previous_error text,
    first_failed_at timestamptz NOT NULL,
    died_at timestamptz NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now(),
    replayed_at timestamptz,
    closed_at timestamptz,
    closed_by text,
    closed_reason text,
    erased_at timestamptz,
    CONSTRAINT dead_letters_once_for_an_event UNIQUE (consumer, identity),
    CONSTRAINT dead_letters_closed_has_a_time CHECK ((state IN ('resolved', 'discarded')) = (closed_at IS NOT NULL)),
    CONSTRAINT dead_letters_what_is_no_event_is_not_replayed CHECK (event_id IS NOT NULL OR state IN ('open', 'discarded'))
);
CREATE INDEX dead_letters_unfinished ON dead_letters (consumer, kind) WHERE state IN ('open', 'queued', 'replaying');
CREATE INDEX dead_letters_by_order ON dead_letters (order_id);
CREATE INDEX dead_letters_by_event ON dead_letters (event_id);
CREATE INDEX dead_letters_closed ON dead_letters (closed_at) WHERE closed_at IS NOT NULL;

-- A pause always ends by itself.
CREATE TABLE consumer_pauses (
    consumer text PRIMARY KEY,
    paused_until timestamptz NOT NULL,
    paused_by text NOT NULL,
    reason text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now()
);

-- What a filter chooses: a JSON object of texts, all of which must hold. state: a list with commas.
CREATE FUNCTION dead_letters_matching(filter jsonb) RETURNS SETOF dead_letters LANGUAGE sql STABLE AS $$
    SELECT * FROM dead_letters d
    WHERE (filter ->> 'consumer' IS NULL OR d.consumer = filter ->> 'consumer')
      AND (filter ->> 'kind' IS NULL OR d.kind = filter ->> 'kind')
      AND (filter ->> 'state' IS NULL OR d.state = ANY (string_to_array(filter ->> 'state', ',')))
      AND (filter ->> 'topic' IS NULL OR d.topic = filter ->> 'topic')
      AND (filter ->> 'order' IS NULL OR d.order_id::text = filter ->> 'order')
      AND (filter ->> 'event' IS NULL OR d.event_id::text = filter ->> 'event')
      AND (filter ->> 'since_s' IS NULL OR d.died_at > now() - make_interval(secs => (filter ->> 'since_s')::float8))
      AND (filter ->> 'until_s' IS NULL OR d.died_at <= now() - make_interval(secs => (filter ->> 'until_s')::float8))
      AND (filter ->> 'attempts_min' IS NULL OR d.attempts >= (filter ->> 'attempts_min')::integer)
      AND (filter ->> 'came_back' IS NULL OR (d.came_back > 0) = (filter ->> 'came_back')::boolean)
      AND (filter ->> 'currency' IS NULL OR d.currency = filter ->> 'currency')
      AND (filter ->> 'text' IS NULL OR position(lower(filter ->> 'text') IN lower(d.error)) > 0)
      AND (filter ->> 'id' IS NULL OR d.id = (filter ->> 'id')::bigint)
$$;

-- A replay: a frozen plan, then, once somebody confirmed it, a run under the same id.
CREATE TABLE replays (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- planned: nothing has happened; void after 15 minutes. running. done. stopped: by a person or by itself, see stopped_why.
    state text NOT NULL DEFAULT 'planned' CONSTRAINT replays_state_known CHECK (state IN ('planned', 'running', 'done', 'stopped')),
    -- What was chosen, in words, and up to which dead letter.
    choice text NOT NULL,
    filter jsonb NOT NULL,
    cut_off bigint NOT NULL,
    planned_by text NOT NULL,
    planned_at timestamptz NOT NULL DEFAULT now(),
    started_by text,
    reason text,
    rate_per_s double precision CONSTRAINT replays_rate_sensible CHECK (rate_per_s > 0 AND rate_per_s <= 1000),
    one_first boolean NOT NULL DEFAULT true,
    stop_after integer NOT NULL DEFAULT 5,
    started_at timestamptz,
    -- Releases are counted from here on: when it started, or when the first one had succeeded.
    paced_from timestamptz,
    paced_released integer NOT NULL DEFAULT 0,
    progress_at timestamptz,
    ended_at timestamptz,
    stopped_why text,
    CONSTRAINT replays_started_says_by_whom_and_why CHECK (state = 'planned' OR (started_by IS NOT NULL AND reason IS NOT NULL AND started_at IS NOT NULL))
);
CREATE INDEX replays_running ON replays (id) WHERE state = 'running';

CREATE TABLE replay_items (
    replay_id bigint NOT NULL CONSTRAINT replay_items_replay_exists REFERENCES replays (id) ON DELETE CASCADE,
    dead_letter_id bigint NOT NULL CONSTRAINT replay_items_dead_letter_exists REFERENCES dead_letters (id) ON DELETE CASCADE,
    position integer NOT NULL,
    -- What would have happened, when the plan was made.
    verdict text NOT NULL,
    -- Whether the run takes it.
    taken boolean NOT NULL DEFAULT false,
    -- left: not released. released: an outbox row was written. done, skipped, came_back: how it ended.
    outcome text NOT NULL DEFAULT 'left' CONSTRAINT replay_items_outcome_known CHECK (outcome IN ('left', 'released', 'done', 'skipped', 'came_back')),
    -- The number under which it went out.
    replay integer,
    error_before text,
    error text,
    released_at timestamptz,
    ended_at timestamptz,
    PRIMARY KEY (replay_id, dead_letter_id)
);
CREATE INDEX replay_items_by_dead_letter ON replay_items (dead_letter_id);

-- What a replay of these would do, from the dedupe rows and from how long they are kept (horizon_s). crm copies the current state, so
-- that a newer event of the same order has done its work, too.
CREATE FUNCTION dead_letters_judged(ids bigint[], horizon_s bigint) RETURNS TABLE (id bigint, verdict text, detail text) LANGUAGE sql STABLE AS $$
    SELECT d.id, CASE
        WHEN d.event_id IS NULL THEN 'not_an_event'
        WHEN p.state = 'done' THEN 'done'
        WHEN newer.version IS NOT NULL THEN 'superseded'
        WHEN p.state = 'claimed' AND p.lease_until >= now() THEN 'blocked'
        WHEN c.consumer IS NOT NULL THEN 'blocked'
        WHEN p.state IN ('unknown', 'claimed') THEN 'unknown'
        WHEN p.state = 'failed' OR d.first_failed_at > now() - make_interval(secs => horizon_s) THEN 'will_run'
        ELSE 'unsafe' END,
      CASE
        WHEN p.state = 'done' THEN to_char(p.done_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
        WHEN newer.version IS NOT NULL THEN newer.version::text
        WHEN p.state = 'claimed' AND p.lease_until >= now() THEN 'an attempt holds the lease until ' || to_char(p.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
        WHEN c.consumer IS NOT NULL THEN 'the consumer is paused until ' || to_char(c.paused_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
        ELSE '' END
    FROM dead_letters d
    LEFT JOIN processed_events p ON p.consumer = d.consumer AND p.event_id = d.event_id
    LEFT JOIN consumer_pauses c ON c.consumer = d.consumer AND c.paused_until > now()
    LEFT JOIN LATERAL (SELECT max(o.version) AS version FROM outbox o JOIN processed_events n ON n.consumer = d.consumer AND n.event_id = o.event_id AND n.state = 'done'
        WHERE d.consumer = 'crm' AND o.order_id = d.order_id AND o.exchange = 'counterfoil.events' AND o.version > d.version
          AND o.topic IN ('order.paid', 'order.contact_known')) newer ON true
    WHERE d.id = ANY (ids)
$$;

-- A replay carries the bytes that died, and the time of its fact.
ALTER TABLE outbox ADD COLUMN body bytea, ADD COLUMN occurred_at timestamptz;
-- Sent to one queue alone; the others have their unique index.
CREATE INDEX outbox_sent_to_one_queue ON outbox (event_id) WHERE exchange <> 'counterfoil.events';

-- What was lost ------------------------------------------------------------------------------------------------------

-- Up to which outbox row everything that a consumer should have had is accounted for. A consumer that is new begins at the newest
-- row: what was published before its queue existed is not its own.
CREATE TABLE audit_marks (
    consumer text PRIMARY KEY,
    outbox_id bigint NOT NULL,
    looked_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO audit_marks (consumer, outbox_id)
    SELECT consumer, COALESCE((SELECT max(id) FROM outbox), 0) FROM unnest(ARRAY['email', 'crm', 'ledger', 'refunds', 'tickets']) AS consumer;

-- Messages that a queue lost, and how often they were sent again.
CREATE TABLE lost_messages (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    outbox_id bigint NOT NULL,
    found_at timestamptz NOT NULL DEFAULT now(),
    sent_again integer NOT NULL DEFAULT 0,
    sent_again_at timestamptz,
    settled_at timestamptz,
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX lost_messages_unsettled ON lost_messages (sent_again_at) WHERE settled_at IS NULL;

-- When a claim last changed, so that one whose message is gone can be told from one at work.
ALTER TABLE processed_events ADD COLUMN updated_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX processed_events_unfinished ON processed_events (updated_at) WHERE state <> 'done';

-- For whoever searches by the id that a provider shows and does not sign.
CREATE INDEX webhook_events_by_provider_event_id ON webhook_events (provider_event_id) WHERE provider_event_id IS NOT NULL;

CREATE INDEX webhook_events_failed ON webhook_events (received_at) WHERE outcome = 'failed';
-- By ids alone, where accounts stand in front of them in the keys: few rows have one.
CREATE INDEX webhook_events_of_accounts ON webhook_events (event_id) WHERE account <> '';
CREATE INDEX payments_of_accounts ON payments (payment_id) WHERE account <> '';
CREATE INDEX refunds_of_accounts ON refunds (provider_refund_id) WHERE account <> '';
CREATE INDEX disputes_of_accounts ON disputes (dispute_id) WHERE account <> '';
CREATE INDEX orders_by_session ON orders (session_id) WHERE session_id IS NOT NULL;

-- People -------------------------------------------------------------------------------------------------------------

-- Who did what, to how many, why, from where, and what came of it. Refused attempts, too.
CREATE TABLE actions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    person text NOT NULL,
    role text NOT NULL,
    came_from text NOT NULL,
    action text NOT NULL,
    object text NOT NULL,
    rows_touched bigint NOT NULL DEFAULT 0,
    reason text NOT NULL DEFAULT '',
    outcome text NOT NULL
);
CREATE INDEX actions_by_time ON actions (at);
CREATE INDEX actions_by_object ON actions (object);

CREATE FUNCTION actions_are_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what a person did is not rewritten' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER actions_append_only BEFORE UPDATE OR TRUNCATE ON actions FOR EACH STATEMENT EXECUTE FUNCTION actions_are_append_only();

-- What was told to a human, so that it is told once.
CREATE TABLE notifications (
    subject text PRIMARY KEY,
    told_at timestamptz NOT NULL DEFAULT now(),
    times integer NOT NULL DEFAULT 1,
    count bigint NOT NULL,
    text text NOT NULL,
    over_at timestamptz
);

-- What housekeeping last did, so that silence is noticed.
CREATE TABLE task_runs (
    task text PRIMARY KEY,
    succeeded_at timestamptz NOT NULL DEFAULT now(),
    interval_s double precision NOT NULL
);

-- The processes that run now, each saying every few seconds how busy it is; one that has not for half a minute is gone.
CREATE TABLE replicas (
    process text NOT NULL,
    instance uuid NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    report jsonb NOT NULL,
    PRIMARY KEY (process, instance)
);

-- What must never be: each row is an alert. Orders of the last week; older ones were looked at when they were young.
CREATE VIEW invariant_violations AS
SELECT 'one_order_paid'::text AS check_name, 'order ' || o.reference || ' is ' || o.status || ' and has no order.paid event' AS what, o.id AS order_id
FROM orders o WHERE o.status IN ('paid', 'partially_refunded', 'refunded') AND o.paid_at BETWEEN now() - interval '7 days' AND now() - interval '1 minute'
    AND NOT EXISTS (SELECT FROM outbox e WHERE e.order_id = o.id AND e.topic = 'order.paid' AND e.exchange = 'counterfoil.events')
UNION ALL
SELECT 'version_order', 'the tickets of order ' || s.order_id || ' stand at version ' || s.version || ', and version ' || e.version || ' was applied', s.order_id
FROM ticket_standings s JOIN outbox e ON e.order_id = s.order_id AND e.exchange = 'counterfoil.events' AND e.version > s.version
    AND e.topic IN ('order.refunded', 'refund.failed', 'payment.extra', 'payment.held') AND e.created_at > now() - interval '7 days'
JOIN processed_events p ON p.consumer = 'tickets' AND p.event_id = e.event_id AND p.state = 'done'
WHERE EXISTS (SELECT FROM tickets t WHERE t.order_id = s.order_id);
CREATE INDEX orders_by_paid_at ON orders USING brin (paid_at);

-- Erasure ------------------------------------------------------------------------------------------------------------

ALTER TABLE orders ADD COLUMN erased_at timestamptz;
CREATE INDEX orders_erased ON orders (id) WHERE erased_at IS NOT NULL;
ALTER TABLE webhook_events ADD COLUMN erased_at timestamptz;

-- What was erased stays so, whoever sends or saves it again: a provider's copy, a shop's stale row.
CREATE FUNCTION erased_orders_stay_so() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.customer_email := NULL; NEW.customer_name := NULL; NEW.customer_phone := NULL; NEW.customer_id := NULL; NEW.erased_at := OLD.erased_at;
    RETURN NEW;
END $$;
CREATE TRIGGER orders_erased_stay_so BEFORE UPDATE ON orders FOR EACH ROW WHEN (OLD.erased_at IS NOT NULL) EXECUTE FUNCTION erased_orders_stay_so();
CREATE FUNCTION erased_events_stay_so() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.body := OLD.body; NEW.differing_body := NULL; NEW.differing := OLD.differing; NEW.erased_at := OLD.erased_at;
    RETURN NEW;
END $$;
CREATE TRIGGER webhook_events_erased_stay_so BEFORE UPDATE ON webhook_events FOR EACH ROW WHEN (OLD.erased_at IS NOT NULL) EXECUTE FUNCTION erased_events_stay_so();
