-- Tickets: inventory that is reserved with the order, numbers that are given out once, guests who claim their orders.

-- Draws --------------------------------------------------------------------------------------------------------------

CREATE TABLE draws (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- The ordinate of this draw's tickets in the exclusion constraint below.
    ordinal bigint GENERATED ALWAYS AS IDENTITY,
    reference text NOT NULL CONSTRAINT draws_reference_unique UNIQUE,
    name text NOT NULL,
    -- Tickets at the most; NULL: no limit.
    capacity bigint CONSTRAINT draws_capacity_is_a_number_of_tickets CHECK (capacity BETWEEN 0 AND 9007199254740991),
    -- Tickets of one order at the most.
    order_limit bigint CONSTRAINT draws_order_limit_positive CHECK (order_limit > 0),
    opens_at timestamptz,
    closes_at timestamptz,
    charity_numerator bigint NOT NULL DEFAULT 0,
    charity_denominator bigint NOT NULL DEFAULT 1,
    -- Places that are held or confirmed. A confirmed place never comes back: its numbers are never given out again.
    reserved bigint NOT NULL DEFAULT 0,
    -- The last number that was given out.
    minted bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT draws_ordinal_unique UNIQUE (ordinal),
    CONSTRAINT draws_reference_is_no_uuid CHECK (reference !~* '^\{?[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\}?$'),
    CONSTRAINT draws_open_before_they_close CHECK (opens_at < closes_at),
    CONSTRAINT draws_charity_is_a_fraction CHECK (charity_denominator BETWEEN 1 AND 1000000000 AND charity_numerator BETWEEN 0 AND charity_denominator),
    CONSTRAINT draws_are_never_oversold CHECK (0 <= minted AND minted <= reserved AND reserved <= COALESCE(capacity, reserved))
) WITH (fillfactor = 40); -- hot rows: room for its next versions on the same page

-- Reservations: the place of one order line in a draw ------------------------------------------------------------------

CREATE TABLE reservations (
    id uuid PRIMARY KEY,
    order_id uuid NOT NULL CONSTRAINT reservations_order_exists REFERENCES orders (id),
    line integer NOT NULL,
    draw_id uuid NOT NULL CONSTRAINT reservations_draw_exists REFERENCES draws (id),
    quantity bigint NOT NULL CONSTRAINT reservations_quantity_positive CHECK (quantity > 0),
    -- held: until expires_at. confirmed: paid for. released: given back. lost: paid for after it was resold.
    status text NOT NULL CONSTRAINT reservations_status_known CHECK (status IN ('held', 'confirmed', 'released', 'lost')),
    -- Why it was released: expired, or what became of its order.
    reason text,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT reservations_one_for_a_line UNIQUE (order_id, line)
) WITH (fillfactor = 80);
CREATE INDEX reservations_due ON reservations (draw_id, expires_at) WHERE status = 'held';
CREATE INDEX reservations_lost ON reservations (order_id) WHERE status = 'lost';
CREATE INDEX reservations_by_draw ON reservations (draw_id);

-- ReservationStatus::after; a test compares the two, pair by pair.
CREATE FUNCTION reservation_status_must_move_by_the_table() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.status, NEW.status) NOT IN (('held', 'confirmed'), ('held', 'released'), ('released', 'confirmed'), ('released', 'lost')) THEN
        RAISE EXCEPTION 'a reservation does not go from % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation', CONSTRAINT = 'reservations_status_moves';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER reservations_status_moves BEFORE UPDATE OF status ON reservations FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION reservation_status_must_move_by_the_table();

-- An order that is paid keeps its places, whoever says that it is. One that ends, or whose payment failed for good, holds none any
-- longer; they are given back by the next who looks: a request that finds too few left, or housekeeping.
CREATE FUNCTION order_keeps_or_leaves_its_places() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = 'paid' THEN
        UPDATE reservations SET status = 'confirmed', reason = NULL, updated_at = now() WHERE order_id = NEW.id AND status = 'held';
    ELSE
        UPDATE reservations SET expires_at = LEAST(expires_at, now()), reason = NEW.status, updated_at = now() WHERE order_id = NEW.id AND status = 'held';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER orders_keep_or_leave_their_places AFTER UPDATE OF status ON orders FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status IN ('paid', 'failed_final', 'expired', 'cancelled') AND NEW.lines @? '$[*].draw')
    EXECUTE FUNCTION order_keeps_or_leaves_its_places();

-- Tickets: a range of numbers for each order line ----------------------------------------------------------------------

CREATE TABLE tickets (
    order_id uuid NOT NULL,
    line integer NOT NULL,
    draw_id uuid NOT NULL,
    draw_ordinal bigint NOT NULL,
    first_number bigint NOT NULL,
    last_number bigint NOT NULL,
    status text NOT NULL DEFAULT 'valid' CONSTRAINT tickets_status_known CHECK (status IN ('valid', 'void')),
    issued_at timestamptz NOT NULL DEFAULT now(),
    voided_at timestamptz,
    CONSTRAINT tickets_once_for_a_line PRIMARY KEY (order_id, line),
    -- No foreign keys: minting joins the reservation, whose keys are real; checked row by row they would lock the hot draw and every
    -- reservation once more (a quarter of the transaction). The audit finds tickets without a confirmed reservation.
    -- Numbers are whole up to 2^53, which a double holds exactly.
    CONSTRAINT tickets_numbers_are_a_range CHECK (0 < first_number AND first_number <= last_number AND last_number < 9007199254740992),
    CONSTRAINT tickets_void_has_a_time CHECK ((status = 'void') = (voided_at IS NOT NULL)),
    -- No number twice: on each draw's own line no two ranges touch. Boxes, since their GiST class is built in and takes 13 µs a
    -- row here where (uuid, int8range) by btree_gist takes 50.
    CONSTRAINT tickets_never_overlap EXCLUDE USING gist (box(point(first_number, draw_ordinal), point(last_number, draw_ordinal)) WITH &&)
);

-- What an order's money stands at, by the newest event that said so: a refund may be heard of before its payment. A row for
-- each order whose money moved again after it was paid, tickets or not: of an order that is not minted yet, nobody knows which.
CREATE TABLE ticket_standings (
    order_id uuid PRIMARY KEY,
    version bigint NOT NULL,
    order_status text NOT NULL
);

-- Customers ----------------------------------------------------------------------------------------------------------

ALTER TABLE orders ADD COLUMN customer_id text;
CREATE INDEX orders_of_customer ON orders (customer_id) WHERE customer_id IS NOT NULL;

-- What was mailed.
CREATE TABLE receipts (
    event_id uuid PRIMARY KEY,
    order_id uuid NOT NULL CONSTRAINT receipts_order_exists REFERENCES orders (id),
    kind text NOT NULL CONSTRAINT receipts_kind_known CHECK (kind IN ('receipt', 'tickets', 'void', 'unavailable')),
    message_id text NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX receipts_by_order ON receipts (order_id);

-- A token names its row; the row says what it is good for, and that it was used.
CREATE TABLE claim_tokens (
    id uuid PRIMARY KEY,
    order_id uuid NOT NULL CONSTRAINT claim_tokens_order_exists REFERENCES orders (id),
    -- Good for this customer alone, if the shop said so.
    meant_for text,
    expires_at timestamptz NOT NULL,
    claimed_by text,
    claimed_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT claim_tokens_claimed_has_a_time CHECK ((claimed_by IS NULL) = (claimed_at IS NULL))
);
CREATE INDEX claim_tokens_by_order ON claim_tokens (order_id);
CREATE INDEX claim_tokens_by_age ON claim_tokens (expires_at);

-- Money and events -----------------------------------------------------------------------------------------------------

ALTER TABLE refunds DROP CONSTRAINT refunds_origin_known,
    ADD CONSTRAINT refunds_origin_known CHECK (origin IN ('api', 'provider', 'extra', 'late', 'mismatch', 'sold_out'));

-- The payment that an event is about, so that one leads to the other. NULL in events of earlier releases.
ALTER TABLE webhook_events ADD COLUMN payment_account text, ADD COLUMN payment_id text;
CREATE INDEX webhook_events_by_payment ON webhook_events (payment_id) WHERE payment_id IS NOT NULL;

-- Payment, webhook event, order, reservation, ticket, notification: each with its own state, from any of them in one query.
CREATE VIEW payment_chain AS
SELECT p.provider, p.account, p.payment_id, p.status AS payment_status, p.disposition,
    w.event_id AS webhook_event_id, w.provider_event_id, w.event_type, w.outcome AS webhook_outcome, w.received_at,
    o.id AS order_id, o.reference, o.status AS order_status, o.customer_id,
    r.id AS reservation_id, r.line, r.draw_id, r.quantity, r.status AS reservation_status,
    t.first_number, t.last_number, t.status AS ticket_status,
    box(point(t.first_number, t.draw_ordinal), point(t.last_number, t.draw_ordinal)) AS ticket_box, d.reference AS draw_reference,
    e.event_id AS notification_event_id, e.topic AS notification_topic,
    CASE WHEN e.event_id IS NOT NULL THEN COALESCE(n.state, 'waiting') END AS notification_status, n.done_at AS notified_at, s.message_id
FROM orders o
LEFT JOIN payments p ON p.order_id = o.id
LEFT JOIN webhook_events w ON w.payment_id = p.payment_id AND w.provider = p.provider AND w.payment_account = p.account
LEFT JOIN reservations r ON r.order_id = o.id
LEFT JOIN draws d ON d.id = r.draw_id
LEFT JOIN tickets t ON t.order_id = r.order_id AND t.line = r.line
LEFT JOIN outbox e ON e.order_id = o.id AND e.exchange = 'counterfoil.events'
    AND e.topic IN ('order.paid', 'order.contact_known', 'tickets.issued', 'tickets.voided', 'tickets.unavailable')
LEFT JOIN processed_events n ON n.consumer = 'email' AND n.event_id = e.event_id
LEFT JOIN receipts s ON s.event_id = e.event_id;

-- A line that buys tickets names its draw by id, a whole number of tickets, and a price: whoever writes orders by SQL hears so at once.
ALTER TABLE orders ADD CONSTRAINT orders_ticket_lines_are_sound CHECK (
    NOT jsonb_path_exists(lines, '$[*].draw')
    OR jsonb_array_length(jsonb_path_query_array(lines, '$[*] ? (exists(@.draw))')) = jsonb_array_length(jsonb_path_query_array(lines,
        '$[*] ? (@.draw like_regex "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$" && @.quantity >= 1 && @.quantity.floor() == @.quantity
            && @.amount_minor >= 0 && @.amount_minor.floor() == @.amount_minor)'))) NOT VALID;

-- What a line is worth: its price, or, where others of the order take something off, its share of what the order costs, rounded down.
CREATE FUNCTION line_worth(order_minor bigint, lines jsonb, line_minor bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (
    SELECT CASE WHEN s.minor <= order_minor OR s.minor = 0 THEN line_minor ELSE LEAST(line_minor, div(order_minor::numeric * line_minor, s.minor))::bigint END
    FROM (SELECT COALESCE(sum((l ->> 'amount_minor')::numeric) FILTER (WHERE (l ->> 'amount_minor')::numeric > 0), 0) AS minor FROM jsonb_array_elements(lines) AS l) s);

-- Of what an order costs, how much is not here: what was captured for it in its currency, by whichever payment, less what went back,
-- and less what was charged back, too. And what its lines are worth that were paid for when their places were others'.
CREATE VIEW ticket_money AS
SELECT o.id AS order_id, GREATEST(o.amount_minor - m.captured + m.refunded, 0)::bigint AS refunded_minor,
    GREATEST(o.amount_minor - m.captured + m.refunded + m.charged_back, 0)::bigint AS back_minor,
    LEAST(o.amount_minor, COALESCE((SELECT sum(line_worth(o.amount_minor, o.lines, (o.lines -> r.line ->> 'amount_minor')::bigint)) FROM reservations r
        WHERE r.order_id = o.id AND r.status = 'lost'), 0))::bigint AS lost_minor
FROM orders o CROSS JOIN LATERAL (SELECT
    COALESCE((SELECT sum(p.amount_minor) FROM payments p WHERE p.order_id = o.id AND p.status = 'captured' AND p.currency = o.currency), 0) AS captured,
    COALESCE((SELECT sum(f.amount_minor) FROM refunds f WHERE f.order_id = o.id AND f.status = 'succeeded' AND f.currency = o.currency), 0) AS refunded,
    COALESCE((SELECT sum(d.amount_minor) FROM disputes d WHERE d.order_id = o.id AND d.status IN ('opened', 'lost') AND d.currency = o.currency), 0) AS charged_back) m;

-- Every line of every order that names a draw, with its money and its tickets: what `counterfoil draws audit` adds up.
CREATE VIEW draw_lines AS
SELECT (l.line ->> 'draw')::uuid AS draw_id, o.id AS order_id, (l.nth - 1)::integer AS line, o.reference, o.status AS order_status, o.currency,
    o.amount_minor AS order_minor, o.updated_at AS changed_at, (l.line ->> 'quantity')::bigint AS line_quantity,
    line_worth(o.amount_minor, o.lines, (l.line ->> 'amount_minor')::bigint) AS worth_minor, p.status AS payment_status, p.settled_minor,
    r.id AS reservation_id, r.draw_id AS reserved_in, r.quantity, r.status AS reservation_status,
    t.draw_ordinal AS minted_in, t.first_number, t.last_number, t.status AS ticket_status, t.issued_at, t.voided_at,
    m.refunded_minor AS order_refunded_minor, m.back_minor AS order_back_minor, m.lost_minor AS order_lost_minor
FROM orders o
CROSS JOIN LATERAL jsonb_array_elements(CASE WHEN jsonb_typeof(o.lines) = 'array' THEN o.lines ELSE '[]' END) WITH ORDINALITY AS l (line, nth)
JOIN ticket_money m ON m.order_id = o.id
LEFT JOIN payments p ON p.provider = o.paid_provider AND p.account = o.paid_account AND p.payment_id = o.paid_payment_id
LEFT JOIN reservations r ON r.order_id = o.id AND r.line = l.nth - 1
LEFT JOIN tickets t ON t.order_id = o.id AND t.line = l.nth - 1
WHERE l.line ? 'draw';

-- Orders that were paid when places of theirs were others' (or whose place nobody has looked for since), and whose money for these is
-- still here.
CREATE VIEW unfulfilled_orders AS
SELECT o.reference, o.currency, o.updated_at AS since, CASE WHEN m.lost_minor > 0 THEN m.lost_minor - m.back_minor ELSE o.amount_minor - m.back_minor END AS minor
FROM orders o JOIN ticket_money m ON m.order_id = o.id
WHERE o.id IN (SELECT order_id FROM reservations WHERE status = 'lost' UNION SELECT order_id FROM ticket_standings) AND o.status IN ('paid', 'partially_refunded')
    AND (m.lost_minor > m.back_minor OR (o.updated_at < now() - interval '10 minutes'
        AND EXISTS (SELECT FROM reservations r WHERE r.order_id = o.id AND r.status = 'released')));

-- Customer-facing readers ------------------------------------------------------------------------------------------------

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'counterfoil_customer') THEN
        CREATE ROLE counterfoil_customer NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL; -- another database of this server was migrated in the same instant
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the role counterfoil_customer is missing and % may not create it', current_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'Run CREATE ROLE counterfoil_customer NOLOGIN as a superuser, then counterfoil-migrate again.';
END $$;

-- The customer of the session, set by the reader for each transaction: SET LOCAL counterfoil.customer_id = '…'. None: no row.
CREATE FUNCTION counterfoil_customer_id() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE RETURN NULLIF(current_setting('counterfoil.customer_id', true), '');

-- The first policy lets everybody else see what their grants allow; the second holds members of the role to their own rows.
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY rows_as_granted ON orders USING (true);
CREATE POLICY own_rows ON orders AS RESTRICTIVE TO counterfoil_customer USING (customer_id = counterfoil_customer_id());
ALTER TABLE reservations ENABLE ROW LEVEL SECURITY;
CREATE POLICY rows_as_granted ON reservations USING (true);
CREATE POLICY own_rows ON reservations AS RESTRICTIVE TO counterfoil_customer
    USING (EXISTS (SELECT FROM orders o WHERE o.id = reservations.order_id AND o.customer_id = counterfoil_customer_id()));
ALTER TABLE tickets ENABLE ROW LEVEL SECURITY;
CREATE POLICY rows_as_granted ON tickets USING (true);
CREATE POLICY own_rows ON tickets AS RESTRICTIVE TO counterfoil_customer
    USING (EXISTS (SELECT FROM orders o WHERE o.id = tickets.order_id AND o.customer_id = counterfoil_customer_id()));
ALTER TABLE receipts ENABLE ROW LEVEL SECURITY;
CREATE POLICY rows_as_granted ON receipts USING (true);
CREATE POLICY own_rows ON receipts AS RESTRICTIVE TO counterfoil_customer
    USING (EXISTS (SELECT FROM orders o WHERE o.id = receipts.order_id AND o.customer_id = counterfoil_customer_id()));

-- Column by column: what a customer may know of their own order. Views run as their owner and would pass the policies by, so
-- none is granted.
GRANT SELECT (id, reference, status, version, amount_minor, currency, customer_id, customer_email, customer_name, customer_phone, lines, paid_at, expires_at, created_at)
    ON orders TO counterfoil_customer;
GRANT SELECT (id, order_id, line, draw_id, quantity, status, expires_at, created_at) ON reservations TO counterfoil_customer;
GRANT SELECT (order_id, line, draw_id, first_number, last_number, status, issued_at, voided_at) ON tickets TO counterfoil_customer;
GRANT SELECT (event_id, order_id, kind, message_id, sent_at) ON receipts TO counterfoil_customer;
GRANT SELECT (id, reference, name, opens_at, closes_at) ON draws TO counterfoil_customer;
