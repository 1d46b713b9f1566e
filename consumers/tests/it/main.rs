//! Consumers as real processes, against a mail server and a CRM that do as they are told.

mod conformance;
mod crm;
mod email;
mod keeper;
mod ladder;
mod ledger;
mod panics;
mod refunds;
mod support;
mod tls;
