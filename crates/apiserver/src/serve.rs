//! HTTPS: accepts connections, asks each request for the token, and hands it to the router.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{Request, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::error::ApiError;
use crate::server::ApiServer;
use crate::tls::TlsIdentity;
use crate::token::Token;

/// A client has so long to say hello, and as long again to show the token.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// So many connections are served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// Peers of HTTP/2 that are gone without a word are noticed this often, and have so long to answer.
const PING: Duration = Duration::from_secs(30);
/// Requests under way have so long to end; watches never do.
const GRACE: Duration = Duration::from_millis(500);
/// After a failed accept (no descriptors left): time for some to be closed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

impl ApiServer {
    /// Serves until `shutdown`; then no new connections, and those open end soon.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        tls: &TlsIdentity,
        token: Token,
        shutdown: CancellationToken,
    ) {
        let router = self.router().layer(from_fn_with_state(Arc::new(token), require_token));
        let acceptor = TlsAcceptor::from(tls.config.clone());
        let connections = TaskTracker::new();
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let accept = async {
                let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
                listener.accept().await.map(|(stream, _)| (stream, place))
            };
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = accept => accepted,
            };
            match accepted {
                Ok((stream, place)) => {
                    let connection = connection(stream, acceptor.clone(), router.clone(), shutdown.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
        drop(listener);
        connections.close();
        connections.wait().await;
    }
}

/// Whether a connection has shown the token once. One that has may stay: watches last for hours.
#[derive(Debug, Clone, Default)]
struct Admitted(Arc<AtomicBool>);

impl Admitted {
    /// Ends when the client had its time and did not show the token; else never.
    async fn refused(&self) {
        tokio::time::sleep(HANDSHAKE).await;
        if self.0.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

async fn require_token(State(token): State<Arc<Token>>, request: Request<Body>, next: Next) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    if !token.admits(authorization) {
        return ApiError::Unauthorized.into_response();
    }
    if let Some(admitted) = request.extensions().get::<Admitted>() {
        admitted.0.store(true, Ordering::Relaxed);
    }
    next.run(request).await
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router, shutdown: CancellationToken) {
    // Small answers and watch events go out at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    requests(stream, router, shutdown).await;
}

async fn requests<S>(stream: S, router: Router, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(1000);
    http2.keep_alive_interval(PING).keep_alive_timeout(PING);
    let admitted = Admitted::default();
    let of_connection = admitted.clone();
    let service = TowerToHyperService::new(router.map_request(move |mut request: Request<_>| {
        request.extensions_mut().insert(of_connection.clone());
        request
    }));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        // Not the builder's affair: it waits for ever for the first bytes, and HTTP/2 without requests is well to it.
        () = admitted.refused() => return tracing::debug!("a client did not show the token in time"),
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::time::timeout;

    /// A connection whose first words are `words`, to a server of one request that is never answered to its end.
    async fn connected(token: &Token, words: &str) -> DuplexStream {
        let started = || async {
            let events = futures::stream::once(async { Ok::<_, std::io::Error>("event") });
            Body::from_stream(futures::StreamExt::chain(events, futures::stream::pending()))
        };
        let router = Router::new().route("/watch", axum::routing::get(started));
        let router = router.layer(from_fn_with_state(Arc::new(token.clone()), require_token));
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        tokio::spawn(requests(server, router, CancellationToken::new()));
        client.write_all(words.as_bytes()).await.unwrap();
        client
    }

    async fn ends(mut client: DuplexStream, limit: Duration) -> Option<Vec<u8>> {
        let mut said = Vec::new();
        timeout(limit, client.read_to_end(&mut said)).await.ok().map(|_| said)
    }

    #[tokio::test]
    async fn without_the_token_no_connection_lasts_and_with_it_a_watch_does() {
        let token = Token::generate();
        let start = Instant::now();
        let http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let watch = format!("GET /watch HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", token.secret());
        let limit = HANDSHAKE * 3 / 2;
        let (silent, half, http2, refused, watching) = tokio::join!(
            ends(connected(&token, "").await, limit),
            ends(connected(&token, "GET /watch HT").await, limit),
            ends(connected(&token, http2).await, limit),
            ends(connected(&token, "GET /watch HTTP/1.1\r\nHost: a\r\n\r\n").await, limit),
            ends(connected(&token, &watch).await, limit),
        );
        assert!(silent.is_some() && half.is_some() && http2.is_some(), "{silent:?} {half:?} {http2:?}");
        assert!(refused.is_some_and(|said| said.starts_with(b"HTTP/1.1 401")));
        assert!(watching.is_none(), "{watching:?} after {:?}", start.elapsed());
    }
}
