//! `/metrics` and the probes, for machines that watch this one.
//!
//! Bounded: so many connections, each for so long, so that a scraper that hangs holds nothing.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::tasks::{OnError, Tasks};

/// Connections of one listener at a time; further ones wait in the system's queue.
const CONNECTIONS_MAX: usize = 64;
/// A connection is closed after this time, whatever it is doing.
const CONNECTION_LIFE: Duration = Duration::from_secs(120);

/// Whether the process can do its work.
#[derive(Debug, Clone, PartialEq)]
pub struct Readiness {
    /// True: send requests here.
    pub ready: bool,
    /// Why or why not: shown as `reason`.
    pub reason: serde_json::Value,
}

impl Readiness {
    /// Everything is fine.
    #[must_use]
    pub fn ready() -> Self {
        Self { ready: true, reason: serde_json::Value::Null }
    }

    /// Not now, and why.
    #[must_use]
    pub fn not_ready(reason: impl Into<serde_json::Value>) -> Self {
        Self { ready: false, reason: reason.into() }
    }
}

/// Answers `/readyz`. Called at each request; must not block.
pub type ReadinessCheck = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// `/metrics`.
pub fn metrics_routes(metrics: Metrics) -> Router {
    Router::new().route("/metrics", get(async move || show_metrics(&metrics)))
}

/// `/livez` (200 while the process can answer at all) and `/readyz` (200 or 503, with `{"ready":…,"reason":…}`).
pub fn probe_routes(check: ReadinessCheck) -> Router {
    Router::new()
        .route("/livez", get(async || Json(serde_json::json!({ "live": true }))))
        .route("/readyz", get(async move || show_readiness(check())))
}

fn show_metrics(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn show_readiness(readiness: Readiness) -> Response {
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::json!({ "ready": readiness.ready, "reason": readiness.reason });
    (status, Json(body)).into_response()
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("setting `{setting}`: cannot listen on {address}: {source}")]
pub struct BindError {
    /// Setting that names the address.
    pub setting: &'static str,
    /// The address.
    pub address: String,
    /// Why: mostly that another process listens there.
    pub source: io::Error,
}

/// Listens on `address`, which the setting of this name gave.
pub async fn bind(setting: &'static str, address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError {
        setting,
        address: address.to_owned(),
        source,
    })
}

/// Serves routes until the tasks are asked to end.
pub fn serve(tasks: &Tasks, name: &'static str, listener: TcpListener, routes: Router) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    run(tasks, name, BoundedListener { listener, permits, life: CONNECTION_LIFE }, routes);
}

fn run(tasks: &Tasks, name: &'static str, listener: BoundedListener, routes: Router) {
    let token = tasks.token();
    tasks.spawn(name, OnError::StopProcess, async move {
        // Open connections are cut: nothing here is worth a wait.
        let server = axum::serve(listener, routes).into_future();
        tokio::select! {
            ended = server => ended,
            () = token.cancelled() => Ok(()),
        }
    });
}

struct BoundedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    life: Duration,
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                // Never: the semaphore is never closed.
                return std::future::pending().await;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let end = Box::pin(tokio::time::sleep(self.life));
                    return (BoundedStream { stream, end, _permit: permit }, peer);
                }
                Err(error) => {
                    // Out of descriptors, or a connection that is gone already.
                    tracing::debug!("accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that gives its permit back when it ends, and ends in time.
struct BoundedStream {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl BoundedStream {
    fn check_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_end(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_end(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::shutdown::Shutdown;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answers");
        answer
    }

    async fn start(tasks: &Tasks, routes: Router) -> SocketAddr {
        let listener = bind("admin_listen", "127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        serve(tasks, "probes", listener, routes);
        address
    }

    #[tokio::test]
    async fn probes_say_why_not() {
        let tasks = Tasks::new(Shutdown::new());
        let leader = Arc::new(AtomicBool::new(false));
        let seen = leader.clone();
        let check: ReadinessCheck = Arc::new(move || match seen.load(Ordering::SeqCst) {
            true => Readiness::ready(),
            false => Readiness::not_ready(serde_json::json!({ "broker-a": "no leader" })),
        });
        let address = start(&tasks, probe_routes(check)).await;

        let alive = ask(address, "/livez").await;
        assert!(alive.starts_with("HTTP/1.1 200 ") && alive.ends_with("{\"live\":true}"), "{alive}");
        let waiting = ask(address, "/readyz").await;
        assert!(waiting.starts_with("HTTP/1.1 503 "), "{waiting}");
        assert!(waiting.ends_with("{\"ready\":false,\"reason\":{\"broker-a\":\"no leader\"}}"), "{waiting}");
        leader.store(true, Ordering::SeqCst);
        let ready = ask(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.contains("\"ready\":true"), "{ready}");
        assert!(
            ask(address, "/metrics").await.starts_with("HTTP/1.1 404 "),
            "metrics have their own listener"
        );

        tasks.shutdown().stop();
        assert!(tasks.wait(Duration::from_secs(5)).await);
        assert!(TcpStream::connect(address).await.is_err(), "the port is free again");
    }

    #[tokio::test]
    async fn metrics_are_openmetrics_text() {
        let tasks = Tasks::new(Shutdown::new());
        let address = start(&tasks, metrics_routes(Metrics::new("test", "1"))).await;
        let answer = ask(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(CONTENT_TYPE), "{answer}");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
        tasks.shutdown().stop();
    }

    #[tokio::test]
    async fn port_in_use_names_setting_and_address() {
        let first = bind("metrics_listen", "127.0.0.1:0").await.expect("a free port");
        let address = first.local_addr().expect("bound").to_string();
        let error = bind("metrics_listen", &address).await.expect_err("in use").to_string();
        assert!(
            error.starts_with(&format!("setting `metrics_listen`: cannot listen on {address}: ")),
            "{error}"
        );
    }

    #[tokio::test]
    async fn idle_connections_do_not_lock_others_out_for_ever() {
        let tasks = Tasks::new(Shutdown::new());
        let listener = bind("metrics_listen", "127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let life = Duration::from_millis(200);
        let bounded = BoundedListener { listener, permits: Arc::new(Semaphore::new(1)), life };
        run(&tasks, "metrics", bounded, metrics_routes(Metrics::new("test", "1")));
        let began = std::time::Instant::now();
        let _idle = TcpStream::connect(address).await.expect("listens");
        let answer = ask(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(began.elapsed() >= life, "the second waited for the end of the first");
        tasks.shutdown().stop();
    }
}
