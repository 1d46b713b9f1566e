//! What follows from an attempt: the one place that decides about retries. Pure.

use std::time::Duration;

use counterfoil_broker::Rung;

/// Why a consumer's attempt did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Try later; counts as an attempt.
    Transient {
        /// Why, without customer data.
        reason: String,
        /// Not before this long.
        after: Option<Duration>,
        /// Whether the effect may have happened all the same.
        unknown: bool,
    },
    /// Trying again cannot help.
    Permanent {
        /// Why, without customer data.
        reason: String,
    },
    /// The other side is down, refuses our credentials or TLS, or asks for a pause: nothing of this message's.
    Outage {
        /// Why.
        reason: String,
        /// How long the other side asks us to wait.
        pause: Option<Duration>,
    },
    /// Somebody else works on the same thing: a little later, without counting.
    Busy {
        /// On what.
        reason: String,
    },
}

impl Failure {
    /// A failure after which the effect has surely not happened.
    pub fn transient(reason: impl Into<String>) -> Self {
        Self::Transient { reason: reason.into(), after: None, unknown: false }
    }

    /// A failure after which nobody knows.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Transient { reason: reason.into(), after: None, unknown: true }
    }

    /// A failure for good.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self::Permanent { reason: reason.into() }
    }

    /// A failure of the other side.
    pub fn outage(reason: impl Into<String>) -> Self {
        Self::Outage { reason: reason.into(), pause: None }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::transient(format!("{error:#}"))
    }
}

/// What is to be done with a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its effect has happened, or need not.
    Done,
    /// It failed, or could not be tried.
    Failed(Failure),
    /// Nothing is known to be wrong with it: leave it to the broker to deliver again.
    Leave,
}

/// Where a message goes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// To this rung, with this attempt in its header.
    Rung {
        /// The rung's name.
        rung: String,
        /// The attempt that will be made.
        attempt: u32,
    },
    /// To the dead letters.
    Dead,
}

/// The retry ladder. Attempts are one more than rungs.
#[derive(Debug, Clone)]
pub struct Ladder(Vec<Rung>);

/// The rung for messages that wait without having failed: long enough for a neighbour to finish.
const PARKING: Duration = Duration::from_secs(15);

impl Ladder {
    /// With these rungs, shortest first; at least one.
    #[must_use]
    pub fn new(rungs: Vec<Rung>) -> Self {
        assert!(!rungs.is_empty(), "a ladder has at least one rung: the options see to it");
        Self(rungs)
    }

    /// How often a message is tried.
    #[must_use]
    pub fn attempts_max(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX - 1) + 1
    }

    /// Where a message goes after its `attempt` failed. `draw` in 0..1 spreads the delay between half of the attempt's
    /// rung and the whole of it; the message takes the rung at or above that, since only the head of a queue expires.
    #[must_use]
    pub fn after_attempt(&self, attempt: u32, failure: &Failure, draw: f64) -> Next {
        let (after, counted) = match failure {
            Failure::Permanent { .. } => return Next::Dead,
            Failure::Transient { after, .. } => (*after, true),
            Failure::Outage { .. } | Failure::Busy { .. } => (None, false),
        };
        if !counted {
            return Next::Rung { rung: self.parking().name.clone(), attempt };
        }
        let Some(own) = usize::try_from(attempt).ok().and_then(|attempt| self.0.get(attempt.saturating_sub(1))) else { return Next::Dead };
        let delay = own.delay.mul_f64(0.5 + draw / 2.0).max(after.unwrap_or_default());
        let rung = self.at_or_above(delay);
        Next::Rung { rung: rung.name.clone(), attempt: attempt + 1 }
    }

    fn at_or_above(&self, delay: Duration) -> &Rung {
        self.0.iter().find(|rung| rung.delay >= delay).unwrap_or(&self.0[self.0.len() - 1])
    }

    fn parking(&self) -> &Rung {
        self.at_or_above(PARKING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use counterfoil_broker::topology::rungs;

    fn ladder() -> Ladder {
        Ladder::new(rungs("5s,15s,1m,4m,15m,1h").unwrap())
    }

    fn rung_after(attempt: u32, failure: &Failure) -> Option<(String, u32)> {
        match ladder().after_attempt(attempt, failure, 0.9) {
            Next::Rung { rung, attempt } => Some((rung, attempt)),
            Next::Dead => None,
        }
    }

    #[test]
    fn seven_attempts_climb_six_rungs_and_then_the_message_is_dead() {
        let failure = Failure::transient("x");
        let climbed: Vec<_> = (1..=7).map(|attempt| rung_after(attempt, &failure).map(|(rung, _)| rung)).collect();
        let wanted: Vec<_> = ["5s", "15s", "1m", "4m", "15m", "1h"].map(|rung| Some(rung.to_owned())).into_iter().chain([None]).collect();
        assert_eq!(climbed, wanted);
        assert_eq!(ladder().attempts_max(), 7);
    }

    #[test]
    fn outages_and_busy_neighbours_use_up_no_attempt() {
        for failure in [Failure::outage("x"), Failure::Busy { reason: "x".into() }] {
            for attempt in [1, 7, 70] {
                assert_eq!(rung_after(attempt, &failure), Some(("15s".into(), attempt)));
            }
        }
    }

    #[test]
    fn retry_after_takes_the_rung_at_or_above_it_and_permanent_failures_take_none() {
        let asked = |seconds| Failure::Transient { reason: String::new(), after: Some(Duration::from_secs(seconds)), unknown: false };
        assert_eq!(rung_after(1, &asked(100)), Some(("4m".into(), 2)));
        assert_eq!(rung_after(1, &asked(999_999)), Some(("1h".into(), 2)));
        assert_eq!(rung_after(1, &Failure::permanent("x")), None);
    }

    #[test]
    fn the_draw_spreads_a_delay_over_the_rungs_between_half_and_whole() {
        let dense = Ladder::new(rungs("60ms,80ms,100ms").unwrap());
        let at = |draw| match dense.after_attempt(3, &Failure::transient("x"), draw) {
            Next::Rung { rung, .. } => rung,
            Next::Dead => panic!("dead"),
        };
        assert_eq!((at(0.0), at(0.5), at(1.0)), ("60ms".into(), "80ms".into(), "100ms".into()));
    }
}
