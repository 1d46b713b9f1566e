//! Whether a process can do its work now, condition by condition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The conditions of a process. All of them must hold.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    stopping: bool,
    /// `None` when a condition holds, else why it does not.
    conditions: BTreeMap<&'static str, Option<String>>,
}

impl Readiness {
    /// Says that a condition holds.
    pub fn holds(&self, condition: &'static str) {
        self.set(condition, None);
    }

    /// Says why a condition does not hold; also how a condition is announced before it was ever looked at.
    pub fn fails(&self, condition: &'static str, why: impl Into<String>) {
        self.set(condition, Some(why.into()));
    }

    /// Never ready again: the process is stopping.
    pub fn stop(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
    }

    /// Whether all conditions hold, and the report of each.
    #[must_use]
    pub fn report(&self) -> (bool, BTreeMap<&'static str, String>) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report: BTreeMap<_, _> = state.conditions.iter().map(|(name, why)| (*name, why.clone().unwrap_or_else(|| "ok".into()))).collect();
        if state.stopping {
            report.insert("process", "stopping".into());
        }
        (!state.stopping && state.conditions.values().all(Option::is_none), report)
    }

    fn set(&self, condition: &'static str, why: Option<String>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.conditions.insert(condition, why.clone());
        match (before.flatten(), why) {
            (Some(_), None) => tracing::info!(condition, "condition holds again"),
            (None, Some(why)) => tracing::warn!(condition, why, "condition does not hold"),
            (Some(old), Some(new)) if old != new => {
                tracing::warn!(condition, why = new, "condition does not hold")
            }
            _ => {}
        }
    }
}
