//! The API port: a bounded number of connections, each watched for signs of life.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use mq_runtime::tasks::{OnError, Tasks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// A silent connection is asked for a sign of life this often, and closed when none comes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls at the same time on one connection.
const STREAMS_MAX: u32 = 1_024;
/// Pause after an accept that failed, mostly because the process has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Open calls have this long to end when the port closes.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The port while it serves.
#[derive(Debug)]
pub struct Api {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: Tasks,
}

impl Api {
    /// Serves until [`Api::stop`].
    pub(crate) fn serve(
        listener: TcpListener,
        routes: Routes,
        connections_max: u32,
        tasks: Tasks,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let permits = Arc::new(Semaphore::new(connections_max as usize));
        let asked = stop.clone();
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
            .max_concurrent_streams(STREAMS_MAX)
            .add_routes(routes);
        let serve = async move {
            let drained = asked.clone();
            let serving = server.serve_with_incoming_shutdown(connections(listener, permits), async move {
                asked.cancelled().await
            });
            let too_late = async {
                drained.cancelled().await;
                tokio::time::sleep(DRAIN_MAX).await;
            };
            tokio::select! {
                served = serving => served,
                () = too_late => Ok(()),
            }
        };
        tasks.spawn("api", OnError::StopProcess, serve);
        Ok(Self { address, stop, tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets open calls end, closes.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.wait(DRAIN_MAX + Duration::from_secs(1)).await;
    }
}

/// Connections as they come, at most as many at a time as there are permits; further ones wait in the system's queue.
fn connections(
    listener: TcpListener,
    permits: Arc<Semaphore>,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    futures::stream::unfold((listener, permits), |(listener, permits)| async move {
        let permit = permits.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Small answers must not wait for the peer's delayed acknowledgement.
                    if stream.set_nodelay(true).is_ok() {
                        return Some((Ok(Connection { stream, _permit: permit }), (listener, permits)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// A connection that gives its permit back when it ends.
struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
