//! The process's metrics: registered once, read by `/metrics`.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the process; clones share them.
///
/// A crate registers what it measures once, at its start, and keeps the metric itself: counting takes no lock here.
/// Values that are cheaper to ask for than to keep are collectors (`Registry::register_collector`).
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Nothing but the build's version: `mq_build_info{program="…",version="…"} 1`.
    #[must_use]
    pub fn new(program: &str, version: &str) -> Self {
        let mut registry = Registry::default();
        let labels = vec![("program", program.to_owned()), ("version", version.to_owned())];
        registry.register("mq_build", "What is running", Info::new(labels));
        Self { registry: Arc::new(Mutex::new(registry)) }
    }

    /// Registers metrics. A name that is registered twice is shown twice: the caller sees to it that it is not.
    pub fn register<R>(&self, register: impl FnOnce(&mut Registry) -> R) -> R {
        register(&mut self.registry.lock())
    }

    /// All metrics as OpenMetrics text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn registered_values_are_shown() {
        let metrics = Metrics::new("mqbroker", "0.1.0");
        let sent: Counter = Counter::default();
        metrics.register(|registry| registry.register("mq_sends", "Sends answered OK", sent.clone()));
        sent.inc_by(3);
        let text = metrics.clone().encode().expect("a string takes everything");
        assert!(text.contains("mq_sends_total 3\n"), "{text}");
        assert!(text.contains("mq_build_info{program=\"mqbroker\",version=\"0.1.0\"} 1\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
