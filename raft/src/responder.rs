//! How the outcome of one frame comes back from openraft: exactly once, also when openraft drops it.

use openraft::OptionalSend;
use openraft::raft::responder::Responder;

use crate::types::TypeConfig;

type Done<T> = Box<dyn FnOnce(Option<T>) + Send>;

/// Calls back with the outcome, or with `None` when it was dropped (the outcome is then unknown).
pub struct FrameResponder<T: 'static> {
    done: Option<Done<T>>,
}

impl<T: 'static> FrameResponder<T> {
    pub(crate) fn new(done: impl FnOnce(Option<T>) + Send + 'static) -> Self {
        Self { done: Some(Box::new(done)) }
    }

    fn finish(&mut self, outcome: Option<T>) {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
    }
}

impl<T: 'static> Drop for FrameResponder<T> {
    fn drop(&mut self) {
        self.finish(None);
    }
}

impl<T: OptionalSend + 'static> Responder<TypeConfig, T> for FrameResponder<T> {
    fn on_complete(mut self, result: T) {
        self.finish(Some(result));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_dropped_responder_reports_unknown_and_an_answered_one_reports_once() {
        let (sender, receiver) = channel();
        let again = sender.clone();
        drop(FrameResponder::<u8>::new(move |outcome| sender.send(outcome).expect("receiver lives")));
        FrameResponder::new(move |outcome| again.send(outcome).expect("receiver lives")).on_complete(7);
        assert_eq!(receiver.iter().collect::<Vec<Option<u8>>>(), [None, Some(7)]);
    }
}
