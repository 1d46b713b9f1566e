//! Tests of tickets on a real PostgreSQL.
