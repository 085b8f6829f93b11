//! Every task has a name and an owner. The only place that starts one.

use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::exit::Exit;
use crate::shutdown::Shutdown;

/// What an error or a panic of a task means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The process cannot go on without it.
    StopProcess,
    /// One line in the log; everything else goes on.
    Log,
}

/// What a task may end with.
pub trait Outcome: Send + 'static {
    /// The error, for people.
    fn error(self) -> Option<String>;
}

impl Outcome for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: Display + Send + 'static> Outcome for Result<(), E> {
    fn error(self) -> Option<String> {
        self.err().map(|error| format!("{error:#}"))
    }
}

/// Tasks of one owner: they hear of the shutdown, and the owner can wait for them. Clones share them.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: Shutdown,
}

impl Tasks {
    /// None yet.
    #[must_use]
    pub fn new(shutdown: Shutdown) -> Self {
        Self { tracker: TaskTracker::new(), shutdown }
    }

    /// Fires when the tasks are to end.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.shutdown.token()
    }

    /// The shutdown that a failing task asks for.
    #[must_use]
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Starts a task on the current runtime.
    pub fn spawn<F>(&self, name: &'static str, on_error: OnError, task: F) -> JoinHandle<()>
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        self.spawn_on(&Handle::current(), name, on_error, task)
    }

    /// Starts a task on another runtime.
    pub fn spawn_on<F>(
        &self,
        runtime: &Handle,
        name: &'static str,
        on_error: OnError,
        task: F,
    ) -> JoinHandle<()>
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let shutdown = self.shutdown.clone();
        let watched = async move {
            let Some(problem) = run(task).await else { return };
            match on_error {
                OnError::StopProcess => shutdown.fail(Exit::Failed, format!("task `{name}`: {problem}")),
                OnError::Log => tracing::warn!("task `{name}`: {problem}"),
            }
        };
        runtime.spawn(self.tracker.track_future(watched))
    }

    /// Waits until all tasks have ended; false if some still run after `deadline`.
    pub async fn wait(&self, deadline: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }

    /// How many run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}

/// Starts a task that belongs to nobody's shutdown: its owner ends it through what it reads from, or by the handle.
/// A panic is one line in the log.
#[expect(clippy::disallowed_methods, reason = "this is where tasks are started")]
pub fn spawn<F>(name: &'static str, task: F) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        if let Some(problem) = run(task).await {
            tracing::error!("task `{name}`: {problem}");
        }
    })
}

/// Runs a task to its end; what went wrong, if something did.
async fn run<F>(task: F) -> Option<String>
where
    F: Future<Output: Outcome> + Send,
{
    match (CatchPanic { task: Box::pin(task) }).await {
        Ok(outcome) => outcome.error(),
        Err(panic) => Some(format!("panicked: {}", panic_text(&*panic))),
    }
}

struct CatchPanic<'a, T> {
    task: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
}

impl<T> Future for CatchPanic<'_, T> {
    type Output = Result<T, Box<dyn Any + Send>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A future that panicked is not polled again: its state is nobody's business any more.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.task.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn error_of_a_needed_task_stops_the_process() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn("writer", OnError::StopProcess, async { Err::<(), _>("disk is gone") });
        assert!(tasks.wait(SOON).await);
        let failure = tasks.shutdown().failure().expect("a failure");
        assert_eq!((failure.exit, &*failure.reason), (Exit::Failed, "task `writer`: disk is gone"));
        assert!(tasks.token().is_cancelled());
    }

    #[tokio::test]
    async fn panic_of_a_needed_task_stops_the_process() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn("writer", OnError::StopProcess, async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "wrong {}", "turn");
        });
        assert!(tasks.wait(SOON).await);
        let reason = tasks.shutdown().failure().expect("a failure").reason;
        assert_eq!(reason, "task `writer`: panicked: wrong turn");
    }

    #[tokio::test]
    async fn other_tasks_fail_alone() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn("report", OnError::Log, async { Err::<(), _>("nobody listens") });
        tasks.spawn("report", OnError::Log, async { assert!(std::hint::black_box(false), "once") });
        tasks.spawn("report", OnError::StopProcess, async {});
        assert!(tasks.wait(SOON).await);
        assert_eq!((tasks.shutdown().failure(), tasks.running()), (None, 0));
        assert!(!tasks.token().is_cancelled());
    }

    #[tokio::test]
    async fn wait_says_that_a_task_still_runs() {
        let tasks = Tasks::new(Shutdown::new());
        let token = tasks.token();
        tasks.spawn("server", OnError::Log, async move { token.cancelled().await });
        assert!(!tasks.wait(Duration::from_millis(20)).await);
        assert_eq!(tasks.running(), 1);
        tasks.shutdown().stop();
        assert!(tasks.wait(SOON).await);
    }

    #[tokio::test]
    async fn a_task_of_its_own_survives_its_panic_as_a_log_line() {
        spawn("lonely", async { assert!(std::hint::black_box(false), "unseen") })
            .await
            .expect("the panic does not reach the handle");
    }
}
