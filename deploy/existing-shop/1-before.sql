-- Run in the shop's database, before counterfoil-migrate: puts the shop's own tables out of the way. Nothing is copied yet, and the
-- shop goes on selling, provided that its sessions look in both schemas already: a schema that is not there yet does no harm. So
-- first, as docs/existing-shops.md says, ALTER ROLE … SET search_path = legacy, public, and let its pools connect anew.
\set ON_ERROR_STOP on
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
