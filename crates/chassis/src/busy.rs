//! How busy a process is: the share of its capacity that was in use since the last look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Sums up the time that work took.
#[derive(Debug)]
pub struct Busy {
    nanos: AtomicU64,
    seen: Mutex<(Instant, u64)>,
}

impl Default for Busy {
    fn default() -> Self {
        Self { nanos: AtomicU64::new(0), seen: Mutex::new((Instant::now(), 0)) }
    }
}

impl Busy {
    /// Adds what a piece of work took.
    pub fn add(&self, took: Duration) {
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The share of `width` workers that was busy since the last call, from 0 to 1.
    pub fn share(&self, width: usize) -> f64 {
        let (now, nanos) = (Instant::now(), self.nanos.load(Ordering::Relaxed));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *seen, (now, nanos));
        let whole = now.duration_since(since).as_secs_f64() * width.max(1) as f64;
        let busy = Duration::from_nanos(nanos.saturating_sub(before)).as_secs_f64();
        if whole > 0.0 { (busy / whole).clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_time_since_the_last_look_and_never_more_than_all_of_it() {
        let busy = Busy::default();
        busy.add(Duration::from_secs(1000));
        assert!((busy.share(2) - 1.0).abs() < f64::EPSILON);
        assert!(busy.share(2) < f64::EPSILON, "nothing was added since");
    }
}
