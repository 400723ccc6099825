//! HTTPS: accepts connections, asks each request for the token, and hands it to the router.

use std::sync::Arc;
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
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ApiError;
use crate::server::ApiServer;
use crate::tls::TlsIdentity;
use crate::token::Token;

/// A client has so long to say hello.
const HANDSHAKE: Duration = Duration::from_secs(10);
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
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let connection = connection(stream, acceptor.clone(), router.clone(), shutdown.clone());
                    connections.spawn(connection);
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

async fn require_token(State(token): State<Arc<Token>>, request: Request<Body>, next: Next) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    if !token.admits(authorization) {
        return ApiError::Unauthorized.into_response();
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
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1000);
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
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
