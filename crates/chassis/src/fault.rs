//! Named points at which a test can make the process die, as if killed between two steps.
//!
//! In a release build a point is nothing. In a debug build `COUNTERFOIL_FAULT=<point>` makes it abort there.

/// Dies here when the environment asks for it.
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    {
        static ASKED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        if ASKED.get_or_init(|| std::env::var("COUNTERFOIL_FAULT").ok()).as_deref() == Some(name) {
            tracing::error!(point = name, "dying here, as COUNTERFOIL_FAULT asks");
            std::process::abort();
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}
