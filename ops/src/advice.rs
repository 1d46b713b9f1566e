//! Which process would gain by another replica: from what the processes say of themselves. Pure.

use serde::Serialize;

/// What is known of one stage.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// Processes that run.
    pub replicas: usize,
    /// Their mean busy share, 0 to 1.
    pub busy: f64,
    /// Which share of their work is spent waiting for the broker, 0 to 1.
    pub broker: f64,
    /// Age of the oldest thing that waits, in seconds.
    pub oldest_s: f64,
    /// Things that wait.
    pub waiting: i64,
    /// A person's pause, until when.
    pub paused_until: Option<String>,
    /// The other side is down.
    pub outage: Option<String>,
    /// Until when the other side asks us to wait.
    pub asked_until: Option<String>,
    /// Share of the database's connections in use, 0 to 1.
    pub database: f64,
    /// Messages that wait on retry rungs.
    pub on_rungs: i64,
    /// Why a process of it says that it cannot work now.
    pub trouble: Option<String>,
}

/// What an operator should do about a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Nothing.
    KeepingUp,
    /// Start another.
    OneMore,
    /// The broker is slow: another replica would not help.
    BrokerIsTheLimit,
    /// PostgreSQL is full: another replica would make it worse.
    DatabaseIsTheLimit,
    /// The other side asks for a pause.
    Asked(String),
    /// The other side is down, or refuses us.
    OtherSideIsDown(String),
    /// A person has paused it.
    Paused(String),
    /// What waits has failed, and is due to be tried again.
    Retrying,
    /// A process cannot work, and says why.
    Trouble(String),
    /// Behind, and not for want of replicas.
    NotBusy,
    /// Fewer would do.
    Fewer,
    /// No process runs.
    NoneRuns,
}

/// Behind, once something has waited so long: an idle fleet takes milliseconds, a busy one a second.
const BEHIND_S: f64 = 5.0;

/// Busy, from this share on: beside the work there are waits that another replica cannot fill.
const BUSY: f64 = 0.7;

/// So many replicas are for safety, however idle: one may die.
const SAFE: usize = 2;

/// Idle, below this share: half the replicas would have twice of it.
const IDLE: f64 = 0.15;

/// Connections in use, from this share on, are a limit of their own.
const DATABASE_FULL: f64 = 0.9;

impl Advice {
    /// Weighs what is known.
    #[must_use]
    pub fn on(standing: &Standing) -> Self {
        if standing.replicas == 0 {
            return Self::NoneRuns;
        }
        if let Some(until) = &standing.paused_until {
            return Self::Paused(until.clone());
        }
        if let Some(until) = &standing.asked_until {
            return Self::Asked(until.clone());
        }
        if let Some(why) = &standing.outage {
            return Self::OtherSideIsDown(why.clone());
        }
        let behind = standing.oldest_s > BEHIND_S && standing.waiting > 0;
        if !behind {
            return if standing.replicas > SAFE && standing.busy < IDLE { Self::Fewer } else { Self::KeepingUp };
        }
        if let Some(why) = &standing.trouble {
            return Self::Trouble(why.clone());
        }
        if standing.busy < BUSY && standing.on_rungs >= standing.waiting {
            return Self::Retrying;
        }
        if standing.database > DATABASE_FULL {
            return Self::DatabaseIsTheLimit;
        }
        // A relay that waits nine tenths of its time for confirms has the broker to thank for it, unless it is alone: then one more
        // fills the wait.
        if standing.broker > 0.9 && standing.replicas > 2 {
            return Self::BrokerIsTheLimit;
        }
        if standing.busy >= BUSY { Self::OneMore } else { Self::NotBusy }
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::KeepingUp => "Keeping up".into(),
            Self::OneMore => "Behind, one more replica would help".into(),
            Self::BrokerIsTheLimit => "Behind, the broker is the limit".into(),
            Self::DatabaseIsTheLimit => "Behind, PostgreSQL is the limit".into(),
            Self::Asked(until) => format!("Behind, the other side asks us to wait until {until}"),
            Self::OtherSideIsDown(why) => format!("Behind, the other side is down: {why}"),
            Self::Paused(until) => format!("Paused by a person until {until}"),
            Self::Retrying => "Behind, what waits has failed and is due to be tried again".into(),
            Self::Trouble(why) => format!("Behind, and a process of it says: {why}"),
            Self::NotBusy => "Behind, and not busy: another replica would not help; see counterfoil doctor".into(),
            Self::Fewer => "More replicas than needed".into(),
            Self::NoneRuns => "No process runs: start one".into(),
        }
    }

    /// Whether a person is needed.
    #[must_use]
    pub fn needs_a_person(&self) -> bool {
        matches!(self, Self::NoneRuns | Self::OtherSideIsDown(_) | Self::Trouble(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        Standing { replicas: 1, busy: 0.95, oldest_s: 30.0, waiting: 500, ..Standing::default() }
    }

    #[test]
    fn another_replica_is_advised_only_where_the_replicas_are_the_limit() {
        assert_eq!(Advice::on(&standing()), Advice::OneMore);
        assert_eq!(Advice::on(&Standing { oldest_s: 0.4, ..standing() }), Advice::KeepingUp);
        assert_eq!(Advice::on(&Standing { trouble: Some("blocked".into()), ..standing() }), Advice::Trouble("blocked".into()));
        assert_eq!(Advice::on(&Standing { busy: 0.3, ..standing() }), Advice::NotBusy, "an idle replica is not helped by another");
        assert_eq!(Advice::on(&Standing { database: 0.95, ..standing() }), Advice::DatabaseIsTheLimit);
        assert_eq!(Advice::on(&Standing { replicas: 4, broker: 0.95, ..standing() }), Advice::BrokerIsTheLimit);
        assert_eq!(Advice::on(&Standing { busy: 0.1, on_rungs: 500, ..standing() }), Advice::Retrying);
    }

    #[test]
    fn what_no_replica_can_help_is_named_first() {
        assert_eq!(Advice::on(&Standing { replicas: 0, ..standing() }), Advice::NoneRuns);
        assert_eq!(Advice::on(&Standing { paused_until: Some("t".into()), ..standing() }), Advice::Paused("t".into()));
        assert_eq!(Advice::on(&Standing { asked_until: Some("t".into()), outage: Some("429".into()), ..standing() }), Advice::Asked("t".into()));
        assert_eq!(Advice::on(&Standing { outage: Some("HTTP 401".into()), ..standing() }), Advice::OtherSideIsDown("HTTP 401".into()));
    }

    #[test]
    fn idle_replicas_beyond_the_second_are_more_than_needed() {
        let idle = Standing { replicas: 3, busy: 0.02, oldest_s: 0.0, waiting: 0, ..Standing::default() };
        assert_eq!(Advice::on(&idle), Advice::Fewer);
        assert_eq!(Advice::on(&Standing { replicas: 2, ..idle }), Advice::KeepingUp, "the second is for safety");
    }
}
