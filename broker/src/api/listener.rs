//! A listening port: one task per connection, bounded in number, owned by the listener until it is stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mq_runtime::admin_http::{self, BindError};
use mq_runtime::shutdown::Shutdown;
use mq_runtime::tasks::{OnError, Tasks};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;
use tonic::service::Routes;

use super::grpc::context::{Peer, Port};

/// What each HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A new connection has this long to say the preface.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// A silent connection is asked for a sign of life this often, and closed when none comes: dead peers are noticed
/// within 60 s (RB-52).
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls at the same time on one connection.
const STREAMS_MAX: u32 = 4_096;
/// Calls that a client may give up before they were looked at, as all of them do when a node was frozen for a while.
const RESETS_MAX: usize = 4_096;
/// Bytes of request headers.
const HEADERS_MAX: u32 = 64 << 10;
/// Open calls have this long to end when the listener stops.
const DRAIN_MAX: Duration = Duration::from_secs(3);

/// A port that is bound; serves once [`Listener::serve`] is called.
#[derive(Debug)]
pub struct Bound {
    socket: TcpListener,
    address: SocketAddr,
    port: Port,
}

/// A port that serves.
#[derive(Debug)]
pub struct Listener {
    abort: CancellationToken,
    tasks: Tasks,
}

impl Bound {
    /// Binds an address; the error names it.
    pub async fn bind(setting: &'static str, address: &str, port: Port) -> Result<Self, BindError> {
        let socket = admin_http::bind(setting, address).await?;
        let failed = |source| BindError { setting, address: address.to_owned(), source };
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, address, port })
    }

    /// The address with the port that was really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until [`Listener::stop`].
    pub fn serve(self, routes: Routes, connections_max: u32) -> Listener {
        let listener = Listener { abort: CancellationToken::new(), tasks: Tasks::new(Shutdown::new()) };
        let accept = Accept {
            routes: routes.prepare(),
            permits: Arc::new(Semaphore::new(connections_max as usize)),
            stop: listener.tasks.token(),
            abort: listener.abort.clone(),
            tasks: listener.tasks.clone(),
        };
        listener.tasks.spawn("accept connections", OnError::Log, accept.run(self));
        listener
    }
}

impl Listener {
    /// Closes everything at once, as the death of the process would.
    #[cfg(feature = "testkit")]
    pub fn abort(&self) {
        self.abort.cancel();
        self.tasks.shutdown().stop();
    }

    /// Accepts nothing more, lets open calls end, then closes what is left.
    pub async fn stop(&self) {
        self.tasks.shutdown().stop();
        if !self.tasks.wait(DRAIN_MAX + Duration::from_secs(1)).await {
            tracing::warn!("connections did not end in time");
        }
    }
}

struct Accept {
    routes: Routes,
    permits: Arc<Semaphore>,
    stop: CancellationToken,
    abort: CancellationToken,
    tasks: Tasks,
}

impl Accept {
    async fn run(self, bound: Bound) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = bound.socket.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, mostly: connections that end will free some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                tracing::debug!(%address, "refused a connection: limits.connections_max is reached");
                continue;
            };
            let peer = Peer { address, port: bound.port };
            let connection = connection(stream, peer, self.routes.clone(), self.stop.clone());
            let abort = self.abort.clone();
            self.tasks.spawn("connection", OnError::Log, async move {
                abort.run_until_cancelled(connection).await;
                drop(permit);
            });
        }
    }
}

/// Reads the preface; false as soon as what comes is something else.
async fn says_preface(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut first = [0; PREFACE.len()];
    let mut len = 0;
    while len < first.len() {
        match stream.read(&mut first[len..]).await {
            Ok(more @ 1..) => len += more,
            _ => return false,
        }
        if first[..len] != PREFACE[..len] {
            return false;
        }
    }
    true
}

async fn connection(stream: TcpStream, peer: Peer, routes: Routes, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let (mut reading, writing) = stream.into_split();
    if !matches!(tokio::time::timeout(SILENCE_MAX, says_preface(&mut reading)).await, Ok(true)) {
        return;
    }
    let stream = tokio::io::join(PREFACE.as_slice().chain(reading), writing);
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        routes.clone().call(request)
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_header_list_size(HEADERS_MAX);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            match tokio::time::timeout(DRAIN_MAX, serving).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(address = %peer.address, %error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_whole_preface_is_taken() {
        let mut whole: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrest";
        assert!(says_preface(&mut whole).await);
        assert_eq!(whole, b"rest", "what follows is left");
        for mut bad in [&b""[..], b"P", b"GET / HTTP/1.1\r\n\r\n", &PREFACE[..23]] {
            assert!(!says_preface(&mut bad).await);
        }
    }

    #[tokio::test]
    async fn one_byte_and_silence_is_no_preface() {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, b"P").await.expect("room");
        let said = tokio::time::timeout(Duration::from_millis(50), says_preface(&mut ours)).await;
        assert!(said.is_err(), "still waited for, until the time is over");
    }
}
