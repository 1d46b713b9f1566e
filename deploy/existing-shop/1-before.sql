-- Run in the shop's database, before counterfoil-migrate: puts the shop's own tables out of the way. Nothing is copied yet, and
-- the shop goes on selling: set search_path = legacy, public for its role (the last statement does so for the database's default).
BEGIN;
CREATE SCHEMA legacy;
ALTER TABLE public.draws SET SCHEMA legacy;
ALTER TABLE public.checkout_sessions SET SCHEMA legacy;
ALTER TABLE public.orders SET SCHEMA legacy;
ALTER TABLE public.entries SET SCHEMA legacy;
ALTER FUNCTION public.complete_checkout(bigint) SET SCHEMA legacy;
-- What the procedure finds by name it finds where it is now.
ALTER FUNCTION legacy.complete_checkout(bigint) SET search_path = legacy, public;
COMMIT;
