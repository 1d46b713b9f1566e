//! How often housekeeping looks, and how long things are kept.

use std::time::Duration;

use counterfoil_chassis::Problems;

/// The longest way by which an old event comes back: Stripe lists 30 days of events, Square 28; Razorpay replays 15.
const REPLAY_DAYS: usize = 30;

/// Options of `counterfoil housekeep`.
#[derive(Debug, Clone, clap::Args)]
pub struct RhythmOptions {
    /// Seconds between two looks for waiting events, expiries, places, keys and due reads.
    #[arg(long, env = "COUNTERFOIL_HOUSEKEEP_OFTEN_S", default_value = "5")]
    often_s: String,
    /// Seconds between two looks for what may be removed, and two comparisons of books and payments.
    #[arg(long, env = "COUNTERFOIL_HOUSEKEEP_SELDOM_S", default_value = "300")]
    seldom_s: String,
    /// Seconds after which a waiting event is alerted about.
    #[arg(long, env = "COUNTERFOIL_WAITING_ALERT_S", default_value = "3600")]
    waiting_alert_s: String,
    /// Seconds after which an order that is still pending is asked about at its provider.
    #[arg(long, env = "COUNTERFOIL_PENDING_S", default_value = "600")]
    pending_s: String,
    /// Seconds after which a key that is still in progress is settled.
    #[arg(long, env = "COUNTERFOIL_KEY_STUCK_S", default_value = "60")]
    key_stuck_s: String,
    /// Days that webhook events are kept: longer than the 30 days for which providers list, replay and redeliver them.
    #[arg(long, env = "COUNTERFOIL_RETENTION_EVENTS_DAYS", default_value = "90")]
    events_days: String,
    /// Days that published outbox rows are kept: as long as events, since on-call replays from them.
    #[arg(long, env = "COUNTERFOIL_RETENTION_OUTBOX_DAYS", default_value = "90")]
    outbox_days: String,
    /// Days that consumers' dedupe rows are kept: longer than the outbox rows that can be replayed.
    #[arg(long, env = "COUNTERFOIL_RETENTION_PROCESSED_DAYS", default_value = "120")]
    processed_days: String,
    /// Seconds after which a published event without effect, attempt or dead letter is taken for lost, and sent again to that
    /// consumer's queue alone.
    #[arg(long, env = "COUNTERFOIL_LOST_AFTER_S", default_value = "300")]
    lost_after_s: String,
    /// Days that the record of who did what is kept.
    #[arg(long, env = "COUNTERFOIL_RETENTION_ACTIONS_DAYS", default_value = "400")]
    actions_days: String,
    /// Days that idempotency keys are kept, and claim tokens behind their expiry.
    #[arg(long, env = "COUNTERFOIL_RETENTION_KEYS_DAYS", default_value = "30")]
    keys_days: String,
}

/// Proven options.
#[derive(Debug, Clone)]
pub struct Rhythm {
    pub(crate) often: Duration,
    pub(crate) seldom: Duration,
    pub(crate) waiting_alert_s: i64,
    pub(crate) pending_s: i64,
    pub(crate) key_stuck_s: i64,
    pub(crate) events_s: i64,
    pub(crate) outbox_s: i64,
    pub(crate) processed_s: i64,
    pub(crate) keys_s: i64,
    pub(crate) lost_after_s: i64,
    pub(crate) actions_s: i64,
}

fn days(days: usize) -> i64 {
    i64::try_from(days).unwrap_or(i64::MAX).saturating_mul(86_400)
}

impl RhythmOptions {
    pub(crate) fn check(&self, problems: &mut Problems) -> Option<Rhythm> {
        let often = problems.seconds("COUNTERFOIL_HOUSEKEEP_OFTEN_S", &self.often_s, 1);
        let seldom = problems.seconds("COUNTERFOIL_HOUSEKEEP_SELDOM_S", &self.seldom_s, 1);
        let mut number = |variable: &str, text: &str| problems.bounded(variable, text, 1..=31_536_000).and_then(|seconds| i64::try_from(seconds).ok());
        let waiting_alert_s = number("COUNTERFOIL_WAITING_ALERT_S", &self.waiting_alert_s);
        let pending_s = number("COUNTERFOIL_PENDING_S", &self.pending_s);
        let key_stuck_s = number("COUNTERFOIL_KEY_STUCK_S", &self.key_stuck_s);
        let lost_after_s = number("COUNTERFOIL_LOST_AFTER_S", &self.lost_after_s);
        let events = problems.bounded("COUNTERFOIL_RETENTION_EVENTS_DAYS", &self.events_days, 1..=36_500)?;
        let outbox = problems.bounded("COUNTERFOIL_RETENTION_OUTBOX_DAYS", &self.outbox_days, 1..=36_500)?;
        let processed = problems.bounded("COUNTERFOIL_RETENTION_PROCESSED_DAYS", &self.processed_days, 1..=36_500)?;
        let actions = problems.bounded("COUNTERFOIL_RETENTION_ACTIONS_DAYS", &self.actions_days, 1..=36_500)?;
        let keys = problems.bounded("COUNTERFOIL_RETENTION_KEYS_DAYS", &self.keys_days, 1..=36_500)?;
        for (variable, kept) in [("COUNTERFOIL_RETENTION_EVENTS_DAYS", events), ("COUNTERFOIL_RETENTION_OUTBOX_DAYS", outbox)] {
            if kept <= REPLAY_DAYS {
                problems.note(variable, format_args!("must be more than {REPLAY_DAYS} days: for as long providers can send an event again"));
            }
        }
        if processed <= outbox {
            problems.note(
                "COUNTERFOIL_RETENTION_PROCESSED_DAYS",
                format_args!("must be more than the {outbox} days of COUNTERFOIL_RETENTION_OUTBOX_DAYS: a replay must find its dedupe row"),
            );
        }
        Some(Rhythm {
            often: often?,
            seldom: seldom?,
            waiting_alert_s: waiting_alert_s?,
            pending_s: pending_s?,
            key_stuck_s: key_stuck_s?,
            events_s: days(events),
            outbox_s: days(outbox),
            processed_s: days(processed),
            keys_s: days(keys),
            lost_after_s: lost_after_s?,
            actions_s: days(actions),
        })
    }
}
