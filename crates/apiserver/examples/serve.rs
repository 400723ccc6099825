//! Serves the API by itself, for a look at it with kubectl: `serve ADDRESS KUBECONFIG [DIR]`. Ends with SIGINT.

use std::path::{Path, PathBuf};

use signpost_apiserver::{ApiConfig, ApiServer, TlsIdentity, Token, kubeconfig, write_private};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve ADDRESS KUBECONFIG [DIR]".into());
    };
    let listener = tokio::net::TcpListener::bind(&address).await?;
    let local = listener.local_addr()?;
    let config = ApiConfig {
        dir: arguments.next().map(PathBuf::from),
        service_cidrs: vec!["10.96.0.0/12".parse()?, "fd00:10:96::/112".parse()?],
        advertise: vec![local],
        ..ApiConfig::default()
    };
    let server = ApiServer::open(config).await?;
    let (tls, token) = (TlsIdentity::generate(&[local.ip()], &[])?, Token::generate());
    write_private(Path::new(&file), kubeconfig(&format!("https://{local}"), &tls, &token).as_bytes())?;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn({
        let (server, shutdown) = (server.clone(), shutdown.clone());
        async move { server.serve(listener, &tls, token, shutdown).await }
    });
    println!("serving on https://{local}; export KUBECONFIG={file}");
    tokio::signal::ctrl_c().await?;
    shutdown.cancel();
    serving.await?;
    server.close();
    Ok(())
}
